"""Unpacks source layers into a node store: which one is told against which, and who makes it.

What is made, and what a source consists of, is in ``sources``; the locks, the lease and the name of
what is made are those of the node store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from minisandbox import atomic, keys
from minisandbox.errors import LayerDamaged
from minisandbox.idmap import IdMap
from minisandbox.store import sources
from minisandbox.store.directories import pool_at, sync_file_system
from minisandbox.store.faults import call_carrying, reachable
from minisandbox.store.leases import Lease
from minisandbox.store.nearest import References
from minisandbox.store.objects import Checkout, Writer, missing
from minisandbox.store.pool import Pool
from minisandbox.store.references import MOST_LAYERS, Reference, trees_of
from minisandbox.store.sources import Difference, Pools
from minisandbox.store.streams import StoredLayer

#: What shares the files and the objects of a source once they are on disk.
_Made = tuple[Pool, Writer | None]

#: A source that differs from its reference in so many members, or fewer, is none itself: what is
#: like it is like that one too.
_FEW = 64
#: One that differs in a larger share of its members waits for others of its group, or is whole
#: where nearer ones are as deep as can be.
_MUCH = 0.25
#: How many references are read to find one that a source can lie on.
_TRIES = 4


@dataclass(frozen=True)
class _Nearest:
    """The reference that a source is told against, and how it differs."""

    reference: Reference
    difference: Difference

    @property
    def far(self) -> bool:
        """Whether what is like the source is not as much like its reference."""
        return self.difference.changes > _FEW

    @property
    def apart(self) -> bool:
        """Whether it is worth waiting for a nearer one that somebody is making."""
        return self.difference.changes > _MUCH * len(self.difference.entries)


#: Makes a source at a place that does not exist, syncs and shares it.
Make = Callable[[Path], None]


class SourceUnpacker:
    """The unpacked sources below ``base``, the directory of an id map."""

    def __init__(self, base: Path, idmap: IdMap) -> None:
        self._base = base
        self._idmap = idmap
        self._known = References(base)

    def __reduce__(self) -> tuple[type[SourceUnpacker], tuple[Path, IdMap]]:
        return (SourceUnpacker, (self._base, self._idmap))  # references are read again

    def path(self, digest: str) -> Path:
        """Where the unpacked source is or would be; raises ``ValueError`` for what is no digest."""
        return self._base / "sources" / keys.hex_of(digest)

    def directories(self, digest: str) -> tuple[Path, ...]:
        """The directories of an unpacked source, bottom first; empty if it is not there."""
        path = self.path(digest)
        return trees_of(path) if path.is_dir() else ()

    def begin(
        self, layer: StoredLayer, size: int, *, group: str, lease: Lease, until: ExitStack
    ) -> tuple[int, Make]:
        """What makes a source of ``size`` bytes, and how many bytes it writes for that. ``until``
        is to be closed when it bears its name.
        """
        if not group:
            return size, partial(self._unpack_whole, layer)
        # The lease is the caller's: a reference stays until this source lies on it by name.
        known = self._known.names()
        nearest = self._nearest(layer, lease)
        if nearest is None or nearest.apart:
            # Of those that come at once one is made first, for the others to lie on.
            with ExitStack() as alone:
                alone.enter_context(atomic.locked(self._base / "locks" / f"group-{group}.lock"))
                if self._known.names() != known:
                    nearest = self._nearest(layer, lease)
                if nearest is None or nearest.apart:
                    until.push(alone.pop_all())
        if nearest is None or nearest.far:
            until.push(partial(self._note, keys.hex_of(layer.digest)))
        if nearest is None:
            return size, partial(self._unpack_whole, layer)
        return nearest.difference.size, partial(self._unpack_difference, layer, nearest)

    def _note(self, name: str, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            with suppress(OSError):  # a full disk: then others lie on another
                self._known.add(name)

    def objects_of(self, layer: StoredLayer) -> Callable[[Path], None] | None:
        """What makes a layer of the git objects that an unpacked source left out; None where it
        left none out.
        """
        trees = tuple(reversed(self.directories(layer.digest)))
        entries = layer.entries()
        paths = frozenset(entry.path for entry in entries)
        with _said_of(layer), Checkout(trees) as checkout:
            lacking = missing(paths, checkout)
        if lacking is None or not lacking.names:
            return None

        def fill(work: Path) -> None:
            with ExitStack() as stack:
                parent = stack.enter_context(reachable(work.parent))
                objects = stack.enter_context(reachable(pool_at(self._base, "objects")))
                unpack = partial(
                    sources.unpack_objects,
                    entries,
                    [stack.enter_context(reachable(tree)) for tree in trees],
                    parent / work.name,
                    objects=objects,
                    idmap=self._idmap,
                )
                call_carrying(self._idmap, unpack)

        return fill

    def _unpack_whole(self, layer: StoredLayer, work: Path) -> None:
        self._make(layer, work, partial(sources.unpack_whole, layer.tar()))

    def _unpack_difference(self, layer: StoredLayer, nearest: _Nearest, work: Path) -> None:
        unpack = partial(
            sources.unpack_difference,
            nearest.difference,
            nearest.reference,
            referred=nearest.far,
        )
        self._make(layer, work, unpack)

    def _make(self, layer: StoredLayer, work: Path, unpack: Callable[..., _Made]) -> None:
        """Make a source by ``unpack``, where that can give files to the ids of sandboxes; sync and
        share it.
        """

        def make(parent: Path, pools: Pools) -> None:
            with _said_of(layer):
                made = unpack(
                    parent / work.name,
                    pools=pools,
                    idmap=self._idmap,
                    archive_name=str(layer.path),
                )
            _share(made, parent / work.name)

        with (
            reachable(work.parent) as parent,
            reachable(pool_at(self._base, "source")) as files,
            reachable(pool_at(self._base, "objects")) as objects,
        ):
            call_carrying(self._idmap, partial(make, parent, Pools(files, objects)))

    def _nearest(self, layer: StoredLayer, lease: Lease) -> _Nearest | None:
        """What the source is to be told against; it stays until ``lease`` is closed."""
        if not self._known.names():
            return None  # before the layer is read
        entries, tries, passed_over = layer.entries(), 0, False
        for name, sketch, share in self._known.like(entries):
            about = len(entries) * (1 - share) / (1 + share)
            if not _may_lie(sketch.layers, far=about > 2 * _FEW):
                passed_over = True
                continue
            if passed_over and about > _MUCH * len(entries):
                return None  # nearer ones are as deep as can be: a whole one begins anew
            reference = self._known.read(name, lease)
            if reference is not None:
                with suppress(sources.TooDifferent):
                    found = sources.compare(entries, reference, partial(_fetch, layer))
                    nearest = _Nearest(reference, found)
                    if _may_lie(reference.layers, far=nearest.far):
                        return nearest
            tries += 1
            if tries == _TRIES:
                break
        return None


def _may_lie(layers: int, *, far: bool) -> bool:
    """Whether a source may lie on one of so many trees: one that is far is a reference itself, and
    has to leave room for those that lie on it.
    """
    return layers + far < MOST_LAYERS


def _share(made: _Made, work: Path) -> None:
    """Put what was made on disk, and into the pools."""
    pool, writer = made
    sync_file_system(work)
    pool.share(work / sources.TREE)
    if writer is not None:
        writer.share()


def _fetch(layer: StoredLayer, wanted: Collection[str]) -> Mapping[str, bytes]:
    pieces: dict[str, list[bytes]] = {}
    for name, piece in layer.contents(wanted):
        pieces.setdefault(name, []).append(piece)
    return {name: b"".join(parts) for name, parts in pieces.items()}


@contextmanager
def _said_of(layer: StoredLayer) -> Generator[None]:
    """Say of which layer git's files contradict each other."""
    try:
        yield
    except ValueError as error:
        raise LayerDamaged(layer.digest, layer.path, f"its checkout is broken: {error}") from error
