"""Unpacks source layers into a node store: which one is told against which, and who makes it.

What is made, and what a source consists of, is in ``sources``; the locks, the lease and the name of
what is made are those of the node store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from minisandbox import atomic, keys
from minisandbox.errors import LayerDamaged
from minisandbox.idmap import IdMap
from minisandbox.store import sources
from minisandbox.store.directories import pool_at, sync_file_system
from minisandbox.store.faults import call_carrying, reachable
from minisandbox.store.leases import Lease
from minisandbox.store.listing import Entry
from minisandbox.store.objects import Checkout, Writer, missing
from minisandbox.store.pool import Pool
from minisandbox.store.sources import Difference, Pools, Reference
from minisandbox.store.streams import LayerOfPack, StoredLayer

#: What shares the files and the objects of a source once they are on disk.
_Made = tuple[Pool, Writer | None]


class SourceUnpacker:
    """The unpacked sources below ``base``, the directory of an id map."""

    def __init__(self, base: Path, idmap: IdMap) -> None:
        self._base = base
        self._idmap = idmap
        self._reference: Reference | None = None

    def __reduce__(self) -> tuple[type[SourceUnpacker], tuple[Path, IdMap]]:
        return (SourceUnpacker, (self._base, self._idmap))  # the reference is read again

    def path(self, digest: str) -> Path:
        """Where the unpacked source is or would be; raises ``ValueError`` for what is no digest."""
        return self._base / "sources" / keys.hex_of(digest)

    def directories(self, digest: str) -> tuple[Path, ...]:
        """The directories of an unpacked source, bottom first; empty if it is not there."""
        path = self.path(digest)
        if not path.is_dir():
            return ()
        trees = (path / sources.TREE,)
        below = sources.reference_of(path)
        return (path.with_name(below) / sources.TREE, *trees) if below else trees

    def lies(self, directories: Sequence[Path]) -> bool:
        """Whether what a source lies on, at last itself, is there and whole: somebody may have
        removed it by hand, and one that was made again may itself lie on another.
        """
        return not directories or _is_reference(directories[0].parent)

    def has_reference(self, group: str) -> bool:
        """Whether sources of this group are told against one that was unpacked before."""
        return self._group(group).exists()

    def unpack(self, layer: StoredLayer, work: Path, *, group: str, lease: Lease) -> None:
        """Make the source at ``work``, which does not exist, and sync and share it."""
        if not group:
            self._unpack_whole(layer, work)
            return
        # The lease is the caller's: the reference stays until this source lies on it by name.
        reference = self._reference_of(group, lease)
        if reference is None:
            with atomic.locked(self._base / "locks" / f"group-{group}.lock"):
                reference = self._reference_of(group, lease)
                if reference is None:
                    self._unpack_whole(layer, work)
                    # It bears its name as soon as this process renames it; until then, and if it
                    # never does, the next of the group becomes the reference.
                    atomic.write_text(self._group(group), keys.hex_of(layer.digest))
                    return
        self._unpack_difference(layer, work, reference)

    def objects_of(self, layer: StoredLayer) -> Callable[[Path], None] | None:
        """What makes a layer of the git objects that an unpacked source left out; None where it
        left none out.
        """
        trees = tuple(reversed(self.directories(layer.digest)))
        entries = _entries(layer)
        paths = frozenset(entry.path for entry in entries)
        with _said_of(layer), Checkout(trees) as checkout:
            lacking = missing(paths, checkout)
        if lacking is None or not lacking.names:
            return None

        def fill(work: Path) -> None:
            with ExitStack() as stack:
                parent = stack.enter_context(reachable(work.parent))
                objects = stack.enter_context(reachable(pool_at(self._base, "objects")))
                unpack = functools.partial(
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
        self._make(layer, work, lambda _: functools.partial(sources.unpack_whole, layer.tar()))

    def _unpack_difference(self, layer: StoredLayer, work: Path, reference: Reference) -> None:
        try:
            found = _difference(layer, reference)
        except sources.TooDifferent:
            self._unpack_whole(layer, work)
            return

        def maker(parent: Path) -> Callable[..., _Made]:
            below = replace(reference, path=parent / reference.path.name)
            return functools.partial(sources.unpack_difference, found, below)

        self._make(layer, work, maker)

    def _make(
        self, layer: StoredLayer, work: Path, maker: Callable[[Path], Callable[..., _Made]]
    ) -> None:
        """Make a source by what ``maker`` gives for the directory of sources, where that can give
        files to the ids of sandboxes; sync and share it.
        """

        def make(parent: Path, pools: Pools) -> None:
            with _said_of(layer):
                made = maker(parent)(
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
            call_carrying(self._idmap, functools.partial(make, parent, Pools(files, objects)))

    def _reference_of(self, group: str, lease: Lease) -> Reference | None:
        try:
            name = sources.name_in(self._group(group))
        except FileNotFoundError:
            return None
        if name is None:  # damaged: the next of the group becomes the reference
            return None
        lease.add(name)
        path = self._base / "sources" / name
        kept = self._reference
        if kept is None or kept.path != path or not _is_reference(path):
            kept = self._reference = Reference.read(path)
        return kept

    def _group(self, group: str) -> Path:
        return self._base / "groups" / group


def _is_reference(path: Path) -> bool:
    """Whether the source at ``path`` is there, and whole."""
    return (path / sources.LISTING).is_file()


def _share(made: _Made, work: Path) -> None:
    """Put what was made on disk, and into the pools."""
    pool, writer = made
    sync_file_system(work)
    pool.share(work / sources.TREE)
    if writer is not None:
        writer.share()


def _entries(layer: StoredLayer) -> Sequence[Entry]:
    """The members of a layer, as cheaply as they are to be had."""
    return layer.entries() if isinstance(layer, LayerOfPack) else layer.listed()


def _difference(layer: StoredLayer, reference: Reference) -> Difference:
    """What a layer has that ``reference`` has not, as cheaply as it is to be had."""
    if not isinstance(layer, LayerOfPack):
        with layer.tar() as stream:
            return sources.difference(stream, reference, str(layer.path))

    def fetch(wanted: Collection[str]) -> Mapping[str, bytes]:
        pieces: dict[str, list[bytes]] = {}
        for name, piece in layer.contents(wanted):
            pieces.setdefault(name, []).append(piece)
        return {name: b"".join(parts) for name, parts in pieces.items()}

    return sources.compare(layer.entries(), reference, fetch)


@contextmanager
def _said_of(layer: StoredLayer) -> Generator[None]:
    """Say of which layer git's files contradict each other."""
    try:
        yield
    except ValueError as error:
        raise LayerDamaged(layer.digest, layer.path, f"its checkout is broken: {error}") from error
