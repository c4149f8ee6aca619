"""Which sources of a node others can be told against, and which of them one is most like."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from minisandbox.store import likeness
from minisandbox.store.directories import make_passable
from minisandbox.store.leases import Lease
from minisandbox.store.likeness import Sketch
from minisandbox.store.listing import Entry
from minisandbox.store.references import SKETCH, Reference

#: A source that has less than this share of its files in common with every other one has none to
#: lie on.
_LEAST = 0.3
#: Nor can it lie on one with so many times its members, which somebody would have to read.
_LARGER = 2
#: References that a process keeps in memory, each some megabytes.
_KEPT = 12


class References:
    """The references below ``base``: ``references`` has an empty file for each, called like it.

    What was removed stays noted until it is looked for.
    """

    def __init__(self, base: Path) -> None:
        self._uses = base / "uses"
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
        """Remove the notes of what is not there any more."""
        for name in self.names():
            if not (self._sources / name).exists():
                self._forget(name)

    def like(self, entries: Sequence[Entry]) -> Iterator[tuple[str, Sketch, float]]:
        """The names of the references that a source is like, with their sketches and how much of
        its files (see ``likeness``), the one that it is most like first.
        """
        names, digests = self.names(), likeness.digests(entries)
        for name in self._sketches.keys() - names:
            del self._sketches[name]
        found: list[tuple[float, str, Sketch]] = []
        for name in names:
            sketch = self._sketch(name)
            if sketch is None or sketch.files > _LARGER * len(entries):
                continue
            share = likeness.likeness(digests, sketch.digests)
            if share >= _LEAST:
                found.append((share, name, sketch))
        for share, name, sketch in sorted(found, key=lambda one: one[:2], reverse=True):
            yield name, sketch, share

    def read(self, name: str, lease: Lease) -> Reference | None:
        """A reference, which stays until ``lease`` is closed; None if it is none any more."""
        with Lease(self._uses) as trial:
            trial.add(name)
            reference = self._reference(name)
            if reference is None:
                self._sketches.pop(name, None)  # it may be gone, or another making of it there
            else:
                lease.add(name)
        return reference

    def _forget(self, name: str) -> None:
        with suppress(OSError):  # who may not write here leaves it
            os.unlink(self._notes / name)

    def _sketch(self, name: str) -> Sketch | None:
        if name not in self._sketches:
            try:
                data = (self._sources / name / SKETCH).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                self._forget(name)
                return None
            except OSError:
                return None
            try:
                self._sketches[name] = likeness.decode(data)
            except ValueError:
                return None
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
