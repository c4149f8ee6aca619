"""Decides which contents share a frame, and in which order.

A frame is what a reader unpacks to get at any of its contents, so it is small; near-equal contents
cost next to nothing if they share one. Both wishes meet in the order of paths: versions of one file
lie beside each other, and the files of one folder, which are written alike, around them. Frames of
files that the same layers hold may be large: who reads one of these files reads the others too.
"""

from __future__ import annotations

import heapq
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from minisandbox.store.packs.layout import FRAME_LIMIT
from minisandbox.store.packs.skeleton import Skeleton

#: Bytes at which a frame of different files ends.
FRAME_TARGET = 512 << 10
#: Bytes at which a frame of versions of one file ends, but for large files: see ``_VERSIONS``.
VERSIONS_TARGET = 8 << 20
#: Versions of a large file that may share a frame all the same: of a compiled library the next
#: one costs half as much then.
_VERSIONS = 8
#: Bytes at which a frame of files that are read together ends.
TOGETHER_TARGET = 32 << 20

#: Names, or contents, by which two layers are compared: those with the smallest checksums, which is
#: a sample of either in the same proportion.
_SAMPLE = 256
#: Share of them that layers of one kind have in common at least.
_ALIKE = 0.3

#: Layers of one kind that are put in order: the time grows with the square.
_CHAINED = 2000
#: Spreads consecutive numbers over all of 32 bits (Knuth's multiplicative hash).
_SCATTER = 2_654_435_761

#: Numbers, checksums in hex that tools put into names (those that repair wheels, mypyc), and the
#: letter that CPython's tags had until 3.7.
_NUMBERS = re.compile(rb"[0-9a-f]{8,}|\d+(?:m(?=-))?")


@dataclass(frozen=True, slots=True)
class Content:
    """A content to arrange: a path that it has, in the how-manieth layer it comes first, and a
    number that only contents of the very same layers have in common.
    """

    number: int
    size: int
    path: bytes
    layer: int
    holders: int = 0


def family(path: bytes) -> bytes:
    """What versions of one file have in common: its path but for numbers (versions are in names of
    folders, as in ``numpy-1.19.5.dist-info``, and of modules, as in ``x.cpython-39-….so``). Of a
    library that a wheel brings along it is the name: several distributions bring the same ones.
    """
    folder, _, name = path.rpartition(b"/")
    return _NUMBERS.sub(b"0", name if folder.endswith(b".libs") else path)


def arrange(contents: Iterable[Content]) -> Iterator[list[Content]]:
    """The contents of each frame in order."""
    frame: list[Content] = []
    size = 0
    last: list[int] = []
    for versions in _families(contents):
        # As a rule a release of a distribution has all its files in the same layers.
        holders = [content.holders for content in versions]
        together = holders == last
        limit = TOGETHER_TARGET if together else FRAME_TARGET
        for content in versions:
            if frame and size + content.size > min(limit, FRAME_LIMIT):
                yield frame
                frame, size = [], 0
            frame.append(content)
            size += content.size
            limit = max(VERSIONS_TARGET, _VERSIONS * content.size, TOGETHER_TARGET * together)
        last = holders
    if frame:
        yield frame


def _families(contents: Iterable[Content]) -> Iterator[list[Content]]:
    """Versions of one file after the other, each from the first layer on."""
    keyed = sorted(
        ((family(content.path), content.layer, content.number, content) for content in contents),
        key=lambda item: item[:3],
    )
    for _, group in groupby(keyed, key=lambda item: item[0]):
        yield [content for _, _, _, content in group]


def by_likeness(layers: Mapping[bytes, Skeleton]) -> list[bytes]:
    """The layers so that like ones are neighbours, as checkouts of neighbouring commits are.

    Nothing else tells that two layers are near: they may have one date, and names are digests.
    """
    kinds: list[tuple[frozenset[int], list[bytes]]] = []
    for digest, skeleton in layers.items():
        sample = _smallest(zlib.crc32(name) for name in skeleton.names)
        for first, members in kinds:
            if len(sample & first) >= _ALIKE * max(len(sample), len(first)):
                members.append(digest)
                break
        else:
            kinds.append((sample, [digest]))
    return [digest for _, members in kinds for digest in _chained(members, layers)]


def _chained(members: Sequence[bytes], layers: Mapping[bytes, Skeleton]) -> Iterator[bytes]:
    """Layers of one kind, each after the one that it shares most contents with."""
    if len(members) > _CHAINED:
        yield from members
        return
    samples = {
        digest: _smallest(number * _SCATTER & 0xFFFF_FFFF for number in layers[digest].contents)
        for digest in members
    }
    here = members[0]
    while True:
        yield here
        sample = samples.pop(here)
        if not samples:
            return
        here = max(samples, key=lambda digest: len(samples[digest] & sample))


def _smallest(numbers: Iterable[int]) -> frozenset[int]:
    return frozenset(heapq.nsmallest(_SAMPLE, set(numbers)))
