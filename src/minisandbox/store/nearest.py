"""Which sources of a node others can be told against, and which of them one is most like."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from minisandbox.store import likeness
from minisandbox.store.directories import make_passable
from minisandbox.store.leases import Lease
from minisandbox.store.likeness import Sketch
from minisandbox.store.listing import Entry
from minisandbox.store.references import MOST_LAYERS, SKETCH, Reference

#: A source that has less than this share of its contents in common with every other one has none to
#: lie on.
_LEAST = 0.3
#: References that a process keeps in memory, each some megabytes.
_KEPT = 8


class References:
    """The references below ``base``: ``references`` has an empty file for each, called like it.

    What was removed stays noted until it is looked for.
    """

    def __init__(self, base: Path) -> None:
        self._sources = base / "sources"
        self._notes = base / "references"
        self._sketches: dict[str, Sketch] = {}
        self._read: OrderedDict[str, Reference] = OrderedDict()

    def names(self) -> set[str]:
        """All that are noted."""
        try:
            return set(os.listdir(self._notes))
        except FileNotFoundError:
            return set()

    def add(self, name: str) -> None:
        """Note that others can be told against a source; raises ``OSError``."""
        make_passable(self._notes)
        (self._notes / name).touch()

    def forget_removed(self) -> None:
        """Remove the notes of what is not there any more; raises ``OSError``."""
        for name in self.names():
            if not (self._sources / name).exists():
                (self._notes / name).unlink(missing_ok=True)

    def nearest(self, entries: Sequence[Entry], lease: Lease) -> tuple[Reference, float] | None:
        """The reference that a source is most like, and how much (see ``likeness``); None where it
        is like none. It stays until ``lease`` is closed. Raises ``OSError``.
        """
        for share, name in self._by_likeness(likeness.sketch(entries)):
            lease.add(name)
            reference = self._reference(name)
            if reference is None:
                self._sketches.pop(name, None)  # it may be gone
            elif reference.layers < MOST_LAYERS:
                return reference, share
        return None

    def share(self, entries: Sequence[Entry]) -> float:
        """How much of a source the reference has that it is most like; 0 where it is like none."""
        return max((share for share, _ in self._by_likeness(likeness.sketch(entries))), default=0.0)

    def _by_likeness(self, sketch: Sketch) -> Iterable[tuple[float, str]]:
        found: list[tuple[float, str]] = []
        for name in self.names():
            other = self._sketch(name)
            share = 0.0 if other is None else likeness.likeness(sketch, other)
            if share >= _LEAST:
                found.append((share, name))
        return sorted(found, reverse=True)

    def _sketch(self, name: str) -> Sketch | None:
        if name not in self._sketches:
            try:
                data = (self._sources / name / SKETCH).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                with suppress(OSError):  # it was removed; who may not write here leaves the note
                    os.unlink(self._notes / name)
                return None
            self._sketches[name] = likeness.decode(data)
        return self._sketches[name]

    def _reference(self, name: str) -> Reference | None:
        known = self._read.pop(name, None)
        if known is None or not known.is_there():
            path = self._sources / name
            known = Reference.read(path, lambda below: self._reference(below.name))
        if known is not None:
            self._read[name] = known
            while len(self._read) > _KEPT:
                self._read.popitem(last=False)
        return known
