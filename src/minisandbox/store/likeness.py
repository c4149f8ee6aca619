"""How much two sources have in common, told from a few of their files.

Of each source that others may lie on a node keeps the ``SKETCH`` smallest digests of its files, of
path, content, mode and date. Up to the largest that two sketches both reach they are a fair sample
of all files of either source, and of it the share that both have is counted: the bottom-k sketch of
Broder, "On the resemblance and containment of documents" (1997).
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from minisandbox.store.listing import Entry

#: Digests in a sketch, which then is one block. The share is told to two hundredths.
SKETCH = 510
_HEADER = struct.Struct(">8sII")
#: 2^64 over the golden ratio: spreads small numbers over all bits (Knuth, volume 3, 6.4).
_SPREAD, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


@dataclass(frozen=True)
class Sketch:
    """A source in few bytes: ``mark`` tells this making of it from others, ``layers`` is how many
    trees it consists of, ``files`` how many members it has, ``digests`` are in order.
    """

    mark: bytes
    layers: int
    files: int
    digests: Sequence[int]


def digests(entries: Iterable[Entry]) -> Sequence[int]:
    """Those of a sketch of a source."""
    found = [
        int(entry.content[:16], 16)
        ^ (
            (crc32(entry.path) << 32 | crc32(b"%o %d" % (entry.mode, entry.mtime))) * _SPREAD
            & _MASK
        )
        for entry in entries
        if entry.content
    ]
    return array("Q", sorted({*found})[:SKETCH])


def likeness(one: Sequence[int], other: Sequence[int]) -> float:
    """The share of files that two sources have in common, from 0 to 1; of two without files 1."""
    reach = min((each[-1] for each in (one, other) if len(each) == SKETCH), default=1 << 64)
    some, more = ({*each[: bisect_right(each, reach)]} for each in (one, other))
    return len(some & more) / len(some | more) if some or more else 1.0


def encode(sketch: Sketch) -> bytes:
    """A sketch as bytes, for a node to keep."""
    header = _HEADER.pack(sketch.mark, sketch.layers, sketch.files)
    return header + struct.pack(f">{len(sketch.digests)}Q", *sketch.digests)


def decode(data: bytes) -> Sketch:
    """What ``encode`` made; raises ``ValueError``."""
    if len(data) < _HEADER.size or len(data) % 8:
        raise ValueError("it is no sketch")
    mark, layers, files = _HEADER.unpack_from(data)
    found = array("Q", data[_HEADER.size :])
    if sys.byteorder == "little":
        found.byteswap()
    return Sketch(mark, layers, files, found)


def mark_in(data: bytes) -> bytes:
    """The mark of the sketch that bytes begin."""
    return data[:8]
