"""Moves loose layers into a pack, and removes their files once the pack gives the same tars.

Can be killed at any moment, and run again: a pack gets its name when it is whole and on disk, and a
loose file, or a pack that was packed anew, goes after a tar with its digest was made from what
stays. One process at a time does it; builders and readers are not held up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from minisandbox import atomic, keys
from minisandbox.errors import LayerDamaged, LayerMissing, MiniSandboxError
from minisandbox.store.faults import explained
from minisandbox.store.incoming import incoming, keep, remove_abandoned
from minisandbox.store.packed import Store, groups
from minisandbox.store.packs.arrangement import by_likeness
from minisandbox.store.packs.catalogue import Pack, PackDamaged, load
from minisandbox.store.packs.layout import FRAME_LIMIT, LAST_SEQUENCE
from minisandbox.store.packs.reading import OpenPack, PackReader, check_layers
from minisandbox.store.packs.scanning import NotPackable, Scanner, Spool
from minisandbox.store.packs.skeleton import Skeleton
from minisandbox.store.packs.writing import DEFAULT_LEVEL, Elsewhere, PackWriter

Report = Callable[[str], None]


@dataclass
class Consolidated:
    """What was done: the ``layers`` that are in packs now and were loose, or in another pack, the
    bytes of their files, the new ``pack`` (None where packs held everything already) and its bytes,
    the packs that were ``replaced`` and their bytes; with a reason each, the layers that ``stay``
    as they are and those that are ``damaged``.
    """

    layers: list[str] = field(default_factory=list[str])
    loose_bytes: int = 0
    pack: Path | None = None
    pack_bytes: int = 0
    replaced: list[Path] = field(default_factory=list[Path])
    replaced_bytes: int = 0
    stay: dict[str, str] = field(default_factory=dict[str, str])
    damaged: dict[str, str] = field(default_factory=dict[str, str])


def consolidate(
    store: Store,
    *,
    level: int = DEFAULT_LEVEL,
    threads: int | None = None,
    anew: bool = False,
    report: Report = lambda _: None,
) -> Consolidated:
    """Move every loose layer of ``store`` into packs; ``anew`` puts one pack in the place of all.

    Raises ``StoreUnusable`` where the store cannot be written; nothing is lost then.
    """
    count = threads or len(os.sched_getaffinity(0))
    with explained("write to the store", store.root):
        store.catalogue.folder.mkdir(parents=True, exist_ok=True)
        with atomic.locked(store.root / "pack.lock"):
            remove_abandoned(store.root)  # a pack is large, and there may be nothing to write now
            work = _Consolidation(store, level, count, report)
            return work.run_anew() if anew else work.run()


class _Consolidation:
    def __init__(self, store: Store, level: int, threads: int, report: Report) -> None:
        self._store = store
        self._level = level
        self._threads = threads
        self._report = report
        self._done = Consolidated()

    def run(self) -> Consolidated:
        loose = list(self._store.loose())
        self._drop_packed(loose)
        wanted = frozenset(loose)
        left = [digest for digest in self._store.loose() if digest in wanted]
        if left:
            self._pack(left)
        return self._done

    def run_anew(self) -> Consolidated:
        """Put one pack in the place of all there are, and of what is loose."""
        packs = list(self._store.catalogue.packs())
        self._pack(list(self._store.digests()), alone=True)
        self._replace(packs)
        return self._done

    def _replace(self, packs: list[Pack]) -> None:
        """Remove packs of which nothing is needed: the new one gives all of their layers."""
        made = {bytes.fromhex(keys.hex_of(digest)) for digest in self._done.layers}
        stay = [pack.index for pack in packs if pack.index.layers.keys() - made]
        # Contents of a pack lie in the packs that it names, never further away.
        needed = {name for index in stay for name in (index.name, *index.dependencies)}
        for pack in packs:
            if pack.index.name not in needed:
                pack.path.unlink()
                self._done.replaced.append(pack.path)
                self._done.replaced_bytes += pack.index.file_size
        self._store.catalogue.refresh()

    def _drop_packed(self, digests: Iterable[str]) -> None:
        """Remove the files of layers that a pack gives back whole: an earlier run was killed."""
        by_pack: dict[str, list[str]] = {}
        for digest in digests:
            pack = self._store.pack_of(digest)
            if pack is not None:
                by_pack.setdefault(pack.index.name, []).append(digest)
        for name, members in by_pack.items():
            try:
                pack = self._store.catalogue.get(name)
                problems = self._problems(pack, members)
            except PackDamaged:
                continue
            self._remove([digest for digest in members if problems[digest] is None])

    def _problems(self, pack: Pack, digests: Iterable[str]) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        with PackReader(pack, self._store.catalogue) as reader:
            for group in groups(pack.index, digests):
                self._report(f"checking {len(group)} layers of the pack")
                for raw, problem in check_layers(reader, group).items():
                    found["sha256:" + raw.hex()] = problem
        return found

    def _remove(self, digests: Iterable[str]) -> None:
        for digest in digests:
            path = self._store.path(digest)
            if path.exists():  # else another pack holds it
                self._done.loose_bytes += path.stat().st_size
                path.unlink()
            self._done.layers.append(digest)

    def _pack(self, digests: list[str], *, alone: bool = False) -> None:
        """Write a pack of layers, which refers to others unless it is to stand ``alone``."""
        refused: set[bytes] = set()
        while True:
            known = {} if alone else self._known(refused)
            with Spool(self._store.root / "incoming") as spool:
                scanner = Scanner(spool, known)
                skeletons = dict(self._scan(scanner, digests))
                elsewhere = {
                    number: known[sha256]
                    for number, sha256 in enumerate(scanner.sha256s)
                    if sha256 in known
                }
                bad = self._damaged(elsewhere, scanner.sha256s)
                if bad:
                    refused |= bad
                    continue
                if skeletons:
                    self._write(scanner, skeletons, elsewhere, spool)
                return

    def _known(self, refused: set[bytes]) -> dict[bytes, Elsewhere]:
        """Every content that a pack holds itself, in the newest one."""
        known: dict[bytes, Elsewhere] = {}
        for pack in self._store.catalogue.packs():
            try:
                with OpenPack(pack) as opened:
                    for number in range(pack.index.own):
                        sha256 = opened.record(number).sha256
                        if sha256 not in refused:
                            known.setdefault(sha256, Elsewhere(pack.index.name, number))
            except PackDamaged:
                continue  # What was read of it serves; ``verify`` tells of the rest.
        return known

    def _sequence(self) -> int:
        """The number of a pack that is newer than all there are."""
        newest = next(self._store.catalogue.packs(), None)
        if newest is None:
            return 1
        if newest.index.sequence >= LAST_SEQUENCE:
            raise MiniSandboxError(
                f"no pack can be newer than {newest.path}, which has the last number there is; "
                "move it away, and build again what only it held"
            )
        return newest.index.sequence + 1

    def _scan(self, scanner: Scanner, digests: Iterable[str]) -> Iterator[tuple[bytes, Skeleton]]:
        for number, digest in enumerate(digests):
            self._report(f"reading layer {number + 1}")
            reason = ""
            try:
                with self._store.open(digest) as stream:
                    # Caught in here: damage may look like this, and is told when the block is left.
                    try:
                        skeleton = scanner.scan(stream, number, most=_MEMBERS)
                    except NotPackable as error:
                        skeleton, reason = None, str(error)
            except (LayerDamaged, LayerMissing) as error:
                self._done.damaged[digest] = str(error)
                continue
            if skeleton is None:
                self._done.stay[digest] = reason
            else:
                yield bytes.fromhex(keys.hex_of(digest)), skeleton

    def _damaged(self, elsewhere: Mapping[int, Elsewhere], sha256s: list[bytes]) -> set[bytes]:
        """Those of the contents in other packs that cannot be read there."""
        bad: set[bytes] = set()
        catalogue = self._store.catalogue
        ordered = sorted(elsewhere.items(), key=lambda item: (item[1].pack, item[1].number))
        # One pack after the other: each is a descriptor, and as many frames as a reader keeps.
        for name, group in groupby(ordered, key=lambda item: item[1].pack):
            wanted = list(group)
            try:
                with PackReader(catalogue.get(name), catalogue) as reader:
                    bad |= {
                        sha256s[number]
                        for number, there in wanted
                        if not _is_readable(reader, there.number)
                    }
            except PackDamaged:
                bad |= {sha256s[number] for number, _ in wanted}
        return bad

    def _write(
        self,
        scanner: Scanner,
        skeletons: dict[bytes, Skeleton],
        elsewhere: Mapping[int, Elsewhere],
        spool: Spool,
    ) -> None:
        order = by_likeness(skeletons)
        first: dict[int, int] = {}
        holders: dict[int, int] = {}
        for place, raw in enumerate(order):
            for number in {*skeletons[raw].contents}:
                first.setdefault(number, place)
                holders[number] = hash((holders.get(number), place))
        fresh = [
            replace(content, layer=first[content.number], holders=holders[content.number])
            for content in scanner.fresh
            if content.number in first  # of layers that are packed after all
        ]
        catalogue = self._store.catalogue
        sequence = self._sequence()
        with incoming(self._store.root) as (path, fd):
            self._report(f"compressing {len(fresh)} contents")
            PackWriter(fd, level=self._level, threads=self._threads).write(
                sequence=sequence,
                skeletons={raw: skeletons[raw] for raw in order},
                fresh=fresh,
                sha256s=scanner.sha256s,
                sizes=scanner.sizes,
                elsewhere={n: there for n, there in elsewhere.items() if n in first},
                spool=spool,
            )
            pack = load(path)
            digests = ["sha256:" + raw.hex() for raw in skeletons]
            for digest, problem in self._problems(pack, digests).items():
                if problem is not None:
                    raise MiniSandboxError(
                        f"the pack that was written for {self._store.root} does not give layer "
                        f"{digest} back: {problem}; nothing was changed, the layers stay loose"
                    )
            final = catalogue.path(pack.index.name)
            keep(path, fd, final)
        self._done.pack = final
        self._done.pack_bytes = final.stat().st_size
        self._remove(digests)


#: Members of a layer whose skeleton surely fits into one frame, at 64 bytes and a path each.
_MEMBERS = FRAME_LIMIT // 256


def _is_readable(reader: PackReader, number: int) -> bool:
    try:
        for _ in reader.content(number):
            pass
    except PackDamaged:
        return False
    return True
