"""Files that are being written to a shared store: locked meanwhile, gone afterwards unless renamed.

A writer that is killed leaves its file; the next one removes every file whose lock nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from minisandbox.atomic import fsync_directory
from minisandbox.store.faults import explained
from minisandbox.store.locks import try_flock


@contextmanager
def incoming(root: Path) -> Generator[tuple[Path, int]]:
    """A file to write to, in the store ``root``."""
    with explained("write to the store", root):
        directory = root / "incoming"
        directory.mkdir(parents=True, exist_ok=True)
        remove_abandoned(root)
        path, fd = _create_locked(directory)
    try:
        yield path, fd
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def keep(incoming: Path, fd: int, path: Path) -> None:
    """Give a written file its final name, durably."""
    os.fchmod(fd, 0o444)
    os.fsync(fd)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(incoming, path)
    fsync_directory(path.parent)


def _create_locked(directory: Path) -> tuple[Path, int]:
    while True:
        fd, name = tempfile.mkstemp(suffix=".tmp", dir=directory)
        try:
            # Between creation and lock another process may take the file for abandoned: wait for
            # it, and see whether the file is still there.
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:
            pass  # A file system without locks, so nobody can take a file for abandoned.
        if os.path.exists(name):
            return Path(name), fd
        os.close(fd)


def remove_abandoned(root: Path) -> None:
    """Remove what killed processes left in the store ``root``: files whose lock nobody holds."""
    for path in (root / "incoming").glob("*.tmp"):
        # NFS locks for writing only; a file that was complete but for its rename is read-only.
        flags = os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY
        try:
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # Gone meanwhile, or somebody else's.
        try:
            if try_flock(fd):
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)
