"""The directory that a server owns below a scratch directory, and what becomes of it when nobody
was left to remove it.

A directory named ``box-*`` was locked (flock) by its server before it got that name, and the kernel
drops the lock when the server ends, however it ends. So a ``box-*`` that can be locked is a
leftover, and the next server that uses this scratch directory removes it: no pid files, no ages, no
clean-up by hand. It holds one directory for each sandbox.
"""

from __future__ import annotations

import fcntl
import os

_PREFIX = "box-"
_LOCK = "lock"

#: A leftover: its path, and the descriptor of its lock.
Stale = tuple[str, int]


class Home:
    """The directory of this server below ``scratch``; it is there while it has users."""

    def __init__(self, scratch: str, path: str, lock: int) -> None:
        self.scratch = scratch
        self.path = path
        self.users = 0
        self._lock = lock

    def drop(self) -> None:
        """Remove the directory, if all that was in it could be removed, and unlock it."""
        try:
            remove_empty(self.path)
        except OSError:
            pass  # removed by someone else; or the next server will try again
        os.close(self._lock)


def create(scratch: str) -> Home:
    """Make and lock a directory below ``scratch``."""
    token = os.urandom(6).hex()
    fresh = os.path.join(scratch, f".new-{token}")
    final = os.path.join(scratch, _PREFIX + token)
    os.mkdir(fresh, 0o700)
    lock = os.open(os.path.join(fresh, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(fresh, final)
    return Home(scratch, final, lock)


def take_stale(scratch: str) -> list[Stale]:
    """Lock the directories of servers that are gone, so that only the caller removes them."""
    found: list[Stale] = []
    for name in os.listdir(scratch):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(scratch, name)
        try:
            lock = os.open(os.path.join(path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # removed a moment ago, or in the middle of it by its owner
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
        else:
            found.append((path, lock))
    return found


def let_go(stale: list[Stale]) -> None:
    """Close the locks; a process that inherited them keeps them."""
    for _, lock in stale:
        os.close(lock)


def parts(path: str) -> list[str]:
    """What is in a leftover but the lock, which goes last: an interrupted removal can be taken
    up.
    """
    return [os.path.join(path, name) for name in os.listdir(path) if name != _LOCK]


def remove_empty(path: str) -> None:
    """Remove the directory of a server in which nothing is left but the lock."""
    if os.listdir(path) == [_LOCK]:
        os.unlink(os.path.join(path, _LOCK))
        os.rmdir(path)
