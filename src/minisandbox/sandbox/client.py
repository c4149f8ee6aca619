"""A running sandbox, as the rest of the project holds it.

Several threads may use one sandbox at once; each request has a channel of its own. Invariant: a
command that fails is a :class:`Result`, a sandbox that is gone is :class:`SandboxDied`, and the two
are never confused.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minisandbox.closing import Closing, Shared
from minisandbox.errors import InvalidInput
from minisandbox.idmap import IdMap, current
from minisandbox.sandbox import arguments, capture, exchange, terminal
from minisandbox.sandbox.launch import Link, check_count, launch
from minisandbox.sandbox.popen import Process
from minisandbox.sandbox.profile import Profile
from minisandbox.sandbox.requests import EXIT_KILLED, Requests
from minisandbox.sandbox.result import EXIT_TIMED_OUT, Result
from minisandbox.sandbox.session import Session
from minisandbox.sandbox.snapshots import Kept, Reset, Snapshot, SnapshotWay
from minisandbox.sandbox.steps import LONGEST_WAIT, Cancelled, Steps, blocking, finish
from minisandbox.sandbox.watching import Attempt

#: What every command finds. HOME is not among it: unless it is given, it is that of the account.
DEFAULT_ENV: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "TERM": "dumb",
}
_MIB = 1 << 20
#: Seconds in which all processes inside should have stopped; see also ``freezing``.
_FREEZING = 10.0


@dataclass(frozen=True)
class _Options:
    """What a sandbox is started with, but for its layers."""

    scratch: Path
    idmap: IdMap
    profile: Profile
    start_timeout: float
    base: tuple[Path, ...] | None
    lease: Shared | None


class Sandbox(Closing):
    """One process tree in namespaces of its own, over a stack of layers. Made by :meth:`start`."""

    def __init__(
        self,
        layers: tuple[Path, ...],
        options: _Options,
        env: Mapping[str, str],
        cwd: str,
        name: str,
        user: str | int | None = None,
        kept: tuple[Kept, ...] = (),
    ) -> None:
        self._layers = layers
        self._options = options
        self._env = dict(env)
        self._cwd = cwd
        self._user = user
        #: Of those who end, exchange or copy it, one at a time; each may take long.
        self._changing = threading.Lock()
        #: Taken second. Held while nobody inside could serve a request.
        self._lock = threading.Lock()
        self._requests = Requests(self._env, cwd, user, self._lock)
        #: What snapshots left of this sandbox's changes, oldest first.
        self._kept = tuple(part.retain() for part in kept)
        if options.lease is not None:
            options.lease.retain()
        try:
            self._requests.link = self._launch(self._kept)
        except BaseException:
            self._let_go_of(self._kept)
            raise
        self.name = self._requests.name = name or self._link.box.name

    @classmethod
    def start(
        cls,
        layers: Sequence[Path],
        *,
        scratch: Path,
        base: Sequence[Path] | None = None,
        idmap: IdMap | None = None,
        profile: Profile | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "/",
        user: str | int | None = None,
        name: str = "",
        start_timeout: float = 120.0,
        lease: Shared | None = None,
    ) -> Sandbox:
        """Start a sandbox over unpacked ``layers`` (bottom first) and a base: the unpacked layers
        of ``base``, or the host's /usr without any.

        ``scratch`` is an existing directory on a local file system; the sandbox makes one directory
        of its own there, removes it when it closes, and removes what killed ones left. ``env`` is
        added to ``DEFAULT_ENV`` for every command, and ``user`` is who runs those that name nobody
        (root unless given). ``lease`` is retained as long as something stands on the layers: this
        sandbox, its snapshots, and what was started from them. Raises ``HostUnsupported`` where the
        kernel refuses something, and ``InvalidInput`` for layers that cannot be stacked.
        """
        patience = arguments.seconds("start_timeout", start_timeout)
        if patience is None or not 0 < patience <= LONGEST_WAIT:
            raise InvalidInput(
                "start_timeout", f"is {start_timeout}", "give seconds above 0, a day at most"
            )
        idmap = current() if idmap is None else idmap
        profile = Profile() if profile is None else profile
        arguments.instance_of("idmap", idmap, IdMap)
        arguments.instance_of("profile", profile, Profile)
        return cls(
            _directories("layers", layers),
            _Options(
                Path(arguments.host_path("scratch", scratch)),
                idmap,
                profile,
                patience,
                None if base is None else _directories("base", base),
                lease,
            ),
            {**DEFAULT_ENV, **arguments.variables("env", env)},
            arguments.text("cwd", cwd),
            arguments.text("name", name),
            arguments.user("user", user),
        )

    @property
    def alive(self) -> bool:
        """Whether commands can be run now."""
        return self._requests.alive

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
        first try; since the last :meth:`reset` if there was one.

        Also after :meth:`close`. Whether they were reached is not in it: the profile's network
        decides that. Attempts at the profile's own ports are listed like all others.
        """
        watcher = self._link.watcher
        return watcher.attempts() if watcher is not None else ()

    @blocking
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
        stdout_file: Path | None = None,
        stderr_file: Path | None = None,
    ) -> Steps[Result]:
        """Run ``command`` and return when it has ended, or ``timeout`` seconds have passed.

        A string is a bash script of any size (sh where there is no bash), a sequence is a program
        with its arguments. HOME is that of ``user``, unless ``env``, here or where the sandbox was
        started, says otherwise. The end of the shell is the end of the command: processes it left
        in the background live on, and what they print later is dropped. A timeout ends the
        command's whole tree, background processes and daemons included, and keeps the output so
        far. Standard input is /dev/null unless given, as bytes or as the descriptor of a pipe. Of
        each stream ``max_output`` bytes are kept, its beginning and its end; all of it goes to
        ``stdout_file`` and ``stderr_file``, files of the host, where they are given. ``on_output``
        is called in this thread with ``"stdout"`` or ``"stderr"`` and every piece as it comes.
        Raises ``SandboxDied`` when the sandbox is gone, ``SandboxFileError`` when ``user`` is
        unknown, ``InvalidInput`` for what cannot be run at all, and ``OSError`` where a file of the
        host cannot be written.
        """
        patience = arguments.seconds("timeout", timeout)
        with capture.open_streams(
            merged=merge_stderr,
            limit=max_output,
            watch=on_output,
            stdout_file=stdout_file,
            stderr_file=stderr_file,
        ) as streams:
            request, files = self._requests.command(
                command, stdin=stdin, env=env, cwd=cwd, user=user
            )
            request["merge"] = bool(merge_stderr)
            started = time.monotonic()
            before = self._link.limits.mark()
            token, channel, _, pipes = yield from self._requests.begin(
                request, files, timeout=patience
            )
            with channel:
                deadline = None if patience is None else started + patience
                ended = yield from capture.collect(channel, pipes, streams, deadline)
        code = self._exit_code(ended, token)
        if ended.cancelled:
            raise Cancelled
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

    @blocking
    def popen(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | int | Literal["pipe"] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        merge_stderr: bool = False,
        pty: bool = False,
        size: tuple[int, int] = (24, 80),
    ) -> Steps[Process]:
        """Start ``command``, as :meth:`run` would, and return while it runs.

        It ends with the sandbox at the latest; :meth:`Process.close`, or the end of a ``with``,
        ends it and its tree before. With ``stdin="pipe"`` its ``stdin`` can be written to. With
        ``pty`` it runs on a terminal of its own, of ``size`` rows and columns: ``stdin`` is the
        keyboard, ``stdout`` the screen. Raises what :meth:`run` does.
        """
        if pty and stdin is not None:
            raise InvalidInput("stdin", "is the keyboard with pty", "write to the process's stdin")
        piped = isinstance(stdin, str)
        if isinstance(stdin, str) and stdin != "pipe":
            raise InvalidInput("stdin", "is a string", "give its bytes, or 'pipe' to write to it")
        rows_and_columns = arguments.terminal_size("size", size)
        request, files = self._requests.command(
            command, stdin=None if isinstance(stdin, str) else stdin, env=env, cwd=cwd, user=user
        )
        request.update(
            operation="serve",
            merge=bool(merge_stderr),
            open_stdin=piped,
            pty=bool(pty),
            size=rows_and_columns,
        )
        token, channel, _, fds = yield from self._requests.begin(request, files)
        try:
            fields, _ = yield from self._requests.reply(channel, "started", "exit", or_nothing=True)
        except BaseException:
            channel.close()
            for fd in fds:
                os.close(fd)
            raise
        keyboard = fds.pop(0) if piped or pty else None
        process = Process(self._requests, token, channel, keyboard, fds)
        process.note(fields)
        return process

    @blocking
    def session(
        self,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
    ) -> Steps[Session]:
        """Open a bash that keeps its state from one command to the next; any number may be open.

        It ends with the sandbox at the latest. Raises ``SandboxFileError`` where the sandbox has
        no bash or no directory ``cwd``, and else what :meth:`run` does.
        """
        request, _ = self._requests.command(["bash"], env=env, cwd=cwd, user=user)
        request["operation"] = "session"
        session = Session(self._requests, request)
        yield from session.open()
        return session

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
        shell = ["/bin/sh", "-c", "exec bash -i || exec sh -i"]
        if argv is not None:
            shell = arguments.argv("argv", argv)
        term = {"TERM": os.environ.get("TERM", "xterm"), **arguments.variables("env", env)}
        request, files = self._requests.command(shell, env=term, cwd=cwd, user=None)
        request["pty"], request["size"] = True, terminal.size()
        _, channel, _, (master,) = finish(self._requests.begin(request, files))
        with channel:
            fields = terminal.relay(master, channel)
        if not fields:
            self._requests.raise_if_dead()
            return EXIT_KILLED
        return int(fields[1])

    def read_file(
        self, path: str, *, max_bytes: int = 1024 * _MIB, user: str | int | None = None
    ) -> bytes:
        """The content of a regular file. Raises ``SandboxFileError`` (EFBIG beyond
        ``max_bytes``).

        With ``user`` the permissions of that user decide, mode bits included: root's too, without
        the capabilities that pass over them.
        """
        return exchange.read(self._requests, path, max_bytes=max_bytes, user=user)

    def write_file(
        self, path: str, data: bytes | str, *, mode: int = 0o644, user: str | int | None = None
    ) -> None:
        """Make or replace a file in one step, with its parent directories; a link is written
        through.

        With ``user`` the permissions of that user decide as in :meth:`read_file`, and a file that
        is there is written as a program would: not in one step, and it keeps its mode and owner.
        """
        exchange.write(self._requests, path, data, mode=mode, user=user)

    def upload(self, local: str | Path, remote: str) -> None:
        """Copy a file or directory of the host to ``remote``, merging into a directory that is
        there.

        Kept: content, modes, times, links as they are. Raises ``SandboxFileError``, or ``OSError``
        for what cannot be read on the host.
        """
        exchange.upload(self._requests, local, remote)

    def download(
        self,
        remote: str,
        local: str | Path,
        *,
        max_bytes: int = 16 * 1024 * _MIB,
        max_entries: int = 1_000_000,
    ) -> None:
        """Copy a file or directory of the sandbox to ``local``, merging into a directory that is
        there.

        Like :meth:`upload`; set-id bits are dropped. The stream is not trusted: nothing outside
        ``local`` is written, whatever the sandbox sends. It comes together in a hidden directory
        beside or in ``local`` and is moved when all of it is there: a download that fails changes
        nothing. Raises ``SandboxFileError`` (EFBIG) as soon as it comes to more than ``max_bytes``,
        holes of files included as they are not kept, or to more than ``max_entries`` files,
        directories and links; the defaults are what ``Limits`` allows a sandbox to write.
        """
        exchange.download(
            self._requests, remote, local, max_bytes=max_bytes, max_entries=max_entries
        )

    def reset(self) -> Reset:
        """Drop everything that was done in it, processes included, and begin anew on its layers.

        Commands that run meanwhile end as killed; listening sockets (:attr:`listeners`) are new
        ones. Raises ``SandboxDied`` if it was closed, and what :meth:`start` does: then the sandbox
        is as before.
        """
        started = time.monotonic()
        with self._changing:
            self._requests.refuse_closed()
            self._refuse_foreign("reset")
            link = self._launch(())
            with self._lock:
                old, self._requests.link = self._link, link
                kept, self._kept = self._kept, ()
                held = self._requests.let_go()
            try:
                if self._options.profile.reaches_out:
                    old.end_processes()  # or they could still write there when this returns
                old.drop()
            except OSError:
                pass  # it was dead already, and its server with it
            # After its end: a thread that reads what a process prints keeps the stream open.
            for thing in held:
                thing.forget("the sandbox was reset")
        for part in kept:
            part.release()
        return Reset("restarted", time.monotonic() - started)

    def snapshot(self) -> Snapshot:
        """What its files are now, for :meth:`start_from`.

        Where nothing runs inside, its upper directory is sealed, and it goes on above it with a new
        PID 1: its listening sockets are new ones, and the limits on time, disk and inodes count
        from there. Where something runs, all processes are stopped, the upper directory is copied,
        and they go on. Raises ``SandboxDied``, ``InvalidInput`` when its layers have become too
        many, ``SandboxFileError`` when the processes do not stop, and ``OSError`` if the copy
        fails.
        """
        started = time.monotonic()
        with self._changing, self._lock:
            self._requests.refuse_closed()
            self._refuse_foreign("snapshot")
            self._refuse_in_memory("snapshot")
            check_count(len(self._options.base or ()) + len(self._layers) + len(self._kept) + 1)
            try:
                idle = self._link.is_idle()
            except ConnectionError as error:
                raise self._requests.died() from error
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
        arguments.text("name", name)
        with self.snapshot() as snapshot:
            return self.start_from(snapshot, name=name)

    def start_from(self, snapshot: Snapshot, *, name: str = "") -> Sandbox:
        """Start a sandbox with the files of a snapshot and all else like this one's; this one may
        be closed.
        """
        arguments.instance_of("snapshot", snapshot, Snapshot)
        if snapshot.closed:
            raise InvalidInput("snapshot", "was closed", "start from it before you close it")
        return Sandbox(
            snapshot.layers,
            self._options,
            self._env,
            self._cwd,
            arguments.text("name", name),
            self._user,
            kept=snapshot.kept,
        )

    def _snapshot(self, kept: tuple[Kept, ...], way: SnapshotWay, started: float) -> Snapshot:
        seconds = time.monotonic() - started
        return Snapshot(self._layers, kept, way, seconds, self._options.lease)

    def _let_go_of(self, kept: tuple[Kept, ...]) -> None:
        for part in kept:
            part.release()
        if self._options.lease is not None:
            self._options.lease.release()

    def _seal_upper(self) -> None:
        try:
            self._kept = (*self._kept, self._link.keep().retain())
            link = self._launch(self._kept)
            if link.watcher is not None:
                link.watcher.go_on_from(self.attempts())
            self._requests.link = link
        except BaseException as error:
            self._requests.closed = f"it could not go on after a snapshot: {error}"
            raise

    @contextmanager
    def _frozen(self) -> Generator[None, None, None]:
        _, channel = self._requests.send_locked({"operation": "freeze"}, [], kind="freeze")
        with channel:
            # Not for ever: whoever wants to close the sandbox waits for the lock.
            finish(self._requests.reply(channel, "frozen", timeout=_FREEZING))
            yield

    @property
    def _link(self) -> Link:
        return self._requests.link

    def _launch(self, kept: tuple[Kept, ...]) -> Link:
        whole = (*self._layers, *(part.upper for part in kept))
        options = self._options
        _refuse_lost(kept)
        link = launch(
            whole,
            options.scratch,
            options.idmap,
            options.profile,
            packed=options.base,
            timeout=options.start_timeout,
        )
        try:
            _refuse_lost(kept)  # another server may have begun to remove them meanwhile
        except InvalidInput:
            link.close()
            raise
        return link

    def _refuse_foreign(self, what: str) -> None:
        owner = self._link.server.owner
        if owner != os.getpid():
            raise InvalidInput(
                what, f"is for process {owner}, which started this sandbox", "start one here"
            )

    def _refuse_in_memory(self, what: str) -> None:
        if self._link.upper_in_memory:
            raise InvalidInput(
                what, "the upper directory of this sandbox is in memory", "use one on disk"
            )

    def seal(self) -> Path:
        """End every process and return the upper directory, which stays until :meth:`close`.

        Its files have the ids of the sandbox's map; read it with ``idmap.call_mapped``.
        """
        with self._changing, self._lock:
            self._requests.refuse_closed()
            self._refuse_foreign("seal")
            self._refuse_in_memory("seal")
            try:
                self._link.end_processes()
            except OSError as error:
                raise self._requests.died() from error
            self._requests.closed = "it was sealed"
            held = self._requests.let_go()
        for thing in held:
            thing.forget("the sandbox was sealed")
        return self._link.box / "upper"

    def close(self) -> None:
        """End every process and remove the scratch directory; harmless when done already."""
        with self._changing:
            with self._lock:
                if self._requests.closed == "it was closed":
                    return
                self._requests.closed = "it was closed"
                held = self._requests.let_go()
                kept, self._kept = self._kept, ()
            try:
                self._link.close()
            except OSError:
                pass  # its server was killed: the next start in this scratch directory cleans up
            for thing in held:
                thing.forget("the sandbox was closed")
        self._let_go_of(kept)

    def _exit_code(self, ended: capture.Ended, token: str) -> int:
        if ended.timed_out:
            if not ended.fields:
                self._requests.kill(token)
                self._requests.raise_if_dead()
            return EXIT_TIMED_OUT
        return self._requests.exit_code(ended.fields)


def _directories(name: str, paths: Sequence[Path]) -> tuple[Path, ...]:
    checked = arguments.sequence(name, paths, remedy="give a sequence of directories")
    return tuple(Path(arguments.host_path(name, path)) for path in checked)


def _refuse_lost(kept: tuple[Kept, ...]) -> None:
    if not all(part.there for part in kept):
        raise InvalidInput(
            "snapshot",
            "is gone with the server of sandboxes that kept its files: that was killed, or is of "
            "the process that this one was forked from",
            "take another one",
        )
