"""Starting the program of a request, inside a sandbox: as whom, where and on which streams it asks.

Runs after the root has changed: nothing may be imported here when a function runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import struct
import termios

from minisandbox import linux
from minisandbox.sandbox import accounts

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from typing import Any, NoReturn

#: Where the text of a script is found by the shell. A number no script uses for a redirection of
#: its own, or the highest that the limit on open files leaves.
_SCRIPT_FD = 253
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
#: The shell reads its script from a descriptor that is closed before the script runs. A script as
#: an argument is limited to 128 KiB, and is seen by ``pkill -f``, which then kills the shell that
#: runs it.
_READ_BASH = 'eval "$(</dev/fd/{0})" {0}<&-'
_READ_SH = 'eval "$(cat <&9)" 9<&-'

#: As env(1) and shells have it.
EXIT_CANNOT_EXECUTE = 126
EXIT_NOT_FOUND = 127
_NOT_FOUND = OSError(errno.ENOENT, os.strerror(errno.ENOENT))


Streams = tuple[int, int, int]


class CannotStart(Exception):
    """A command cannot be started: the exit code that tells so, a sentence and its errno."""

    def __init__(self, code: int, sentence: str, number: int) -> None:
        self.code = code
        self.number = number
        super().__init__(sentence)


def start(
    request: dict[str, Any], streams: Streams, script: int, account: accounts.Account, ids: int
) -> int:
    """Start the command; returns its pid, or the negative exit code when that is impossible.

    ``script`` is the descriptor of a script's text, or -1. The message of a failure goes to the
    command's standard error. ``ids`` is how many ids exist inside.
    """
    try:
        return attempt(request, streams, script, account, ids)
    except CannotStart as failure:
        _complain(str(failure), streams[2])
        return -failure.code


def attempt(
    request: dict[str, Any], streams: Streams, script: int, account: accounts.Account, ids: int
) -> int:
    """:func:`start` that raises ``CannotStart``, but for what only the new process finds out."""
    if not request["pty"] and not (account.uid or account.gid):
        return _spawn(request, streams, script)
    try:
        pid = os.fork()
    except OSError as error:
        raise _cannot("start another process", error) from error
    if pid == 0:
        _execute(request, streams, script, account, groups=ids > 1)
    return pid


def _spawn(request: dict[str, Any], streams: Streams, script: int) -> int:
    """Start the command; returns its pid.

    posix_spawn does not copy this process as fork does, which is a fifth of a short command's time.
    """
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)]
    argv = list(request["argv"])
    if script >= 0:
        argv, number = _shell()
        actions.append((os.POSIX_SPAWN_DUP2, script, number))
    _enter(request["cwd"])
    failure = _NOT_FOUND
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
    raise _cannot(f"execute {argv[0]}", failure)


def _execute(
    request: dict[str, Any],
    streams: Streams,
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
        if account.uid or account.gid or account.groups:
            if groups:
                os.setgroups(account.groups)
            os.setresgid(account.gid, account.gid, account.gid)
            os.setresuid(account.uid, account.uid, account.uid)
        _become(argv, request["env"], request["cwd"])
    except OSError as error:
        code = EXIT_CANNOT_EXECUTE
        _complain(str(_cannot("start the command", error)), 2)
    except CannotStart as failure:
        code = failure.code
        _complain(str(failure), 2)
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
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        number = _SCRIPT_FD if allowed == resource.RLIM_INFINITY else min(_SCRIPT_FD, allowed - 1)
        return [shell, "-c", _READ_BASH.format(number)], number
    return [shell, "-c", _READ_SH], 9  # POSIX shells know one-digit descriptors only


def _become(argv: list[str], env: dict[str, str], cwd: str) -> NoReturn:
    """Execute the first program found."""
    _enter(cwd)
    linux.reset_signals()
    failure = _NOT_FOUND
    for path in _candidates(argv[0], env):
        try:
            os.execve(path, argv, env)
        except OSError as error:
            failure = _worse(failure, error)
    raise _cannot(f"execute {argv[0]}", failure)


def _enter(cwd: str) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        raise _cannot(f"enter {cwd}", error) from error


def _candidates(name: str, env: dict[str, str]) -> list[str]:
    """Where execvp(3) looks for a program, but for the places that do not have it: finding that out
    by a new process each takes longer than a short command.
    """
    if "/" in name:
        return [name]
    places = (env.get("PATH") or "/usr/bin:/bin").split(":")
    return [path for path in (os.path.join(place, name) for place in places) if not _missing(path)]


def _missing(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # executing it fails as well, and says why
    return False


def _worse(failure: OSError, error: OSError) -> OSError:
    return failure if error.errno in (errno.ENOENT, errno.ENOTDIR) else error


def _cannot(what: str, error: OSError) -> CannotStart:
    # EAGAIN, which reads as if it were nobody's fault, is RLIMIT_NPROC or a control group.
    full = error.errno == errno.EAGAIN
    reason = "the limit on processes is reached" if full else error.strerror
    code = EXIT_NOT_FOUND if error is _NOT_FOUND else EXIT_CANNOT_EXECUTE
    return CannotStart(code, f"cannot {what}: {reason}", error.errno or errno.EIO)


def _complain(text: str, stderr: int) -> None:
    os.write(stderr, f"minisandbox: {text}\n".encode("utf-8", "surrogateescape"))


def open_terminal(size: tuple[int, int]) -> tuple[int, int]:
    """A terminal of ``size`` rows and columns: its master and its slave."""
    master, slave = os.openpty()
    set_size(slave, size)
    return master, slave


def set_size(terminal: int, size: tuple[int, int]) -> None:
    """Give a terminal a new size; the programs on it get SIGWINCH (ioctl_tty(2))."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
