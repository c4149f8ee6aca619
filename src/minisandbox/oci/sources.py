"""Files that hold an image: a folder, or a tar whose members are never written anywhere.

Invariant: no link of a folder is followed, only regular files are read, and reading never blocks.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
import tempfile
from abc import abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from minisandbox import linux
from minisandbox.archive.members import Kind
from minisandbox.archive.reading import Malformed, Reader
from minisandbox.closing import Closing
from minisandbox.errors import ImageRefused
from minisandbox.oci.unfolding import BadBlob, unfolded
from minisandbox.store.faults import WRITE_ERRORS, explained

#: Names in a tar of an image: a layer or a document each. Thousands are no image.
_MOST_NAMES = 10_000
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY


class Source(Closing):
    """Where the documents and blobs of an image are."""

    #: How errors call it.
    name: str

    @abstractmethod
    def has(self, path: str) -> bool:
        """Whether there is something of this name."""

    @abstractmethod
    @contextmanager
    def open(self, path: str) -> Generator[tuple[BinaryIO, int]]:
        """A file and its size; raises ``ImageRefused``."""

    def read(self, path: str, *, limit: int) -> bytes:
        """A small file; raises ``ImageRefused`` above ``limit`` bytes."""
        with self.open(path) as (file, size):
            if size > limit:
                raise self.refused(path, f"has {size} bytes, where {limit} are plenty")
            return file.read(limit)

    def refused(self, path: str, reason: str) -> ImageRefused:
        """The error for one file."""
        return ImageRefused(self.name, f"{path!r} {reason}")


class Folder(Source):
    """A folder of files."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def has(self, path: str) -> bool:
        try:
            os.close(linux.open_beneath(self._fd, path, os.O_PATH | os.O_NOFOLLOW))
        except OSError:
            return False
        return True

    @contextmanager
    def open(self, path: str) -> Generator[tuple[BinaryIO, int]]:
        try:
            fd = linux.open_beneath(self._fd, path, _FLAGS)
        except OSError as error:
            raise self.refused(path, _WHY.get(error.errno or 0, f"({error.strerror})")) from error
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise self.refused(path, "is not a regular file")
        with open(fd, "rb") as file:
            yield file, status.st_size


_WHY = {
    errno.ENOENT: "is not there",
    errno.ELOOP: "is a symbolic link, or behind one, and none is followed",
    errno.EXDEV: "leads out of the folder",
    errno.ENXIO: "is not a regular file",
}


class Archive(Source):
    """A tar: what it holds is found by position. A packed one is unpacked to a temporary file."""

    def __init__(self, path: Path, limit: int, work: Path) -> None:
        self.name = str(path)
        self._file = _opened(path, limit, work)
        self._members: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        try:
            self._read_names()
        except Malformed as error:
            self._file.close()
            member = f"member {os.fsdecode(error.member)!r}: " if error.member else ""
            raise ImageRefused(self.name, f"{member}{error.reason}") from None
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _read_names(self) -> None:
        for number, member in enumerate(Reader(self._file, devices=True)):
            if number >= _MOST_NAMES:
                raise Malformed(member.path, f"the limit is {_MOST_NAMES} names in one file")
            name = posixpath.normpath(os.fsdecode(member.path)).lstrip("/")
            # As if each were unpacked over those before it.
            self._members.pop(name, None)
            self._links.pop(name, None)
            if member.kind is Kind.FILE:
                self._members[name] = (self._file.tell(), member.size)
            elif member.kind is Kind.SYMLINK:
                there = posixpath.join(posixpath.dirname(name), os.fsdecode(member.target))
                self._links[name] = posixpath.normpath(there)
            elif member.kind is Kind.HARD_LINK:
                self._links[name] = posixpath.normpath(os.fsdecode(member.target))

    def has(self, path: str) -> bool:
        return self._links.get(path, path) in self._members

    @contextmanager
    def open(self, path: str) -> Generator[tuple[BinaryIO, int]]:
        # `docker save` has links in the place of layers that it wrote before. They are looked up in
        # this very file: a link that leads elsewhere finds nothing.
        found = self._members.get(self._links.get(path, path))
        if found is None:
            raise self.refused(path, "is not there")
        self._file.seek(found[0])
        yield self._file, found[1]


def _opened(path: Path, limit: int, work: Path) -> BinaryIO:
    fd = os.open(path, _FLAGS | os.O_CLOEXEC)
    file = open(fd, "rb", buffering=1 << 20)  # noqa: SIM115 - the caller's, or closed below
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ImageRefused(str(path), "it is neither a folder nor a file")
        head = file.read(2)
        file.seek(0)
        if head not in (b"\x1f\x8b", b"\x28\xb5"):
            return file
        with file:
            return _unpacked(path, file, limit, work)
    except BaseException:
        file.close()
        raise


def _unpacked(path: Path, file: BinaryIO, limit: int, work: Path) -> BinaryIO:
    size = os.fstat(file.fileno()).st_size
    writing = "write to the store"
    with explained(writing, work):
        work.mkdir(parents=True, exist_ok=True)
        plain = tempfile.TemporaryFile(dir=work)  # noqa: SIM115 - the caller's, or closed below
    try:
        with (
            explained(writing, work, only=WRITE_ERRORS),
            unfolded(file, size=size, digest=None, diff_id=None, limit=limit) as stream,
        ):
            while data := stream.read(1 << 20):
                plain.write(data)
            plain.seek(0)
    except BaseException as error:
        plain.close()
        if isinstance(error, BadBlob):
            raise ImageRefused(str(path), error.reason) from None
        raise
    return plain


def open_source(path: Path, *, limit: int, work: Path) -> Source:
    """The folder or tar at ``path``. A packed tar is unpacked into a file without a name in
    ``work``, to ``limit`` bytes at most. Raises ``ImageRefused``, ``StoreUnusable`` where ``work``
    cannot be written to, or ``OSError`` where the image cannot be opened.
    """
    return Folder(path) if path.is_dir() else Archive(path, limit, work)
