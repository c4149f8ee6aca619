"""How much two sources have in common, told from a few of their contents.

Of each source that others may lie on a node keeps the ``SKETCH`` smallest digests of its files. Up
to the largest that two sketches both reach they are a fair sample of all contents of either source,
and of it the share that both have is counted: the bottom-k sketch of Broder, "On the resemblance
and containment of documents" (1997).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from minisandbox.store.listing import Entry

#: Digests in a sketch, which then is one block. The share is told to two hundredths.
SKETCH = 512
#: The first bytes of a digest, as a number. Two contents are hardly ever taken for one, and then
#: nothing but the choice of a reference depends on it.
_WIDTH = 8

Sketch = Sequence[int]


def sketch(entries: Iterable[Entry]) -> Sketch:
    """The sketch of a source, in order."""
    contents = {entry.content[: 2 * _WIDTH] for entry in entries if entry.content}
    return [int(content, 16) for content in sorted(contents)[:SKETCH]]


def likeness(one: Sketch, other: Sketch) -> float:
    """The share of contents that two sources have in common, from 0 to 1; of two without any
    content 1.
    """
    reach = min((each[-1] for each in (one, other) if len(each) == SKETCH), default=1 << 64)
    some, more = ({*each[: bisect_right(each, reach)]} for each in (one, other))
    return len(some & more) / len(some | more) if some or more else 1.0


def encode(contents: Sketch) -> bytes:
    """A sketch as bytes, for a node to keep."""
    return struct.pack(f">{len(contents)}Q", *contents)


def decode(data: bytes) -> Sketch:
    """What ``encode`` made; of other bytes, something that is like nothing."""
    return struct.unpack_from(f">{len(data) // _WIDTH}Q", data)
