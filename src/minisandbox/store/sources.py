"""Source layers on a node: whole trees, and of those that are like another what differs.

Checkouts of one project are nearly equal. The first is unpacked whole; of another only the
difference from its *reference*, the one there that it is most like, is made: a layer to lie above
it, with links to the pool for what others have as well and whiteouts for what is gone. Git's
objects are made here too (see ``gitobjects``), exactly those of the checkout, never those of its
reference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from minisandbox import archive
from minisandbox.archive.members import Kind, Member
from minisandbox.archive.reading import Reader
from minisandbox.idmap import IdMap
from minisandbox.store import gitobjects, likeness, listing
from minisandbox.store.likeness import Sketch
from minisandbox.store.listing import Entry, Recording
from minisandbox.store.objects import OBJECTS, Checkout, Missing, Writer, missing, object_at
from minisandbox.store.pool import Pool, kind_of_file
from minisandbox.store.references import (
    BELOW,
    CHANGES,
    LISTING,
    OBJECT_NAMES,
    SKETCH,
    TREE,
    Reference,
    are_simple,
    changes,
    is_fan,
    note_of,
    whiteout,
)

#: A source that differs from its reference in more of its files than this is unpacked whole.
_MOST = 0.5
#: Bytes of changed files that are held in memory; more, and the source is unpacked whole.
_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Pools:
    """Where files and objects of sources are shared."""

    files: Path
    objects: Path


class TooDifferent(Exception):
    """A source has too little in common with a reference."""


#: Gives contents by their digests.
Fetch = Callable[[Collection[str]], Mapping[str, bytes]]


@dataclass(frozen=True)
class Difference:
    """What has to lie above a reference: ``made`` in order, of all the ``entries`` that the layer
    has by their paths, and how to get at contents. ``changes`` is how many members differ.
    """

    changes: int
    made: Sequence[Entry]
    entries: Mapping[bytes, Entry]
    fetch: Fetch

    @property
    def size(self) -> int:
        """Bytes of the files in it."""
        return sum(entry.size for entry in self.made)


def unpack_whole(
    opened: AbstractContextManager[BinaryIO],
    work: Path,
    *,
    pools: Pools,
    idmap: IdMap,
    archive_name: str,
) -> tuple[Pool, Writer | None]:
    """Make a whole source of the tar ``opened`` at ``work``, which does not exist; call it through
    ``idmap.call_mapped``. What it returns shares the files once they are on disk.

    Raises what ``archive.unpack`` does, and ``ValueError`` where git's files contradict each other.
    """
    tree = _start(work)
    with opened as stream:
        recording = Recording(Reader(stream))
        pool = Pool(pools.files, recording.last)
        archive.lay_out(recording, tree, idmap=idmap, archive=archive_name, files=pool)
    # Only now it is known to be the layer that it says it is.
    with Checkout([tree]) as checkout:
        lacking = missing(_paths(recording.entries), checkout)
        writer = None
        if lacking is not None:
            writer = Writer(tree, pools.objects, idmap, _date(recording.entries))
            writer.write(lacking.names, lambda name: lacking.content(name, checkout), frozenset())
    told = listing.encode(recording.entries)
    by_path = {entry.path: entry for entry in recording.entries}
    if len(by_path) == len(recording.entries) and are_simple(by_path):
        made = lacking.names if lacking else frozenset[bytes]()
        _note(work, LISTING, told, made, recording.entries, 1)
    else:
        (work / LISTING).write_bytes(told)
    return pool, writer


def _note(
    work: Path,
    told: str,
    data: bytes,
    objects: Iterable[bytes],
    entries: Collection[Entry],
    layers: int,
) -> None:
    """Write what others are told against."""
    (work / told).write_bytes(data)
    (work / OBJECT_NAMES).write_bytes(b"".join(sorted(objects)))
    sketch = Sketch(os.urandom(8), layers, len(entries), likeness.digests(entries))
    (work / SKETCH).write_bytes(likeness.encode(sketch))


def unpack_difference(
    found: Difference,
    reference: Reference,
    work: Path,
    *,
    pools: Pools,
    idmap: IdMap,
    archive_name: str,
    referred: bool,
) -> tuple[Pool, Writer | None]:
    """Like ``unpack_whole``, of what differs from ``reference``, which lies beside ``work``; others
    can be told against it if it is ``referred`` to.
    """
    tree = _start(work)
    members = _Made(found.made, found.fetch)
    pool = Pool(pools.files, members.last, reference.free(found.made, found.entries.values()))
    members.prepare(pool)
    archive.lay_out(members, tree, idmap=idmap, archive=archive_name, files=pool)
    with Checkout([tree, *reference.trees(work.parent)]) as checkout:
        lacking = missing(found.entries.keys(), checkout)
        writer = None
        if lacking is not None or reference.objects:
            writer = Writer(tree, pools.objects, idmap, _date(found.entries.values()))
            _write_objects(writer, lacking, reference, found.entries.keys(), checkout)
    (work / BELOW).write_text(note_of(reference), encoding="ascii")
    if referred:
        made = (lacking.names if lacking else frozenset[bytes]()) ^ reference.made
        told, layers = changes(found.entries, reference), reference.layers + 1
        _note(work, CHANGES, told, made, found.entries.values(), layers)
    return pool, writer


def _start(work: Path) -> Path:
    """Make the directory of a source, passable whatever the umask; returns where its tree goes."""
    os.mkdir(work, 0o700)
    os.chmod(work, 0o755)
    return work / TREE


def _write_objects(
    writer: Writer,
    lacking: Missing | None,
    reference: Reference,
    paths: Collection[bytes],
    checkout: Checkout,
) -> None:
    names: frozenset[bytes] = frozenset() if lacking is None else lacking.names
    gone = [
        name
        for name in reference.objects - names
        if b"%b/%b" % (OBJECTS.encode(), gitobjects.file_name(name).encode()) not in paths
    ]
    if lacking is None:
        writer.write(frozenset(), bytes, gone)
    else:
        writer.write(names - reference.made, lambda name: lacking.content(name, checkout), gone)


def unpack_objects(
    entries: Sequence[Entry],
    trees: Sequence[Path],
    work: Path,
    *,
    objects: Path,
    idmap: IdMap,
) -> None:
    """Make a layer at ``work`` of the objects alone that the source with ``entries``, unpacked at
    ``trees`` (top first), left out; call it through ``idmap.call_mapped``.
    """
    by_path = {entry.path: entry for entry in entries}
    way = OBJECTS.encode().split(b"/")
    made = [by_path[b"/".join(way[:length])] for length in range(1, len(way) + 1)]
    archive.lay_out(_Made(made, lambda _: {}), work, idmap=idmap)
    with Checkout(trees) as checkout:
        lacking = missing(_paths(entries), checkout)
        if lacking is not None:
            writer = Writer(work, objects, idmap, _date(entries))
            writer.write(lacking.names, lambda name: lacking.content(name, checkout), frozenset())


def compare(entries: Sequence[Entry], reference: Reference, fetch: Fetch) -> Difference:
    """The difference of a listing from ``reference``; raises ``TooDifferent``. ``fetch`` is asked
    for what the pool lacks.
    """
    by_path = {entry.path: entry for entry in entries}
    # A directory tells only of itself: it is made again where something in it is, or it is new.
    changed = {path for path, entry in by_path.items() if reference.entries.get(path) != entry}
    if len(by_path) != len(entries) or not _stay_simple(by_path, changed, reference):
        raise TooDifferent
    objects = by_path.get(OBJECTS.encode())
    if reference.objects and (objects is None or objects.type is not Kind.DIRECTORY):
        raise TooDifferent  # there is no place for what hides those of the reference
    if sum(by_path[path].size for path in changed) > _MOST_BYTES:
        raise TooDifferent
    gone = _gone(by_path, reference)
    if len(changed) + len(gone) > _MOST * len(by_path):
        raise TooDifferent
    needed = {*changed, OBJECTS.encode()} if OBJECTS.encode() in by_path else {*changed}
    for path in [*needed, *gone]:
        while (path := path.rpartition(b"/")[0]) and path not in needed:
            needed.add(path)
    made = [by_path[path] for path in needed if path in by_path]
    made += [whiteout(path, entries[0].mtime) for path in gone]
    made.sort(key=lambda entry: entry.path)
    return Difference(len(changed) + len(gone), made, by_path, fetch)


def _stay_simple(
    by_path: Mapping[bytes, Entry], changed: Collection[bytes], reference: Reference
) -> bool:
    """``are_simple``, where the entries of ``reference`` are, and only those at ``changed`` differ
    from it.
    """
    folders = {path for path, entry in reference.entries.items() if entry.type is Kind.DIRECTORY}
    stay = {path for path in folders if path in by_path and by_path[path].type is Kind.DIRECTORY}
    lost = folders - stay
    if lost and any(path.rpartition(b"/")[0] in lost for path in by_path.keys() - changed):
        return False
    return are_simple({path: by_path[path] for path in changed}, stay)


def _gone(by_path: Mapping[bytes, Entry], reference: Reference) -> list[bytes]:
    """The paths that only the reference has, without what goes with a directory."""
    gone: list[bytes] = []
    for path in reference.entries:
        if path in by_path:
            continue
        if (is_fan(path) and reference.entries[path].type is Kind.DIRECTORY) or object_at(path):
            continue  # what is in it is made, or hidden, with the objects
        parent = path.rpartition(b"/")[0]
        above = by_path.get(parent)
        stays = above is not None and above.type is Kind.DIRECTORY
        if not parent or stays or is_fan(parent):
            gone.append(path)
    return gone


class _Made:
    """Members that are made up, as ``archive.lay_out`` takes them."""

    def __init__(self, entries: Sequence[Entry], fetch: Fetch) -> None:
        self._entries = entries
        self._fetch = fetch
        self._contents: dict[str, bytes] = {}
        self._digest = ""

    def prepare(self, pool: Pool) -> None:
        """Get what ``pool`` lacks, at once."""
        is_link = pool.foresight()
        told = [entry for entry in self._entries if entry.content]
        lacking = {entry.content for entry in told if not is_link(kind_of_file(entry))}
        self._contents = dict(self._fetch(lacking))

    def __iter__(self) -> Iterator[Member]:
        for entry in self._entries:
            self._digest = entry.content
            yield entry.member

    def content(self) -> Iterator[bytes]:
        """The content of the current member."""
        if self._digest not in self._contents:  # it left the pool meanwhile
            self._contents.update(self._fetch({self._digest}))
        yield self._contents[self._digest]

    def last(self) -> str:
        """The digest of the current member."""
        return self._digest


def _paths(entries: Iterable[Entry]) -> frozenset[bytes]:
    return frozenset(entry.path for entry in entries)


def _date(entries: Iterable[Entry]) -> int:
    return next((entry.mtime // 1_000_000_000 for entry in entries), 0)
