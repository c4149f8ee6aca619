"""What a node store holds: each directory, its bytes, and when it was last used.

Equal files are one inode with many names, so bytes are counted by inode. What a directory would
free is what no other one has a name for; that the pool has one does not count.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from minisandbox.idmap import IdMap
from minisandbox.store.faults import call_carrying, reachable
from minisandbox.store.locks import try_flock
from minisandbox.store.references import MOST_LAYERS, reference_of
from minisandbox.store.walking import walk

Kind = Literal["layer", "source", "derived"]
#: The directories of a node store that hold what sandboxes stand on, and what lies in each.
FOLDERS: Mapping[Kind, str] = {"layer": "layers", "source": "sources", "derived": "derived"}
#: Where directories are moved that are no longer used, and damaged ones that may still be.
TRASH, DAMAGED = "trash", "damaged"
USES, LOCKS, POOL = "uses", "locks", "pool"

_BLOCK = 512


@dataclass(frozen=True)
class Tree:
    """Bytes of one tree: by its files' sizes, and on disk. There ``folders`` are directories,
    ``own`` the files with one name, ``shared`` those with several, by inode.
    """

    files: int
    apparent: int
    folders: int
    own: int
    shared: Mapping[int, int]

    @property
    def allocated(self) -> int:
        """Bytes on disk of all its inodes, whoever else has names for them."""
        return self.folders + self.own + sum(self.shared.values())


_NOTHING = Tree(0, 0, 0, 0, {})


def measure(path: Path) -> Tree:
    """Count a tree, or a file; call it through ``idmap.call_mapped``. What is gone is nothing."""
    files = apparent = folders = own = 0
    shared: dict[int, int] = {}
    try:
        status = path.lstat()
        whole = [status]
        if stat.S_ISDIR(status.st_mode):
            whole += [found.status for found in walk(path)]
    except FileNotFoundError:
        return _NOTHING
    for status in whole:
        if stat.S_ISDIR(status.st_mode):
            folders += status.st_blocks * _BLOCK
            continue
        files += 1
        apparent += status.st_size
        if status.st_nlink == 1:
            own += status.st_blocks * _BLOCK
        else:
            shared[status.st_ino] = status.st_blocks * _BLOCK
    return Tree(files, apparent, folders, own, shared)


def added_by(path: Path, idmap: IdMap) -> int:
    """Bytes on disk that a new tree added: its files that no other one has, in a pool or not."""
    with reachable(path.parent) as parent:
        return call_carrying(idmap, partial(_added, parent / path.name))


def _added(path: Path) -> int:
    every = [path.lstat(), *(found.status for found in walk(path))]
    new = {
        status.st_ino: status.st_blocks * _BLOCK
        for status in every
        if status.st_nlink <= 2 or stat.S_ISDIR(status.st_mode)
    }
    return sum(new.values())


@dataclass(frozen=True)
class Item:
    """One directory that sandboxes stand on. ``below`` is the name of a source's reference, or
    empty.
    """

    kind: Kind
    name: str
    path: Path
    below: str
    last_use: float
    tree: Tree


@dataclass(frozen=True)
class Survey:
    """All items of a node store, and bytes besides: ``pool`` are its directories, ``unshared`` what
    only it has a name for, ``waste`` what killed processes left or nobody uses any more.
    """

    items: Sequence[Item]
    pool: int = 0
    unshared: int = 0
    waste: int = 0

    @property
    def holders(self) -> Counter[int]:
        """How many items have names for each inode."""
        return Counter(inode for item in self.items for inode in item.tree.shared)

    @property
    def total(self) -> int:
        """Bytes on disk, each inode once."""
        return sum(self.shares().values()) + self.pool + self.unshared + self.waste

    def shares(self) -> Mapping[str, int]:
        """Bytes on disk by path of the item, each inode with the first that has it."""
        counted: set[int] = set()
        shares: dict[str, int] = {}
        for item in self.items:
            new = item.tree.shared.keys() - counted
            counted |= new
            tree = item.tree
            shares[os.fspath(item.path)] = (
                tree.folders + tree.own + sum(tree.shared[inode] for inode in new)
            )
        return shares


def items_in(base: Path) -> Iterator[tuple[Kind, Path]]:
    """The finished directories below ``base``, by kind and name."""
    for kind, folder in FOLDERS.items():
        for path in sorted((base / folder).glob("*")):
            if not path.name.startswith("."):
                yield kind, path


def survey(base: Path, idmap: IdMap) -> Survey:
    """Look at every file of the node store ``base``; raises ``OSError``."""
    found = list(items_in(base))
    wasted = _wasted(base)
    trees = _measure_all(base, [*(path for _, path in found), *wasted, base / POOL], idmap)
    items = [
        Item(kind, path.name, path, reference_of(path), last_use(base, path), tree)
        for (kind, path), tree in zip(found, trees, strict=False)
    ]
    pool = trees.pop()
    return Survey(items, pool.folders, pool.own, _bytes_of_waste(trees[len(found) :], items))


def waste_in(base: Path, idmap: IdMap, items: Iterable[Item]) -> int:
    """Bytes that are of no item: as ``Survey.waste``."""
    return _bytes_of_waste(_measure_all(base, _wasted(base), idmap), items)


def _wasted(base: Path) -> list[Path]:
    paths = [*(base / TRASH).glob("*"), *(base / DAMAGED).glob("*")]
    return paths + [path for name in FOLDERS.values() for path in (base / name).glob(".*.tmp")]


def _bytes_of_waste(trees: Sequence[Tree], items: Iterable[Item]) -> int:
    shared = {inode: size for tree in trees for inode, size in tree.shared.items()}
    for item in items:
        for inode in item.tree.shared.keys() & shared.keys():
            del shared[inode]
    return sum(tree.folders + tree.own for tree in trees) + sum(shared.values())


def _measure_all(base: Path, paths: Sequence[Path], idmap: IdMap) -> list[Tree]:
    if not base.is_dir():
        return [_NOTHING for _ in paths]
    with reachable(base) as root:
        inside = [root / path.relative_to(base) for path in paths]
        return call_carrying(idmap, partial(_measure_each, inside))


def _measure_each(paths: Iterable[Path]) -> list[Tree]:
    return [measure(path) for path in paths]


def lower_of(item: Item, by_name: Mapping[str, Item]) -> Iterator[Item]:
    """The sources that a source lies on, the next one first; damaged notes may make a circle."""
    for _ in range(MOST_LAYERS):
        lower = by_name.get(item.below) if item.below else None
        if lower is None:
            return
        yield lower
        item = lower


def owners_of(item: Item, names: Iterable[str]) -> list[str]:
    """Of the items ``names``, those that a derived one was computed of: see ``derived_name``."""
    if item.kind != "derived":
        return []
    of = item.name.split("-")[1:2]
    return [name for name in names if of and name.startswith(of[0])]


def last_use(base: Path, path: Path) -> float:
    """When an item was last used, in unix seconds; when it was made, where nobody noted a use."""
    try:
        return (base / USES / path.name).stat().st_mtime
    except OSError:
        pass
    try:
        return path.stat().st_ctime
    except OSError:
        return 0.0


def in_use(base: Path, name: str) -> bool:
    """Whether some process uses, or makes, the item ``name`` at this moment."""
    try:
        fd = os.open(base / USES / name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_flock(fd)
    finally:
        os.close(fd)
