"""Reads tar streams that anybody may have written: ustar, pax and GNU long names, forward only.

``tarfile`` is not used because of what hostile headers have done to it (endless loops, unbounded
buffers, quadratic matching), in versions that hosts still run. Nothing here touches a file system.
Every deviation is a ``Malformed`` with a reason; no header makes it hold more than
``_EXTENSION_LIMIT`` bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from minisandbox.archive.members import (
    BLOCK,
    XATTR_PREFIX,
    Kind,
    Member,
    checksum,
    padding,
    unescape,
)

#: Bytes of one extended header, and of one path. Linux paths end at 4,096, names of a tar may not.
_EXTENSION_LIMIT = 1 << 20
_PATH_LIMIT = 1 << 15
#: Bytes of a name that an error shows.
_SHOWN = 4096
_RECORDS_LIMIT = 10_000
_EXTENSIONS = (b"x", b"g", b"L", b"K")
#: What a global header (``git archive`` writes one) may say about all members; the rest is ignored.
_GLOBAL = {b"uid", b"gid", b"mtime"}
_CHUNK = 1 << 20
_ZERO = bytes(BLOCK)
_FIELDS = struct.Struct("100s8s8s8s12s12s8x1s100s8s80x155s12x")
_DIGITS = frozenset(b"01234567")
_KINDS: dict[bytes, Kind] = {kind.value: kind for kind in Kind} | {
    b"\0": Kind.FILE,
    b"4": Kind.DEVICE,
    b"7": Kind.FILE,
}
_SPARSE = "it is a GNU sparse file, which layers do not use"
#: Dates a file system can hold, in seconds.
_DATES = range(-(1 << 31), 1 << 34)


class Malformed(Exception):
    """The stream is not an archive this project reads; ``member`` is the name, as far as known."""

    def __init__(self, member: bytes, reason: str) -> None:
        self.member = member
        self.reason = reason
        super().__init__(reason)


class Reader:
    """Iterates over members; the content of the current one is read with ``content``.

    A device is ``Malformed`` unless ``devices`` says that the caller knows what to do with it.
    """

    def __init__(self, stream: BinaryIO, *, devices: bool = False) -> None:
        self._stream = stream
        self._devices = devices
        self._left = 0
        self._padding = 0
        self._name = b""
        self._defaults: dict[bytes, bytes] = {}

    def __iter__(self) -> Iterator[Member]:
        while (block := self._next_block()) is not None:
            records: dict[bytes, bytes] = {}
            while (flag := block[156:157]) in _EXTENSIONS:
                self._extension(flag, block, records)
                following = self._next_block()
                if following is None or len(records) > _RECORDS_LIMIT:
                    raise Malformed(self._name, "an extended header without a member follows it")
                block = following
            member = self._member(block, self._defaults | records)
            self._left, self._padding = member.size, padding(member.size)
            yield member
            self._skip()

    def content(self) -> Iterator[bytes]:
        """The content of the current member in chunks; once."""
        while self._left:
            chunk = self._exactly(min(self._left, _CHUNK))
            self._left -= len(chunk)
            yield chunk

    def _skip(self) -> None:
        for _ in self.content():
            pass
        self._exactly(self._padding)
        self._padding = 0

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        while len(data) < size:
            more = self._stream.read(size - len(data))
            if not more:
                raise Malformed(self._name, "the archive ends in the middle of it")
            data += more
        return data

    def _next_block(self) -> bytes | None:
        """The next header block; None at the end mark, after which only zeros may follow."""
        block = self._exactly(BLOCK)
        if block != _ZERO:
            if _number(block[148:156]) != checksum(block):
                raise Malformed(self._name, "the header after it has a wrong checksum")
            return block
        while data := self._stream.read(_CHUNK):
            if data.count(0) != len(data):
                raise Malformed(self._name, "the archive goes on after its end mark")
        return None

    def _extension(self, flag: bytes, block: bytes, records: dict[bytes, bytes]) -> None:
        size = _number(block[124:136])
        if not 0 <= size <= _EXTENSION_LIMIT:
            raise Malformed(self._name, f"an extended header of {size} bytes follows it")
        data = self._exactly(size)
        self._exactly(padding(size))
        if flag == b"L":
            records[b"path"] = data.split(b"\0", 1)[0]
        elif flag == b"K":
            records[b"linkpath"] = data.split(b"\0", 1)[0]
        elif flag == b"x":
            records.update(_pax_records(data))
        else:
            given = _pax_records(data)
            if {b"path", b"linkpath", b"size"} & given.keys():
                raise Malformed(self._name, "a global header gives every member one path or size")
            self._defaults.update({key: given[key] for key in _GLOBAL & given.keys()})

    def _member(self, block: bytes, records: dict[bytes, bytes]) -> Member:
        fields: tuple[bytes, ...] = _FIELDS.unpack(block)
        name, mode, uid, gid, size, mtime, flag, link, magic, prefix = fields
        path = name.split(b"\0", 1)[0]
        if magic.startswith(b"ustar\0") and prefix[:1] != b"\0":
            path = prefix.split(b"\0", 1)[0] + b"/" + path
        path = records.get(b"path", path)
        target = records.get(b"linkpath", link.split(b"\0", 1)[0])
        self._name = path[:_SHOWN]
        xattrs = _attributes(records)
        if any(b"\0" in text for text in (path, target, *xattrs)):
            raise Malformed(self._name, "a name in its header holds a NUL")
        if len(path) > _PATH_LIMIT:
            raise Malformed(self._name, f"its path is longer than {_PATH_LIMIT} bytes")
        kind = _kind(flag, path, records)
        if kind is Kind.DEVICE and not self._devices:
            raise Malformed(path, "it is a device")
        length = _decimal(records, b"size", size, path)
        if length < 0 or (length and kind is not Kind.FILE):
            raise Malformed(path, f"it has {length} bytes of content, which its type cannot have")
        if kind is Kind.DIRECTORY and len(path) > 1:
            path = path.removesuffix(b"/")
        return Member(
            path=path,
            kind=kind,
            mode=_number(mode, path),
            uid=_decimal(records, b"uid", uid, path),
            gid=_decimal(records, b"gid", gid, path),
            mtime=_date(records.get(b"mtime"), mtime, path),
            size=length,
            target=target,
            xattrs=xattrs,
        )


def _kind(flag: bytes, path: bytes, records: dict[bytes, bytes]) -> Kind:
    if any(key.startswith(b"GNU.sparse.") for key in records):
        raise Malformed(path, _SPARSE)
    if flag not in _KINDS:
        raise Malformed(path, _SPARSE if flag == b"S" else f"its type is {flag!r}")
    if _KINDS[flag] is Kind.FILE and path.endswith(b"/"):
        return Kind.DIRECTORY  # The way of archivers before 1988.
    return _KINDS[flag]


def _attributes(records: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {
        unescape(key.removeprefix(XATTR_PREFIX)): value
        for key, value in records.items()
        if key.startswith(XATTR_PREFIX)
    }


def _number(field: bytes, member: bytes = b"") -> int:
    """A numeric header field: octal digits, or two's complement where the top bit is set (GNU)."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        return value - (1 << 8 * len(field) - 1) if field[0] & 0x40 else value
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if not _DIGITS.issuperset(digits):
        raise Malformed(member, f"its header holds {field!r} where a number belongs")
    return int(digits or b"0", 8)


def _decimal(records: dict[bytes, bytes], key: bytes, field: bytes, member: bytes) -> int:
    text = records.get(key)
    if text is None:
        return _number(field, member)
    if not text.isdigit() or len(text) > 20:
        raise Malformed(member, f"its extended header says {key.decode()}={text[:40]!r}")
    return int(text)


def _date(text: bytes | None, field: bytes, member: bytes) -> int:
    """Nanoseconds since the epoch, from a pax decimal like ``1577836800.25`` or from the header."""
    fraction = b""
    if text is None:
        seconds = _number(field, member)
    else:
        whole, _, fraction = text.partition(b".")
        digits = whole.removeprefix(b"-") + fraction
        if not digits.isdigit() or not whole or len(whole) > 20:
            raise Malformed(member, f"its extended header says mtime={text[:40]!r}")
        seconds = int(whole)
    if seconds not in _DATES:
        raise Malformed(member, f"its date is {seconds} seconds after 1970")
    nanoseconds = int(fraction[:9].ljust(9, b"0"))
    before_1970 = text is not None and text.startswith(b"-")
    return seconds * 1_000_000_000 + (-nanoseconds if before_1970 else nanoseconds)


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """The records of one extended header, by the lengths they give themselves."""
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        blank = data.find(b" ", position, position + 9)
        digits = data[position : max(blank, position)]
        end = position + int(digits) if digits.isdigit() else 0
        key, equals, value = data[blank + 1 : end].partition(b"=")
        if not (blank < end <= len(data) and key and equals and value.endswith(b"\n")):
            raise Malformed(b"", "an extended header has a record of a wrong length")
        records[key] = value[:-1]
        position = end
    return records
