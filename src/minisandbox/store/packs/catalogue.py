"""The packs of a store: which there are, and which of them holds a layer.

Invariant: a pack under its final name is complete and never changes, so an index is read once. What
cannot be read is remembered with its reason; the packs beside it serve on.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minisandbox.store.faults import StoreUnusable
from minisandbox.store.packs.layout import (
    HEADER_SIZE,
    Index,
    Malformed,
    OtherVersion,
    parse,
    parse_header,
)

_NAME = re.compile(r"[0-9a-f]{64}\.pack")
#: Whoever may write to a shared store can put a pipe there, which blocks who opens it.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class PackDamaged(Exception):
    """A pack, or a part of it, is not what was written; ``reason`` is a clause about ``path``.

    Not ``lasting`` is what another release of this project may be able to read.
    """

    def __init__(self, path: Path, reason: str, *, lasting: bool = True) -> None:
        self.path = path
        self.reason = reason
        self.lasting = lasting
        super().__init__(f"{path} is damaged: {reason}")

    def about(self, path: Path) -> str:
        """The reason for who speaks of ``path``: names this file where it is another one."""
        return self.reason if self.path == path else str(self)


@dataclass(frozen=True)
class Pack:
    """One file and its index."""

    path: Path
    index: Index


def open_regular(path: Path) -> int:
    """A descriptor of a regular file; raises ``PackDamaged`` for anything else, ``OSError``."""
    try:
        fd = os.open(path, _READ)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there
            raise PackDamaged(path, "it is not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PackDamaged(path, "it is not a regular file")
    return fd


def load(path: Path) -> Pack:
    """Read the index; raises ``PackDamaged``, and ``OSError`` where the file cannot be read."""
    fd = open_regular(path)
    try:
        header = os.pread(fd, HEADER_SIZE, 0)
        return Pack(path, parse(header, read_at(fd, HEADER_SIZE, parse_header(header))))
    except Malformed as error:
        lasting = not isinstance(error, OtherVersion)
        raise PackDamaged(path, str(error), lasting=lasting) from None
    finally:
        os.close(fd)


def read_at(fd: int, offset: int, size: int) -> bytes:
    """``size`` bytes from ``offset``, fewer only where the file ends."""
    parts: list[bytes] = []
    while size:
        data = os.pread(fd, min(size, 1 << 30), offset)
        if not data:
            break
        parts.append(data)
        offset += len(data)
        size -= len(data)
    return b"".join(parts)


class Catalogue:
    """The packs in ``<root>/packs``; the folder is looked at again when something is not found."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "packs"
        self.unreadable: dict[Path, str] = {}
        self._lost: set[Path] = set()
        self._packs: dict[str, Pack] = {}
        self._newest: list[Pack] = []

    def __reduce__(self) -> tuple[type[Catalogue], tuple[Path]]:
        return (Catalogue, (self.folder.parent,))

    def path(self, name: str) -> Path:
        """Where the pack of this name is or would be."""
        return self.folder / f"{name}.pack"

    def find(self, digest: bytes, *, without: frozenset[str] = frozenset()) -> Pack | None:
        """The newest pack that holds the layer and is not one of those to do ``without``."""
        for fresh in (False, True):
            if fresh:
                self.refresh()  # another thread may have seen the change first
            for pack in self._newest:
                if digest in pack.index.layers and pack.index.name not in without:
                    return pack
        return None

    def get(self, name: str) -> Pack:
        """A pack by its name; raises ``PackDamaged`` where there is none to be read."""
        for fresh in (False, True):
            if fresh:
                self.refresh()
            if name in self._packs:
                return self._packs[name]
        path = self.path(name)
        raise PackDamaged(path, self.unreadable.get(path, "it is missing"))

    def packs(self) -> Iterator[Pack]:
        """Every pack that can be read, the newest first."""
        self.refresh()
        yield from self._newest

    def refresh(self) -> bool:
        """Look which packs there are; returns whether that changed."""
        try:
            names = {entry for entry in os.listdir(self.folder) if _NAME.fullmatch(entry)}
        except FileNotFoundError:
            names = set[str]()
        except OSError as error:
            raise StoreUnusable("read", self.folder, error) from error
        before = {*self._packs}
        self._packs = {name: pack for name, pack in self._packs.items() if f"{name}.pack" in names}
        self.unreadable, self._lost = {}, set()
        for entry in names:
            if entry.removesuffix(".pack") not in self._packs:
                self._load(self.folder / entry)
        self._newest = sorted(
            self._packs.values(), key=lambda pack: (-pack.index.sequence, pack.index.name)
        )
        return before != {*self._packs}

    def set_aside(self) -> list[Path]:
        """Rename the packs whose index is damaged, which nobody can read any more."""
        self.refresh()
        for path in self._lost:
            path.rename(path.with_suffix(".damaged"))
        lost = sorted(self._lost)
        self.refresh()
        return lost

    def _load(self, path: Path) -> None:
        try:
            pack = load(path)
            if f"{pack.index.name}.pack" != path.name:
                raise PackDamaged(path, f"its index is that of {pack.index.name[:12]}")
        except PackDamaged as error:
            self.unreadable[path] = error.reason
            if error.lasting:
                self._lost.add(path)
        except FileNotFoundError:
            pass  # A newer pack took its place meanwhile.
        except OSError as error:
            self.unreadable[path] = str(StoreUnusable("read", path, error))
        else:
            self._packs[pack.index.name] = pack
