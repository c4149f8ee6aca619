"""The directory that a server owns below a scratch directory, and what becomes of it when nobody
was left to remove it.

A directory named ``box-*`` is locked (flock) by its server at once, and the kernel drops the lock
when the server ends, however it ends. So a ``box-*`` that can be locked is a leftover, and the next
server that uses this scratch directory removes it: no pid files, no ages, no clean-up by hand. It
holds one directory for each sandbox.
"""

from __future__ import annotations

import errno
import fcntl
import os

from minisandbox import linux

_PREFIX = "box-"
#: How often another server may come between the making and the locking of a directory.
_TRIES = 3
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

#: A leftover: its path, and the descriptor of its lock.
Stale = tuple[str, int]


class Home:
    """The directory of this server below ``scratch``; it is there while it has users. ``lock`` is a
    descriptor: a process that has it holds the directory too.
    """

    def __init__(self, scratch: str, path: str, lock: int) -> None:
        self.scratch = scratch
        self.path = path
        self.users = 0
        self.lock = lock

    def make(self, name: str) -> str:
        """A new directory in it, for a user; raises ``OSError``."""
        path = os.path.join(self.path, name)
        os.mkdir(path, 0o700)
        self.users += 1
        return path

    def drop(self) -> None:
        """Remove the directory, if all that was in it could be removed, and unlock it."""
        try:
            os.rmdir(self.path)
        except OSError:
            pass  # removed by someone else; or the next server will try again
        os.close(self.lock)


class Homes:
    """The directories of one server."""

    def __init__(self) -> None:
        self._homes: dict[str, Home] = {}

    def find(self, scratch: str) -> Home | None:
        """That below ``scratch``, if there is one, which somebody may have removed."""
        home = self._homes.get(scratch)
        return home if home is not None and os.path.isdir(home.path) else None

    def create(self, scratch: str) -> Home:
        """Make that below ``scratch``; raises ``OSError``."""
        home = self._homes[scratch] = _create(scratch)
        return home

    def leave(self, home: Home) -> None:
        """A user's directory is gone, or could not be made."""
        home.users -= 1
        self.tidy(home)

    def tidy(self, home: Home) -> None:
        """Remove it if it has no users."""
        if not home.users:
            if self._homes.get(home.scratch) is home:  # and no other has taken its place
                del self._homes[home.scratch]
            home.drop()


def _create(scratch: str) -> Home:
    """Make and lock a directory below ``scratch``."""
    for _ in range(_TRIES):
        home = _claim(scratch)
        if home is not None:
            return home
    raise OSError(errno.EBUSY, "other servers remove what is made here", scratch)


def _claim(scratch: str) -> Home | None:
    """None where another server took it for a leftover before it was locked."""
    path = os.path.join(scratch, _PREFIX + os.urandom(6).hex())
    os.mkdir(path, 0o700)
    try:
        lock = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(path)
    except (BlockingIOError, FileNotFoundError):
        os.close(lock)
        return None
    # The kernel looks past every inode that was deleted near a new one in the last five seconds,
    # and sandboxes come and go: a sixth of all work of 256 starts.
    linux.spread_subdirectories(lock)
    return Home(scratch, path, lock)


def take_stale(scratch: str) -> list[Stale]:
    """Lock the directories of servers that are gone, so that only the caller removes them."""
    found: list[Stale] = []
    for name in os.listdir(scratch):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(scratch, name)
        try:
            lock = os.open(path, _DIRECTORY)
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
