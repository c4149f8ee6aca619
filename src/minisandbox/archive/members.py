"""One tar member as data, and the bytes of its header: ustar, with a pax header only where ustar is
too small.

Written here rather than with ``tarfile`` because a layer's digest is made of these bytes: they must
not change with the version of Python.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

BLOCK = 512

#: How pax names extended attributes (star, GNU tar, bsdtar and the OCI tools agree on it).
XATTR_PREFIX = b"SCHILY.xattr."

#: How OCI layers say that a name of a lower layer is gone, and that a directory hides the one below
#: it.
WHITEOUT_PREFIX = b".wh."
OPAQUE_MARKER = b".wh..wh..opq"

#: Attributes by which overlayfs keeps its books; which one it reads depends on how it was mounted.
OVERLAY_PREFIXES = (b"trusted.overlay.", b"user.overlay.")

_LAYOUT = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x")
_OCTAL_7 = 0o7777777
_OCTAL_11 = 0o77777777777
_NO_XATTRS: Mapping[bytes, bytes] = {}


class Kind(Enum):
    """What a member is; the value is the type flag of its header.

    Devices are only ever read, in archives of others: nothing here packs or unpacks one.
    """

    FILE = b"0"
    HARD_LINK = b"1"
    SYMLINK = b"2"
    DIRECTORY = b"5"
    FIFO = b"6"
    DEVICE = b"3"


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive.

    ``path`` has no leading or trailing slash; ``size`` is the bytes of content that follow the
    header; ``target`` is where a link points; ``mtime`` is nanoseconds since the epoch; ``xattrs``
    maps full attribute names to values.
    """

    path: bytes
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    target: bytes = b""
    xattrs: Mapping[bytes, bytes] = field(default_factory=lambda: _NO_XATTRS)


def padding(size: int) -> int:
    """Bytes of zeros after ``size`` bytes of content."""
    return -size % BLOCK


def checksum(block: bytes) -> int:
    """The sum of a header block, its checksum field counted as blanks."""
    return sum(block) - sum(block[148:156]) + 8 * 0x20


def encode_header(member: Member) -> bytes:
    """The header blocks of ``member``; the date is written in whole seconds."""
    name = member.path + b"/" if member.kind is Kind.DIRECTORY else member.path
    records: dict[bytes, bytes] = {}
    split = _split(name)
    if split is None:
        records[b"path"] = name
        split = (b"", name[:100])
    if len(member.target) > 100:
        records[b"linkpath"] = member.target
    uid, gid, size = member.uid, member.gid, member.size
    if uid > _OCTAL_7:
        records[b"uid"], uid = b"%d" % uid, 0
    if gid > _OCTAL_7:
        records[b"gid"], gid = b"%d" % gid, 0
    if size > _OCTAL_11:
        records[b"size"], size = b"%d" % size, 0
    for attribute, value in member.xattrs.items():
        records[XATTR_PREFIX + _escape(attribute)] = value
    seconds = member.mtime // 1_000_000_000
    flag = member.kind.value
    block = _block(split, member.mode, uid, gid, size, seconds, flag, member.target[:100])
    return _pax_header(records) + block if records else block


def _split(name: bytes) -> tuple[bytes, bytes] | None:
    """``name`` as the prefix and name fields of ustar, or None when it does not fit."""
    if len(name) <= 100:
        return b"", name
    cut = name.find(b"/", len(name) - 101, len(name) - 1)
    if 0 < cut <= 155:
        return name[:cut], name[cut + 1 :]
    return None


def _block(
    name: tuple[bytes, bytes],
    mode: int,
    uid: int,
    gid: int,
    size: int,
    seconds: int,
    flag: bytes,
    target: bytes = b"",
) -> bytes:
    block = _LAYOUT.pack(
        name[1],
        b"%07o\0" % mode,
        b"%07o\0" % uid,
        b"%07o\0" % gid,
        b"%011o\0" % size,
        b"%011o\0" % seconds,
        b" " * 8,
        flag,
        target,
        b"ustar\0",
        b"00",
        b"",
        b"",
        b"0000000\0",
        b"0000000\0",
        name[0],
    )
    return b"%b%06o\0 %b" % (block[:148], sum(block), block[156:])


def _pax_header(records: Mapping[bytes, bytes]) -> bytes:
    # Values are the kernel's bytes even where they are no UTF-8, as GNU tar writes them. POSIX
    # would have a record hdrcharset=BINARY before them, of which GNU tar complains.
    body = b"".join(_record(key, records[key]) for key in sorted(records))
    head = _block((b"", b"PaxHeaders/next"), 0o644, 0, 0, len(body), 0, b"x")
    return head + body + bytes(padding(len(body)))


def _record(key: bytes, value: bytes) -> bytes:
    """``<length> <key>=<value>\\n``, where the length counts its own digits."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)


def _escape(attribute: bytes) -> bytes:
    """An attribute name without ``=``, which would end the key (the way of GNU tar)."""
    return attribute.replace(b"%", b"%25").replace(b"=", b"%3D")


def unescape(attribute: bytes) -> bytes:
    """Undo ``_escape``."""
    return attribute.replace(b"%3D", b"=").replace(b"%25", b"%")
