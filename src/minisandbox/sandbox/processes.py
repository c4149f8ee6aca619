"""Waiting for children and ending whole trees of them, inside a sandbox's pid namespace."""

from __future__ import annotations

import os
import signal
import time

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable


def _ignore(_number: int, _frame: object) -> None:
    """A handler at all is what makes the wake-up descriptor work."""


class ChildWakeup:
    """A descriptor that becomes readable when a child ends, for use with ``poll``."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._read

    def filenos(self) -> tuple[int, int]:
        """All descriptors that it needs."""
        return self._read, self._write

    def clear(self) -> None:
        """Forget the wake-ups so far; call before reaping, or one that comes in between is lost."""
        try:
            while len(os.read(self._read, 512)) == 512:
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Stop listening (a forked child does, before it makes one of its own)."""
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)


def reap_one() -> tuple[int, int] | None:
    """Collect one child that has ended, as pid and exit code (negative: the signal)."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def reap() -> list[tuple[int, int]]:
    """Collect every child that has ended, like :func:`reap_one`."""
    ended: list[tuple[int, int]] = []
    while (child := reap_one()) is not None:
        ended.append(child)
    return ended


def newly_stopped() -> set[int]:
    """Children that were stopped by a signal since the last call."""
    found: set[int] = set()
    try:
        while (child := os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG)) is not None:
            if child.si_pid in found:
                break  # stopped and let go on, again and again: it comes with the next call
            found.add(child.si_pid)
    except ChildProcessError:
        pass
    return found


def has_children() -> bool:
    """Whether any child is left, running or dead; a dead one is not collected."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


#: A fork bomb is never seen whole; what of it was seen is stopped before the next look.
_LISTINGS = 10


def _rows() -> list[tuple[int, int, int]]:
    """Every process that has not ended, as pid, parent and time of birth, by /proc.

    One that was listed may have forked and ended before it is read, and what it forked is in no
    list that was made before. So /proc is listed again until it holds nothing unseen.
    """
    rows: list[tuple[int, int, int]] = []
    seen: set[str] = set()
    for _ in range(_LISTINGS):
        unseen = [name for name in os.listdir("/proc") if name.isdigit() and name not in seen]
        if not unseen:
            break
        seen.update(unseen)
        rows.extend(_read_rows(unseen))
    return rows


def _read_rows(names: list[str]) -> list[tuple[int, int, int]]:
    rows: list[tuple[int, int, int]] = []
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                # The program's name is in parentheses and may itself hold blanks and parentheses.
                fields = stat.read().rpartition(b")")[2].split()
        except OSError:
            continue
        # State, parent, num_threads and starttime: fields 3, 4, 20 and 22 of proc_pid_stat(5). A
        # program whose first thread alone has ended shows as a zombie, and runs on.
        if fields[0] not in (b"Z", b"X") or int(fields[17]) > 1:
            rows.append((int(name), int(fields[1]), int(fields[19])))
    return rows


def births_below(root: int, spare: dict[int, int]) -> dict[int, int]:
    """The processes below ``root``, each with the time of its birth, but for those in ``spare``
    and all that is below them.

    A pid may be given again; together with the time of birth it is one process.
    """
    children: dict[int, list[tuple[int, int]]] = {}
    for pid, parent, birth in _rows():
        children.setdefault(parent, []).append((pid, birth))
    found: dict[int, int] = {}
    parents = [root]
    for parent in parents:
        for pid, birth in children.get(parent, []):
            if spare.get(pid) != birth:
                found[pid] = birth
                parents.append(pid)
    return found


def descendants(root: int) -> list[int]:
    """All processes below ``root``, by the parents that /proc shows now."""
    return list(births_below(root, {}))


def children(pid: int) -> set[int] | None:
    """The children of the first thread of ``pid``; None where the kernel does not list them."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as listing:
            return {int(child) for child in listing.read().split()}
    except FileNotFoundError:  # without CONFIG_PROC_CHILDREN
        return None


#: What runs for another process with its memory until that executes a program: clone(2) with
#: CLONE_VFORK, and vfork(2). aarch64 has only the first.
_FORKS = {"x86_64": (b"56", b"58"), "aarch64": (b"220",)}


def is_stopped(pid: int) -> bool:
    """Whether no thread of ``pid`` runs: each is stopped, or has ended, or waits for a child to
    which it lent its memory, and which is stopped itself if all are (vfork(2)).
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True  # it is gone
    return all(_is_still(f"/proc/{pid}/task/{thread}") for thread in threads)


def _is_still(thread: str) -> bool:
    try:
        with open(f"{thread}/stat", "rb") as stat:
            state = stat.read().rpartition(b")")[2].split()[0]
        if state == b"D":
            # It cannot be stopped there, but it stops before its program goes on.
            with open(f"{thread}/syscall", "rb") as call:
                return call.read().split()[0] in _FORKS.get(os.uname().machine, ())
    except OSError:
        return not os.path.exists(thread)
    return state in (b"T", b"t", b"Z", b"X")


def send_signal(pid: int, number: int) -> None:
    """kill(2); a process that is gone is fine."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def kill_all(find: Callable[[], list[int]], patience: float = 5.0) -> None:
    """Kill every process that ``find`` finds, until it finds none or ``patience`` seconds are over.

    Stopping all of them first keeps a fork bomb from outrunning the scan. None is collected.
    """
    deadline = time.monotonic() + patience
    stopped: set[int] = set()
    while (fresh := set(find()) - stopped) and time.monotonic() < deadline:
        for pid in fresh:
            send_signal(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        send_signal(pid, signal.SIGKILL)
    while (left := find()) and time.monotonic() < deadline:
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        time.sleep(0.001)


def kill_tree(root: int) -> None:
    """Kill ``root``, a subreaper, and all below it; that first, or orphans would get away."""
    kill_all(lambda: descendants(root), patience=2.0)
    send_signal(root, signal.SIGKILL)


def end_descendants(patience: float = 5.0) -> None:
    """Kill and collect everything below this process, a subreaper, within about ``patience``
    seconds.

    Being a subreaper is what makes this exact: processes that daemonized or made sessions of their
    own come back here when their parents die. Stopping all of them first keeps a fork bomb from
    outrunning the scan. If processes are left at the end, everything in the sandbox but PID 1 and
    this process is killed.
    """
    me = os.getpid()
    stopped: set[int] = set()
    deadline = time.monotonic() + patience
    while (fresh := set(descendants(me)) - stopped) and time.monotonic() < deadline:
        for pid in fresh:
            send_signal(pid, signal.SIGSTOP)
        stopped |= fresh
    if not _kill_descendants(me, deadline):
        os.kill(-1, signal.SIGKILL)
        # What is left after this waits in the kernel, and dies when the kernel lets it.
        _kill_descendants(me, time.monotonic() + patience)


def _kill_descendants(me: int, deadline: float) -> bool:
    while has_children():
        if time.monotonic() > deadline:
            return False
        for pid in descendants(me):
            send_signal(pid, signal.SIGKILL)
        reap()
        time.sleep(0.001)
        reap()
    return True
