"""A running sandbox, as the rest of the project holds it.

Several threads may use one sandbox at once; each request has a channel of its own. Invariant: a
command that fails is a :class:`Result`, a sandbox that is gone is :class:`SandboxDied`, and the two
are never confused.
"""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
import socket
import stat
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from minisandbox.errors import InvalidInput, SandboxDied, SandboxFileError
from minisandbox.idmap import IdMap, current
from minisandbox.sandbox import capture, terminal, trees, wire
from minisandbox.sandbox.launch import Link, check_count, launch
from minisandbox.sandbox.profile import Profile
from minisandbox.sandbox.result import EXIT_TIMED_OUT, Result
from minisandbox.sandbox.snapshots import Kept, Reset, Snapshot, SnapshotWay
from minisandbox.sandbox.watching import Attempt

DEFAULT_ENV: Mapping[str, str] = {
    "HOME": "/root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "TERM": "dumb",
}
_EXIT_KILLED = 128 + 9
_MIB = 1 << 20
#: How often a command is given to another monitor because the first was killed before it began.
_MOST_BEGINNINGS = 5


@dataclass(frozen=True)
class _Options:
    """What a sandbox is started with, but for its layers."""

    scratch: Path
    idmap: IdMap
    profile: Profile
    start_timeout: float


class Sandbox:
    """One process tree in namespaces of its own, over a stack of layers. Made by :meth:`start`."""

    def __init__(
        self,
        layers: tuple[Path, ...],
        options: _Options,
        env: Mapping[str, str],
        cwd: str,
        name: str,
        kept: tuple[Kept, ...] = (),
    ) -> None:
        self._layers = layers
        self._options = options
        self._env = dict(env)
        self._cwd = cwd
        self._numbers = itertools.count()
        # Held while a request is sent and while PID 1 is replaced; not while a command runs.
        self._lock = threading.Lock()
        self._closed = ""
        #: What snapshots left of this sandbox's changes, oldest first.
        self._kept = tuple(part.retain() for part in kept)
        try:
            self._link = self._launch()
        except BaseException:
            for part in self._kept:
                part.release()
            raise
        self.name = name or self._link.box.name

    @classmethod
    def start(
        cls,
        layers: Sequence[Path],
        *,
        scratch: Path,
        idmap: IdMap | None = None,
        profile: Profile | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        name: str = "",
        start_timeout: float = 120.0,
    ) -> Sandbox:
        """Start a sandbox over unpacked ``layers`` (bottom first) and the host's /usr.

        ``scratch`` is an existing directory on a local file system; the sandbox makes one directory
        of its own there, removes it when it closes, and removes what killed ones left. ``env`` is
        added to ``DEFAULT_ENV`` for every command. Raises ``HostUnsupported`` where the kernel
        refuses something, and ``InvalidInput`` for layers that cannot be stacked.
        """
        options = _Options(scratch, idmap or current(), profile or Profile(), start_timeout)
        return cls(tuple(layers), options, {**DEFAULT_ENV, **(env or {})}, cwd, name)

    @property
    def alive(self) -> bool:
        """Whether commands can be run now."""
        return not self._closed and self._link.alive()

    @property
    def pid(self) -> int:
        """Host pid of the sandbox's PID 1."""
        return self._link.init_pid

    @property
    def limits(self) -> Mapping[str, str]:
        """How each limit of the profile holds here: ``enforced`` by the kernel, ``watched`` by the
        fork server, which ends what exceeds it, or ``none`` where the profile has no such limit.
        """
        return dict(self._link.limits.words)

    @property
    def listeners(self) -> Mapping[int, socket.socket]:
        """The listening sockets that the profile names, by port of 127.0.0.1 inside.

        Connections from inside are accepted here, in the client. They are closed, and threads that
        wait in ``accept`` are woken with an ``OSError``, by :meth:`close` and :meth:`seal`.
        """
        return self._link.listeners

    @property
    def watched(self) -> str:
        """Empty where :meth:`attempts` is complete but for what ``docs/security.md`` lists, else
        the reason.
        """
        return self._link.unwatched

    def attempts(self) -> tuple[Attempt, ...]:
        """The addresses that programs inside tried to reach so far, each once, in order of the
        first try.

        Also after :meth:`close`. Whether they were reached is not in it: the profile's network
        decides that. Attempts at the profile's own ports are listed like all others.
        """
        watcher = self._link.watcher
        return watcher.attempts() if watcher is not None else ()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
        max_output: int = 16 * _MIB,
        merge_stderr: bool = False,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> Result:
        """Run ``command`` and return when it has ended, or ``timeout`` seconds have passed.

        A string is a bash script of any size (sh where there is no bash), a sequence is a program
        with its arguments. As another ``user`` than root HOME is that user's, unless ``env`` says
        otherwise. The end of the shell is the end of the command: processes it left in the
        background live on, and what they print later is dropped. A timeout ends the command's whole
        tree, background processes and daemons included, and keeps the output so far. Standard input
        is /dev/null unless given, as bytes or as the descriptor of a pipe. Of each stream
        ``max_output`` bytes are kept, its beginning and its end. ``on_output`` is called in this
        thread with ``"stdout"`` or ``"stderr"`` and every piece as it comes. Raises ``SandboxDied``
        when the sandbox is gone, ``SandboxFileError`` when ``user`` is unknown, ``InvalidInput``
        for what cannot be run at all.
        """
        if timeout is not None and not timeout >= 0:  # NaN is not either
            raise InvalidInput(
                "timeout", f"is {timeout}", "give seconds from 0 on, or None to wait for the end"
            )
        request, files = self._command(command, env, cwd, user)
        request["merge"] = merge_stderr
        if stdin is not None:
            request["stdin"] = len(files)
            files.append(
                _pipe(stdin) if isinstance(stdin, int) else wire.memory_file("stdin", stdin)
            )
        started = time.monotonic()
        before = self._link.limits.mark()
        token, channel, pipes = self._begin(request, files, timeout)
        with channel:
            streams = [
                capture.Stream(max_output, partial(on_output, name) if on_output else None)
                for name, _ in zip(("stdout", "stderr"), pipes, strict=False)
            ]
            deadline = None if timeout is None else started + timeout
            ended = capture.collect(channel, pipes, streams, deadline)
        code = self._exit_code(ended, token)
        outputs = [stream.content() for stream in streams]
        return Result(
            stdout=outputs[0],
            stderr=b"" if merge_stderr else outputs[1],
            exit_code=code,
            duration=time.monotonic() - started,
            timed_out=ended.timed_out,
            truncated=any(stream.dropped for stream in streams),
            limit=self._link.limits.since(before),
        )

    def open_shell(
        self,
        *,
        argv: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> int:
        """Connect the caller's terminal to a program on a terminal inside; returns its exit code.

        ``argv`` is a login-less interactive bash unless given. Where standard input is no terminal
        its bytes are passed on all the same, and its end is typed as Ctrl-D.
        """
        shell = argv or ["/bin/sh", "-c", "exec bash -i || exec sh -i"]
        term = {"TERM": os.environ.get("TERM", "xterm"), **(env or {})}
        request, files = self._command(list(shell), term, cwd, None)
        request["pty"], request["size"] = True, terminal.size()
        _, channel, (master,) = self._begin(request, files, None)
        with channel:
            fields = terminal.relay(master, channel)
        if not fields:
            self._raise_if_dead()
            return _EXIT_KILLED
        return int(fields[1])

    def read_file(
        self, path: str, *, max_bytes: int = 1024 * _MIB, user: str | int | None = None
    ) -> bytes:
        """The content of a regular file. Raises ``SandboxFileError`` (EFBIG beyond
        ``max_bytes``).

        With ``user`` the permissions of that user decide, mode bits included: root's too, without
        the capabilities that pass over them.
        """
        request = {"operation": "read", "path": self._absolute(path), "user": user}
        _, channel = self._request(request, [])
        with channel:
            _, (fd,) = self._reply(channel, "file", None)
            with open(fd, "rb") as file:
                data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise SandboxFileError("read", path, 27, f"it is larger than {max_bytes} bytes")
        return data

    def write_file(
        self, path: str, data: bytes | str, *, mode: int = 0o644, user: str | int | None = None
    ) -> None:
        """Make or replace a file in one step, with its parent directories; a link is written
        through.

        With ``user`` the permissions of that user decide as in :meth:`read_file`, and a file that
        is there is written as a program would: not in one step, and it keeps its mode and owner.
        """
        content = data.encode("utf-8") if isinstance(data, str) else data
        request = {"operation": "write", "path": self._absolute(path), "mode": mode, "user": user}
        _, channel = self._request(request, [wire.memory_file("data", content)])
        with channel:
            self._reply(channel, "done", None)

    def upload(self, local: Path, remote: str) -> None:
        """Copy a file or directory of the host to ``remote``, merging into a directory that is
        there.

        Kept: content, modes, times, links as they are. Raises ``SandboxFileError``, or ``OSError``
        for what cannot be read on the host.
        """
        read_end, write_end = os.pipe()
        request = {"operation": "upload", "path": self._absolute(remote)}
        try:
            _, channel = self._request(request, [read_end])
        except BaseException:
            os.close(write_end)
            raise
        with channel:
            try:
                trees.send(os.fspath(local), write_end)
            except BrokenPipeError:
                pass  # the other side has stopped reading; it says why
            finally:
                os.close(write_end)
            self._reply(channel, "done", None)

    def download(self, remote: str, local: Path) -> None:
        """Copy a file or directory of the sandbox to ``local``, merging into a directory that is
        there.

        Like :meth:`upload`; set-id bits are dropped. The stream is not trusted: nothing outside
        ``local`` is written, whatever the sandbox sends.
        """
        read_end, write_end = os.pipe()
        request = {"operation": "download", "path": self._absolute(remote)}
        with open(read_end, "rb", buffering=_MIB) as stream:
            _, channel = self._request(request, [write_end])
            with channel:
                receiver = trees.Receiver(os.fspath(local), mode_mask=0o777)
                try:
                    receiver.receive(stream)
                except OSError as error:
                    if error.errno != trees.CUT:
                        raise
                    self._reply(channel, "done", None)  # raises the reason for which it was cut
                    raise
                finally:
                    receiver.close()
                self._reply(channel, "done", None)

    def reset(self) -> Reset:
        """Drop everything that was done in it, processes included, and begin anew on its layers.

        Commands that run meanwhile end as killed; listening sockets (:attr:`listeners`) are new
        ones. Raises ``SandboxDied`` if it was closed, and what :meth:`start` does: then the sandbox
        is as before.
        """
        started = time.monotonic()
        with self._lock:
            self._refuse_closed()
            kept, self._kept = self._kept, ()
            try:
                link = self._launch()
            except BaseException:
                self._kept = kept
                raise
            old, self._link = self._link, link
            try:
                old.drop()
            except OSError:
                pass  # it was dead already, and its server with it
        for part in kept:
            part.release()
        return Reset("restarted", time.monotonic() - started)

    def snapshot(self) -> Snapshot:
        """What its files are now, for :meth:`start_from`.

        Where nothing runs inside, its upper directory is sealed, and it goes on above it with a new
        PID 1. Where something runs, all processes are stopped, the upper directory is copied, and
        they go on. Raises ``SandboxDied``, ``InvalidInput`` when its layers have become too many,
        ``SandboxFileError`` when the processes do not stop, and ``OSError`` if the copy fails.
        """
        started = time.monotonic()
        with self._lock:
            self._refuse_closed()
            self._refuse_in_memory("snapshot")
            check_count(len(self._layers) + len(self._kept) + 1)
            try:
                idle = self._link.is_idle()
            except OSError as error:
                raise SandboxDied(self.name, self._why_dead()) from error
            if idle:
                self._seal_upper()
                return self._snapshot(self._kept, "sealed", started)
            with self._frozen():
                kept = (*self._kept, self._link.copy())
            return self._snapshot(kept, "copied", started)

    def fork(self, *, name: str = "") -> Sandbox:
        """Another sandbox with the same files, by a :meth:`snapshot`; what either does from then
        on, the other does not see.
        """
        with self.snapshot() as snapshot:
            return self.start_from(snapshot, name=name)

    def start_from(self, snapshot: Snapshot, *, name: str = "") -> Sandbox:
        """Start a sandbox with the files of a snapshot and all else like this one's; this one may
        be closed.
        """
        if snapshot.closed:
            raise InvalidInput("snapshot", "was closed", "start from it before you close it")
        return Sandbox(
            snapshot.layers, self._options, self._env, self._cwd, name, kept=snapshot.kept
        )

    def _snapshot(self, kept: tuple[Kept, ...], way: SnapshotWay, started: float) -> Snapshot:
        return Snapshot(self._layers, kept, way, time.monotonic() - started)

    def _seal_upper(self) -> None:
        try:
            self._kept = (*self._kept, self._link.keep().retain())
            self._link = self._launch()
        except BaseException as error:
            self._closed = f"it could not go on after a snapshot: {error}"
            raise

    @contextmanager
    def _frozen(self) -> Generator[None, None, None]:
        _, channel = self._send({"operation": "freeze"}, [])
        with channel:
            self._reply(channel, "frozen", None)
            yield

    def _launch(self) -> Link:
        whole = (*self._layers, *(part.upper for part in self._kept))
        options = self._options
        return launch(
            whole, options.scratch, options.idmap, options.profile, timeout=options.start_timeout
        )

    def _refuse_in_memory(self, what: str) -> None:
        if self._link.upper_in_memory:
            raise InvalidInput(
                what, "the upper directory of this sandbox is in memory", "use one on disk"
            )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SandboxDied(self.name, self._closed)

    def seal(self) -> Path:
        """End every process and return the upper directory, which stays until :meth:`close`.

        Its files have the ids of the sandbox's map; read it with ``idmap.call_mapped``.
        """
        with self._lock:
            self._refuse_closed()
            self._refuse_in_memory("seal")
            self._link.end_processes()
            self._closed = "it was sealed"
        return self._link.box / "upper"

    def close(self) -> None:
        """End every process and remove the scratch directory; harmless when done already."""
        with self._lock:
            if self._closed == "it was closed":
                return
            self._closed = "it was closed"
            try:
                self._link.close()
            except OSError:
                pass  # its server was killed: the next start in this scratch directory cleans up
            kept, self._kept = self._kept, ()
        for part in kept:
            part.release()

    def _absolute(self, path: str) -> str:
        if "\0" in path:
            raise InvalidInput("path", f"{path!r} holds a NUL byte")
        return posixpath.join(self._cwd, path)

    def _command(
        self,
        command: str | Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str | None,
        user: str | int | None,
    ) -> tuple[dict[str, Any], list[int]]:
        argv = [] if isinstance(command, str) else list(command)
        whole = {**self._env, **(env or {})}
        if user not in (None, 0, "0", "root") and "HOME" not in (env or {}):
            del whole["HOME"]  # root's; the account's own is set inside
        if not isinstance(command, str) and not argv:
            raise InvalidInput("command", "the sequence is empty")
        texts = [command] if isinstance(command, str) else argv
        for text in (*texts, *whole, *whole.values()):
            if "\0" in text:
                raise InvalidInput("command", "arguments and environment cannot hold NUL bytes")
        files: list[int] = []
        if isinstance(command, str):
            files.append(wire.memory_file("script", command.encode("utf-8", "surrogateescape")))
        request: dict[str, Any] = {
            "operation": "run",
            "argv": argv,
            "script": len(files) - 1,
            "stdin": -1,
            "env": whole,
            "cwd": posixpath.join(self._cwd, cwd or ""),
            "user": user,
            "merge": False,
            "pty": False,
        }
        return request, files

    def _begin(
        self, request: dict[str, Any], files: list[int], timeout: float | None
    ) -> tuple[str, socket.socket, list[int]]:
        """Have a command started; its token, its channel, and the client's ends of its streams.

        ``files`` are closed here in any case.
        """
        try:
            for _ in range(_MOST_BEGINNINGS):
                token, channel = self._request(request, [os.dup(fd) for fd in files])
                try:
                    fields, fds = self._reply(channel, "streams", timeout)
                except BaseException:
                    channel.close()
                    raise
                if fields:
                    return token, channel, fds
                # Something inside kills all it sees, and met a monitor that had not yet begun.
                channel.close()
        finally:
            for fd in files:
                os.close(fd)
        raise SandboxFileError("start", "a command", errno.EINTR, "its process inside was killed")

    def _request(self, request: dict[str, Any], files: list[int]) -> tuple[str, socket.socket]:
        """Send a request and return its channel; ``files`` are closed here in any case."""
        with self._lock:
            return self._send(request, files)

    def _send(self, request: dict[str, Any], files: list[int]) -> tuple[str, socket.socket]:
        token = str(next(self._numbers))
        try:
            self._refuse_closed()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                body = wire.memory_file("request", wire.pack(request))
                with theirs:
                    try:
                        fds = [theirs.fileno(), body, *files]
                        wire.send(self._link.control, "start", token, fds=fds)
                    finally:
                        os.close(body)
            except BaseException:
                ours.close()
                raise
            return token, ours
        except (BrokenPipeError, ConnectionError) as error:
            raise SandboxDied(self.name, self._why_dead()) from error
        finally:
            for fd in files:
                os.close(fd)

    def _reply(
        self, channel: socket.socket, expected: str, timeout: float | None
    ) -> tuple[list[str], list[int]]:
        # Only a stopped monitor can keep silent here, and then only a caller who set a limit wants
        # to know.
        limit = None if timeout is None else timeout + capture.KILL_PATIENCE
        channel.settimeout(None if limit is None else min(limit, capture.LONGEST_WAIT))
        fields, fds = wire.receive(channel)
        channel.settimeout(None)
        if fields[:1] == [expected]:
            return fields, fds
        for fd in fds:
            os.close(fd)
        if fields[:1] == ["error"]:
            number = int(fields[1])
            raise SandboxFileError(fields[2], fields[3], number, os.strerror(number))
        self._raise_if_dead()
        if expected == "streams" and not fields:
            return [], []
        reason = " ".join(fields[1:]) or "its process in the sandbox was killed"
        raise SandboxFileError("finish", "a request", errno.EINTR, reason)

    def _exit_code(self, ended: capture.Ended, token: str) -> int:
        if ended.timed_out:
            if not ended.fields:
                try:
                    wire.send(self._link.control, "kill", token)
                except OSError:
                    self._raise_if_dead()
            return EXIT_TIMED_OUT
        if not ended.fields:
            self._raise_if_dead()
            return _EXIT_KILLED  # the command killed everything it could see, its monitor included
        return int(ended.fields[1])

    def _raise_if_dead(self) -> None:
        if not self.alive:
            raise SandboxDied(self.name, self._closed or self._why_dead())

    def _why_dead(self) -> str:
        cause = self._link.limits.cause_of_death()
        return cause or self._link.last_words() or "its first process was killed"


def _pipe(fd: int) -> int:
    # A file or directory of the host would be a way out: /proc/self/fd/0 can be opened for writing.
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        raise InvalidInput("stdin", f"descriptor {fd} is no pipe", "copy it through one")
    return os.dup(fd)
