"""Compares what a node store holds with the packed layers it came from, file by file.

Damage on a disk is not noticed by whoever mounts a directory. What is found damaged is moved away,
with the files that a pool would hand on, so that the next use makes it anew.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from minisandbox import atomic, keys
from minisandbox.archive.members import OPAQUE_MARKER, WHITEOUT_PREFIX, Kind, Member
from minisandbox.errors import LayerDamaged, LayerMissing, UnsafeArchive
from minisandbox.idmap import IdMap
from minisandbox.store import gitobjects, likeness
from minisandbox.store.collecting import move
from minisandbox.store.faults import (
    StoreUnusable,
    call_carrying,
    explained,
    reachable,
    readable,
)
from minisandbox.store.listing import Entry
from minisandbox.store.objects import OBJECTS, Checkout, Missing, missing, object_at
from minisandbox.store.packed import Store
from minisandbox.store.references import LISTING, SKETCH, Reference, lies, reference_of
from minisandbox.store.streams import StoredLayer
from minisandbox.store.usage import DAMAGED, FOLDERS, POOL, items_in
from minisandbox.store.walking import walk

if TYPE_CHECKING:
    from minisandbox.store.unpacked import NodeStore

_CHUNK = 1 << 20
_MODE = 0o7777


@dataclass(frozen=True)
class NodeFinding:
    """What was found of one directory: ``problem`` is None where all is as it should be.

    ``unchecked`` is why it could not be compared with anything, or empty. ``moved`` is where a
    damaged one lies now, None where it was left.
    """

    kind: str
    name: str
    problem: str | None
    unchecked: str = ""
    moved: Path | None = None


class _Held(NamedTuple):
    """A file as it lies there."""

    status: os.stat_result
    tree: Path
    content: str
    target: bytes


class _Problems:
    """What is wrong with a tree, and the inodes of its damaged files."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.inodes: set[int] = set()

    def add(self, path: bytes, reason: str, held: _Held | None = None) -> None:
        self.sentences.append(f"{readable(path)} {reason}")
        if held is not None and stat.S_ISREG(held.status.st_mode):
            self.inodes.add(held.status.st_ino)


def verify_node(node: NodeStore, store: Store) -> Iterator[NodeFinding]:
    """Compare every directory with its layer in ``store``, and move damaged ones away.

    What lies on a damaged reference goes with it. Raises ``StoreUnusable``.
    """
    with explained("verify the node store", node.base):
        for kind, path in list(items_in(node.base)):
            with node.lease() as lease:
                lease.add(path.name)
                if path.is_dir():  # it may have been collected, or moved with its reference
                    yield from _check(node, store, kind, path)


def _check(node: NodeStore, store: Store, kind: str, path: Path) -> Iterator[NodeFinding]:
    try:
        found = _problems(node, store, kind, path)
    except (LayerMissing, LayerDamaged, UnsafeArchive, StoreUnusable) as error:
        yield NodeFinding(kind, path.name, None, str(error))
        return
    if found is None:
        yield NodeFinding(kind, path.name, None, "it was made before digests of such were kept")
        return
    if not found.sentences:
        yield NodeFinding(kind, path.name, None)
        return
    node.prepare()
    _drop_from_pools(node.base / POOL, found.inodes)
    more = f" (and {len(found.sentences) - 1} more)" if len(found.sentences) > 1 else ""
    moved = _move_away(node, path)
    yield NodeFinding(kind, path.name, found.sentences[0] + more, moved=moved)
    if kind == "source":
        yield from _move_away_above(node, path.name)


def _move_away_above(node: NodeStore, name: str) -> Iterator[NodeFinding]:
    """Move away all that lies on a source."""
    above: defaultdict[str, list[Path]] = defaultdict(list)
    for other in sorted((node.base / FOLDERS["source"]).glob("[!.]*")):
        above[reference_of(other)].append(other)
    damaged = [name]
    while damaged:
        lower = damaged.pop()
        for other in above.pop(lower, ()):
            reason = f"it lies on {lower[:12]}, which is damaged"
            yield NodeFinding("source", other.name, reason, moved=_move_away(node, other))
            damaged.append(other.name)


def _move_away(node: NodeStore, path: Path) -> Path | None:
    with atomic.locked(node.base / "locks" / f"{path.name}.lock"):
        return move(node, path, DAMAGED) if path.is_dir() else None


def _drop_from_pools(pool: Path, inodes: set[int]) -> None:
    for fan in pool.glob("*/*") if inodes else ():
        with os.scandir(fan) as entries:
            for entry in entries:
                if entry.inode() in inodes:
                    with suppress(FileNotFoundError):  # a collector was faster
                        os.unlink(entry)


def _problems(node: NodeStore, store: Store, kind: str, path: Path) -> _Problems | None:
    if kind == "derived":
        return _compare_digest(node, path)
    digest = f"sha256:{path.name}"
    trees = node.source(digest)[::-1] if kind == "source" else (path,)
    if not (lies(path) if kind == "source" else path.is_dir()):
        found = _Problems()
        found.add(os.fsencode(path.name), "lies on a source that is not there")
        return found
    with store.stored(digest) as layer, reachable(node.base) as base:
        inside = [base / tree.relative_to(node.base) for tree in trees]
        work = partial(_compare, layer, inside, node.idmap, kind)
        return call_carrying(node.idmap, work)


def _compare_digest(node: NodeStore, path: Path) -> _Problems | None:
    try:
        expected = (node.base / "sums" / path.name).read_bytes().strip()
    except FileNotFoundError:
        return None
    found = _Problems()
    if digest_of(path, node.idmap).encode() != expected:
        found.add(os.fsencode(path.name), "is not what was made")
    return found


def digest_of(tree: Path, idmap: IdMap) -> str:
    """One digest of a tree: names, modes, dates of files, links and contents."""
    with reachable(tree.parent) as parent:
        return call_carrying(idmap, partial(_digest_of, parent / tree.name))


def _digest_of(tree: Path) -> str:
    rows: list[list[str | int]] = []
    for path, held in sorted(_inventory(tree).items()):
        date = 0 if _is_directory(held) else held.status.st_mtime_ns
        rows.append([path.hex(), held.status.st_mode, date, held.content, held.target.hex()])
    return keys.hex_of(keys.digest_of(rows))


def _inventory(tree: Path) -> dict[bytes, _Held]:
    held: dict[bytes, _Held] = {}
    for path, name, directory, status in walk(tree):
        content, target = "", b""
        if stat.S_ISREG(status.st_mode):
            content = _hashed(name, directory)
        elif stat.S_ISLNK(status.st_mode):
            target = os.readlink(name, dir_fd=directory)
        held[path] = _Held(status, tree, content, target)
    return held


def _hashed(name: bytes, directory: int) -> str:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    with open(fd, "rb", buffering=0) as file:
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _seen(trees: Sequence[Path]) -> dict[bytes, _Held]:
    """What an overlay of trees, the top one first, would show."""
    shown: dict[bytes, _Held] = {}
    for number, tree in enumerate(reversed(trees)):
        for path, held in _inventory(tree).items():
            below = shown.get(path)
            if below and _is_directory(below) and not _is_directory(held):
                for inner in [key for key in shown if key.startswith(path + b"/")]:
                    del shown[inner]
            if number and _is_whiteout(held):
                shown.pop(path, None)
            else:
                shown[path] = held
    return shown


def _is_directory(held: _Held) -> bool:
    return stat.S_ISDIR(held.status.st_mode)


def _is_whiteout(held: _Held) -> bool:
    return stat.S_ISCHR(held.status.st_mode) and held.status.st_rdev == 0


def _compare(layer: StoredLayer, trees: Sequence[Path], idmap: IdMap, kind: str) -> _Problems:
    """Compare a packed layer with ``trees``, the top one first; call it through
    ``idmap.call_mapped``.
    """
    listed = layer.listed()
    entries = {entry.path: entry for entry in listed}
    found = _Problems()
    try:
        shown = _seen(trees)
    except OSError as error:
        if error.errno not in (errno.EIO, errno.ENOENT, errno.ENOTDIR):
            raise
        found.add(os.fsencode(error.filename or b"it"), f"cannot be read: {error.strerror}")
        return found
    expected: set[bytes] = set()
    for path, entry in entries.items():
        expected |= _compare_entry(path, entry, shown, idmap, found)
    for path in [*expected]:
        while path := path.rpartition(b"/")[0]:
            expected.add(path)
    extra = {path: held for path, held in shown.items() if path not in expected}
    if kind == "source":
        lacking = _compare_objects(entries, trees, extra, found)
        if not found.sentences:
            _compare_books(trees[0].parent, entries, lacking, found)
    for path, held in extra.items():
        found.add(path, "is not in the layer", held)
    return found


def _compare_entry(
    path: bytes, entry: Entry, shown: Mapping[bytes, _Held], idmap: IdMap, found: _Problems
) -> set[bytes]:
    """Compare one member; returns the paths that it accounts for."""
    member, content = entry.member, entry.content
    parent, slash, name = path.rpartition(b"/")
    if not path or path == b".":
        return set()
    if name == OPAQUE_MARKER:
        held = shown.get(parent)
        if held is None or not _is_opaque(held, parent):
            found.add(parent, "does not hide what is below it", held)
        return {parent}
    if name.startswith(WHITEOUT_PREFIX):
        hidden = parent + slash + name.removeprefix(WHITEOUT_PREFIX)
        held = shown.get(hidden)
        if held is None or not _is_whiteout(held):
            found.add(hidden, "is not hidden", held)
        return {hidden}
    held = shown.get(path)
    if held is None:
        found.add(path, "is missing")
    elif reason := _difference(member, content, held, shown, idmap):
        found.add(path, reason, held)
    return {path}


_TYPES = {
    Kind.FILE: stat.S_IFREG,
    Kind.HARD_LINK: stat.S_IFREG,
    Kind.SYMLINK: stat.S_IFLNK,
    Kind.DIRECTORY: stat.S_IFDIR,
    Kind.FIFO: stat.S_IFIFO,
}


def _difference(
    member: Member, content: str, held: _Held, shown: Mapping[bytes, _Held], idmap: IdMap
) -> str:
    """What is wrong with a file, as a clause, or nothing."""
    status = held.status
    if stat.S_IFMT(status.st_mode) != _TYPES.get(member.kind):
        return "is of another kind"
    if member.kind is Kind.HARD_LINK:
        other = shown.get(member.target)
        same = other is not None and other.status.st_ino == status.st_ino
        return "" if same else "is not the same file as its link"
    if member.kind is Kind.SYMLINK:
        return "" if held.target == member.target else "points elsewhere"
    if status.st_mode & _MODE != member.mode & 0o1777:
        return "has other permissions"
    if idmap.count > 1 and (status.st_uid, status.st_gid) != _owner(member, idmap):
        return "belongs to somebody else"
    if member.kind is Kind.FILE:
        if status.st_size != member.size or held.content != content:
            return "has another content"
        if status.st_mtime_ns != member.mtime:
            return "has another date"
    return ""


def _owner(member: Member, idmap: IdMap) -> tuple[int, int]:
    if idmap.sees_inside:
        return member.uid, member.gid
    return idmap.host_uid(member.uid), idmap.host_gid(member.gid)


def _is_opaque(held: _Held, path: bytes) -> bool:
    for name in ("trusted.overlay.opaque", "user.overlay.opaque"):
        try:
            if os.getxattr(os.fsencode(held.tree) + b"/" + path, name, follow_symlinks=False):
                return True
        except OSError:
            continue
    return False


def _compare_objects(
    entries: Mapping[bytes, Entry],
    trees: Sequence[Path],
    extra: dict[bytes, _Held],
    found: _Problems,
) -> Missing | None:
    """Check git's objects that were made here, and take them out of ``extra``; returns which they
    are, as ``missing`` does.

    Where a damaged file hides which objects there should be, those that are there must be what
    their names say.
    """
    fans = OBJECTS.encode() + b"/"
    lacking = None
    with Checkout(trees) as checkout:
        try:
            lacking = missing(entries.keys(), checkout)
        except ValueError as error:
            if not found.sentences:
                found.add(OBJECTS.encode(), f"cannot be told: {error}")
            names = {name for path in extra if (name := object_at(path)) is not None}
        else:
            names = lacking.names if lacking else ()
        for name in names:
            path = f"{OBJECTS}/{gitobjects.file_name(name)}"
            held = extra.pop(path.encode(), None)
            if held is None:
                found.add(path.encode(), "is missing")
            elif not _is_object(checkout.read(path) or b"", name):
                found.add(path.encode(), "has another content", held)
    for path in [path for path in extra if path.startswith(fans) and _is_directory(extra[path])]:
        del extra[path]
    return lacking


def _is_object(data: bytes, name: bytes) -> bool:
    try:
        return hashlib.sha1(zlib.decompress(data)).digest() == name
    except zlib.error:
        return False


def _compare_books(
    source: Path, entries: Mapping[bytes, Entry], lacking: Missing | None, found: _Problems
) -> None:
    """Check what others are told against, if others can be told against this source."""
    try:
        digests = likeness.decode((source / SKETCH).read_bytes()).digests
    except FileNotFoundError:
        return  # nothing is told against it
    except (OSError, ValueError):
        digests = ()
    kept = Reference.read(source)
    made = lacking.names if lacking else frozenset[bytes]()
    if [*digests] != [*likeness.digests(entries.values())]:
        found.add(SKETCH.encode(), "is not that of its files")
    elif kept is None or kept.entries != entries or kept.made != made:
        found.add(LISTING.encode(), "is not that of its files")
