"""Blobs as streams: unpacked by what they begin with, hashed on both sides, and bounded.

What a blob unfolds to is only known when it has, so whoever reads one gets the limit as an error in
the middle, before memory or disk are full.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, cast

import zstandard

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_KNOWN = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x04\x22\x4d\x18": "lz4"}
#: Windows that zstd itself takes without being asked (2^27); more is memory of ours.
_WINDOW = 1 << 27
_BUFFER = 1 << 20

#: Above this many bytes, how many times its own size a blob may unfold to. Text and zeros of real
#: layers stay below 100; gzip cannot exceed 1,032, and zstd can by far.
_FREE = 1 << 30
_RATIO = 1_000


class BadBlob(Exception):
    """A blob is not what it should be; ``reason`` is a clause."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class _Hashed(io.RawIOBase):
    """Hashes and counts what is read of a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.count = 0

    @property
    def digest(self) -> str:
        """Of what was read so far."""
        return "sha256:" + self._hash.hexdigest()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._take(len(view))
        view[: len(data)] = data
        self._hash.update(data)
        self.count += len(data)
        return len(data)

    def _take(self, size: int) -> bytes:
        return self._file.read(size)


class Hashing(_Hashed):
    """Reads at most ``size`` bytes and hashes them; ``progress`` is told how many, each time."""

    def __init__(self, file: BinaryIO, size: int, progress: Callable[[int], object]) -> None:
        super().__init__(file)
        self._size = size
        self._progress = progress

    def _take(self, size: int) -> bytes:
        return super()._take(min(size, self._size - self.count))

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        count = super().readinto(buffer)
        self._progress(count)
        return count


class _Bounded(_Hashed):
    """Hashes and counts what a blob unfolds to."""

    def __init__(self, unfolded: BinaryIO, packed: Hashing, limit: int) -> None:
        super().__init__(unfolded)
        self._packed = packed
        self._limit = limit

    def _take(self, size: int) -> bytes:
        try:
            return super()._take(size)
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise BadBlob(f"it cannot be decompressed ({error})") from error

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        count = super().readinto(buffer)
        if self.count > self._limit:
            raise BadBlob(f"it unfolds to more than {self._limit} bytes")
        if self.count > max(_FREE, self._packed.count * _RATIO):
            raise BadBlob(f"it unfolds to more than {_RATIO} times its size, as only bombs do")
        return count


@contextmanager
def unfolded(
    file: BinaryIO,
    *,
    size: int,
    digest: str | None,
    diff_id: str | None,
    limit: int,
    progress: Callable[[int], object] = lambda _: None,
) -> Generator[BinaryIO]:
    """The content of a blob of ``size`` bytes; at the end of the block all of it has been read.

    ``digest`` is that of the blob, ``diff_id`` that of its content; what is None is not checked.
    ``progress`` is told how many bytes of the blob were read since it was told last. Raises
    ``BadBlob``: nothing made from the stream may be used before the block is left.
    """
    packed = Hashing(file, size, progress)
    plain = _plain(io.BufferedReader(packed, _BUFFER))
    content = _Bounded(plain, packed, limit)
    with io.BufferedReader(content, _BUFFER) as stream:
        yield stream
        while stream.read(_BUFFER):
            pass
    while packed.read(_BUFFER):
        pass  # what a decompressor leaves when it has seen the end
    if packed.count != size:
        raise BadBlob(f"it has {packed.count} bytes, where {size} are promised")
    if digest is not None and packed.digest != digest:
        raise BadBlob(f"its digest is {packed.digest}")
    if diff_id is not None and content.digest != diff_id:
        raise BadBlob(f"its content has the digest {content.digest}, not the diff_id {diff_id}")


def _plain(packed: io.BufferedReader) -> BinaryIO:
    head = packed.peek(6)[:6]
    if head.startswith(_GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=packed))
    if head.startswith(_ZSTD):
        decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        reader = decompressor.stream_reader(
            packed, read_size=_BUFFER, read_across_frames=True, closefd=False
        )
        return cast("BinaryIO", reader)
    for magic, name in _KNOWN.items():
        if head.startswith(magic):
            raise BadBlob(f"it is packed with {name}, which images are not")
    return packed
