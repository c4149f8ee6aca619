"""Locks that are tried, not waited for: who may remove a left-over, what nobody uses."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


def try_flock(fd: int) -> bool:
    """Take ``flock`` on ``fd`` if nobody has it; False also where the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def unlock(fd: int) -> None:
    """Give a lock up and close ``fd``: closing alone leaves it to a child that was forked
    meanwhile.
    """
    with suppress(OSError):  # a file system without locks
        fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


@contextmanager
def tried(path: Path) -> Generator[bool]:
    """Hold the lock at ``path`` (created, never removed) if it is free; yields whether it was."""
    fd = open_lock(path)
    try:
        yield try_flock(fd)
    finally:
        unlock(fd)


def open_lock(path: Path) -> int:
    """A descriptor of the lock file ``path``, made if missing, also where it is another user's."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        try:
            return os.open(path, os.O_RDONLY | flags)
        except OSError:
            raise error from None  # that it cannot be made says more than that it is not there
