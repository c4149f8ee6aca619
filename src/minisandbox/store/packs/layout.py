"""The bytes of a pack but for what is in its frames: header, index, directory.

A pack is named by the SHA-256 of its header and index; the index holds a SHA-256 of everything else
that no content vouches for. Little-endian throughout. Nothing here touches a file.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAGIC = b"msbpack\n"
VERSION = 1

#: Magic, version, sequence number, bytes of the index, bytes of the file; the SHA-256 follows.
_HEADER = struct.Struct("<8sIIQQ")
HEADER_SIZE = _HEADER.size + 32
#: Numbers of dependencies, layers, frames, contents of its own, contents of its dependencies.
_COUNTS = struct.Struct("<IIIII")
_LAYER = struct.Struct("<32s32sIIII")
_FRAME = struct.Struct("<QQQ")
_RECORD = struct.Struct("<32sQII")
RECORD_SIZE = _RECORD.size

#: Records of the directory under one checksum, so that a reader of one layer needs a part of it.
BLOCK_RECORDS = 1024
BLOCK_SIZE = BLOCK_RECORDS * RECORD_SIZE

#: Bytes that a frame of several contents may unpack to, so that who reads one can hold it whole.
FRAME_LIMIT = 64 << 20
#: Bytes of an index, more than 4,000,000 layers take: it is read whole.
_INDEX_LIMIT = 512 << 20
#: The highest number that a pack can have in the order of packs.
LAST_SEQUENCE = 0xFFFF_FFFF


class Malformed(Exception):
    """Bytes that are no pack, or one of another version; the text is a clause."""


class OtherVersion(Malformed):
    """A pack that another release wrote."""


class Frame(NamedTuple):
    """Where a frame lies in the file, its length there, and what it unpacks to."""

    offset: int
    packed: int
    unpacked: int


class Layer(NamedTuple):
    """Where the skeleton of a layer lies; ``entries`` is the number of its members."""

    skeleton: bytes
    frame: int
    offset: int
    length: int
    entries: int


class Record(NamedTuple):
    """Where a content is: ``place`` is a frame and ``offset`` the byte in it, or, of a content that
    another pack holds, ``place`` is a dependency and ``offset`` the content's number there.
    """

    sha256: bytes
    size: int
    place: int
    offset: int

    def encode(self) -> bytes:
        return _RECORD.pack(*self)


@dataclass(frozen=True)
class Index:
    """What a pack holds. ``layers`` go by the raw digest; contents from number ``own`` on are those
    of dependencies; ``blocks`` are the checksums of the directory.
    """

    name: str
    sequence: int
    file_size: int
    dependencies: tuple[str, ...]
    layers: Mapping[bytes, Layer]
    frames: Sequence[Frame]
    own: int
    contents: int
    blocks: bytes
    directory: int

    def block_checksum(self, number: int) -> bytes:
        return self.blocks[number * 32 : number * 32 + 32]

    def block_span(self, number: int) -> tuple[int, int]:
        """Offset and length of a block of the directory."""
        first = number * BLOCK_RECORDS
        count = min(self.contents - first, BLOCK_RECORDS)
        return self.directory + first * RECORD_SIZE, count * RECORD_SIZE


def index_size(*, dependencies: int, layers: int, frames: int, contents: int) -> int:
    """Bytes of the index, which is written last and lies first."""
    return (
        _COUNTS.size
        + dependencies * 32
        + layers * _LAYER.size
        + frames * _FRAME.size
        + block_count(contents) * 32
    )


def block_count(contents: int) -> int:
    """Blocks that the directory has."""
    return -(-contents // BLOCK_RECORDS)


def encode(
    *,
    sequence: int,
    file_size: int,
    dependencies: Sequence[str],
    layers: Mapping[bytes, Layer],
    frames: Sequence[Frame],
    own: int,
    records: bytes,
) -> bytes:
    """Header and index of a pack with this directory (``records``)."""
    contents = len(records) // RECORD_SIZE
    blocks = (
        hashlib.sha256(records[start : start + BLOCK_SIZE]).digest()
        for start in range(0, len(records), BLOCK_SIZE)
    )
    index = b"".join(
        (
            _COUNTS.pack(len(dependencies), len(layers), len(frames), own, contents - own),
            *(bytes.fromhex(name) for name in dependencies),
            *(_LAYER.pack(digest, *layer) for digest, layer in sorted(layers.items())),
            *(_FRAME.pack(*frame) for frame in frames),
            *blocks,
        )
    )
    head = _HEADER.pack(MAGIC, VERSION, sequence, len(index), file_size)
    return head + hashlib.sha256(head + index).digest() + index


def parse_header(header: bytes) -> int:
    """The length of the index that follows; raises ``Malformed``."""
    if len(header) < HEADER_SIZE:
        raise Malformed("it ends in its header")
    magic, version, _, length, _ = _HEADER.unpack_from(header)
    if magic != MAGIC:
        raise Malformed("its header is not that of a pack")
    if version != VERSION:
        raise OtherVersion(f"it has format {version}, this release reads {VERSION}")
    if not _COUNTS.size <= length <= _INDEX_LIMIT:
        raise Malformed("its header gives its index an impossible length")
    return length


def parse(header: bytes, index: bytes) -> Index:
    """The index of a pack; raises ``Malformed`` where its checksum or its lengths do not fit."""
    _, _, sequence, length, file_size = _HEADER.unpack_from(header)
    if len(index) < length:
        raise Malformed("it ends in its index")
    checksum = header[_HEADER.size : HEADER_SIZE]
    if hashlib.sha256(header[: _HEADER.size] + index).digest() != checksum:
        raise Malformed("its header or its index does not have the promised checksum")
    depends, layers, frames, own, foreign = _COUNTS.unpack_from(index)
    contents = own + foreign
    expected = index_size(dependencies=depends, layers=layers, frames=frames, contents=contents)
    if expected != length:
        raise Malformed("its index does not have the length that its counts ask for")
    position = _COUNTS.size
    names = tuple(index[at : at + 32].hex() for at in range(position, position + depends * 32, 32))
    position += depends * 32
    rows = _LAYER.iter_unpack(index[position : position + layers * _LAYER.size])
    by_digest = {row[0]: Layer(*row[1:]) for row in rows}
    position += layers * _LAYER.size
    spans = _FRAME.iter_unpack(index[position : position + frames * _FRAME.size])
    position += frames * _FRAME.size
    return Index(
        name=checksum.hex(),
        sequence=sequence,
        file_size=file_size,
        dependencies=names,
        layers=by_digest,
        frames=[Frame(*span) for span in spans],
        own=own,
        contents=contents,
        blocks=index[position:],
        directory=HEADER_SIZE + length,
    )


def parse_records(block: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    """All records of a block, as plain tuples: there may be thousands."""
    return _RECORD.iter_unpack(block)


def parse_record(block: bytes, number: int) -> Record:
    """Record ``number`` (of the whole directory) in its block."""
    return Record(*_RECORD.unpack_from(block, number % BLOCK_RECORDS * RECORD_SIZE))
