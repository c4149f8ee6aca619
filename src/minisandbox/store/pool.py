"""Equal files of unpacked layers as one file: a pool of hard links, keyed by what they are.

Two names of one tree must not be one file: ``cp a b`` and ``shutil.copyfile`` refuse that, and the
two are told apart by nothing but their inode, through an overlay too. So the k-th file of a layer
with some content takes the k-th *slot* of the pool, and layers that lie above one another draw from
different pools.

A file enters the pool when the layer it came in was checked and is on disk, so a link is never
made to anything less.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from minisandbox.archive.members import Member
from minisandbox.archive.unpacking import Parts, Write
from minisandbox.store.links import Links
from minisandbox.store.listing import Entry

#: Files up to this size are held in memory until their digest is known; larger ones are written
#: first and replaced by a link.
_IN_MEMORY = 16 << 20
_SECOND = 1_000_000_000


def kind_of_file(file: Entry) -> str:
    """What makes files exchangeable, or nothing where a file is not shared."""
    plain = file.uid == file.gid == 0 and not file.xattrs and not file.mtime % _SECOND
    return f"{file.content}-{file.mode & 0o1777:o}-{file.mtime // _SECOND}" if plain else ""


class Slots:
    """Gives files of each kind the first slots that are free in a tree; ``used`` are those of files
    that it shows already.
    """

    def __init__(self, used: Mapping[str, Collection[int]] | None = None) -> None:
        self._used = used or {}
        self._next: dict[str, int] = {}

    def take(self, kind: str) -> int:
        """The slot of the next file of a kind."""
        used, slot = self._used.get(kind, ()), self._next.get(kind, 0)
        while slot in used:
            slot += 1
        self._next[kind] = slot + 1
        return slot

    def copy(self) -> Slots:
        """One that gives the same slots from now on."""
        copy = Slots(self._used)
        copy._next = dict(self._next)
        return copy


class Pool:
    """A directory of files that layers link to; makes the files of one layer.

    ``digest`` tells the SHA-256 of the content that is being added: before it is read where that is
    known by then, else an empty text, and once it was read. ``slots`` are those that a layer below
    leaves free.
    """

    def __init__(
        self, directory: Path, digest: Callable[[], str], slots: Slots | None = None
    ) -> None:
        self._links = Links(directory)
        self._digest = digest
        self._slots = slots or Slots()
        self._made: list[tuple[Parts, str]] = []

    def add(
        self, member: Member, parts: Parts, parent: int, content: Iterator[bytes], write: Write
    ) -> None:
        """Make a regular file of a layer: a link, or a new file that others can link to.

        The content is not read where its digest is known and the pool has it.
        """
        known = bool(self._digest())
        held = None if known or member.size > _IN_MEMORY else list(content)
        if known or held is not None:
            name = self._slot(member)
            if name and self._links.take(name, parts[-1], parent):
                return
            write(member, parts[-1], parent, content if held is None else iter(held))
        else:
            write(member, parts[-1], parent, content)
            name = self._slot(member)
            if name and self._replace(name, parts[-1], parent):
                return
        if name:
            self._made.append((parts, name))

    def foresight(self) -> Callable[[str], bool]:
        """Tells of the next files, by their kinds and one after the other, whether they would be
        links.
        """
        slots = self._slots.copy()
        return lambda kind: bool(kind) and self._links.has(_name(kind, slots.take(kind)))

    def share(self, root: Path) -> None:
        """Let others link to what was made in the layer at ``root``, which is on disk by now."""
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for parts, name in self._made:
                self._links.give(b"/".join(parts), fd, name)
        finally:
            os.close(fd)

    def _slot(self, member: Member) -> str:
        kind = kind_of_file(Entry.of(member)._replace(content=self._digest()))
        return _name(kind, self._slots.take(kind)) if kind else ""

    def _replace(self, name: str, target: bytes, parent: int) -> bool:
        """Put a link to ``name`` in the place of an equal file, if the pool has it."""
        if not self._links.has(name):
            return False
        beside = b".wh." + os.urandom(8).hex().encode()  # no member can be called so
        if not self._links.take(name, beside, parent):
            return False
        os.rename(beside, target, src_dir_fd=parent, dst_dir_fd=parent)
        return True


def _name(kind: str, slot: int) -> str:
    """Where a file lies in the pool."""
    return f"{kind[:2]}/{kind[2:]}-{slot}"
