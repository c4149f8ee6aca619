"""One request inside a sandbox: the monitor process that PID 1 forks for it.

A monitor is a child subreaper: whatever its command starts stays below it, so a timeout ends
exactly that command's tree. When the shell ends, the monitor says so at once, whoever still holds
its pipes; if processes were left in the background it stays to read (and drop) what they print, or
they would die of SIGPIPE. When the client goes away before the command has ended, the tree is ended
too. Runs after the root has changed: nothing may be imported here when a function runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import termios

from minisandbox import linux
from minisandbox.sandbox import accounts, processes, transfer, wire

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from typing import Any, NoReturn

#: Where the text of a script is found by the shell. A number no script uses for a redirection of
#: its own.
_SCRIPT_FD = 253
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
#: The shell reads its script from a descriptor that is closed before the script runs. A script as
#: an argument is limited to 128 KiB, and is seen by ``pkill -f``, which then kills the shell that
#: runs it.
_READ_BASH = f'eval "$(</dev/fd/{_SCRIPT_FD})" {_SCRIPT_FD}<&-'
_READ_SH = 'eval "$(cat <&9)" 9<&-'

#: As env(1) and shells have it.
EXIT_CANNOT_EXECUTE = 126
EXIT_NOT_FOUND = 127


class Refusal(Exception):
    """A request that cannot be done; goes to the client as errno, operation and path."""

    def __init__(self, number: int, operation: str, path: str) -> None:
        self.number = number
        self.operation = operation
        self.path = path
        super().__init__(operation)


def serve_request(fds: list[int], ids: int) -> None:
    """Do the request in memory file ``fds[1]`` and answer on the socket ``fds[0]``."""
    request = wire.unpack(wire.read_all(fds[1]))
    os.close(fds[1])
    with socket.socket(fileno=fds[0]) as channel:
        try:
            if request["operation"] == "run":
                _run(request, channel, fds[2:], ids)
            else:
                transfer.serve(request, channel, fds[2:], ids)
        except Refusal as refusal:
            _answer(channel, "error", str(refusal.number), refusal.operation, refusal.path)
        except OSError as error:
            name = os.fsdecode(error.filename) if error.filename is not None else ""
            _answer(channel, "error", str(error.errno or errno.EIO), request["operation"], name)


def _answer(channel: socket.socket, kind: str, *fields: str) -> None:
    try:
        wire.send(channel, kind, *fields)
    except OSError:
        pass  # the client is gone; nobody is left to be told


def _run(request: dict[str, Any], channel: socket.socket, files: list[int], ids: int) -> None:
    account = accounts.find(request["user"])
    if ids == 1 and account.uid != 0:
        raise Refusal(
            errno.EINVAL, "run as another user with a single-id map", str(request["user"])
        )
    request["env"].setdefault("HOME", account.home)
    at: int = request["stdin"]
    stdin = files[at] if at >= 0 else os.open("/dev/null", os.O_RDONLY)
    linux.become_subreaper()
    if request["pty"]:
        ours, theirs = _terminal(request)
        streams = (theirs, theirs, theirs)
    else:
        ours, streams = _pipes(request, stdin, account.uid)
    wire.send(channel, "streams", fds=ours)
    wakeup = processes.ChildWakeup()
    at = request["script"]
    script = files[at] if at >= 0 else -1
    if request["pty"] or account.uid != 0:
        pid = os.fork()
        if pid == 0:
            _execute(request, streams, script, account, groups=ids > 1)
    else:
        pid = _spawn(request, streams, script)
    for fd in {*streams, *files}:
        os.close(fd)
    if pid > 0:
        _watch(pid, channel, wakeup, ours)
    else:
        _answer(channel, "exit", str(-pid))


def _pipes(request: dict[str, Any], stdin: int, uid: int) -> tuple[list[int], tuple[int, int, int]]:
    # Made inside, and given to the user: a pipe of the host's could not be opened again as
    # /dev/stdout.
    out_read, out_write = os.pipe()
    if request["merge"]:
        ours, streams = [out_read], (stdin, out_write, out_write)
    else:
        error_read, error_write = os.pipe()
        ours, streams = [out_read, error_read], (stdin, out_write, error_write)
    if uid != 0:
        for fd in {*streams[1:]}:
            os.fchown(fd, uid, -1)
    return ours, streams


def _terminal(request: dict[str, Any]) -> tuple[list[int], int]:
    master, slave = os.openpty()
    rows, columns = request["size"]
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    return [master], slave


def _spawn(request: dict[str, Any], streams: tuple[int, int, int], script: int) -> int:
    """Start the command; returns its pid, or the negative exit code when that is impossible.

    posix_spawn does not copy this process as fork does, which is a fifth of a short command's time.
    """
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)]
    argv = list(request["argv"])
    if script >= 0:
        argv, number = _shell()
        actions.append((os.POSIX_SPAWN_DUP2, script, number))
    try:
        os.chdir(request["cwd"])
    except OSError as error:
        _complain(f"cannot enter {request['cwd']}: {error.strerror}", streams[2])
        return -EXIT_CANNOT_EXECUTE
    failure = errno.ENOENT
    for path in _candidates(argv[0], request["env"]):
        try:
            return os.posix_spawn(
                path,
                argv,
                request["env"],
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=linux.CHANGED_SIGNALS,
            )
        except OSError as error:
            failure = _worse(failure, error)
    return -_cannot_execute(argv[0], failure, streams[2])


def _execute(
    request: dict[str, Any],
    streams: tuple[int, int, int],
    script: int,
    account: accounts.Account,
    *,
    groups: bool,
) -> NoReturn:
    """Become the command; never returns to the monitor's code."""
    code = EXIT_NOT_FOUND
    try:
        os.setsid()
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in streams]
        for number, fd in enumerate(moved):
            os.dup2(fd, number)
        argv, kept = list(request["argv"]), [0, 1, 2]
        if script >= 0:
            argv, number = _shell()
            os.dup2(script, number)
            kept.append(number)
        linux.close_all_but(kept)
        if request["pty"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if account.uid != 0 or account.groups:
            if groups:
                os.setgroups(account.groups)
            os.setresgid(account.gid, account.gid, account.gid)
            os.setresuid(account.uid, account.uid, account.uid)
        code = _try_programs(argv, request["env"], request["cwd"])
    except OSError as error:
        _complain(f"cannot start the command: {error.strerror}", 2)
        code = EXIT_CANNOT_EXECUTE
    finally:
        os._exit(code)


def _shell() -> tuple[list[str], int]:
    """The shell's arguments, and the descriptor at which it looks for its script."""
    for shell in _SHELLS:
        if os.path.exists(shell):
            break
    else:
        shell = "sh"
    if shell.endswith("bash"):
        return [shell, "-c", _READ_BASH], _SCRIPT_FD
    return [shell, "-c", _READ_SH], 9  # POSIX shells know one-digit descriptors only


def _try_programs(argv: list[str], env: dict[str, str], cwd: str) -> int:
    """Execute the first program found; returns the exit code of a failure."""
    try:
        os.chdir(cwd)
    except OSError as error:
        _complain(f"cannot enter {cwd}: {error.strerror}", 2)
        return EXIT_CANNOT_EXECUTE
    linux.reset_signals()
    failure = errno.ENOENT
    for path in _candidates(argv[0], env):
        try:
            os.execve(path, argv, env)
        except OSError as error:
            failure = _worse(failure, error)
    return _cannot_execute(argv[0], failure, 2)


def _candidates(name: str, env: dict[str, str]) -> list[str]:
    """Where execvp(3) looks for a program."""
    if "/" in name:
        return [name]
    return [os.path.join(place, name) for place in (env.get("PATH") or "/usr/bin:/bin").split(":")]


def _worse(failure: int, error: OSError) -> int:
    missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
    return failure if missing else error.errno or errno.EACCES


def _cannot_execute(name: str, failure: int, stderr: int) -> int:
    _complain(f"cannot execute {name}: {os.strerror(failure)}", stderr)
    return EXIT_NOT_FOUND if failure == errno.ENOENT else EXIT_CANNOT_EXECUTE


def _complain(text: str, stderr: int) -> None:
    os.write(stderr, f"minisandbox: {text}\n".encode("utf-8", "surrogateescape"))


def _watch(
    pid: int, channel: socket.socket, wakeup: processes.ChildWakeup, ours: list[int]
) -> None:
    """Wait for the shell; then, if it left processes behind, drain what they print until they
    end.
    """
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    poller.register(wakeup.fileno(), select.POLLIN)
    running, listening, open_pipes = True, True, set(ours)
    while True:
        ready = {fd for fd, _ in poller.poll()}
        wakeup.clear()
        for ended, code in processes.reap():
            if ended == pid:
                running = False
                _answer(channel, "exit", str(code if code >= 0 else 128 - code))
        if listening and channel.fileno() in ready:
            fields, _ = wire.receive(channel)
            if running:  # "kill", or the client is gone
                processes.end_descendants()
                _answer(channel, "exit", str(128 + 9))
                return
            if not fields:
                listening = False
                poller.unregister(channel)
                for fd in open_pipes:
                    os.set_blocking(fd, False)
                    poller.register(fd, select.POLLIN)
        if not running and not processes.has_children():
            return
        if not listening:
            _discard(open_pipes & ready, open_pipes, poller)


def _discard(ready: set[int], open_pipes: set[int], poller: select.poll) -> None:
    for fd in ready:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            continue
        except OSError:  # a terminal whose other side is closed
            data = b""
        if not data:
            poller.unregister(fd)
            open_pipes.discard(fd)
            os.close(fd)
