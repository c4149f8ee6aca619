"""Who uses which unpacked directory: a shared lock for each, which dies with its process.

``uses/<name>`` is locked by every process that makes or uses the directory of that name, from
before it looks whether the directory is there. The collector moves a directory away only while it
holds the same lock alone. So what is in use stays, and nobody finds a directory that is about to
go. When a directory was last used is the modification time of its file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

from minisandbox.closing import Shared
from minisandbox.store.directories import make_passable
from minisandbox.store.locks import open_lock

#: Seconds between two notes of when something was last used.
_NOTED = 60.0


class Lease(Shared):
    """Keeps directories of a node store from being collected, until the last who needs it ends.

    ``uses`` is the store's directory of locks. It is this process's: those that it forks, which may
    live on for hours, hold nothing of it, as they cannot end its sandboxes either.
    """

    def __init__(self, uses: Path) -> None:
        super().__init__()
        self._uses = os.fspath(uses)
        self._held: dict[str, _Use] = {}

    def add(self, name: str) -> None:
        """Keep the directory of this name too, whether it is there or not.

        In a store that this process cannot write to, and that has no lock for it, nothing is held:
        whoever can write there sees no use of it.
        """
        if name not in self._held:
            self._held[name] = _TABLE.take(f"{self._uses}/{name}")

    def _end(self) -> None:
        while self._held:
            name, use = self._held.popitem()
            _TABLE.give(f"{self._uses}/{name}", use)


class _Use:
    """The lock of one directory, held for as many leases of this process as ``count`` says."""

    def __init__(self, fd: int | None) -> None:
        self.fd = fd
        self.count = 0
        self._noted = 0.0 if fd is None else os.fstat(fd).st_mtime

    def note(self) -> None:
        """Write down that it is used now, unless that was done of late."""
        now = time.time()
        if self.fd is None or abs(now - self._noted) < _NOTED:
            return
        self._noted = now
        try:
            os.utime(self.fd)
        except OSError:
            return  # somebody else's store: who may write there orders it by their own uses


class _Table:
    """Every use of this process: one descriptor each, however many sandboxes need it."""

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}
        self._lock = threading.Lock()

    def take(self, path: str) -> _Use:
        with self._lock:
            use = self._uses.get(path)
            if use is None:
                use = self._uses[path] = _Use(_lock_shared(path))
            use.count += 1
            use.note()
            return use

    def give(self, path: str, use: _Use) -> None:
        with self._lock:
            if self._uses.get(path) is not use:
                return  # of the process that this one was forked from
            use.count -= 1
            if use.count:
                return
            del self._uses[path]
            use.note()
            if use.fd is not None:
                os.close(use.fd)

    def forget(self) -> None:
        """Hold nothing, in a forked child: closing its copies ends no lock of the parent's.

        Nor is the parent's lock of this table any use there: another thread may have held it.
        """
        self._lock = threading.Lock()
        uses, self._uses = self._uses, {}
        for use in uses.values():
            if use.fd is not None:
                os.close(use.fd)


def _lock_shared(path: str) -> int | None:
    place = Path(path)
    try:
        try:
            fd = open_lock(place)
        except FileNotFoundError:
            make_passable(place.parent)
            fd = open_lock(place)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return None
        raise
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    except BaseException:
        os.close(fd)
        raise
    return fd


_TABLE = _Table()
os.register_at_fork(after_in_child=_TABLE.forget)
