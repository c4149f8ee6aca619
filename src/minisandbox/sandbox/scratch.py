"""The directory a running sandbox owns, and what becomes of it when nobody was left to remove it.

A directory named ``box-*`` was locked (flock) by its supervisor before it got that name, and the
kernel drops the lock when the supervisor ends, however it ends. So a ``box-*`` that can be locked
is a leftover, and the next supervisor of the same scratch directory removes it: no pid files, no
ages, no clean-up by hand.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable

_PREFIX = "box-"
_LOCK = "lock"


def create(scratch: str) -> tuple[str, int]:
    """Make and lock a directory below ``scratch``; returns its path and the descriptor of the
    lock.
    """
    token = os.urandom(6).hex()
    fresh = os.path.join(scratch, f".new-{token}")
    final = os.path.join(scratch, _PREFIX + token)
    os.mkdir(fresh, 0o700)
    lock = os.open(os.path.join(fresh, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(fresh, final)
    return final, lock


def remove_stale(scratch: str, remove: Callable[[str], None]) -> None:
    """Remove the directories of supervisors that are gone; what cannot be removed is left for
    later.
    """
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
            remove(path)
        except OSError:
            continue
        finally:
            os.close(lock)


def finish_last(path: str, remove: Callable[[str], None]) -> None:
    """Remove all of ``path`` with the lock file last, so that an interrupted removal can be taken
    up.
    """
    for name in os.listdir(path):
        if name != _LOCK:
            remove(os.path.join(path, name))
    remove(path)
