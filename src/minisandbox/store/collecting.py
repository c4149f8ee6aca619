"""Removes what was not used for longest from a node store, never what somebody uses.

A directory is moved to ``trash/`` while its lock is held alone, and removed from there when
nobody is held up any more. What a killed collector left there is removed by the next one.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from minisandbox import atomic
from minisandbox.idmap import remove_tree
from minisandbox.sizes import LIMIT_VARIABLE, readable_size
from minisandbox.store.account import Account
from minisandbox.store.faults import StoreUnusable, call_carrying, explained, reachable
from minisandbox.store.locks import tried
from minisandbox.store.nearest import References
from minisandbox.store.references import reference_of
from minisandbox.store.usage import (
    DAMAGED,
    FOLDERS,
    LOCKS,
    POOL,
    TRASH,
    USES,
    Item,
    Survey,
    in_use,
    last_use,
    lower_of,
    owners_of,
    survey,
    waste_in,
)

if TYPE_CHECKING:
    from minisandbox.store.unpacked import NodeStore

_OPERATION = "collect in the node store"
_REMEDY = f"close sandboxes, or raise {LIMIT_VARIABLE}"


@dataclass(frozen=True)
class Removed:
    """An item that was removed, and the bytes on disk that this freed."""

    kind: str
    name: str
    freed: int


@dataclass(frozen=True)
class Collected:
    """What a collection did, in bytes on disk: what was there, what of it is left, what of that is
    in use; ``swept`` is what nobody had used any more.
    """

    before: int
    after: int
    used: int
    swept: int
    removed: Sequence[Removed]


def collect(
    node: NodeStore,
    limit: int | None,
    *,
    dry_run: bool = False,
    report: Callable[[str], None] | None = None,
) -> Collected:
    """Remove what nobody uses any more, and then, until ``limit`` bytes are left (None: any
    number), what was not used for longest. What is in use stays, even above the limit.

    Raises ``StoreUnusable``.
    """
    with explained(_OPERATION, node.base):
        node.prepare()
        with atomic.locked(_lock(node)):
            return _Collector(node, report or (lambda _: None), dry_run).run(limit)


def make_room(node: NodeStore, limit: int, name: str, size: int) -> None:
    """Let ``size`` bytes more stay below ``limit``, and count them as those of ``name``.

    Removes until a tenth of the limit is free besides, so that not each layer needs a collection.
    Raises ``StoreUnusable`` where that cannot be met.
    """
    with explained(_OPERATION, node.base), atomic.locked(_lock(node)):
        account = Account(node.base)
        total = account.total()
        if total is None or total + size > limit:
            target = max(0, limit - size - limit // 10)
            done = _Collector(node, lambda _: None, dry_run=False).run(target)
            being_made = account.total() or 0
            if max(done.after, being_made) + size > limit:
                raise _over_limit(node, limit, size, done)
        account.add(name, size)


def _over_limit(node: NodeStore, limit: int, size: int, done: Collected) -> StoreUnusable:
    reason = (
        f"{readable_size(size)} more would exceed its limit of {readable_size(limit)}, of which "
        f"{readable_size(done.used)} are in use"
    )
    return StoreUnusable(
        "unpack a layer into the node store", node.base, OSError(0, reason), remedy=_REMEDY
    )


def _lock(node: NodeStore) -> Path:
    return node.base / LOCKS / "collect.lock"


class _Collector:
    """One collection, under the lock that keeps others away."""

    def __init__(self, node: NodeStore, report: Callable[[str], None], dry_run: bool) -> None:
        self._node = node
        self._base = node.base
        self._report = report
        self._dry_run = dry_run
        # Of the sources that were surveyed: their names, and those of what lies on each.
        self._surveyed: set[str] = set()
        self._lying: defaultdict[str, set[str]] = defaultdict(set)

    def run(self, limit: int | None) -> Collected:
        self._report("looking at what is there")
        found = survey(self._base, self._node.idmap)
        for item in found.items:
            if item.kind == "source":
                self._surveyed.add(item.name)
                self._lying[item.below].add(item.name)
        swept = found.waste + found.unshared
        if not self._dry_run:
            swept = self._sweep()
            swept += found.waste - waste_in(self._base, self._node.idmap, found.items)
        removed = self._remove(found, limit)
        if not self._dry_run:
            gone = {item.path for item, _ in removed}
            if gone:
                self._sweep()
            left = Survey([item for item in found.items if item.path not in gone])
            sizes = {Path(path).name: size for path, size in left.shares().items()}
            Account(self._base).replace(sizes)
        used = [item for item in found.items if in_use(self._base, item.name)]
        return Collected(
            before=found.total,
            after=found.total - swept - sum(size for _, size in removed),
            used=sum(Survey(used).shares().values()),
            swept=swept,
            removed=[Removed(item.kind, item.name, size) for item, size in removed],
        )

    def _remove(self, found: Survey, limit: int | None) -> list[tuple[Item, int]]:
        """Move items away until the others are not larger than ``limit``; what each frees."""
        if limit is None:
            return []
        holders = found.holders
        total = sum(found.shares().values())
        kept: set[str] = set()
        names = [item.name for item in found.items if item.kind != "derived"]
        removed: list[tuple[Item, int]] = []
        for item in _oldest_first(found.items):
            if total <= limit:
                break
            if item.name in kept or not self._move_away(item):
                kept.update((item.name, item.below, *owners_of(item, names)))
                continue
            alone = [inode for inode in item.tree.shared if holders[inode] == 1]
            holders.subtract(item.tree.shared.keys())
            freed = item.tree.folders + item.tree.own
            freed += sum(item.tree.shared[inode] for inode in alone)
            total -= freed
            removed.append((item, freed))
            self._report(f"{len(removed)} removed, {readable_size(total)} left")
        return removed

    def _move_away(self, item: Item) -> bool:
        """Move an item to the trash; False if it is in use, or was since it was looked at."""
        if self._dry_run:
            return not in_use(self._base, item.name)
        noted = last_use(self._base, item.path)
        with tried(self._base / USES / item.name) as free:
            if not free or noted > item.last_use or self._is_reference(item):
                return False
            move(self._node, item.path, TRASH)
        return True

    def _is_reference(self, item: Item) -> bool:
        """Whether a source lies on it that is there now."""
        if item.kind != "source":
            return False
        folder = self._base / FOLDERS["source"]
        there = {name for name in os.listdir(folder) if not name.startswith(".")}
        # To read of all others what they lie on, for each one, takes minutes for thousands.
        return not there.isdisjoint(self._lying[item.name]) or any(
            reference_of(folder / name) == item.name for name in there - self._surveyed
        )

    def _sweep(self) -> int:
        """Remove what nobody uses any more; returns the bytes of the pool in it."""
        base, idmap = self._base, self._node.idmap
        self._node.remove_abandoned()
        References(base).forget_removed()
        for path in (base / TRASH).glob("*"):
            remove_tree(path, idmap)
        for path in (base / DAMAGED).glob("*"):
            # A sandbox that was started before it was found damaged may still stand on it.
            if not in_use(base, path.name.partition(".")[0]):
                remove_tree(path, idmap)
        return _sweep_pool(base / POOL)


def _oldest_first(items: Sequence[Item]) -> list[Item]:
    """In the order of removal. A source comes after all that lie on it, byte-code before what it is
    of.
    """
    used = {item.name: item.last_use for item in items}
    sources = {item.name: item for item in items if item.kind == "source"}
    names = [item.name for item in items if item.kind != "derived"]
    height = dict.fromkeys(sources, 1)  # above layers, as byte-code is not
    for item in items:
        for name in owners_of(item, names):
            used[name] = max(used.get(name, 0.0), item.last_use)
    for item in items:
        young = used[item.name]
        for number, lower in enumerate(lower_of(item, sources), 2):
            used[lower.name] = max(used[lower.name], young)
            height[lower.name] = max(height[lower.name], number)
    order = {"derived": 0, "layer": 1}
    return sorted(
        items, key=lambda i: (used[i.name], order.get(i.kind, height.get(i.name, 1)), i.name)
    )


def move(node: NodeStore, path: Path, folder: str) -> Path:
    """Give a directory of the store a name in ``folder``, which nothing looks into; returns it."""
    target = node.base / folder / f"{path.name}.{os.urandom(6).hex()}"
    try:
        path.rename(target)
    except PermissionError:
        # Its owner is another id of the sandboxes', or it is closed even to its own.
        with ExitStack() as stack:
            source = stack.enter_context(reachable(path.parent))
            there = stack.enter_context(reachable(target.parent))
            rename = partial(os.rename, source / path.name, there / target.name)
            call_carrying(node.idmap, rename)
    return target


def _sweep_pool(pool: Path) -> int:
    """Remove files that only the pool has a name for; returns their bytes on disk. Whoever links to
    one right now either was faster, and keeps it, or finds it gone and makes it.
    """
    freed = 0
    for fan in pool.glob("*/*"):
        with os.scandir(fan) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # who verifies removes damaged ones from here
                    status = entry.stat(follow_symlinks=False)
                    if status.st_nlink == 1:
                        os.unlink(entry)
                        freed += status.st_blocks * 512
    return freed
