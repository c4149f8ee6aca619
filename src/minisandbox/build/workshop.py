"""A build sandbox: run commands on layers, log them, and pack what they changed as the next
layer.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from minisandbox.build.index.egress import (
    DISTUTILS_CONFIG,
    DISTUTILS_TEXT,
    INDEX_VARIABLES,
    Egress,
    IndexAccess,
    build_profile,
)
from minisandbox.build.index.upstream import index_settings, index_url
from minisandbox.build.stage import RAISE_LIMITS
from minisandbox.errors import StageFailed, UnpackableTree, keep_facts
from minisandbox.evaluate.causes import missing_program
from minisandbox.records.layer import LayerKind, LayerRef
from minisandbox.records.lock import IndexFile
from minisandbox.records.plan import Network
from minisandbox.records.stages import NetworkUse
from minisandbox.runtime.instance import environment_variables
from minisandbox.runtime.stack import stack
from minisandbox.sandbox import Bind, Limits, Result, Sandbox
from minisandbox.store import NodeStore, Store, default_node_root

#: Where what a build needs, and a finished instance does not, appears inside.
TOOLS = "/run/minisandbox"
#: Download and build caches: on disk, never packed.
CACHE = "/var/cache/minisandbox"

#: Date of files in layers (2020-01-01): which day they were packed must not matter, and a file that
#: layers of one kind share on a node can have but one.
LAYER_DATE = 1577836800

#: Seconds later, by kind. A layer that replaces a file of a layer below it by one of the same size
#: must not give it the same date: byte-code of the one would run for the other. What an install
#: made is newer than what it was made from. The odd seconds are those of git indices.
_LATER: Mapping[str, int] = {"environment": 2, "source": 4, "instance": 6, "bug": 8}


def layer_date(kind: LayerKind) -> int:
    """The date of the files in layers of this kind, in unix seconds."""
    return LAYER_DATE + _LATER.get(kind, 0)


_UNPACKED = (
    "dev",
    "proc",
    "sys",
    "tmp",
    "run",
    "root/.cache",
    DISTUTILS_CONFIG.lstrip("/"),
    "var/tmp",
    "var/cache",
)

#: What installers say when the network, not the request, was at fault.
UNREACHABLE = re.compile(
    r"connection (refused|reset|aborted|timed out)|error sending request|dns error|timed out"
    r"|temporary failure in name resolution|name or service not known|max retries exceeded"
    r"|\b(429 too many|50[0234] )|failed to establish a new connection|network is unreachable",
    re.IGNORECASE,
)

#: How programs of any kind say ENOSPC.
_FULL = os.strerror(errno.ENOSPC)
#: How far from the end of an output: compilers and installers that gave up add lines of their own.
_TAIL = 4000

#: What of a command's output goes into the log, per command.
_MAX_LOGGED = 8 * 2**20


class Workshop:
    """A build sandbox as a context manager. ``seconds`` adds up time by purpose.

    ``index`` says what the package index holds, where ``network`` is ``index``; only builds that
    run foreign code have one. Whatever they fail with brings along what they asked of the network
    and what they ran under, for those fields of the record. ``limits`` are the defaults of
    ``sandbox.Limits`` unless given.
    """

    def __init__(
        self,
        layers: Sequence[LayerRef],
        *,
        store: Store,
        network: Network,
        log: Path,
        name: str,
        binds: Sequence[Bind] = (),
        env: Mapping[str, str] | None = None,
        index: IndexAccess | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.store = store
        self.log = log
        self.network: Network = network
        self._foreign = index is not None
        self.seconds: dict[str, float] = {}
        settings = index_settings() if network == "host" else None
        self.profile = replace(
            build_profile(network),
            binds=(*binds, *(settings.binds if settings else ())),
            limits=limits or Limits(),
        )
        variables = {
            **environment_variables(self.profile.network),
            "UV_CACHE_DIR": f"{CACHE}/uv",
            "PIP_CACHE_DIR": f"{CACHE}/pip",
            "UV_PYTHON_DOWNLOADS": "never",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",  # virtualenv writes RECORD in the order of a set
            "TMPDIR": "/var/tmp",  # on disk; compilers fill a /tmp that is memory
            **(settings.variables if settings else {}),
            **(INDEX_VARIABLES if network == "index" else {}),
            **(env or {}),
        }
        variables["PATH"] += f":{TOOLS}/bin"
        node = NodeStore(default_node_root())
        self._node = node
        log.parent.mkdir(parents=True, exist_ok=True)
        with stack(layers, store=store, node=node) as stacked:
            self.sandbox = Sandbox.start(
                stacked.layers,
                base=stacked.base,
                scratch=node.scratch,
                idmap=node.idmap,
                profile=self.profile,
                env=variables,
                cwd="/",
                name=name,
                lease=stacked.lease,
            )
        try:
            access = index if network == "index" else None
            self._egress = Egress(self.sandbox, access, watch=self.profile.watch)
            if network == "index":
                self.sandbox.write_file(DISTUTILS_CONFIG, DISTUTILS_TEXT)
        except BaseException:
            self.sandbox.close()
            raise

    def __enter__(self) -> Workshop:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._egress.close()
        self.sandbox.close()
        if error is not None and self._foreign:
            keep_facts(error, network=self.network_use(), **self.ran_under)

    @property
    def ran_under(self) -> Mapping[str, Any]:
        """What a record says of the sandbox."""
        return {"profile": self.profile.digest(), "limits": self.profile.limits.identity()}

    def network_use(self) -> NetworkUse:
        """What was asked of the network so far."""
        return self._egress.use()

    def index_file(self, file: IndexFile) -> Path:
        """Where a file that the index served lies on this machine."""
        return self._egress.path(file)

    def run(
        self,
        command: str | Sequence[str],
        *,
        failure: str,
        what: str,
        purpose: str = "",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        stdin: bytes | None = None,
        quiet: bool = False,
        hint: str = "",
    ) -> Result:
        """Run and log; raises ``StageFailed`` unless it exits 0.

        Its kind is ``timeout`` for a time-out, ``index`` if the package index failed meanwhile,
        ``limit`` if something was ended for a limit of the sandbox, ``store`` if a disk is full,
        ``program`` for want of one that the base lacks, else ``failure``.

        ``quiet`` keeps the command's text out of the log (scripts of ours), never its output.

        """
        start = time.monotonic()
        self._egress.forget_failures()
        result = self.sandbox.run(
            command,
            env=env,
            cwd=cwd,
            timeout=timeout,
            stdin=stdin,
            merge_stderr=True,
            max_output=_MAX_LOGGED,
        )
        self.seconds[purpose or what] = round(
            self.seconds.get(purpose or what, 0.0) + time.monotonic() - start, 3
        )
        self._write_log(what if quiet else _text(command), result)
        if result.timed_out:
            raise StageFailed(
                "timeout",
                f"{what} took more than {timeout:.0f} s",
                hint="raise 'timeout' in the config",
            )
        if result.exit_code != 0:
            raise self._failed(failure, what, result, hint)
        return result

    def _failed(self, failure: str, what: str, result: Result, hint: str) -> StageFailed:
        unreachable = self._egress.unreachable
        if not unreachable and self.network == "host" and UNREACHABLE.search(result.text):
            unreachable = f"the package index {index_url()} could not be reached"
        said = f"{what} ended with {result.exit_code}: {_decisive(result)}"
        cause = unreachable or self._egress.unusable
        if cause:  # installers tell it in many ways, of which most blame what was asked for
            failure, message, hints = "index", cause, [said]
        elif result.limit:
            reached = self.reached_limit(what, result)
            failure, message, hints = reached.kind, reached.message, [said, reached.hint]
        elif _FULL in result.text[-_TAIL:]:
            room = f"a disk is full: check the free space of {self._node.root}"
            failure, message, hints = "store", said, [room]
        elif (missing := missing_program(result.text[-_TAIL:])) and self._lacks(missing.what):
            wants = f"{what} wants {missing.what}, a program of the system that is not there"
            failure, message = "program", f"{wants}: {missing.line}"
            hints = ["have the base bring it ('system_packages' in the recipe)", hint]
        else:
            message, hints = said, [hint]
        use = self._egress.use()
        if use.tried:
            first = ", ".join((*use.tried[:5], *(["and others"] if len(use.tried) > 5 else [])))
            hints.append(f"it tried to reach {first}, and builds reach only the index")
        if use.undated:
            hints.append(
                f"{use.undated} files do not exist at a date, because the index gives no upload "
                "time for them"
            )
        return StageFailed(
            failure,
            message,
            hint="; ".join(filter(None, hints)),
            transient=bool(unreachable),
        )

    def _lacks(self, program: str) -> bool:
        """Whether it is not there: what a command prints may be about something else."""
        words = ["/bin/bash", "-c", 'command -v -- "$1"', "bash", program]
        return self.sandbox.run(words, timeout=60).exit_code != 0

    def reached_limit(self, what: str, result: Result) -> StageFailed:
        """The failure of a command in whose time something was ended for a limit."""
        value = self.profile.limits.identity()[result.limit]
        return StageFailed(
            "limit",
            f"{what} reached the limit of its sandbox on {result.limit}, {value}",
            hint=RAISE_LIMITS,
        )

    def end_processes(self) -> None:
        """End whatever earlier commands left running; only PID 1 is spared."""
        # The monitor of this very command is among them, so how it ends says nothing.
        self.sandbox.run(["/bin/bash", "-c", "kill -KILL -1"], timeout=60)

    def pack(
        self,
        kind: LayerKind,
        *,
        newer: frozenset[str] = frozenset(),
        without: Sequence[str] = (),
        exclude: Callable[[str], bool] | None = None,
    ) -> LayerRef:
        """End the sandbox and pack what was changed in it, dated by ``layer_date``. ``without`` are
        paths that are not packed, beside those that never are of environments; ``exclude`` says it
        instead of both.
        """
        start = time.monotonic()
        self._egress.close()  # before its socket goes with the sandbox
        upper = self.sandbox.seal()
        try:
            layer = self.store.add(
                kind,
                upper,
                date=layer_date(kind),
                idmap=self._node.idmap,
                exclude=exclude or partial(is_below, (*_UNPACKED, *without)),
                newer=newer,
            )
        except UnpackableTree as error:
            raise StageFailed(
                "install" if kind in ("instance", "bug") else kind, str(error)
            ) from None
        self.seconds["pack"] = round(self.seconds.get("pack", 0.0) + time.monotonic() - start, 3)
        return layer

    def _write_log(self, text: str, result: Result) -> None:
        with self.log.open("ab") as log:
            log.write(f"$ {text}\n".encode("utf-8", "surrogateescape"))
            log.write(result.stdout)
            if result.stdout and not result.stdout.endswith(b"\n"):
                log.write(b"\n")
            log.write(f"[exit {result.exit_code}, {result.duration:.1f} s]\n".encode())
            log.flush()
            os.fsync(log.fileno())


def is_below(prefixes: Sequence[str], path: str) -> bool:
    """Whether ``path`` is one of ``prefixes``, or in one of them."""
    return any(path == prefix or path.startswith(prefix + "/") for prefix in prefixes)


def _text(command: str | Sequence[str]) -> str:
    return command if isinstance(command, str) else shlex.join(command)


def _decisive(result: Result) -> str:
    """What of an output tells most: from the last line that names an error, else the last line."""
    lines = [line.strip() for line in result.text.splitlines() if line.strip()]
    start = max((i for i, line in enumerate(lines) if "error" in line.lower()), default=-1)
    return " ".join(lines[start:])[:400] or "no output"
