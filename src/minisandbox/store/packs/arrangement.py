"""Decides which contents share a frame, and in which order.

A frame is what a reader unpacks to get at any of its contents, so it is small; near-equal contents
cost next to nothing if they share one. Both wishes meet in the order of paths: versions of one file
lie beside each other, and the files of one folder, which are written alike, around them.
"""

from __future__ import annotations

import heapq
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from minisandbox.store.packs.skeleton import Skeleton

#: Bytes at which a frame of different files ends.
FRAME_TARGET = 512 << 10
#: Bytes at which a frame of versions of one file ends.
VERSIONS_TARGET = 8 << 20

#: Names by which two layers are compared: those whose checksums are smallest, a fair sample.
_SAMPLE = 64
#: Share of them that layers of one kind have in common at least.
_ALIKE = 0.3

_NUMBERS = re.compile(rb"\d+")


@dataclass(frozen=True, slots=True)
class Content:
    """A content to arrange: where it was met first, and in the how-manieth layer."""

    number: int
    size: int
    path: bytes
    layer: int


def family(path: bytes) -> bytes:
    """What versions of one file have in common: its path but for numbers (versions are in names of
    folders, as in ``numpy-1.19.5.dist-info``, and of modules, as in ``x.cpython-39-….so``).
    """
    return _NUMBERS.sub(b"0", path)


def arrange(contents: Iterable[Content]) -> Iterator[list[Content]]:
    """The contents of each frame in order."""
    keyed = sorted(
        ((family(content.path), content.layer, content.number, content) for content in contents),
        key=lambda item: item[:3],
    )
    frame: list[Content] = []
    size = 0
    last = b""
    for name, _, _, content in keyed:
        limit = VERSIONS_TARGET if name == last else FRAME_TARGET
        if frame and size + content.size > limit:
            yield frame
            frame, size = [], 0
        frame.append(content)
        size += content.size
        last = name
    if frame:
        yield frame


def by_likeness(layers: Mapping[bytes, Skeleton]) -> Iterator[bytes]:
    """The layers, those with mostly the same names after each other, else in the order given."""
    kinds: list[tuple[frozenset[int], list[bytes]]] = []
    for digest, skeleton in layers.items():
        sample = frozenset(heapq.nsmallest(_SAMPLE, {zlib.crc32(name) for name in skeleton.names}))
        for first, members in kinds:
            if len(sample & first) >= _ALIKE * max(len(sample), len(first)):
                members.append(digest)
                break
        else:
            kinds.append((sample, [digest]))
    for _, members in kinds:
        yield from members
