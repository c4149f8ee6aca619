"""Locks that are tried, not waited for: who may remove a left-over, who may unpack now."""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

#: Seconds between two looks at the slots. ``flock`` cannot wait for one of several files.
_POLL = 0.02


def try_flock(fd: int) -> bool:
    """Take ``flock`` on ``fd`` if nobody has it; False also where the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def tried(path: Path) -> Generator[bool]:
    """Hold the lock at ``path`` (created, never removed) if it is free; yields whether it was."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield try_flock(fd)
    finally:
        os.close(fd)


@contextmanager
def slot(directory: Path, count: int) -> Generator[None]:
    """Hold one of ``count`` slots that all processes with this ``directory`` share."""
    while True:
        for number in range(count):
            with tried(directory / f"slot-{number}.lock") as held:
                if held:
                    yield
                    return
        time.sleep(_POLL * (0.5 + random.random()))
