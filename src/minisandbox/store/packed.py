"""The shared store: packed layers in files named by the digest of their content.

Invariant: a file under its final name is complete and never changes. The digest is that of the
uncompressed tar (an OCI diff_id), because two versions of zstd compress the same bytes differently.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import io
import os
import re
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import zstandard

from minisandbox import archive, keys
from minisandbox.atomic import fsync_directory
from minisandbox.errors import LayerDamaged, LayerMissing, UnsafeArchive
from minisandbox.idmap import IdMap
from minisandbox.records.layer import LayerKind, LayerRef
from minisandbox.store.faults import (
    WRITE_ERRORS,
    StoreUnusable,
    call_carrying,
    explained,
    reachable,
)
from minisandbox.store.locks import try_flock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

#: On a virtual environment of 538 MB: level 9 gives 129 MB at 33 MB/s, 12 gives 126 MB at 13 MB/s,
#: both with long-distance matching over a window of 2^27, which every zstd decompresses without
#: being asked to.
DEFAULT_LEVEL = 9
_WINDOW_LOG = 27

_BUFFER = 1 << 20
_SUFFIX = ".tar.zst"
#: Whoever may write to a shared store can put a pipe there, which blocks who opens it.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LAYER_NAME = re.compile(r"[0-9a-f]{64}\.tar\.zst")


@dataclass(frozen=True)
class Finding:
    """What ``Store.verify`` found of one layer: ``problem`` is None when its content is what its
    name says.

    ``size`` is the bytes of the packed file, 0 when it is missing.
    """

    digest: str
    path: Path
    size: int
    problem: str | None


class Store:
    """A folder of packed layers, shared by builders and nodes, also over a network file system."""

    def __init__(self, root: Path, *, level: int = DEFAULT_LEVEL) -> None:
        self.root = root
        self._level = level

    def path(self, digest: str) -> Path:
        """Where the layer is or would be; raises ``ValueError`` for what is no digest."""
        value = keys.hex_of(digest)
        return self.root / "layers" / "sha256" / value[:2] / (value + _SUFFIX)

    def has(self, digest: str) -> bool:
        """Whether there is a file for this digest (its content is checked when it is read)."""
        return self.path(digest).is_file()

    def digests(self) -> Iterator[str]:
        """Every digest that the store has a file for, in order."""
        for path in sorted((self.root / "layers" / "sha256").glob(f"??/*{_SUFFIX}")):
            if _LAYER_NAME.fullmatch(path.name) and path.name[:2] == path.parent.name:
                yield "sha256:" + path.name.removesuffix(_SUFFIX)

    def add(
        self,
        kind: LayerKind,
        tree: Path,
        *,
        date: int,
        idmap: IdMap,
        exclude: Callable[[str], bool] | None = None,
        newer: frozenset[str] = frozenset(),
    ) -> LayerRef:
        """Pack ``tree`` (see ``archive.pack``) and keep it, unless a whole layer of its digest is
        there.

        Raises ``UnpackableTree``, ``StoreUnusable``, and ``OSError`` where the tree cannot be read.
        """
        options = functools.partial(archive.pack, date=date, idmap=idmap, newer=newer)
        packing = options if exclude is None else functools.partial(options, exclude=exclude)
        with reachable(tree) as source, self._incoming() as (incoming, fd):
            pack = functools.partial(packing, source)
            write = functools.partial(_compress, pack, fd, self._level)
            with explained("write to the store", self.root, only=WRITE_ERRORS):
                digest, stats = call_carrying(idmap, write)
            return self._kept(kind, incoming, fd, digest, stats)

    def add_written(
        self, kind: LayerKind, write: Callable[[BinaryIO], archive.PackStats]
    ) -> LayerRef:
        """Keep the tar that ``write`` writes, unless a whole layer of its digest is there.

        What ``write`` raises is raised, and then nothing is kept. Raises ``StoreUnusable``.
        """
        with self._incoming() as (incoming, fd):
            with explained("write to the store", self.root, only=WRITE_ERRORS):
                digest, stats = _compress(write, fd, self._level)
            return self._kept(kind, incoming, fd, digest, stats)

    def _kept(
        self, kind: LayerKind, incoming: Path, fd: int, digest: str, stats: archive.PackStats
    ) -> LayerRef:
        with explained("write to the store", self.root):
            size = self._keep(incoming, fd, digest)
        return LayerRef(kind, digest, size, stats.unpacked_size, stats.files)

    def _keep(self, incoming: Path, fd: int, digest: str) -> int:
        """Give a written file its final name, unless a whole one has it; returns the kept size."""
        path = self.path(digest)
        if self._problem(digest) is not None:
            os.fchmod(fd, 0o444)
            os.fsync(fd)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(incoming, path)
            fsync_directory(path.parent)
        return path.stat().st_size

    @contextmanager
    def open(self, digest: str) -> Generator[BinaryIO]:
        """The layer's tar as a stream; at the end of the block all of it has been read and checked.

        Raises ``LayerMissing``, ``StoreUnusable``, and ``LayerDamaged`` where reading meets the
        damage, or else at the end: nothing made from the stream may be used before the block is
        left.
        """
        with self.open_packed(digest) as file, verified(file, digest, self.path(digest)) as stream:
            yield stream

    def open_packed(self, digest: str) -> BinaryIO:
        """The packed file itself; raises ``LayerMissing``, ``StoreUnusable``, and ``LayerDamaged``
        where it is no regular file.
        """
        path = self.path(digest)
        try:
            fd = os.open(path, _READ)
        except FileNotFoundError:
            raise LayerMissing(digest, self.root) from None
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket, or a device that is not there
                raise LayerDamaged(digest, path, "it is not a regular file") from error
            raise StoreUnusable("read", path, error) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise LayerDamaged(digest, path, "it is not a regular file")
        return open(fd, "rb")

    def verify(self, digests: Iterable[str] | None = None) -> Iterator[Finding]:
        """Read layers (all, or ``digests``) to their end and tell of each what is wrong with it."""
        for digest in self.digests() if digests is None else digests:
            path = self.path(digest)
            problem = self._problem(digest)
            try:
                size = path.stat().st_size
            except OSError:
                size = 0
            yield Finding(digest, path, size, problem)

    def _problem(self, digest: str) -> str | None:
        try:
            with self.open(digest):
                return None
        except LayerMissing:
            return "it is missing"
        except LayerDamaged as error:
            return error.reason
        except StoreUnusable as error:
            return str(error)

    @contextmanager
    def _incoming(self) -> Generator[tuple[Path, int]]:
        """A file to write to, locked while it is written; gone afterwards unless renamed."""
        with explained("write to the store", self.root):
            directory = self.root / "incoming"
            directory.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(directory)
            path, fd = _create_locked(directory)
        try:
            yield path, fd
        finally:
            path.unlink(missing_ok=True)
            os.close(fd)


def _create_locked(directory: Path) -> tuple[Path, int]:
    while True:
        fd, name = tempfile.mkstemp(suffix=".tmp", dir=directory)
        try:
            # Between creation and lock another process may take the file for abandoned: wait for
            # it, and see whether the file is still there.
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:
            pass  # A file system without locks, so nobody can take a file for abandoned.
        if os.path.exists(name):
            return Path(name), fd
        os.close(fd)


def _remove_abandoned(directory: Path) -> None:
    """Remove what killed processes left: files whose lock nobody holds."""
    for path in directory.glob("*.tmp"):
        # NFS locks for writing only; a file that was complete but for its rename is read-only.
        flags = os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY
        try:
            fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # Gone meanwhile, or somebody else's.
        try:
            if try_flock(fd):
                path.unlink(missing_ok=True)
        finally:
            os.close(fd)


def _compress(
    write: Callable[[BinaryIO], archive.PackStats], fd: int, level: int
) -> tuple[str, archive.PackStats]:
    """Pack the tar that ``write`` writes into ``fd``; returns its digest."""
    parameters = zstandard.ZstdCompressionParameters(
        compression_level=level, window_log=_WINDOW_LOG, enable_ldm=True, write_checksum=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    # Buffered, because the compressor ignores how much of a write was done, which a full disk cuts
    # short.
    with open(os.dup(fd), "wb", buffering=_BUFFER) as file:
        with compressor.stream_writer(file, closefd=False) as compressing:
            sink = _Hashing(compressing)
            with io.BufferedWriter(sink, _BUFFER) as out:
                stats = write(out)
    return sink.digest, stats


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


@contextmanager
def verified(file: BinaryIO, digest: str, path: Path) -> Generator[BinaryIO]:
    """Decompress ``file``; on leaving, read it to its end and compare it with ``digest``."""
    reading = _Verifying(file, digest, path)
    try:
        yield io.BufferedReader(reading, _BUFFER)
    except UnsafeArchive:
        # Damage looks like an attack to whoever parses it; the digest tells them apart.
        reading.finish()
        raise
    reading.finish()


class _Verifying(io.RawIOBase):
    """Reads zstd and hashes what comes out; every kind of damage is ``LayerDamaged``."""

    def __init__(self, file: BinaryIO, digest: str, path: Path) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG)
        reader = decompressor.stream_reader(
            file, read_size=_BUFFER, read_across_frames=True, closefd=False
        )
        self._reader = cast("io.RawIOBase", reader)
        self._digest = digest
        self._path = path
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        try:
            count = self._reader.readinto(buffer) or 0
        except zstandard.ZstdError as error:
            raise LayerDamaged(self._digest, self._path, f"zstd says {error}") from error
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
