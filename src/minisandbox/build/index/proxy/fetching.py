"""Requests to the index: patient where a server is busy, and silent about credentials.

Invariant: an address that is shown, kept or compared has no credentials in it; they travel beside
it. Knows nothing of projects, dates or locks.
"""

from __future__ import annotations

import http.cookiejar
import random
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import urljoin, urlsplit

import requests
from cachecontrol import CacheControlAdapter
from cachecontrol.heuristics import BaseHeuristic
from requests.utils import get_auth_from_url
from urllib3 import HTTPResponse, Retry
from urllib3.exceptions import HTTPError, InvalidHeader

from minisandbox.build.index.proxy.pagecache import PageCache
from minisandbox.build.index.upstream import certificates, without_credentials
from minisandbox.errors import StageFailed

T = TypeVar("T")

#: Seconds to connect, and between two pieces of an answer.
_TIMEOUT = (10, 30)
#: The largest page of PyPI (grpcio) has 5 MB; a page is held in memory.
_MAX_PAGE = 64 << 20
_PIECE = 64 << 10
#: Answers that ask to come back later: rate limits and gateways without a server behind them.
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
#: A 401 is not here: a wrong password must not look like an empty index.
_ABSENT = frozenset({404, 410, 451})
#: Means "slow down" where a gateway limits rates, and "not here" where a store of files, which must
#: not tell what it has, does not have the file.
_FORBIDDEN = 403
#: How S3 and its kin say the latter, the documentation of GetObject has it; an index can be nothing
#: but files there (download.pytorch.org). Rates they limit with a 503.
_NOT_IN_STORE = b"<Code>AccessDenied</Code>"
#: For how many seconds a page of an index that says nothing of caching is taken as it is.
_PAGE_AGE = 600


@dataclass(frozen=True)
class Patience:
    """How long a busy index is asked again: ``attempts`` in all, pauses that double from ``first``.

    ``total`` bounds the seconds between the first attempt and the last; an index that asks for a
    longer pause (``Retry-After``) is not asked again.
    """

    attempts: int = 5
    first: float = 1.0
    total: float = 60.0


@dataclass(frozen=True)
class Address:
    """A URL without credentials, and the credentials."""

    url: str
    login: tuple[str, str] | None = None

    @classmethod
    def of(cls, url: str) -> Address:
        """Take the credentials out of ``url``."""
        name, password = get_auth_from_url(url)
        return cls(without_credentials(url), (name, password) if name or password else None)

    @property
    def server(self) -> str:
        """Host and port, for sentences."""
        return urlsplit(self.url).netloc or self.url

    def join(self, reference: str, *, base: str = "") -> Address:
        """The address that a page means by ``reference``; the login stays on its own server."""
        target = Address.of(urljoin(base or self.url, reference))
        mine, other = urlsplit(self.url), urlsplit(target.url)
        if target.login is None and (mine.scheme, mine.netloc) == (other.scheme, other.netloc):
            return Address(target.url, self.login)
        return target


@dataclass(frozen=True)
class Page:
    """The answer of an index; ``url`` is where it came from after redirections."""

    url: str
    content_type: str
    body: bytes


class _Later(Exception):
    """This attempt failed in a way that may pass; ``pause`` is what the server asks for."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        self.reason = reason
        self.pause = pause
        super().__init__(reason)


class _Aging(BaseHeuristic):
    """Pages of an index that sends neither an age nor a validator are fresh for a while."""

    def update_headers(self, response: HTTPResponse) -> dict[str, str]:
        said = {name.lower() for name in response.headers}
        if response.status != 200 or said & {"cache-control", "expires", "etag", "last-modified"}:
            return {}
        return {"cache-control": f"max-age={_PAGE_AGE}"}

    def warning(self, response: HTTPResponse) -> None:
        """The header is for nobody but ourselves."""


class Fetcher:
    """Gets pages and files; safe to use from many threads.

    All of its failures are ``StageFailed``, transient where it may help to try again.
    """

    def __init__(self, cache: Path, *, patience: Patience, closing: threading.Event) -> None:
        self._patience = patience
        self._closing = closing
        self._down: dict[str, tuple[float, str]] = {}
        self._pages = _session()
        # Files do not go through this cache: it would hold them in memory, and not check them.
        for scheme in ("http://", "https://"):
            adapter = CacheControlAdapter(cache=PageCache(cache), heuristic=_Aging())
            self._pages.mount(scheme, adapter)
        self._files = _session()

    def page(self, address: Address, parse: Callable[[Page], T], *, accept: str) -> T | None:
        """A page as ``parse`` makes of it; ``None`` where the server says that there is none.

        A page that ``parse`` rejects with ``ValueError`` is asked for once more, past the cache.
        """
        headers = {"Accept": accept}

        def attempt() -> Page | None:
            with self._answer(self._pages, address, headers) as response:
                if response is None:
                    return None
                body = bytearray()
                for piece in response.iter_content(_PIECE):
                    body += piece
                    if len(body) > _MAX_PAGE:
                        raise StageFailed(
                            "index", f"{address.url} is a page of more than {_MAX_PAGE >> 20} MB"
                        )
                kind = response.headers.get("Content-Type", "")
                return Page(without_credentials(response.url), kind.lower(), bytes(body))

        page = self._patiently(address.server, attempt)
        if page is None:
            return None
        try:
            return parse(page)
        except ValueError:
            headers["Cache-Control"] = "no-cache"
        page = self._patiently(address.server, attempt)
        if page is None:
            return None
        try:
            return parse(page)
        except ValueError as error:
            raise StageFailed(
                "index",
                f"{address.url} is not a page of a package index ({error})",
                hint="check PIP_INDEX_URL and PIP_EXTRA_INDEX_URL",
            ) from None

    def copy(
        self, address: Address, start: Callable[[], object], write: Callable[[bytes], object]
    ) -> bool:
        """Hand the content of a file to ``write``; false where the server does not have it.

        ``start`` is called before each attempt: what was written before it is void.
        """

        def attempt() -> bool:
            # `identity`, because a file that the transfer decodes is not the one with the digest.
            with self._answer(self._files, address, {"Accept-Encoding": "identity"}) as response:
                if response is None:
                    return False
                start()
                for piece in response.iter_content(_PIECE):
                    if self._closing.is_set():
                        raise StageFailed("index", "the index proxy was closed", transient=True)
                    write(piece)
                return True

        return self._patiently(address.server, attempt)

    def close(self) -> None:
        """Give back idle connections; transfers that run end at their next piece."""
        self._pages.close()
        self._files.close()

    @contextmanager
    def _answer(
        self, session: requests.Session, address: Address, headers: dict[str, str]
    ) -> Generator[requests.Response | None]:
        """A streamed answer of status 200, or ``None`` for what is not there."""
        bundle = certificates()
        try:
            with session.get(
                address.url,
                headers=headers,
                auth=address.login,
                timeout=_TIMEOUT,
                stream=True,
                verify=True if bundle is None else str(bundle),
            ) as response:
                code = response.status_code
                absent = code in _ABSENT
                if code == _FORBIDDEN:
                    absent = session is self._files or _denied_by_store(response)
                if code in _BUSY or (code == _FORBIDDEN and not absent):
                    raise _Later(f"it answers HTTP {code}", _retry_after(response))
                if code != 200 and not absent:
                    raise StageFailed("index", f"{address.url} answers HTTP {code}")
                yield response if code == 200 else None
        except (requests.RequestException, HTTPError) as error:
            # Never the error's own text: it may repeat a proxy's address with its password.
            reason = type(error).__name__
            if isinstance(error, ValueError):
                # How requests says that it cannot use an address at all (file://).
                raise StageFailed("index", f"{address.url} cannot be used ({reason})") from None
            raise _Later(f"the connection failed ({reason})") from None

    def _patiently(self, server: str, attempt: Callable[[], T]) -> T:
        """``attempt`` until it gives something, or patience ends; then the server counts as down.

        While it does, nothing is asked of it: installers try again by themselves, and each of their
        requests would wait through all pauses anew.
        """
        down_until, reason = self._down.get(server, (0.0, ""))
        if time.monotonic() < down_until:
            raise _unreachable(server, reason)
        begin = time.monotonic()
        for number in range(self._patience.attempts):
            try:
                return attempt()
            except _Later as later:
                reason = later.reason
                # Spread out, or all builds that were told to slow down come back at once.
                pause = self._patience.first * 2**number * random.uniform(1, 1.5)
                pause = max(pause, later.pause or 0.0)
                last = number + 1 == self._patience.attempts
                if last or time.monotonic() + pause - begin > self._patience.total:
                    break
                self._pause(pause)
                if self._closing.is_set():
                    break
        self._down[server] = (time.monotonic() + self._patience.total / 2, reason)
        raise _unreachable(server, reason)

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)


def _unreachable(server: str, reason: str) -> StageFailed:
    return StageFailed(
        "index",
        f"the package index at {server} cannot be reached: {reason}",
        hint="check the network and PIP_INDEX_URL, or try again later",
        transient=True,
    )


def _session() -> requests.Session:
    session = requests.Session()
    # Two builds must not meet in a cookie.
    session.cookies.set_policy(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
    return session


def _denied_by_store(response: requests.Response) -> bool:
    """Whether a 403 comes from a store of files, and not from what limits rates before an index."""
    return _NOT_IN_STORE in next(response.iter_content(_PIECE), b"")


def _retry_after(response: requests.Response) -> float | None:
    """The seconds that a busy server asks to wait for."""
    said = response.headers.get("Retry-After")
    if not said:
        return None
    try:
        return cast("float | None", Retry().parse_retry_after(said))
    except InvalidHeader:
        return None
