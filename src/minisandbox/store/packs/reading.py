"""Takes layers out of packs: the exact tar, the list of its members, single contents.

Everything read is compared with a checksum that goes back to the name of the pack before it is
handed on, and a content with its own SHA-256. Files are opened when a reader is made, so that a
process with fewer rights can read on.
"""

from __future__ import annotations

import hashlib
import heapq
import os
from collections import OrderedDict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import BinaryIO, cast

import zstandard

from minisandbox.archive.members import padding
from minisandbox.archive.reading import Malformed as MalformedMember
from minisandbox.closing import Closing
from minisandbox.store.packs.catalogue import Catalogue, Pack, PackDamaged, open_regular, read_at
from minisandbox.store.packs.layout import (
    BLOCK_RECORDS,
    FRAME_LIMIT,
    Frame,
    Layer,
    Record,
    parse_record,
    parse_records,
)
from minisandbox.store.packs.skeleton import EMPTY, NO_CONTENT, Entry, Skeleton

#: Unpacked frames that a reader keeps: a tar is in path order, as frames nearly are, so the next
#: content is mostly in one of the latest.
_KEPT_BYTES = 96 << 20
#: A content above this comes in pieces of this.
PIECE = 64 << 20
#: What of an index or skeleton a process is willing to hold at once.
_WINDOW = 1 << 27


class OpenPack(Closing):
    """A pack's file, and the parts of its directory that were needed."""

    def __init__(self, pack: Pack) -> None:
        self.path = pack.path
        self.index = pack.index
        self._fd = open_regular(pack.path)
        self._size = os.fstat(self._fd).st_size
        self._blocks: dict[int, bytes] = {}

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def damaged(self, reason: str) -> PackDamaged:
        return PackDamaged(self.path, reason)

    def record(self, number: int) -> Record:
        """What the directory says of a content; its block is checked on first use."""
        return parse_record(self._block(number), number)

    def sizes_and_names(self, numbers: Iterable[int]) -> dict[int, tuple[int, str]]:
        """Size and SHA-256 in hex of many contents; a ``Record`` for each would cost more."""
        found: dict[int, tuple[int, str]] = {}
        for place, group in groupby(sorted(numbers), key=lambda number: number // BLOCK_RECORDS):
            wanted = list(group)
            records = list(parse_records(self._block(wanted[-1])))
            for number in wanted:
                sha256, size, _, _ = records[number - place * BLOCK_RECORDS]
                found[number] = size, sha256.hex()
        return found

    def _block(self, number: int) -> bytes:
        """The block of the directory that tells of a content."""
        if number >= self.index.contents:
            raise self.damaged(f"there is no content number {number}")
        place = number // BLOCK_RECORDS
        return self._blocks.get(place) or self._load_block(place)

    def _load_block(self, number: int) -> bytes:
        block = self._read(*self.index.block_span(number), f"block {number} of its directory")
        if hashlib.sha256(block).digest() != self.index.block_checksum(number):
            raise self.damaged(f"block {number} of its directory does not have its checksum")
        self._blocks[number] = block
        return block

    def frame(self, number: int) -> bytes:
        """What a frame unpacks to; only for frames up to ``FRAME_LIMIT``."""
        span = self._span(number)
        # A file can be larger than any disk, and its holes cost whoever made it nothing.
        if span.packed > span.unpacked + span.unpacked // 128 + 1024:
            raise self.damaged(f"frame {number} is longer than zstd makes one")
        data = self._read(span.offset, span.packed, f"frame {number}")
        try:
            # It believes the size that the frame itself tells, whatever it is allowed.
            if zstandard.get_frame_parameters(data).content_size != span.unpacked:
                raise self.damaged(f"frame {number} has another size than the index says")
            unpacked = zstandard.ZstdDecompressor().decompress(data)
        except zstandard.ZstdError as error:
            raise self.damaged(f"of frame {number} zstd says {error}") from error
        if len(unpacked) != span.unpacked:
            raise self.damaged(f"frame {number} unpacks to {len(unpacked)} bytes")
        return unpacked

    def pieces(self, number: int) -> Iterator[bytes]:
        """What a frame of any size unpacks to, in pieces: never more than the index says."""
        span = self._span(number)
        left = span.unpacked
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        source = cast("BinaryIO", _Span(self, span, number))
        try:
            with decompressor.stream_reader(source, read_size=1 << 20) as reader:
                while piece := reader.read(PIECE):
                    left -= len(piece)
                    if left < 0:
                        raise self.damaged(f"frame {number} unpacks to more than the index says")
                    yield piece
        except zstandard.ZstdError as error:
            raise self.damaged(f"of frame {number} zstd says {error}") from error

    def _span(self, number: int) -> Frame:
        if number >= len(self.index.frames):
            raise self.damaged(f"there is no frame {number}")
        span = self.index.frames[number]
        if span.offset + span.packed > self._size:
            raise self.damaged(f"it ends in frame {number}")
        return span

    def frame_size(self, number: int) -> int:
        return self._span(number).unpacked

    def read_span(self, span: Frame, start: int, size: int, number: int) -> bytes:
        """A part of a packed frame."""
        size = min(size, span.packed - start)
        return self._read(span.offset + start, size, f"frame {number}") if size > 0 else b""

    def _read(self, offset: int, size: int, what: str) -> bytes:
        data = read_at(self._fd, offset, size)
        if len(data) < size:
            raise self.damaged(f"it ends in {what}")
        return data


class _Span:
    """A packed frame as the file that zstd reads."""

    def __init__(self, pack: OpenPack, span: Frame, number: int) -> None:
        self._pack = pack
        self._span = span
        self._number = number
        self._at = 0

    def read(self, size: int) -> bytes:
        data = self._pack.read_span(self._span, self._at, size, self._number)
        self._at += len(data)
        return data


class PackReader(Closing):
    """Reads layers of one pack, and what of their contents other packs hold.

    Raises ``PackDamaged`` from all of its methods, and ``OSError``.
    """

    def __init__(self, pack: Pack, catalogue: Catalogue) -> None:
        self._stack = ExitStack()
        try:
            self.pack = self._stack.enter_context(OpenPack(pack))
            self._others = [self._open_other(catalogue, name) for name in pack.index.dependencies]
        except BaseException:
            self._stack.close()
            raise
        self._frames: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._held = 0
        self._listed: tuple[Layer, Skeleton] | None = None
        self._named: tuple[Layer, dict[int, tuple[int, str]]] | None = None

    def _open_other(self, catalogue: Catalogue, name: str) -> OpenPack | PackDamaged:
        try:
            return self._stack.enter_context(OpenPack(catalogue.get(name)))
        except PackDamaged as error:
            return error  # Only layers with a content in there have to do without.

    def close(self) -> None:
        self._stack.close()

    def skeleton(self, layer: Layer) -> Skeleton:
        """The members of a layer; those of the last one are kept."""
        if self._listed is None or self._listed[0] != layer:
            self._listed = layer, self._skeleton(layer)
        return self._listed[1]

    def _skeleton(self, layer: Layer) -> Skeleton:
        data = self._frame(0, layer.frame)[layer.offset : layer.offset + layer.length]
        if hashlib.sha256(data).digest() != layer.skeleton:
            raise self.pack.damaged(
                f"a list of members in frame {layer.frame} does not have its checksum"
            )
        try:
            skeleton = Skeleton.decode(data)
        except ValueError as error:
            raise self.pack.damaged(f"frame {layer.frame} holds no list of members: {error}") from (
                error
            )
        if len(skeleton) != layer.entries:  # by which is decided how many are held at once
            raise self.pack.damaged(
                f"a list of {len(skeleton)} members in frame {layer.frame} should have "
                f"{layer.entries}"
            )
        return skeleton

    def entries(self, layer: Layer) -> list[Entry]:
        """The members of a layer, as others see them."""
        skeleton = self.skeleton(layer)
        with self._headers_said():
            return skeleton.entries(self._sizes_and_names(layer, skeleton))

    def _sizes_and_names(self, layer: Layer, skeleton: Skeleton) -> dict[int, tuple[int, str]]:
        """Those of the contents of a layer; kept, for whoever lists it also wants some of them."""
        if self._named is None or self._named[0] != layer:
            numbers = {*skeleton.contents} - {NO_CONTENT}
            self._named = layer, self.pack.sizes_and_names(numbers)
        return self._named[1]

    def tar(self, layer: Layer) -> Iterator[bytes]:
        """The tar of a layer in parts."""
        skeleton = self.skeleton(layer)
        with self._headers_said():
            yield from self._tar(skeleton)
        yield skeleton.end

    @contextmanager
    def _headers_said(self) -> Generator[None]:
        try:
            yield
        except MalformedMember as error:
            raise self.pack.damaged(f"a header that it keeps cannot be read: {error}") from error

    def _tar(self, skeleton: Skeleton) -> Iterator[bytes]:
        sizes = _Sizes(self.pack)
        for member, header, content in skeleton.members(sizes):
            yield header
            if content == NO_CONTENT:
                continue
            yield from self.content(content)
            yield bytes(padding(member.size))

    def content(self, number: int) -> Iterator[bytes]:
        """A content by its number in the pack, in pieces, checked when the last one is taken."""
        where, record = self._locate(number)
        source = self._source(where)
        size = source.frame_size(record.place)
        if record.offset + record.size > size:
            raise source.damaged(f"a content ends after its frame {record.place}")
        if size <= FRAME_LIMIT:
            frame = self._frame(where, record.place)
            data = frame[record.offset : record.offset + record.size]
            self._check(source, record, hashlib.sha256(data).digest())
            yield data
            return
        if record.size != size:
            raise source.damaged(f"a content is not all of its frame {record.place}")
        checksum = hashlib.sha256()
        for piece in source.pieces(record.place):
            checksum.update(piece)
            yield piece
        self._check(source, record, checksum.digest())

    def contents(self, layer: Layer, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """See ``Store.contents``."""
        skeleton = self.skeleton(layer)
        if EMPTY in wanted and skeleton.has_empty_file():
            yield EMPTY, b""
        names = self._sizes_and_names(layer, skeleton)
        # By digest: a directory that has one content twice must not give it twice.
        numbers = {sha256: number for number, (_, sha256) in names.items() if sha256 in wanted}
        places: list[tuple[int, int, int, int, str]] = []
        for sha256, number in numbers.items():
            where, record = self._locate(number)
            places.append((where, record.place, record.offset, number, sha256))
        for _, _, _, number, sha256 in sorted(places):
            for piece in self.content(number):
                yield sha256, piece

    def _locate(self, number: int) -> tuple[int, Record]:
        """Which pack a content is in (0 is this one), and its record there."""
        record = self.pack.record(number)
        if number < self.pack.index.own:
            return 0, record
        if record.place >= len(self._others):
            raise self.pack.damaged(f"content number {number} is in a pack that it does not name")
        there = self._source(record.place + 1).record(record.offset)
        if (there.sha256, there.size) != (record.sha256, record.size):
            raise self.pack.damaged(f"content number {number} is not where it says")
        return record.place + 1, there

    def _source(self, where: int) -> OpenPack:
        if where == 0:
            return self.pack
        other = self._others[where - 1]
        if isinstance(other, PackDamaged):
            raise other
        return other

    def _frame(self, where: int, number: int) -> bytes:
        key = (where, number)
        frame = self._frames.get(key)
        if frame is not None:
            self._frames.move_to_end(key)
            return frame
        source = self._source(where)
        if source.frame_size(number) > FRAME_LIMIT:
            raise source.damaged(f"frame {number} is larger than a frame of its kind may be")
        frame = self._frames[key] = source.frame(number)
        self._held += len(frame)
        while self._held > _KEPT_BYTES and len(self._frames) > 1:
            self._held -= len(self._frames.popitem(last=False)[1])
        return frame

    def _check(self, source: OpenPack, record: Record, found: bytes) -> None:
        if found != record.sha256:
            raise source.damaged(
                f"a content in frame {record.place} should have the SHA-256 "
                f"{record.sha256.hex()}, it has {found.hex()}"
            )


class _Sizes(dict[int, int]):
    """Sizes of contents, looked up on first use."""

    def __init__(self, pack: OpenPack) -> None:
        super().__init__()
        self._pack = pack

    def __missing__(self, number: int) -> int:
        size = self[number] = self._pack.record(number).size
        return size


def check_layers(
    reader: PackReader, layers: Sequence[tuple[bytes, Layer]]
) -> dict[bytes, str | None]:
    """Make the tar of each layer (by raw digest) and hash it; returns what is wrong, or None.

    All are read side by side in path order, so that a frame of versions of one file is unpacked
    about once, not once a layer.
    """
    found: dict[bytes, str | None] = {}
    waiting: list[_Progress] = []
    for digest, layer in layers:
        try:
            waiting.append(_Progress(digest, reader, reader.skeleton(layer)))
        except PackDamaged as error:
            found[digest] = str(error)
    heap = [(one.path, number) for number, one in enumerate(waiting) if one.path is not None]
    heapq.heapify(heap)
    while heap:
        _, number = heap[0]
        one = waiting[number]
        one.step()
        if one.path is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (one.path, number))
    for one in waiting:
        found[one.digest] = one.problem
    return found


class _Progress:
    """A tar that is being hashed; ``path`` is that of the next member, None after the last."""

    def __init__(self, digest: bytes, reader: PackReader, skeleton: Skeleton) -> None:
        self.digest = digest
        self.problem: str | None = None
        self.path: bytes | None = b""
        self._reader = reader
        self._end = skeleton.end
        self._members = skeleton.members(_Sizes(reader.pack))
        self._hash = hashlib.sha256()
        self._next()

    def _next(self) -> None:
        try:
            self._member, self._header, self._content = next(self._members)
        except StopIteration:
            self.path = None
            self._hash.update(self._end)
            if self._hash.digest() != self.digest:
                self.problem = f"its content has the digest sha256:{self._hash.hexdigest()}"
        except (PackDamaged, MalformedMember) as error:
            self.path, self.problem = None, str(error)
        else:
            self.path = self._member.path

    def step(self) -> None:
        """Hash the member at ``path``."""
        self._hash.update(self._header)
        if self._content != NO_CONTENT:
            try:
                for piece in self._reader.content(self._content):
                    self._hash.update(piece)
            except PackDamaged as error:
                self.path, self.problem = None, str(error)
                return
            self._hash.update(bytes(padding(self._member.size)))
        self._next()
