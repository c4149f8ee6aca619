"""Reads the tars of layers that are to be packed: their skeletons, and each new content once.

New contents wait in a spool, a file without a name in the store, lightly compressed: a pack is
written in another order than tars are read.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from minisandbox.archive.members import Kind, padding
from minisandbox.archive.reading import Malformed, Reader
from minisandbox.closing import Closing
from minisandbox.store.packs.arrangement import Content
from minisandbox.store.packs.skeleton import NO_CONTENT, Skeleton

#: Level of the spool: it is read once.
_SPOOL_LEVEL = 1
#: Bytes between two members, or after the last, that are kept; what is longer is no layer of ours.
_BETWEEN = 16 << 20


class NotPackable(Exception):
    """A tar from which the exact bytes could not be made again; the text is a clause."""


class Spool(Closing):
    """Contents by number, written once and read once or twice."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._fd, name = tempfile.mkstemp(suffix=".tmp", dir=folder)
        os.unlink(name)  # Whoever is killed leaves nothing.
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._end = 0
        self._compressor = zstandard.ZstdCompressor(level=_SPOOL_LEVEL)

    def close(self) -> None:
        os.close(self._fd)

    def write(self, number: int, piece: bytes) -> None:
        """Append to a content."""
        packed = self._compressor.compress(piece)
        self._places.setdefault(number, []).append((self._end, len(packed)))
        view = memoryview(packed)
        while view:
            done = os.pwrite(self._fd, view, self._end)
            self._end += done
            view = view[done:]

    def forget(self, number: int) -> None:
        """Take back a content, the latest one written."""
        places = self._places.pop(number, [])
        if places:
            self._end = places[0][0]

    def read(self, number: int) -> Iterator[bytes]:
        """A content in the pieces in which it was written. Safe to call from several threads."""
        decompressor = zstandard.ZstdDecompressor()
        for offset, length in self._places[number]:
            yield decompressor.decompress(os.pread(self._fd, length, offset))


class Scanner:
    """Contents of layers, numbered as they are met; ``known`` are those that packs hold already.

    ``sha256s`` are the raw digests by number; what is in ``fresh`` is in the spool.
    """

    def __init__(self, spool: Spool, known: Container[bytes]) -> None:
        self.sha256s: list[bytes] = []
        self.sizes: list[int] = []
        self.fresh: list[Content] = []
        self._spool = spool
        self._known = known
        self._numbers: dict[bytes, int] = {}

    def scan(self, stream: BinaryIO, layer: int, *, most: int) -> Skeleton:
        """Read a tar of at ``most`` so many members to its end; raises ``NotPackable``, and what
        ``stream`` raises.
        """
        skeleton = Skeleton()
        recorder = _Recorder(stream)
        reader = Reader(cast("BinaryIO", recorder))
        before = 0
        try:
            for member in reader:
                if len(skeleton) == most:
                    raise NotPackable(f"it has more than {most} members")
                header = _without_padding(recorder.take(), before)
                content, before = NO_CONTENT, 0
                if member.kind is Kind.FILE and member.size:
                    with recorder.paused():
                        content = self._add(reader.content(), member.path, member.size, layer)
                    before = padding(member.size)
                skeleton.append(member, header, content)
        except Malformed as error:
            raise NotPackable(f"its member {os.fsdecode(error.member)!r}: {error}") from error
        except OverflowError as error:
            raise NotPackable("a number in a header is too large") from error
        skeleton.end = _without_padding(recorder.take(), before)
        return skeleton

    def _add(self, pieces: Iterator[bytes], path: bytes, size: int, layer: int) -> int:
        number = len(self.sha256s)
        self._spool.forget(number)  # what a layer left that broke off in the middle of a file
        checksum = hashlib.sha256()
        held = [next(pieces)]
        checksum.update(held[0])
        for piece in pieces:
            checksum.update(piece)
            # All but the first piece go to the spool before it is known whether they are wanted.
            if held:
                self._spool.write(number, held.pop())
            self._spool.write(number, piece)
        sha256 = checksum.digest()
        if (met := self._numbers.get(sha256)) is not None:
            self._spool.forget(number)
            return met
        self._numbers[sha256] = number
        self.sha256s.append(sha256)
        self.sizes.append(size)
        if sha256 in self._known:
            self._spool.forget(number)
            return number
        if held:
            self._spool.write(number, held[0])
        self.fresh.append(Content(number, size, path, layer))
        return number


class _Recorder:
    """The stream that the reader of a tar reads; keeps what is no content."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._kept: list[bytes] = []
        self._size = 0
        self._on = True

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if self._on:
            self._kept.append(data)
            self._size += len(data)
            if self._size > _BETWEEN:
                raise NotPackable("there is too much between its members")
        return data

    def take(self) -> bytes:
        """What was kept since the last call."""
        kept = b"".join(self._kept)
        self._kept.clear()
        self._size = 0
        return kept

    def paused(self) -> _Paused:
        return _Paused(self)

    def keep(self, on: bool) -> None:
        self._on = on


class _Paused:
    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._recorder.keep(False)

    def __exit__(self, *_: object) -> None:
        self._recorder.keep(True)


def _without_padding(data: bytes, size: int) -> bytes:
    if data[:size].count(0) != size:
        raise NotPackable("something is written between its members")
    return data[size:]
