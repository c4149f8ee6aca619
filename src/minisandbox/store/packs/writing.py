"""Writes one pack: frames of contents, frames of skeletons, then directory, index and header.

The lengths of index and directory are known before anything is compressed, so both lie in front,
where a reader finds them in one go, and are written last: what is not finished is no pack.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import zstandard

from minisandbox.store.packs import layout
from minisandbox.store.packs.arrangement import Content, arrange
from minisandbox.store.packs.scanning import Spool
from minisandbox.store.packs.skeleton import NO_CONTENT, Skeleton

#: Beyond it each percent of size costs ten times the processor time (ADR 0018).
DEFAULT_LEVEL = 12
#: Bytes of the skeletons in one frame: neighbours share nearly everything.
SKELETONS_TARGET = 8 << 20
#: Window of frames of one content that is too large to hold.
_WINDOW_LOG = 27
#: The least that zstd takes.
_LEAST_WINDOW_LOG = 10


@dataclass(frozen=True)
class Elsewhere:
    """Where another pack holds a content: the name of the pack, and the number there."""

    pack: str
    number: int


class PackWriter:
    """Writes to ``fd``; everything it is told is in terms of the numbers of a ``Scanner``."""

    def __init__(self, fd: int, *, level: int, threads: int) -> None:
        self._fd = fd
        self._level = level
        self._threads = threads
        self._at = 0
        self._frames: list[layout.Frame] = []

    def write(
        self,
        *,
        sequence: int,
        skeletons: Mapping[bytes, Skeleton],
        fresh: Sequence[Content],
        sha256s: Sequence[bytes],
        sizes: Sequence[int],
        elsewhere: Mapping[int, Elsewhere],
        spool: Spool,
    ) -> None:
        """Write the whole pack."""
        frames = list(arrange(fresh))
        numbers, records, names = _directory(frames, sha256s, sizes, elsewhere)
        encoded = {digest: _encode(skeleton, numbers) for digest, skeleton in skeletons.items()}
        groups = list(_grouped(encoded))
        size = layout.index_size(
            dependencies=len(names),
            layers=len(encoded),
            frames=len(frames) + len(groups),
            contents=len(numbers),
        )
        self._at = layout.HEADER_SIZE + size + len(records)
        self._add_frames(frames, spool)
        layers = self._add_skeletons(groups, encoded, skeletons)
        head = layout.encode(
            sequence=sequence,
            file_size=self._at,
            dependencies=names,
            layers=layers,
            frames=self._frames,
            own=len(fresh),
            records=records,
        )
        self._put(head + records, 0)

    def _add_frames(self, frames: Sequence[Sequence[Content]], spool: Spool) -> None:
        def compress(frame: Sequence[Content]) -> tuple[int, bytes]:
            data = b"".join(piece for content in frame for piece in spool.read(content.number))
            return len(data), self._compressed(data)

        with ThreadPoolExecutor(self._threads) as pool:
            waiting: deque[Future[tuple[int, bytes]]] = deque()
            for frame in frames:
                if sum(content.size for content in frame) > layout.FRAME_LIMIT:
                    self._drain(waiting, 0)
                    self._add_large(spool.read(frame[0].number), frame[0].size)
                    continue
                waiting.append(pool.submit(compress, frame))
                self._drain(waiting, 2 * self._threads)
            self._drain(waiting, 0)

    def _drain(self, waiting: deque[Future[tuple[int, bytes]]], left: int) -> None:
        while len(waiting) > left:
            unpacked, data = waiting.popleft().result()
            self._add(data, unpacked)

    def _add(self, data: bytes, unpacked: int) -> None:
        self._put(data, self._at)
        self._frames.append(layout.Frame(self._at, len(data), unpacked))
        self._at += len(data)

    def _add_large(self, pieces: Iterator[bytes], size: int) -> None:
        parameters = zstandard.ZstdCompressionParameters(
            compression_level=self._level,
            window_log=_WINDOW_LOG,
            enable_ldm=True,
            write_checksum=True,
        )
        compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=size)
        start = self._at
        for piece in pieces:
            self._append(compressor.compress(piece))
        self._append(compressor.flush())
        self._frames.append(layout.Frame(start, self._at - start, size))

    def _append(self, data: bytes) -> None:
        self._put(data, self._at)
        self._at += len(data)

    def _put(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, offset)
            offset += done
            view = view[done:]

    def _add_skeletons(
        self,
        groups: Iterable[Sequence[bytes]],
        encoded: Mapping[bytes, bytes],
        skeletons: Mapping[bytes, Skeleton],
    ) -> dict[bytes, layout.Layer]:
        layers: dict[bytes, layout.Layer] = {}
        for group in groups:
            offset = 0
            for digest in group:
                data = encoded[digest]
                layers[digest] = layout.Layer(
                    skeleton=hashlib.sha256(data).digest(),
                    frame=len(self._frames),
                    offset=offset,
                    length=len(data),
                    entries=len(skeletons[digest]),
                )
                offset += len(data)
            joined = b"".join(encoded[digest] for digest in group)
            self._add(self._compressed(joined), len(joined))
        return layers

    def _compressed(self, data: bytes) -> bytes:
        parameters = zstandard.ZstdCompressionParameters(
            compression_level=self._level,
            # All of the frame: the window of a level is smaller than two versions of a library.
            window_log=max(_LEAST_WINDOW_LOG, (len(data) - 1).bit_length()),
            write_checksum=True,
            write_content_size=True,
        )
        return zstandard.ZstdCompressor(compression_params=parameters).compress(data)


def _directory(
    frames: Sequence[Sequence[Content]],
    sha256s: Sequence[bytes],
    sizes: Sequence[int],
    elsewhere: Mapping[int, Elsewhere],
) -> tuple[dict[int, int], bytes, list[str]]:
    """Numbers in the pack by those of the scanner, the records, the names of dependencies."""
    numbers: dict[int, int] = {}
    records: list[bytes] = []
    for place, frame in enumerate(frames):
        offset = 0
        for content in frame:
            numbers[content.number] = len(records)
            sha256 = sha256s[content.number]
            records.append(layout.Record(sha256, content.size, place, offset).encode())
            offset += content.size
    names = sorted({there.pack for there in elsewhere.values()})
    places = {name: place for place, name in enumerate(names)}
    for number, there in sorted(elsewhere.items()):
        place = places[there.pack]
        numbers[number] = len(records)
        records.append(layout.Record(sha256s[number], sizes[number], place, there.number).encode())
    return numbers, b"".join(records), names


def _encode(skeleton: Skeleton, numbers: Mapping[int, int]) -> bytes:
    for place, content in enumerate(skeleton.contents):
        if content != NO_CONTENT:
            skeleton.contents[place] = numbers[content]
    return skeleton.encode()


def _grouped(encoded: Mapping[bytes, bytes]) -> Iterator[list[bytes]]:
    """The layers whose skeletons share a frame."""
    group: list[bytes] = []
    size = 0
    for digest, data in encoded.items():
        if group and size + len(data) > SKELETONS_TARGET:
            yield group
            group, size = [], 0
        group.append(digest)
        size += len(data)
    if group:
        yield group
