"""The client's way to the processes inside one sandbox: requests, and how they are answered.

Each request has a channel of its own, a socket whose other end goes to the monitor that serves it.
Invariant: a request that fails is an error of its own kind, a sandbox that is gone is
:class:`SandboxDied`, and the two are never confused.
"""

from __future__ import annotations

import contextvars
import errno
import itertools
import os
import posixpath
import socket
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from minisandbox.errors import InvalidInput, SandboxDied, SandboxFileError
from minisandbox.sandbox import arguments, capture, wire
from minisandbox.sandbox.launch import Link
from minisandbox.sandbox.steps import Cancelled, Steps, Wait

#: ``exit_code`` of what was killed, its monitor with it.
EXIT_KILLED = 128 + 9
#: How often a command is given to another monitor because the first was killed before it began.
_MOST_BEGINNINGS = 5
#: Seconds between two looks at whether the sandbox is free again.
_LOOK_AGAIN = 0.002


class Forgettable(Protocol):
    """What holds descriptors of processes inside."""

    def forget(self, reason: str, /) -> None:
        """Close them; ``reason`` is what is said of it from then on."""
        ...


class Requests:
    """Everything that is asked of one sandbox goes through here; several threads may ask at once.

    ``link`` leads to the PID 1 that serves now. ``closed`` says why nothing can be asked any more,
    once it is not empty.
    """

    link: Link

    def __init__(
        self, env: Mapping[str, str], cwd: str, user: str | int | None, lock: threading.Lock
    ) -> None:
        self.name = ""
        self.closed = ""
        # Held while a request is sent and while no PID 1 could serve it; not while a command runs.
        self._lock = lock
        self._env = dict(env)
        self._cwd = cwd
        self._user = user
        self._numbers = itertools.count()
        self._held: set[Forgettable] = set()

    def hold(self, thing: Forgettable) -> None:
        """Keep something that lives until it is closed, or the sandbox is."""
        self._held.add(thing)

    def release(self, thing: Forgettable) -> None:
        """Let go of what was closed."""
        self._held.discard(thing)

    def let_go(self) -> tuple[Forgettable, ...]:
        """Everything that is held, for the caller to have it forgotten."""
        held, self._held = tuple(self._held), set()
        return held

    def refuse_closed(self) -> None:
        """Raise ``SandboxDied`` once nothing can be asked any more."""
        if self.closed:
            raise SandboxDied(self.name, self.closed)

    def absolute(self, path: str, *, where: str = "path") -> str:
        """``path`` as from the sandbox's own directory; raises ``InvalidInput`` for what is no
        path.
        """
        return posixpath.join(self._cwd, arguments.text(where, path))

    def command(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | int | None = None,
        env: Mapping[str, str] | None,
        cwd: str | None,
        user: str | int | None,
    ) -> tuple[dict[str, Any], list[int]]:
        """The request to run shell text or an argv, and the descriptors that belong to it.

        Raises ``InvalidInput`` for what cannot be run at all.
        """
        checked = arguments.command("command", command)
        given = arguments.variables("env", env)
        place = "" if cwd is None else arguments.text("cwd", cwd)
        account = arguments.user("user", self._user if user is None else user)
        files: list[int] = []
        if isinstance(stdin, bytes | bytearray | memoryview):
            files.append(wire.memory_file("stdin", arguments.content("stdin", stdin)))
        elif stdin is not None:
            files.append(_pipe(stdin))
        script = isinstance(checked, str)
        if script:
            files.append(wire.memory_file("script", arguments.encoded("command", checked)))
        request: dict[str, Any] = {
            "operation": "run",
            "argv": [] if script else checked,
            "script": len(files) - 1 if script else -1,
            "stdin": -1 if stdin is None else 0,
            "env": {**self._env, **given},
            "cwd": posixpath.join(self._cwd, place),
            "user": account,
            "merge": False,
            "pty": False,
        }
        return request, files

    def send(self, request: dict[str, Any], files: list[int]) -> tuple[str, socket.socket]:
        """Send a request; its token and its channel. ``files`` are closed here in any case."""
        with self._lock:
            return self.send_locked(request, files)

    def send_locked(
        self, request: dict[str, Any], files: list[int], *, kind: str = "start"
    ) -> tuple[str, socket.socket]:
        """:meth:`send` by one who holds the lock; ``kind`` is what PID 1 is to know of it."""
        token = str(next(self._numbers))
        try:
            self.refuse_closed()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                with theirs:
                    body = wire.memory_file("request", wire.pack(request))
                    try:
                        fds = [theirs.fileno(), body, *files]
                        wire.send(self.link.control, kind, token, fds=fds)
                    finally:
                        os.close(body)
            except BaseException:
                ours.close()
                raise
        except (BrokenPipeError, ConnectionError) as error:
            raise self.died() from error
        finally:
            for fd in files:
                os.close(fd)
        under_way = _under_way.get()
        if under_way is not None:
            under_way.append((self, token))
        return token, ours

    def begin(
        self,
        request: dict[str, Any],
        files: list[int],
        *,
        timeout: float | None = None,
        sign: str = "streams",
    ) -> Steps[tuple[str, socket.socket, list[str], list[int]]]:
        """Have a program started; its token, its channel, and the first packet of its monitor, by
        whose kind ``sign`` it is known to have begun.

        ``files`` are closed here in any case.
        """
        try:
            for _ in range(_MOST_BEGINNINGS):
                yield from self._wait_for_turn(timeout)
                try:
                    token, channel = self.send_locked(request, [os.dup(fd) for fd in files])
                finally:
                    self._lock.release()
                try:
                    fields, fds = yield from self.reply(
                        channel, sign, timeout=timeout, or_nothing=True
                    )
                except BaseException:
                    channel.close()
                    raise
                if fields:
                    return token, channel, fields, fds
                # Something inside kills all it sees, and met a monitor that had not yet begun.
                channel.close()
        finally:
            for fd in files:
                os.close(fd)
        raise SandboxFileError("start", "a command", errno.EINTR, "its process inside was killed")

    def _wait_for_turn(self, timeout: float | None) -> Steps[None]:
        """Take the lock, which is held for long while much is copied, without stopping a loop."""
        deadline = None if timeout is None else time.monotonic() + timeout + capture.KILL_PATIENCE
        while not self._lock.acquire(blocking=False):
            if deadline is not None and time.monotonic() >= deadline:
                reason = "the sandbox is being copied or started anew"
                raise SandboxFileError("begin", "a request", errno.ETIMEDOUT, reason)
            yield Wait((), time.monotonic() + _LOOK_AGAIN)

    def reply(
        self,
        channel: socket.socket,
        *expected: str,
        timeout: float | None = None,
        or_nothing: bool = False,
    ) -> Steps[tuple[list[str], list[int]]]:
        """The next packet of a monitor, if it is of a kind that is ``expected``, as
        :func:`wire.receive` has it; with ``or_nothing`` no fields where the monitor was killed.

        Raises what the monitor refuses as ``SandboxFileError``.
        """
        # Only a stopped monitor can keep silent here, and then only a caller who set a limit wants
        # to know.
        patience = None if timeout is None else timeout + capture.KILL_PATIENCE
        deadline = None if patience is None else time.monotonic() + patience
        while not (yield Wait((channel.fileno(),), deadline)):
            if deadline is not None and time.monotonic() >= deadline:
                raise SandboxFileError(
                    "begin", "a request", errno.ETIMEDOUT, "its process inside keeps silent"
                )
        fields, fds = wire.receive(channel)
        if fields and fields[0] in expected:
            return fields, fds
        for fd in fds:
            os.close(fd)
        _raise_refused(fields)
        self.raise_if_dead()
        if or_nothing and not fields:
            return [], []
        reason = " ".join(fields[1:]) or "its process in the sandbox was killed"
        raise SandboxFileError("finish", "a request", errno.EINTR, reason)

    def end(self, channel: socket.socket, token: str) -> Steps[None]:
        """Wait until a monitor has ended, to which a packet was sent that makes it end its tree."""
        deadline = time.monotonic() + capture.KILL_PATIENCE
        try:
            while time.monotonic() < deadline:
                ready = yield Wait((channel.fileno(),), deadline)
                if ready and not wire.receive(channel)[0]:
                    return
            self.kill(token)  # a program can stop its monitor
        except Cancelled:
            self.kill(token)
            raise

    def kill(self, token: str) -> None:
        """Have PID 1 kill the monitor of a request, and all that is below it."""
        try:
            wire.send(self.link.control, "kill", token)
        except OSError:
            pass  # the sandbox is gone, and with it the monitor

    def exit_code(self, fields: list[str]) -> int:
        """The exit code in the last packet of a monitor, or what the lack of one means."""
        if not fields:
            self.raise_if_dead()
            return EXIT_KILLED  # something inside killed all it could see, the monitor included
        if fields[0] not in ("exit", "done"):
            _raise_refused(fields)
            raise SandboxFileError("finish", "a command", errno.EINTR, " ".join(fields[1:]))
        return int(fields[1])

    @property
    def alive(self) -> bool:
        """Whether anything can be asked now."""
        return not self.closed and self.link.alive()

    def raise_if_dead(self) -> None:
        """Raise ``SandboxDied`` when that is why a request was not answered."""
        self.refuse_closed()
        if not self.link.serves():
            raise self.died()

    def died(self) -> SandboxDied:
        """An error with the last that was heard of a sandbox that died."""
        limit, cause = self.link.limits.cause_of_death()
        reason = cause or self.link.last_words() or "its first process was killed"
        return SandboxDied(self.name, reason, limit=limit)


#: The requests that were sent in this context, where somebody wants to be able to end them.
_under_way: contextvars.ContextVar[list[tuple[Requests, str]] | None] = contextvars.ContextVar(
    "minisandbox_requests", default=None
)


def note_requests() -> list[tuple[Requests, str]]:
    """A list that is told of every request sent in this context from now on."""
    requests: list[tuple[Requests, str]] = []
    _under_way.set(requests)
    return requests


def _raise_refused(fields: list[str]) -> None:
    """Raise what a monitor refuses, if that is what its packet says."""
    if fields[:1] == ["error"]:
        number, operation, reason = int(fields[1]), fields[2], os.strerror(int(fields[1]))
        if number == errno.EAGAIN and operation in ("execute", "start a process"):
            reason = "the limit on processes is reached"
        raise SandboxFileError(operation, fields[3], number, reason)


def _pipe(stdin: int) -> int:
    remedy = "give bytes, the descriptor of a pipe, or to popen 'pipe'"
    fd = arguments.whole("stdin", stdin, least=0, most=(1 << 31) - 1, remedy=remedy)
    # A file or directory of the host would be a way out: /proc/self/fd/0 can be opened for writing.
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            raise InvalidInput("stdin", f"descriptor {fd} is no pipe", "copy it through one")
        return os.dup(fd)
    except OSError as error:
        raise InvalidInput("stdin", f"descriptor {fd}: {error.strerror}", remedy) from None
