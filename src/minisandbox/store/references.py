"""Sources that others of a node are told against: what is kept of them, and what lies on what.

A source is a directory: ``tree``, and for those that are told against it ``listing``, ``objects``
and ``sketch``. What lies on another source has ``below``, the name of that source and the mark of
its making, and in the place of ``listing``, if others are told against it in turn, ``changes``:
what it has more, and whiteouts for what it lacks; its ``objects`` are those that only one of the
two made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from minisandbox.archive.members import WHITEOUT_PREFIX, Kind
from minisandbox.store import likeness, listing
from minisandbox.store.listing import Entry
from minisandbox.store.objects import OBJECTS, object_at
from minisandbox.store.pool import Slots, kind_of_file

TREE, LISTING, CHANGES, OBJECT_NAMES, BELOW = "tree", "listing", "changes", "objects", "below"
SKETCH = "sketch"

#: Sources that may lie on one another: overlayfs looks into each of them (see ADR 0020).
MOST_LAYERS = 8

_NOTE = re.compile(rb"([0-9a-f]{64}) ([0-9a-f]{16})")
#: The name of what cannot be there.
_UNKNOWN = "unknown"
_HEX = frozenset(b"0123456789abcdef")
#: No names of files.
_SPECIAL = frozenset({b"", b".", b".."})


@dataclass(frozen=True)
class Reference:
    """A source that others are told against: its directory, and what is in it.

    ``entries`` are all that it shows, ``slots`` those of their files in the pool by path, but for
    the first ones. ``made`` are the git objects that its layer left out, ``objects`` all that it
    shows. ``mark`` tells it from one that was made again in its place, whose files may have other
    slots.
    """

    path: Path
    below: Reference | None
    entries: Mapping[bytes, Entry]
    slots: Mapping[bytes, int]
    made: frozenset[bytes]
    objects: frozenset[bytes]
    mark: bytes

    @classmethod
    def read(
        cls, path: Path, find: Callable[[Path], Reference | None] | None = None
    ) -> Reference | None:
        """The reference at ``path``, or None if it is none, or one that this version cannot read:
        then another takes its place. ``find`` gives what it lies on, or reads that.
        """
        if not lies(path):
            return None
        try:
            note = _note_in(path)
            below = (find or cls.read)(path.with_name(note.name)) if note else None
            if note and (below is None or below.mark != note.mark or below.layers >= MOST_LAYERS):
                return None
            own = listing.decode((path / (CHANGES if below else LISTING)).read_bytes())
            names = (path / OBJECT_NAMES).read_bytes()
            mark = _mark_of(path)
        except (OSError, ValueError):
            return None
        entries = _applied(own, below)
        if not below and (len(entries) != len(own) or not are_simple(entries)):
            return None  # it could show what no listing tells of
        if len(names) % 20 or mark is None:
            return None
        changed = {names[at : at + 20] for at in range(0, len(names), 20)}
        made = (below.made if below else frozenset[bytes]()) ^ changed
        listed = {name for place in entries if (name := object_at(place)) is not None}
        slots = _slots(own, entries, below)
        return cls(path, below, entries, slots, made, made | listed, mark)

    @property
    def layers(self) -> int:
        """How many trees it consists of."""
        return 1 + (self.below.layers if self.below else 0)

    def trees(self, parent: Path) -> list[Path]:
        """Its trees, the top one first, where ``parent`` is the directory of sources."""
        below = self.below.trees(parent) if self.below else []
        return [parent / self.path.name / TREE, *below]

    def is_there(self) -> bool:
        """Whether it is on disk as it was when it was read, with all that it lies on."""
        below = self.below
        try:
            same = _mark_of(self.path) == self.mark and (self.path / TREE).is_dir()
            lies_on = (below.path.name, below.mark) if below else None
            if not same or _note_in(self.path) != lies_on:
                return False
        except (OSError, ValueError):
            return False
        return below is None or below.is_there()

    def free(self, changed: Iterable[Entry], entries: Iterable[Entry]) -> Slots:
        """The slots for the files that are ``changed`` of a source with ``entries`` above it: in no
        tree two names are one file.
        """
        contents = {entry.content for entry in changed} - {""}
        used: dict[str, set[int]] = {}
        for entry in entries:
            if entry.content in contents and self.entries.get(entry.path) == entry:
                used.setdefault(kind_of_file(entry), set()).add(self.slots.get(entry.path, 0))
        return Slots(used)


def _slots(
    own: Sequence[Entry], entries: Mapping[bytes, Entry], below: Reference | None
) -> Mapping[bytes, int]:
    """Which slots ``Pool`` gave: each file of one kind another one."""
    slots: dict[bytes, int] = {}
    if below is not None:
        same = (path for path in below.slots if entries.get(path) == below.entries[path])
        slots = {path: below.slots[path] for path in same}
    free = below.free(own, entries.values()) if below else Slots()
    for entry in own:
        kind = kind_of_file(entry) if entry.content else ""
        if kind and (slot := free.take(kind)):
            slots[entry.path] = slot
    return slots


def _applied(own: Iterable[Entry], below: Reference | None) -> Mapping[bytes, Entry]:
    if below is None:
        return {entry.path: entry for entry in own}
    entries = dict(below.entries)
    for entry in own:
        hidden = _hidden_by(entry)
        if hidden is None:
            entries[entry.path] = entry
        else:
            entries.pop(hidden, None)
    return entries


def changes(entries: Mapping[bytes, Entry], below: Reference) -> bytes:
    """What ``CHANGES`` holds of a source with ``entries``, which lies on ``below``."""
    told = {path: entry for path, entry in entries.items() if below.entries.get(path) != entry}
    gone = below.entries.keys() - entries.keys()
    # As they were made: the order gives the slots of files.
    members = [told[path] for path in sorted(told)]
    return listing.encode([*members, *(whiteout(path, 0) for path in sorted(gone))])


def whiteout(path: bytes, mtime: int) -> Entry:
    """The member that hides ``path``."""
    parent, slash, name = path.rpartition(b"/")
    marker = parent + slash + WHITEOUT_PREFIX + name
    return Entry(marker, Kind.FILE, 0, 0, 0, mtime, b"", 0, "", {})


def _hidden_by(entry: Entry) -> bytes | None:
    """What an entry that ``whiteout`` made hides; None for others."""
    parent, slash, name = entry.path.rpartition(b"/")
    if not name.startswith(WHITEOUT_PREFIX):
        return None
    return parent + slash + name.removeprefix(WHITEOUT_PREFIX)


class _Note(NamedTuple):
    """What a source lies on: its name, and which making of it."""

    name: str
    mark: bytes


def _note_in(source: Path) -> _Note | None:
    """What the source at ``source`` lies on, or None; raises ``ValueError`` for a damaged note, and
    ``OSError``: one that is taken for whole while it is not would lose its reference.
    """
    try:
        found = _NOTE.fullmatch((source / BELOW).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found is None:
        raise ValueError("it is no note of what a source lies on")
    return _Note(found[1].decode("ascii"), bytes.fromhex(found[2].decode("ascii")))


def note_of(reference: Reference) -> str:
    """What ``BELOW`` holds of a source that lies on ``reference``."""
    return f"{reference.path.name} {reference.mark.hex()}"


def reference_of(source: Path) -> str:
    """The name of the reference that the source at ``source`` lies on, or nothing; of one whose
    note of it is damaged, a name that nothing has. Raises ``OSError``.
    """
    try:
        note = _note_in(source)
    except ValueError:
        return _UNKNOWN
    return note.name if note else ""


def _mark_of(source: Path) -> bytes | None:
    """The mark of the making of a source that others can be told against; raises ``OSError``."""
    with open(source / SKETCH, "rb") as file:
        mark = likeness.mark_in(file.read(16))
    return mark if len(mark) == 8 else None


def trees_of(source: Path) -> tuple[Path, ...]:
    """The trees of the source at ``source``, the lowest first, whether they are there or not. More
    than there can be end in one that is not.
    """
    way = [source]
    while name := reference_of(way[-1]):
        way.append(source.with_name(name if len(way) < MOST_LAYERS else _UNKNOWN))
    return tuple(path / TREE for path in reversed(way))


def lies(source: Path) -> bool:
    """Whether the trees of a source are all there, on one that is whole, each on the making of the
    next that it was made for: somebody may have removed one by hand. Raises ``OSError``.
    """
    for _ in range(MOST_LAYERS):
        if not (source / TREE).is_dir():
            return False
        try:
            note = _note_in(source)
            if note is None:
                return (source / LISTING).is_file()
            source = source.with_name(note.name)
            if _mark_of(source) != note.mark:
                return False
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
            return False
    return False


def are_simple(
    by_path: Mapping[bytes, Entry], above: Collection[bytes] = frozenset[bytes]()
) -> bool:
    """Whether entries are as our own archives of checkouts have them: paths spelled in one way, in
    directories that are listed here or ``above``, no whiteouts, no links between files.
    """
    folders = {path for path, entry in by_path.items() if entry.type is Kind.DIRECTORY}
    folders |= {b"", *above}
    for path, entry in by_path.items():
        parent, _, name = path.rpartition(b"/")
        if parent not in folders or name in _SPECIAL or name.startswith(WHITEOUT_PREFIX):
            return False
        if entry.type is Kind.HARD_LINK:
            return False
        if is_fan(path) and (entry.uid, entry.gid, entry.mode & 0o7777) != (0, 0, 0o755):
            return False  # it would be that of whatever lies on it
    return True


def is_fan(path: bytes) -> bool:
    """Whether it is one of the 256 directories of git's objects."""
    parent, _, name = path.rpartition(b"/")
    return parent == OBJECTS.encode() and len(name) == 2 and not {*name} - _HEX
