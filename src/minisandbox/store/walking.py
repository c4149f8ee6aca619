"""Every file of an unpacked tree, whatever its depth: layers may have thousands of levels."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Found(NamedTuple):
    """A file, link or directory: its path below the tree, and its name in ``directory``, a
    descriptor that is open until the next one is asked for.
    """

    path: bytes
    name: bytes
    directory: int
    status: os.stat_result


def walk(tree: Path) -> Iterator[Found]:
    """What is in ``tree``, directories before what they hold. No link is followed, and one
    descriptor is open at a time. Call it through ``idmap.call_mapped``; the tree must not change.
    """
    current = os.open(tree, _FLAGS)
    path: list[bytes] = []
    pending: list[list[bytes]] = []
    try:
        yield from _here(current, path, pending)
        while pending:
            if pending[-1]:
                name = pending[-1].pop()
                current = _moved(current, name)
                path.append(name)
                yield from _here(current, path, pending)
            else:
                pending.pop()
                if pending:
                    current = _moved(current, b"..")
                    path.pop()
    finally:
        os.close(current)


def _moved(current: int, name: bytes) -> int:
    fd = os.open(name, _FLAGS, dir_fd=current)
    os.close(current)
    return fd


def _here(current: int, path: list[bytes], pending: list[list[bytes]]) -> Iterator[Found]:
    parent = b"".join(part + b"/" for part in path)
    folders: list[bytes] = []
    for name in sorted(os.fsencode(name) for name in os.listdir(current)):
        status = os.stat(name, dir_fd=current, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            folders.append(name)
        yield Found(parent + name, name, current, status)
    pending.append(folders[::-1])
