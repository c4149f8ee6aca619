"""What becomes of a layer that others made: every member is kept, changed, left out or refused.

Our own archives are refused wherever they could be understood in two ways. Images of the world have
devices, set-id programs, members of one name and paths with leading slashes, which container
engines put up with; here they are brought into the form of our own layers, once, when an image is
imported. So the node has one unpacker, a strict one.

A layer is read twice: first its names, of which a tree is kept in memory, then its content.
Everything is decided in the first reading. Invariant: what :func:`rewrite` writes is an archive
that ``archive.unpack`` takes, whose members have no name that leads out of the root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from minisandbox import archive
from minisandbox.archive.members import (
    BLOCK,
    OPAQUE_MARKER,
    OVERLAY_PREFIXES,
    WHITEOUT_PREFIX,
    Kind,
    Member,
    encode_header,
    padding,
)
from minisandbox.archive.reading import Malformed, Reader
from minisandbox.idmap import COUNT

#: Books that AUFS kept in its layers, of files that are gone: of no meaning to anybody else.
_AUFS = b".wh..wh."
#: What the kernel takes: one component, a path or the target of a link.
_NAME_MAX = 255
_PATH_MAX = 4095
#: Who owns what belongs to an id that no sandbox has.
_NOBODY = 65534
_LATEST = 0o77777777777  # seconds, as the header of a tar holds them

Parts = tuple[bytes, ...]


class Budget:
    """What all layers of an image together may become; raises ``Malformed`` beyond."""

    def __init__(self, limits: archive.Limits) -> None:
        self._limits = limits
        self.bytes = 0
        self.entries = 0

    def count(self, size: int, member: bytes = b"") -> None:
        """Count one more entry of ``size`` bytes."""
        self.entries += 1
        self.bytes += size
        if self.entries > self._limits.max_files:
            raise Malformed(member, f"the limit is {self._limits.max_files} entries in one image")
        if self.bytes > self._limits.max_bytes:
            raise Malformed(member, f"the limit is {self._limits.max_bytes} bytes in one image")


@dataclass
class Sifted:
    """What was decided of one layer. ``dropped`` and ``changed`` are by the position of a member;
    ``opaque`` are directories that get a mark of their own; ``hides_below`` says that nothing
    of the layers below shows through; ``owned`` is how many members are not root's; ``notes`` say
    what a person should know.
    """

    dropped: set[int] = field(default_factory=set[int])
    changed: dict[int, Member] = field(default_factory=dict[int, Member])
    opaque: list[bytes] = field(default_factory=list[bytes])
    hides_below: bool = False
    owned: int = 0
    notes: tuple[str, ...] = ()


class _Node:
    """A name in the tree of a layer; ``members`` are the positions of what made it."""

    __slots__ = ("children", "kind", "linked", "member", "members")

    def __init__(self, kind: Kind, member: Member | None = None) -> None:
        self.kind = kind
        self.members: list[int] = []
        self.children: dict[bytes, _Node] = {}
        self.linked = False
        self.member = member  # of symbolic links only


class _Notes:
    """Counts what was done by kind, and keeps the first name of each."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, bytes] = {}

    def add(self, what: str, path: bytes) -> None:
        self._counts[what] += 1
        self._first.setdefault(what, path)

    def sentences(self) -> tuple[str, ...]:
        return tuple(
            f"{count} {what}, first {readable(self._first[what])}"
            for what, count in self._counts.items()
        )


def sift(stream: BinaryIO, budget: Budget) -> Sifted:
    """Read a layer's tar to its end and decide about its members.

    Raises ``Malformed`` for what cannot be had without a guess: names that go up, paths through
    links, hard links to what the layer does not hold, and bytes that are no archive.
    """
    sifting = _Sifting(budget)
    for position, member in enumerate(Reader(stream, devices=True)):
        sifting.add(position, member)
    return sifting.finish()


def rewrite(stream: BinaryIO, sifted: Sifted, out: BinaryIO) -> archive.PackStats:
    """Write the layer in ``stream``, which is the one that was sifted, as a layer of ours."""
    size = files = 0
    reader = Reader(stream, devices=True)
    for position, member in enumerate(reader):
        if position in sifted.dropped:
            continue
        clean = sifted.changed.get(position) or _clean(member)
        out.write(encode_header(clean))
        if clean.kind is Kind.FILE:
            for chunk in reader.content():
                out.write(chunk)
            out.write(bytes(padding(clean.size)))
            size += clean.size
            files += 1
    for path in sifted.opaque:
        out.write(encode_header(_marker(path + b"/" + OPAQUE_MARKER)))
    out.write(bytes(2 * BLOCK))
    return archive.PackStats(unpacked_size=size, files=files)


class _Sifting:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._root = _Node(Kind.DIRECTORY)
        self._sifted = Sifted()
        self._notes = _Notes()

    def add(self, position: int, member: Member) -> None:
        """Decide about the next member, as far as it can be known yet."""
        self._budget.count(member.size, member.path)
        parts = _parts(member.path, member.path)
        if not parts:
            if member.kind is not Kind.DIRECTORY:
                raise Malformed(member.path, "it has no name")
            return
        if parts[0].startswith(_AUFS) and parts != (OPAQUE_MARKER,):
            self._drop(position, "notes of AUFS left out", member.path)
            return
        if any(part.startswith(WHITEOUT_PREFIX) for part in parts[:-1]):
            raise Malformed(member.path, "it is inside of a whiteout")
        parent = self._parent(parts, member)
        if parts[-1].startswith(WHITEOUT_PREFIX):
            self._add_whiteout(position, member, parts, parent)
        else:
            self._add_named(position, member, parts, parent)

    def _add_named(self, position: int, member: Member, parts: Parts, parent: _Node) -> None:
        node: _Node | None = None
        if member.kind is Kind.HARD_LINK:
            node = self._linked(position, member, parts)
            if node is None:
                return
        there = parent.children.get(parts[-1])
        if there is not None and not (there.kind is member.kind is Kind.DIRECTORY):
            self._remove(there, member)
            there = None
        if there is None:
            there = node or _Node(member.kind, member if member.kind is Kind.SYMLINK else None)
            parent.children[parts[-1]] = there
        there.members.append(position)
        if member.kind is Kind.DEVICE:
            self._drop(position, "devices left out", member.path)
        elif member.kind is Kind.SYMLINK and not 0 < len(member.target) <= _PATH_MAX:
            raise Malformed(member.path, f"its target is {len(member.target)} bytes long")
        self._note(member)

    def _linked(self, position: int, member: Member, parts: Parts) -> _Node | None:
        """The node of a hard link; None where what it is another name of was left out."""
        target = _parts(member.target, member.path)
        if target == parts:
            raise Malformed(member.path, "it is a hard link to itself")
        source = self._find(target)
        if source is None:
            raise Malformed(
                member.path,
                f"it is a hard link to {readable(member.target)}, which does not come before it in "
                "its layer",
            )
        if source.kind is Kind.DEVICE:
            self._drop(position, "devices left out", member.path)
            return None
        if source.kind is Kind.SYMLINK and source.member is not None:
            # A second name of a link is a link like it: no program can tell.
            link = _clean(replace(source.member, path=member.path))
            self._sifted.changed[position] = link
            return _Node(Kind.SYMLINK, link)
        if source.kind not in (Kind.FILE, Kind.HARD_LINK):
            raise Malformed(
                member.path, f"it is a hard link to {readable(member.target)}, which is no file"
            )
        source.linked = True
        return _Node(Kind.HARD_LINK)

    def _find(self, parts: Parts) -> _Node | None:
        node: _Node | None = self._root
        for part in parts:
            node = node.children.get(part) if node is not None else None
        return node if parts else None

    def _parent(self, parts: Parts, member: Member) -> _Node:
        """The directory of a member; those on the way that the layer does not list are made."""
        node = self._root
        for part in parts[:-1]:
            child = node.children.get(part)
            if child is None:
                self._budget.count(0, member.path)
                child = node.children[part] = _Node(Kind.DIRECTORY)
            elif child.kind is Kind.SYMLINK:
                raise Malformed(member.path, "its path goes through a symbolic link")
            elif child.kind is not Kind.DIRECTORY:
                raise Malformed(member.path, "its path goes through something that is no directory")
            node = child
        return node

    def _add_whiteout(self, position: int, member: Member, parts: Parts, parent: _Node) -> None:
        name = parts[-1]
        hidden = name.removeprefix(WHITEOUT_PREFIX)
        if name != OPAQUE_MARKER:
            if name.startswith(_AUFS):
                self._drop(position, "notes of AUFS left out", member.path)
                return
            if hidden in (b"", b".", b".."):
                raise Malformed(member.path, "it is a whiteout of no name")
        if member.kind is not Kind.FILE or member.size:
            raise Malformed(member.path, "it is named as a whiteout, but not an empty file")
        if name in parent.children:
            self._sifted.dropped.add(position)
            return
        parent.children[name] = node = _Node(Kind.FILE)
        node.members.append(position)

    def _remove(self, node: _Node, by: Member) -> None:
        """Leave out what a later member of the same name replaces, and all that is below it."""
        self._notes.add("members replaced by a later one of their name", by.path)
        pending = [node]
        while pending:
            node = pending.pop()
            if node.linked:
                raise Malformed(by.path, "it replaces a file that another member is a hard link to")
            self._sifted.dropped.update(node.members)
            pending.extend(node.children.values())

    def _drop(self, position: int, what: str, path: bytes) -> None:
        self._sifted.dropped.add(position)
        self._notes.add(what, path)

    def _note(self, member: Member) -> None:
        if member.kind is not Kind.HARD_LINK:
            self._sifted.owned += (member.uid, member.gid) != (0, 0)
        if member.kind in (Kind.FILE, Kind.DIRECTORY) and member.mode & 0o6000:
            self._notes.add("set-id bits taken off", member.path)
        if not (0 <= member.uid < COUNT and 0 <= member.gid < COUNT):
            self._notes.add(f"owners above {COUNT - 1} replaced by nobody", member.path)
        if any(not _is_kept(name) for name in member.xattrs):
            self._notes.add("members without the attributes that are not user.*", member.path)

    def finish(self) -> Sifted:
        """Decide what only the whole layer tells; returns all decisions."""
        if OPAQUE_MARKER in self._root.children:
            # An overlay heeds no such mark on the root of a layer; whoever stacks them has to.
            self._sifted.dropped.update(self._root.children[OPAQUE_MARKER].members)
            self._sifted.hides_below = True
        for path, node in _directories(self._root):
            for name, child in node.children.items():
                if not name.startswith(WHITEOUT_PREFIX) or name == OPAQUE_MARKER:
                    continue
                shown = node.children.get(name.removeprefix(WHITEOUT_PREFIX))
                if shown is None:
                    continue
                # Whiteouts are about the layers below: both mean that this one's is all there is.
                self._sifted.dropped.update(child.members)
                if shown.kind is Kind.DIRECTORY and OPAQUE_MARKER not in shown.children:
                    self._sifted.opaque.append(path + name.removeprefix(WHITEOUT_PREFIX))
        self._sifted.notes = self._notes.sentences()
        return self._sifted


def _directories(root: _Node) -> Iterator[tuple[bytes, _Node]]:
    """Every directory of the tree, with its path and a slash."""
    pending: list[tuple[bytes, _Node]] = [(b"", root)]
    while pending:
        path, node = pending.pop()
        yield path, node
        pending.extend(
            (path + name + b"/", child)
            for name, child in node.children.items()
            if child.kind is Kind.DIRECTORY
        )


def _parts(path: bytes, member: bytes) -> Parts:
    """The components of a path below the root, however it is written."""
    parts = tuple(part for part in path.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise Malformed(member, f"the path {readable(path)} goes up with ..")
    if len(path) > _PATH_MAX or any(len(part) > _NAME_MAX for part in parts):
        raise Malformed(member, "a name on its path is longer than the kernel allows")
    return parts


def readable(name: bytes) -> str:
    """A name that anybody may have chosen, as one line that says nothing to a terminal."""
    return ascii(name.decode("utf-8", "replace")[:200])


def _is_kept(attribute: bytes) -> bool:
    return attribute.startswith(b"user.") and not attribute.startswith(OVERLAY_PREFIXES)


def _clean(member: Member) -> Member:
    """A member as our layers have it."""
    owned = 0 <= member.uid < COUNT and 0 <= member.gid < COUNT
    return replace(
        member,
        path=b"/".join(_parts(member.path, member.path)) or b".",
        target=(
            b"/".join(_parts(member.target, member.path))
            if member.kind is Kind.HARD_LINK
            else member.target
        ),
        mode=member.mode & 0o1777,
        uid=member.uid if owned else _NOBODY,
        gid=member.gid if owned else _NOBODY,
        mtime=min(max(member.mtime // 1_000_000_000, 0), _LATEST) * 1_000_000_000,
        xattrs={name: value for name, value in member.xattrs.items() if _is_kept(name)},
    )


def _marker(path: bytes) -> Member:
    return Member(path=path, kind=Kind.FILE, mode=0, uid=0, gid=0, mtime=0)
