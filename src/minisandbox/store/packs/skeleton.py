"""A layer without the contents of its files: from it and from them the exact tar is made again.

Members are kept as columns, each of one type, which compress better than rows, are quick to read in
Python, and match those of a neighbouring layer in long runs. A member whose header is not the one
that ``archive`` writes for it (the layer was made by another tool) is kept with its bytes.
"""

from __future__ import annotations

import hashlib
import io
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from minisandbox.archive.members import Kind, Member, encode_header
from minisandbox.archive.reading import Malformed, Reader
from minisandbox.store.listing import Entry

#: Stands for "no content": directories, links, and files without a byte.
NO_CONTENT = 0xFFFF_FFFF
#: The SHA-256 of a file without a byte.
EMPTY = hashlib.sha256().hexdigest()

#: Members; bytes of the names, of the link targets, of the headers kept, of the end.
_SIZES = struct.Struct("<IQQQI")
_KEPT = struct.Struct("<II")
_KINDS = {kind.value[0]: kind for kind in Kind}
_LINKS = (Kind.HARD_LINK, Kind.SYMLINK)
_LINK_FLAGS = frozenset(kind.value[0] for kind in _LINKS)
_END = bytes(1024)


@dataclass
class Skeleton:
    """The members of a layer in order. ``contents`` are numbers in the directory of the pack."""

    names: list[bytes] = field(default_factory=list[bytes])
    kinds: bytearray = field(default_factory=bytearray)
    modes: array[int] = field(default_factory=lambda: array("H"))
    uids: array[int] = field(default_factory=lambda: array("I"))
    gids: array[int] = field(default_factory=lambda: array("I"))
    dates: array[int] = field(default_factory=lambda: array("q"))
    contents: array[int] = field(default_factory=lambda: array("I"))
    targets: list[bytes] = field(default_factory=list[bytes])
    kept: dict[int, bytes] = field(default_factory=dict[int, bytes])
    end: bytes = _END

    def __len__(self) -> int:
        return len(self.names)

    def append(self, member: Member, header: bytes, content: int) -> None:
        """Add a member; raises ``OverflowError`` for numbers that only a foreign tar could hold."""
        plain = _plain(member)
        # First the columns that can refuse, so that all of them keep one length.
        self.uids.append(member.uid)
        self.gids.append(member.gid)
        self.dates.append(member.mtime)
        self.modes.append(member.mode)
        self.contents.append(content)
        self.kinds += member.kind.value
        if member.kind in _LINKS:
            self.targets.append(member.target)
        if member.xattrs or encode_header(plain) != header:
            self.kept[len(self.names)] = header
        self.names.append(plain.path)

    def members(self, sizes: Mapping[int, int]) -> Iterator[tuple[Member, bytes, int]]:
        """Each member with the bytes of its header and the number of its content."""
        targets = iter(self.targets)
        for number, name in enumerate(self.names):
            kind = _KINDS[self.kinds[number]]
            content = self.contents[number]
            target = next(targets) if kind in _LINKS else b""
            header = self.kept.get(number)
            if header is not None:
                yield _parsed(header), header, content
                continue
            member = Member(
                path=name,
                kind=kind,
                mode=self.modes[number],
                uid=self.uids[number],
                gid=self.gids[number],
                mtime=self.dates[number],
                size=0 if content == NO_CONTENT else sizes[content],
                target=target,
            )
            yield member, encode_header(member), content

    def entries(self, records: Mapping[int, tuple[int, str]]) -> list[Entry]:
        """All members; ``records`` maps numbers of contents to size and SHA-256."""
        targets = iter(self.targets)
        empty = {flag: (0, EMPTY if kind is Kind.FILE else "") for flag, kind in _KINDS.items()}
        columns = zip(
            self.names,
            self.kinds,
            self.modes,
            self.uids,
            self.gids,
            self.dates,
            self.contents,
            strict=True,
        )
        found: list[Entry] = [
            Entry._make(
                (
                    name,
                    _KINDS[flag],
                    mode,
                    uid,
                    gid,
                    date,
                    next(targets) if flag in _LINK_FLAGS else b"",
                    *(empty[flag] if content == NO_CONTENT else records[content]),
                    _NO_XATTRS,
                ),
            )
            for name, flag, mode, uid, gid, date, content in columns
        ]
        for number, header in self.kept.items():
            found[number] = found[number]._replace(xattrs=_parsed(header).xattrs)
        return found

    def has_empty_file(self) -> bool:
        """Whether a regular file has no content."""
        return any(
            flag == Kind.FILE.value[0] and content == NO_CONTENT
            for flag, content in zip(self.kinds, self.contents, strict=True)
        )

    def encode(self) -> bytes:
        """The bytes that ``docs/formats.md`` describes."""
        names = b"\0".join(self.names)
        targets = b"\0".join(self.targets)
        kept = b"".join(
            _KEPT.pack(number, len(header)) + header for number, header in self.kept.items()
        )
        sizes = _SIZES.pack(len(self.names), len(names), len(targets), len(kept), len(self.end))
        columns = (self.modes, self.uids, self.gids, self.dates, self.contents)
        numbers = (_little_endian(column).tobytes() for column in columns)
        return b"".join((sizes, names, targets, self.kinds, *numbers, kept, self.end))

    @classmethod
    def decode(cls, data: bytes) -> Skeleton:
        """Undo ``encode``; raises ``ValueError`` for what it never made."""
        try:
            return cls._decode(data)
        except (struct.error, EOFError) as error:
            raise ValueError(str(error)) from None

    @classmethod
    def _decode(cls, data: bytes) -> Skeleton:
        count, names, targets, kept, end = _SIZES.unpack_from(data)
        made = cls()
        position = _SIZES.size

        def take(size: int) -> bytes:
            nonlocal position
            position += size
            return data[position - size : position]

        made.names = take(names).split(b"\0") if count else []
        joined = take(targets)
        made.kinds = bytearray(take(count))
        for name in ("modes", "uids", "gids", "dates", "contents"):
            column: array[int] = getattr(made, name)
            column.frombytes(take(count * column.itemsize))
            setattr(made, name, _little_endian(column))
        made.kept = dict(_split_kept(take(kept)))
        made.end = take(end)
        links = sum(made.kinds.count(kind.value) for kind in _LINKS)
        made.targets = joined.split(b"\0") if links else []
        lengths = {len(made.names), len(made.kinds), len(made.contents), count}
        if position != len(data) or lengths != {count} or len(made.targets) != links:
            raise ValueError("its columns differ in length")
        if not set(made.kinds) <= _KINDS.keys() or max(made.kept, default=-1) >= count:
            raise ValueError("it has members of an unknown type, or headers of none")
        return made


def _parsed(header: bytes) -> Member:
    """The member of a header that was kept; raises ``Malformed``."""
    for member in Reader(io.BytesIO(header)):
        return member
    raise Malformed(b"", "there is no header")


_NO_XATTRS: Mapping[bytes, bytes] = {}


def _plain(member: Member) -> Member:
    """``member`` as ``archive`` would name it: a directory without its slash."""
    return Member(
        path=member.path.rstrip(b"/") if member.kind is Kind.DIRECTORY else member.path,
        kind=member.kind,
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
        mtime=member.mtime,
        size=member.size,
        target=member.target if member.kind in _LINKS else b"",
    )


def _split_kept(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        number, length = _KEPT.unpack_from(data, position)
        position += _KEPT.size + length
        yield number, data[position - length : position]


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column
