"""The network of a build sandbox: one package index, and a record of whatever else was tried.

A build runs code that nobody has read. Its sandbox has a network of its own with nothing in it but
a port of the index proxy, whose listening socket was made inside and is answered from out here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from minisandbox.build.index.proxy import IndexProxy
from minisandbox.records.lock import IndexFile
from minisandbox.records.plan import Network
from minisandbox.records.stages import NetworkUse
from minisandbox.sandbox import Attempt, Profile, Sandbox
from minisandbox.sandbox.watching import OTHERS

#: Port of the index on the sandbox's loopback; nothing else listens there, so it can be fixed.
INDEX_PORT = 3141
INDEX_URL = f"http://127.0.0.1:{INDEX_PORT}/simple/"

#: What makes pip, uv and (through ``DISTUTILS_CONFIG``) easy_install ask the proxy. Retries are the
#: proxy's business, and a first answer may take long: the file may have to come from far away.
INDEX_VARIABLES: Mapping[str, str] = {
    "PIP_INDEX_URL": INDEX_URL,
    "PIP_DEFAULT_TIMEOUT": "300",
    "PIP_RETRIES": "1",
    "UV_DEFAULT_INDEX": INDEX_URL,
    "UV_HTTP_TIMEOUT": "300",
}

#: easy_install, which ``setup_requires`` of old setuptools runs, reads no variable but this file.
DISTUTILS_CONFIG = "/root/.pydistutils.cfg"
DISTUTILS_TEXT = f"[easy_install]\nindex_url = {INDEX_URL}\n"

#: Connections that say nothing about a build: to the index, and those by which the C library looks
#: for the name service's cache.
_EXPECTED = re.compile(rf"127\.0\.0\.1:{INDEX_PORT}|unix:(/var)?/run/nscd/socket|family 0")

#: Addresses that a record lists; one entry more says how many others there were.
_MAX_TRIED = 100


@dataclass(frozen=True)
class IndexAccess:
    """What the index of a build holds: files uploaded until the end of ``date`` (UTC, all of them
    if it is empty), or exactly those of a ``lock``. ``cache`` is where files are kept.
    """

    cache: Path
    date: str = ""
    lock: tuple[IndexFile, ...] | None = field(default=None, repr=False)


def build_profile(network: Network) -> Profile:
    """The sandbox profile for a build; ``redirect_dir`` is off, because its upper is packed."""
    if network == "index":
        return Profile(network="none", listen=(INDEX_PORT,), watch=True, redirect_dir=False)
    if network == "none":
        return Profile(network="none", watch=True, redirect_dir=False)
    return Profile(network="host", redirect_dir=False)


class Egress:
    """What a build sandbox may reach, from its start to :meth:`close`."""

    def __init__(self, sandbox: Sandbox, index: IndexAccess | None, *, watch: bool) -> None:
        self._sandbox = sandbox
        self._watch = watch
        self._ends = ExitStack()
        self._proxy: IndexProxy | None = None
        if index is not None:
            proxy = IndexProxy(cache=index.cache, date=index.date or None, only=index.lock)
            self._proxy = self._ends.enter_context(proxy)
            proxy.serve(sandbox.listeners[INDEX_PORT])

    def forget_failures(self) -> None:
        """Begin a command: what went wrong before it does not explain how it ends."""
        if self._proxy:
            self._proxy.forget_failures()

    @property
    def unreachable(self) -> str:
        """Why the index behind the proxy could not be reached since :meth:`forget_failures`, or
        nothing.
        """
        return self._proxy.unreachable if self._proxy else ""

    @property
    def unusable(self) -> str:
        """Why the index or its cache cannot serve this build until somebody acts, found out since
        :meth:`forget_failures`, or nothing.
        """
        return self._proxy.unusable if self._proxy else ""

    def use(self) -> NetworkUse:
        """What was asked of the network so far; also after :meth:`close`."""
        proxy = self._proxy
        return NetworkUse(
            files=proxy.served if proxy else (),
            refused=proxy.refused if proxy else (),
            tried=listed(self._sandbox.attempts()),
            undated=proxy.undated if proxy else 0,
            unwatched=self._sandbox.watched if self._watch else "the build had the host's network",
        )

    def path(self, file: IndexFile) -> Path:
        """Where a served file lies on this machine."""
        assert self._proxy is not None
        return self._proxy.path(file)

    def close(self) -> None:
        """Stop answering; harmless when done already."""
        self._ends.close()


def listed(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Addresses for a record, in order, without those that each build tries; where there are too
    many, the last entry says how many more.
    """
    tried = [attempt.address for attempt in attempts if not _EXPECTED.fullmatch(attempt.address)]
    uncounted = OTHERS in tried  # more addresses than the sandbox itself can tell apart
    addresses = tried[:-1] if uncounted else tried
    more = max(len(addresses) - _MAX_TRIED, 0)
    if uncounted:
        return (*addresses[:_MAX_TRIED], f"and at least {more + 1} more")
    return (*addresses[:_MAX_TRIED], *([f"and {more} more"] if more else []))
