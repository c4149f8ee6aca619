"""One persistent bash inside a sandbox: the monitor of a session.

The shell is interactive, so that an error in a command, an unset variable or an interrupt throws it
back to its next line instead of ending it; and it reads its lines from a pipe of the monitor, so
that no prompt is ever waited for. For each command it gets two lines: an ``eval`` of the text whose
output goes to two fresh FIFOs, and a null command whose redirections leave the exit status as the
name of a file and open a third FIFO, which is what the monitor waits for. Neither a function nor
an alias, an option or a trap can take the place of a redirection. A fresh FIFO for each command is
what keeps apart what a process in the background prints later.

What runs in a session can reach that directory, as it can reach the shell: all it can fake is the
end of its own session's commands. Runs after the root has changed: nothing may be imported here
when a function runs.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import stat
import time

from minisandbox.sandbox import accounts, answers, processes, spawning, wire

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from typing import Any

_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
#: No start-up files, as for every other command; no history, whose file would be written and whose
#: expansion would change texts.
_OPTIONS = ["--norc", "--noprofile", "--noediting", "+o", "history", "+H", "-i"]
_PLACE = "/dev/shm"
#: Seconds that a command gets to end by itself after SIGINT, before what it started is killed ...
_POLITE = 1.0
#: ... that its shell gets to notice this, before it is killed itself ...
_PATIENCE = 5.0
#: ... and between two attempts.
_AGAIN = 0.05


def serve(
    request: dict[str, Any],
    channel: socket.socket,
    files: list[int],
    ids: int,
    wakeup: processes.ChildWakeup,
) -> None:
    """Start the shell and run what the client sends until one of them is gone."""
    for fd in files:
        os.close(fd)
    account = answers.settle_account(request, ids)
    shell = next((path for path in _SHELLS if os.path.exists(path)), "")
    if not shell:
        raise answers.Refusal(errno.ENOENT, "open a session, which needs", _SHELLS[0])
    os.chdir(request["cwd"])
    session = _Session(channel, account, wakeup)
    try:
        session.start({**request, "argv": [shell, *_OPTIONS], "pty": False}, ids)
        session.watch()
    finally:
        session.clean_up()


class _Command:
    """One text that the shell is running."""

    def __init__(self, number: int, before: dict[int, int]) -> None:
        self.number = number
        #: The processes that were there when it began, by pid, with the time of their birth.
        self.before = before
        #: When it was interrupted, and when that is to be repeated.
        self.interrupted = 0.0
        self.again = 0.0
        #: The processes that have had the interrupt.
        self.pressed: dict[int, int] = {}


class _Session:
    """The state of the monitor."""

    def __init__(
        self, channel: socket.socket, account: accounts.Account, wakeup: processes.ChildWakeup
    ) -> None:
        self._channel = channel
        self._account = account
        self._wakeup = wakeup
        self._place = os.path.join(_PLACE, f".minisandbox-{os.urandom(8).hex()}")
        self._folder = -1
        self._pid = 0
        self._lines = -1
        self._unread = b""
        self._status = 0
        self._screen = -1
        self._command: _Command | None = None
        #: The monitor's ends of the FIFOs of the command: streams, and the one that says it ended.
        self._streams: list[int] = []
        self._end = -1
        #: Streams of earlier commands that processes in the background still have.
        self._leftover: set[int] = set()

    def start(self, request: dict[str, Any], ids: int) -> None:
        """Start the shell; raises ``Refusal`` where it cannot be executed."""
        self._make_folder()
        source, self._lines = os.pipe()
        os.set_blocking(self._lines, False)
        quiet = os.open("/dev/null", os.O_WRONLY)
        # Its own standard error, with the prompts, is a terminal, for bash complains about the
        # terminal's state after each program that was killed; but not one that controls it, or
        # programs could ask for passwords there.
        self._screen, slave = os.openpty()
        os.set_blocking(self._screen, False)
        streams = (source, quiet, slave)
        try:
            self._pid = spawning.attempt(request, streams, -1, self._account, ids)
        except spawning.CannotStart as failure:
            raise answers.Refusal(failure.number, "execute", request["argv"][0]) from failure
        finally:
            for fd in streams:
                os.close(fd)
        self._write(b"PS1= PS2=\n")
        answers.answer(self._channel, "started", str(self._pid))

    def watch(self) -> None:
        """Serve the client until it is gone."""
        while True:
            ready = self._wait()
            self._wakeup.clear()
            if self._lines in ready:
                self._write(b"")
            if self._screen in ready:
                self._discard(self._screen)
            for fd in self._leftover & ready:
                if not self._discard(fd):
                    self._leftover.discard(fd)
            if self._end in ready:
                self._finish()
            for pid, status in processes.reap():
                if pid == self._pid:
                    self._bury(answers.exit_code(status))
            command = self._command
            if command is not None and command.again and time.monotonic() >= command.again:
                self._insist(command)
            if self._channel.fileno() in ready and not self._obey():
                processes.end_descendants()
                return

    def clean_up(self) -> None:
        """Remove what the session has in the sandbox's files."""
        if self._folder == -1:
            return
        for name in os.listdir(self._folder):
            self._unlink(name)
        try:
            os.rmdir(self._place)
        except OSError:
            pass  # a program inside was there first

    def _wait(self) -> set[int]:
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._wakeup.fileno(), select.POLLIN)
        for fd in (self._screen, self._end, *self._leftover):
            if fd != -1:
                poller.register(fd, select.POLLIN)
        if self._unread and self._lines != -1:
            poller.register(self._lines, select.POLLOUT)
        again = self._command.again if self._command is not None else 0.0
        wait = max(0.0, again - time.monotonic()) * 1000 if again else None
        return {fd for fd, _ in poller.poll(wait)}

    def _obey(self) -> bool:
        """Do what the client asks for; false when it is gone."""
        fields, fds = wire.receive(self._channel)
        if fields[:1] == ["command"]:
            text = wire.read_all(fds[0])
            os.close(fds[0])
            try:
                self._begin(text, int(fields[1]), merged=fields[2] == "merged")
            except OSError as error:
                name = os.fsdecode(error.filename) if error.filename is not None else ""
                answers.answer(self._channel, "error", str(error.errno), "begin a command", name)
        elif fields[:1] == ["interrupt"]:
            command = self._command
            if command is not None and command.number == int(fields[1]) and not command.again:
                self._interrupt(command)
        elif fields[:1] == ["drained"]:
            self._leftover.update(self._streams)
            self._streams = []
        else:
            return False
        return True

    def _begin(self, text: bytes, number: int, *, merged: bool) -> None:
        if not self._pid:
            answers.answer(self._channel, "exit", "")
            return
        self._leftover.update(self._streams)
        self._streams = []
        for name in ("out",) if merged else ("out", "err"):
            self._streams.append(self._fifo(name))
        self._end = self._fifo("end")
        self._command = _Command(number, self._family())
        wire.send(self._channel, "streams", fds=self._streams)
        place = self._place.encode()
        quoted = text.replace(b"'", b"'\\''")
        errors = b"&1" if merged else b"%s/err" % place
        # Each command finds the status of the last one, though not by a failure that `set -e` or a
        # trap of ERR would notice.
        before = b"(\\builtin exit %d) && \\builtin :\n" % self._status if self._status else b""
        self._write(
            b"%s\\builtin eval -- '%s' </dev/null >|%s/out 2>%s\n" % (before, quoted, place, errors)
            + b'>|%s/"$?" >|%s/end\n' % (place, place)
        )

    def _fifo(self, name: str) -> int:
        """A fresh FIFO, open for reading."""
        self._unlink(name)
        try:
            os.mkfifo(name, 0o600, dir_fd=self._folder)
        except FileNotFoundError:  # the folder was removed
            os.close(self._folder)
            self._make_folder()
            os.mkfifo(name, 0o600, dir_fd=self._folder)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=self._folder)
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "something else took its place", f"{self._place}/{name}")
        if self._account.uid != 0:
            os.fchown(fd, self._account.uid, -1)
        return fd

    def _make_folder(self) -> None:
        os.mkdir(self._place, 0o700)
        self._folder = os.open(
            self._place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        if self._account.uid != 0:
            os.fchown(self._folder, self._account.uid, -1)

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._folder)
        except OSError:
            pass  # not there, or a directory that a program inside has made

    def _write(self, lines: bytes) -> None:
        self._unread += lines
        try:
            self._unread = self._unread[os.write(self._lines, self._unread) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unread = b""  # the shell is gone; it is collected in a moment

    def _finish(self) -> None:
        """The shell has opened the last FIFO: the command is over."""
        names = [name for name in os.listdir(self._folder) if name.isdecimal()]
        for name in (*names, "out", "err", "end"):
            self._unlink(name)
        self._status = int(names[0]) & 0xFF if names else 0
        self._conclude("done", str(self._status))

    def _bury(self, code: str) -> None:
        """The shell itself has ended."""
        self._pid = 0
        os.close(self._lines)
        self._lines, self._unread = -1, b""
        self._conclude("exit", code)

    def _conclude(self, kind: str, code: str) -> None:
        command, self._command = self._command, None
        if self._end != -1:
            os.close(self._end)
            self._end = -1
        if command is not None and command.interrupted:
            self._kill_what_is_new(command)
        held = [fd for fd in self._streams if not _without_writer(fd)]
        for fd in self._streams:
            if fd not in held:
                os.close(fd)
        self._streams = held
        answers.answer(self._channel, kind, code, "held" if held else "")

    def _discard(self, fd: int) -> bool:
        """Drop what is to be read; false, and closed, at the end."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:  # EIO: nobody has the terminal open any more
            data = b""
        if not data:
            os.close(fd)
            if fd == self._screen:
                self._screen = -1
        return bool(data)

    def _new(self, before: dict[int, int]) -> dict[int, int]:
        """What is below this monitor, but for the shell and those of ``before`` with their own."""
        births = processes.births_below(os.getpid(), before)
        births.pop(self._pid, None)
        return births

    def _family(self) -> dict[int, int]:
        """What earlier commands have left in the background."""
        here = processes.children(os.getpid())
        if here == {self._pid} and processes.children(self._pid) == set():
            return {}  # as a rule, and a look at every process takes as long as a short command
        return self._new({})

    def _interrupt(self, command: _Command) -> None:
        """Ctrl-C, for the shell and for what the command has started; not for what was there."""
        now = time.monotonic()
        command.interrupted, command.again = now, now + _POLITE
        self._press(command)

    def _insist(self, command: _Command) -> None:
        """It did not end by that: kill what has survived it, and at last the shell."""
        now = time.monotonic()
        command.again = now + _AGAIN
        if now - command.interrupted > _PATIENCE:
            self._kill_what_is_new(command)
            processes.send_signal(self._pid, signal.SIGKILL)
            return
        survivors = self._new(command.before)
        for pid, birth in command.pressed.items():
            if survivors.get(pid) == birth:
                processes.send_signal(pid, signal.SIGKILL)
        self._press(command)

    def _press(self, command: _Command) -> None:
        # The shell first: it gives up what it is doing if a child dies of the interrupt, but only
        # if it has got one itself by then.
        command.pressed = self._new(command.before)
        for pid in (self._pid, *command.pressed):
            processes.send_signal(pid, signal.SIGCONT)
            processes.send_signal(pid, signal.SIGINT)

    def _kill_what_is_new(self, command: _Command) -> None:
        processes.kill_all(lambda: list(self._new(command.before)))


def _without_writer(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, 0)
    return bool(poller.poll(0))
