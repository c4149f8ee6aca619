"""Layers as streams: compressing a tar and naming it, and reading one so that damage is noticed.

The digest is that of the uncompressed tar (an OCI diff_id), because two versions of zstd compress
the same bytes differently.
"""

from __future__ import annotations

import hashlib
import io
import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import zstandard

from minisandbox import archive, keys
from minisandbox.archive.members import WHITEOUT_PREFIX, Kind
from minisandbox.archive.reading import Malformed, Reader
from minisandbox.closing import Closing
from minisandbox.errors import LayerDamaged, UnsafeArchive
from minisandbox.store.faults import StoreUnusable
from minisandbox.store.listing import Entry, Recording
from minisandbox.store.packs.catalogue import Pack, PackDamaged
from minisandbox.store.packs.reading import PackReader

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

#: On a virtual environment of 538 MB: level 9 gives 129 MB at 33 MB/s, 12 gives 126 MB at 13 MB/s,
#: both with long-distance matching over a window of 2^27, which every zstd decompresses without
#: being asked to.
DEFAULT_LEVEL = 9
WINDOW_LOG = 27

_BUFFER = 1 << 20

#: Is handed bytes one after the other.
Copy = Callable[[bytes], object]


def compress(
    write: Callable[[BinaryIO], archive.PackStats], fd: int, level: int
) -> tuple[str, archive.PackStats]:
    """Compress the tar that ``write`` writes into ``fd``; returns its digest."""
    compressor = zstandard.ZstdCompressor(compression_params=_parameters(level))
    # Buffered, because the compressor ignores how much of a write was done, which a full disk cuts
    # short.
    with open(os.dup(fd), "wb", buffering=_BUFFER) as file:
        with compressor.stream_writer(file, closefd=False) as compressing:
            sink = _Hashing(compressing)
            with io.BufferedWriter(sink, _BUFFER) as out:
                stats = write(out)
    return sink.digest, stats


def _parameters(level: int) -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters(
        compression_level=level, window_log=WINDOW_LOG, enable_ldm=True, write_checksum=True
    )


class _Hashing(io.RawIOBase):
    """Passes on what is written, and hashes it."""

    def __init__(self, out: zstandard.ZstdCompressionWriter) -> None:
        self._out = out
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data)
        self._hash.update(view)
        self._out.write(view)
        return len(view)


class StoredLayer(Closing):
    """An open layer, loose or in a pack: all files it needs are open, so a process with fewer
    rights can read it. ``path`` is the file to name in errors.
    """

    def __init__(self, digest: str, path: Path) -> None:
        self.digest = digest
        self.path = path

    @abstractmethod
    def unchecked(self, copy: Copy | None = None) -> io.RawIOBase:
        """The tar from its start; raises ``PackDamaged`` and ``OSError``, compares no digest."""

    @contextmanager
    def tar(self, copy: Copy | None = None) -> Generator[BinaryIO]:
        """The tar from its start; on leaving, it is read to its end and its digest compared.

        ``copy`` is handed the layer as a file of zstd meanwhile: that of a loose one, or one like
        it. Raises ``LayerDamaged`` and ``StoreUnusable``.
        """
        reading = _Verifying(self.unchecked(copy), self.digest, self.path)
        try:
            yield io.BufferedReader(reading, _BUFFER)
        except UnsafeArchive:
            # Damage looks like an attack to whoever parses it; the digest tells them apart.
            reading.finish()
            raise
        reading.finish()

    @abstractmethod
    def entries(self) -> Sequence[Entry]:
        """Its members, as cheaply as they are to be had; raises what ``listed`` does."""

    @abstractmethod
    def contents(self, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Those of its files' contents that are ``wanted`` (SHA-256 in hex), each in one or more
        pieces one after the other; raises what ``listed`` does.
        """

    def listed(self) -> Sequence[Entry]:
        """Its members, with the digests of contents but for those of whiteouts, as who unpacks it
        lists them; all of it is read and checked.

        Raises what ``tar`` does, and ``UnsafeArchive`` where the layer is no archive.
        """
        with self.tar() as stream:
            recording = Recording(Reader(stream))
            try:
                for member in recording:
                    if len(recording.entries) > archive.Limits().max_files:
                        raise Malformed(member.path, "it is one of too many entries")
                    if member.kind is Kind.FILE and not _is_whiteout(member.path):
                        for _ in recording.content():
                            pass
            except Malformed as error:
                name = os.fsdecode(error.member)
                raise UnsafeArchive(str(self.path), name, error.reason) from None
        return recording.entries


def _is_whiteout(path: bytes) -> bool:
    return path.rpartition(b"/")[2].startswith(WHITEOUT_PREFIX)


class LooseLayer(StoredLayer):
    """A layer with a file of its own, its compressed tar."""

    def __init__(self, digest: str, path: Path, file: BinaryIO) -> None:
        super().__init__(digest, path)
        self._file = file
        self._entries: Sequence[Entry] | None = None

    def close(self) -> None:
        self._file.close()

    def entries(self) -> Sequence[Entry]:
        if self._entries is None:
            self._entries = self.listed()
        return self._entries

    def contents(self, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        places = {entry.content: entry.path for entry in self.entries() if entry.content in wanted}
        contents = {path: content for content, path in places.items()}
        if not contents:
            return
        with self.tar() as stream:
            reader = Reader(stream)
            try:
                for member in reader:
                    if member.kind is Kind.FILE and member.path in contents:
                        yield contents[member.path], b"".join(reader.content())
            except Malformed as error:  # the file is another one by now
                raise LayerDamaged(self.digest, self.path, error.reason) from None

    def unchecked(self, copy: Copy | None = None) -> io.RawIOBase:
        self._file.seek(0)
        return _Decompressed(self._file, self.path, copy)


class LayerOfPack(StoredLayer):
    """A layer in a pack."""

    def __init__(self, digest: str, pack: Pack, reader: PackReader) -> None:
        super().__init__(digest, pack.path)
        self._layer = pack.index.layers[bytes.fromhex(keys.hex_of(digest))]
        self._reader = reader
        self._entries: Sequence[Entry] | None = None

    def close(self) -> None:
        self._reader.close()

    def unchecked(self, copy: Copy | None = None) -> io.RawIOBase:
        parts = self._reader.tar(self._layer)
        return _Joined(parts if copy is None else _compressing(parts, copy))

    def entries(self) -> Sequence[Entry]:
        """Its members, at no reading of their contents; raises ``LayerDamaged`` and
        ``StoreUnusable``.
        """
        if self._entries is None:
            with self._said():
                self._entries = self._reader.entries(self._layer)
        return self._entries

    def contents(self, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """See ``Store.contents``."""
        with self._said():
            yield from self._reader.contents(self._layer, wanted)

    @contextmanager
    def _said(self) -> Generator[None]:
        try:
            yield
        except PackDamaged as error:
            raise LayerDamaged(self.digest, self.path, error.about(self.path)) from error
        except OSError as error:
            raise StoreUnusable("read", self.path, error) from error


class _Decompressed(io.RawIOBase):
    """What a file unpacks to; raises ``PackDamaged`` where it is no zstd."""

    def __init__(self, file: BinaryIO, path: Path, copy: Copy | None) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG)
        source = file if copy is None else cast("BinaryIO", _Tee(file, copy))
        reader = decompressor.stream_reader(
            source, read_size=_BUFFER, read_across_frames=True, closefd=False
        )
        self._reader = cast("io.RawIOBase", reader)
        self._path = path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        try:
            return self._reader.readinto(buffer) or 0
        except zstandard.ZstdError as error:
            raise PackDamaged(self._path, f"zstd says {error}") from error


class _Tee:
    """A file, all of which is also handed to ``copy`` as it is read."""

    def __init__(self, file: BinaryIO, copy: Copy) -> None:
        self._file = file
        self._copy = copy

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._copy(data)
        return data


def _compressing(parts: Iterator[bytes], copy: Copy) -> Iterator[bytes]:
    compressor = zstandard.ZstdCompressor(compression_params=_parameters(DEFAULT_LEVEL))
    packing = compressor.compressobj()
    for part in parts:
        copy(packing.compress(part))
        yield part
    copy(packing.flush())


class _Joined(io.RawIOBase):
    """Parts as one stream."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        while not self._left:
            part = next(self._parts, None)
            if part is None:
                return 0
            self._left = memoryview(part)
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._left))
        target[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


class _Verifying(io.RawIOBase):
    """Hashes what is read; every kind of damage is ``LayerDamaged``."""

    def __init__(self, source: io.RawIOBase, digest: str, path: Path) -> None:
        self._source = source
        self._digest = digest
        self._path = path
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        try:
            count = self._source.readinto(buffer) or 0
        except PackDamaged as error:
            raise LayerDamaged(self._digest, self._path, error.about(self._path)) from error
        except OSError as error:
            raise StoreUnusable("read", self._path, error) from error
        self._hash.update(memoryview(buffer)[:count])
        return count

    def finish(self) -> None:
        """Read what is left; raises ``LayerDamaged`` unless the whole has the promised digest."""
        buffer = bytearray(_BUFFER)
        while self.readinto(buffer):
            pass
        found = "sha256:" + self._hash.hexdigest()
        if found != self._digest:
            raise LayerDamaged(self._digest, self._path, f"its content has the digest {found}")
