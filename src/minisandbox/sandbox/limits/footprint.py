"""How much a tree holds, told without trusting who shapes it.

Runs in a fork of the server while the sandbox goes on writing: directories may be moved or replaced
by links between two steps. Every directory is opened from the one above it and no link is followed,
so nothing outside the tree is ever looked at, and moving directories hides nothing. Bounded in
descriptors and in time: it ends where the limits are exceeded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

_BLOCK = 512  # of st_blocks, whatever the file system's own are (stat(2))
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

#: Levels that are held open at once, and directories that lie deeper and are put off. Trees that
#: have more of both are made to be in the way.
_LEVELS = 128
_MOST_PUT_OFF = 128


class Footprint:
    """What was counted so far: bytes on disk, and inodes. A file of several names counts once."""

    def __init__(self, most_bytes: int, most_inodes: int) -> None:
        self.size = 0
        self.inodes = 0
        self._most = most_bytes, most_inodes
        self._linked: set[int] = set()

    @property
    def exceeded(self) -> bool:
        """Whether there is no need to go on."""
        return self.size > self._most[0] or self.inodes > self._most[1]

    def add(self, status: os.stat_result) -> None:
        """Count one entry of a directory."""
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if status.st_ino in self._linked:
                return
            self._linked.add(status.st_ino)
        self.size += status.st_blocks * _BLOCK
        self.inodes += 1


def measure(path: str, *, most_bytes: int, most_inodes: int) -> tuple[int, int]:
    """Bytes on disk and number of inodes below ``path``; the tree may change meanwhile.

    Ends early once one of them is beyond its limit. A tree that no limited effort can measure is
    said to have more inodes than allowed.
    """
    found = Footprint(most_bytes, most_inodes)
    put_off = [os.open(path, _FLAGS)]
    while put_off and not found.exceeded:
        if len(put_off) > _MOST_PUT_OFF:
            found.inodes = most_inodes + 1
        else:
            _descend(put_off.pop(), found, put_off)
    for fd in put_off:
        os.close(fd)
    return found.size, found.inodes


def _descend(top: int, found: Footprint, put_off: list[int]) -> None:
    levels = [(top, _scan(top, found))]
    try:
        while levels and not found.exceeded and len(put_off) <= _MOST_PUT_OFF:
            here, todo = levels[-1]
            if not todo:
                os.close(here)
                levels.pop()
                continue
            try:
                below = os.open(todo.pop(), _FLAGS, dir_fd=here)
            except OSError:  # gone, a link by now, or nobody's to read
                continue
            if len(levels) < _LEVELS:
                levels.append((below, _scan(below, found)))
            else:
                put_off.append(below)
    finally:
        for fd, _ in levels:
            os.close(fd)


def _scan(directory: int, found: Footprint) -> list[str]:
    """Count the entries of a directory; returns the names of those that are directories."""
    below: list[str] = []
    for name, status in _entries(directory):
        found.add(status)
        if stat.S_ISDIR(status.st_mode):
            below.append(name)
        if found.exceeded:
            break
    return below


def _entries(directory: int) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                yield entry.name, entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
