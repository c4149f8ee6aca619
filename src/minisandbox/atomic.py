"""Files and directories that are either whole or absent, and locks that die with their holder.

Everything the project writes goes through here: beside, fsync, rename. Locks are ``flock`` on a
file that is never removed (unlinking a locked file splits waiters across inodes), so a killed
process leaves no stale lock and a recycled pid cannot matter.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path


def fsync_directory(path: Path) -> None:
    """Make a rename inside ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Generator[Path]:
    """Yield a sibling path to write; on success it becomes ``path``, on any error it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".tmp", dir=path.parent)
    os.close(fd)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, mode)
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, path)
        fsync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old content or the new, never a part."""
    with replacing(path, mode=mode) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """``write_bytes`` for UTF-8 text, line ends kept."""
    write_bytes(path, text.encode("utf-8"))


def write_if_changed(path: Path, data: bytes) -> bool:
    """Write ``data`` unless ``path`` already holds it; returns whether it wrote.

    Keeps the modification time of unchanged files, which is what Snakemake decides by.
    """
    try:
        if path.read_bytes() == data:
            return False
    except FileNotFoundError:
        pass
    write_bytes(path, data)
    return True


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Generator[None]:
    """Hold ``flock`` on ``path`` (created, never removed) for the length of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # or a child that was forked meanwhile keeps it
        os.close(fd)


def ensure_directory(target: Path, lock: Path, fill: Callable[[Path], None]) -> bool:
    """Make ``target`` by filling a sibling and renaming it; returns whether this call made it.

    Process A fills while B waits on ``lock``; B then finds the finished directory. If A is killed,
    the kernel drops its lock, and B starts over in a sibling of its own: a half-filled directory
    never bears the final name. What A left is removed first, but for what this process has no right
    to remove. ``fill`` receives a path that does not exist yet and must create it; it also cleans
    up what it made when it raises.
    """
    if target.is_dir():
        return False
    with locked(lock):
        if target.is_dir():
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
        work.rmdir()
        fill(work)
        os.rename(work, target)
        fsync_directory(target.parent)
        return True


def _remove_abandoned(target: Path) -> None:
    """Remove what killed processes were filling; the lock of ``target`` is held."""
    # The whole name: the sibling of a target whose name begins alike may be in use right now.
    siblings = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]{{8}}\.tmp")
    for path in target.parent.iterdir():
        if siblings.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
