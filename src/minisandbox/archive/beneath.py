"""Directories below a root, reached one component at a time without following a link.

A path of the host is resolved anew by each system call, at most 4,096 bytes long, and through
whatever symbolic links somebody planted. Descriptors have none of these problems.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from minisandbox.closing import Closing

#: Levels whose descriptors are kept; below them only the deepest one is, so that a tree of any
#: depth needs few of the 1,024 descriptors a process usually has.
_KEPT = 64
_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

#: Makes the missing directory ``name`` in the directory ``fd``; called with the parts of its path.
Make = Callable[[int, tuple[bytes, ...]], None]


class Beneath(Closing):
    """Opens directories below ``root_fd`` and keeps the way to the latest one open.

    Archives are in path order, so the next directory is nearly always the same one or a neighbour.
    The descriptors belong to this object; ``root_fd`` stays the caller's.
    """

    def __init__(self, root_fd: int) -> None:
        self._root = root_fd
        self._parts: list[bytes] = []
        self._kept: list[int] = []
        self._deepest: int | None = None

    def close(self) -> None:
        """Close what is open."""
        self._retreat(0)

    def directory(self, parts: Sequence[bytes], make: Make | None = None) -> int:
        """An ``O_PATH`` descriptor of the directory, valid until the next call.

        Missing directories are made by ``make`` when it is given. Raises ``OSError``: ENOENT, or
        ENOTDIR where a component is a link or not a directory.
        """
        common = 0
        for ours, theirs in zip(self._parts, parts, strict=False):
            if ours != theirs:
                break
            common += 1
        if common < len(self._parts):
            self._retreat(min(common, _KEPT))
        for level in range(len(self._parts), len(parts)):
            self._advance(tuple(parts[: level + 1]), make)
        return self._current()

    def _current(self) -> int:
        if self._deepest is not None:
            return self._deepest
        return self._kept[-1] if self._kept else self._root

    def _advance(self, parts: tuple[bytes, ...], make: Make | None) -> None:
        here = self._current()
        try:
            fd = os.open(parts[-1], _FLAGS, dir_fd=here)
        except FileNotFoundError:
            if make is None:
                raise
            make(here, parts)
            fd = os.open(parts[-1], _FLAGS, dir_fd=here)
        self._parts.append(parts[-1])
        if len(self._kept) < _KEPT:
            self._kept.append(fd)
            return
        if self._deepest is not None:
            os.close(self._deepest)
        self._deepest = fd

    def _retreat(self, level: int) -> None:
        if self._deepest is not None:
            os.close(self._deepest)
            self._deepest = None
        while len(self._kept) > level:
            os.close(self._kept.pop())
        del self._parts[level:]
