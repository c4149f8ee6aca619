"""Files and directories as a stream of bytes, written and read on both sides of a sandbox's border.

Why not tar: the tarfile module would cost every start ten milliseconds, and the reader must be safe
against a hostile writer by construction. Invariant: an entry is named by a single component
relative to the directory that is open at the moment, so no stream can name anything outside the
destination, and no link is followed while reading or writing. Kept: content, modes, modification
times, links (as they are). Not kept: owners, hard links (they become copies), extended attributes,
holes.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from typing import BinaryIO

#: kind, length of the name, mode, size of the content (of the target for a link), mtime in
#: nanoseconds.
_HEADER = struct.Struct("=cIIQq")
_CHUNK = 1 << 20
#: Deeper trees are refused: each level holds a descriptor.
MAX_DEPTH = 200
#: The errno of a stream that ends early or makes no sense.
CUT = errno.EBADMSG

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def send(path: str, pipe: int) -> None:
    """Write ``path`` (links on the way resolved) and all below it to ``pipe``.

    Raises ``OSError`` with the path for what cannot be read or is no file, directory or link.
    """
    path = os.path.realpath(path)
    parent = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    below: list[str] = []  # after an error it leads from path to where that happened
    try:
        _send_entry(parent, os.path.basename(path) or ".", b"", pipe, below)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.path.join(path, *below)) from error
    finally:
        os.close(parent)
    _write(pipe, _HEADER.pack(b"e", 0, 0, 0, 0))


def _send_entry(parent: int, name: str, shown: bytes, pipe: int, below: list[str]) -> None:
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    mode, mtime = stat.S_IMODE(status.st_mode), status.st_mtime_ns
    if stat.S_ISLNK(status.st_mode):
        target = os.fsencode(os.readlink(name, dir_fd=parent))
        _write(pipe, _HEADER.pack(b"l", len(shown), mode, len(target), mtime) + shown + target)
    elif stat.S_ISREG(status.st_mode):
        fd = os.open(name, _OPEN_FILE, dir_fd=parent)
        try:
            size = os.fstat(fd).st_size
            _write(pipe, _HEADER.pack(b"f", len(shown), mode, size, mtime) + shown)
            while size:
                sent = os.sendfile(pipe, fd, None, min(size, _CHUNK))
                if not sent:
                    raise OSError(errno.EIO, "the file became shorter while it was read", name)
                size -= sent
        finally:
            os.close(fd)
    elif stat.S_ISDIR(status.st_mode):
        if len(below) >= MAX_DEPTH:
            raise OSError(errno.ELOOP, f"more than {MAX_DEPTH} levels of directories", name)
        fd = os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
        try:
            _write(pipe, _HEADER.pack(b"d", len(shown), mode, 0, mtime) + shown)
            for child in sorted(os.listdir(fd)):
                below.append(child)
                _send_entry(fd, child, os.fsencode(child), pipe, below)
                below.pop()
            _write(pipe, _HEADER.pack(b"u", 0, 0, 0, 0))
        finally:
            os.close(fd)
    else:
        raise OSError(errno.EINVAL, "neither a file nor a directory nor a link", name)


def _write(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


class TooMuch(Exception):
    """A stream describes more than its reader takes; ``below`` leads from its top to the entry with
    which it does.
    """

    def __init__(self, reason: str, below: list[str]) -> None:
        self.reason = reason
        self.below = below
        super().__init__(reason)


class Receiver:
    """Builds at ``destination`` what a stream describes.

    Directories that exist are merged into, files that exist are replaced in one step. ``mode_mask``
    limits the permission bits taken over. Where they are given, ``max_bytes`` bounds what all files
    hold together, their holes included, and ``max_entries`` how many files, directories and links
    there are: nothing is written of the entry that exceeds them.
    """

    def __init__(
        self,
        destination: str,
        *,
        mode_mask: int,
        max_bytes: int | None = None,
        max_entries: int | None = None,
    ) -> None:
        path = os.path.realpath(destination)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._top = os.path.basename(path)
        self._mask = mode_mask
        self._open = [os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        self._attributes: list[tuple[int, int]] = []
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._bytes = self._entries = 0
        #: The names of the directories that are open, below the top one.
        self._below: list[str] = []

    def close(self) -> None:
        """Close the directories still open."""
        while self._open:
            os.close(self._open.pop())

    def receive(self, stream: BinaryIO) -> None:
        """Read the stream to its end mark; raises ``OSError``, EBADMSG for one that is cut or
        malformed, and ``TooMuch``.
        """
        while True:
            kind, length, mode, size, mtime = _HEADER.unpack(_read(stream, _HEADER.size))
            if kind == b"e":
                if len(self._open) != 1:
                    raise OSError(errno.EBADMSG, "the stream ends inside a directory")
                return
            if kind == b"u":
                self._leave()
                continue
            name = self._name(_read(stream, length) if length <= 4096 else b"/")
            self._count(name, size if kind == b"f" else 0)
            if kind == b"d":
                self._enter(name, mode & self._mask, mtime)
            elif kind == b"f":
                self._file(name, mode & self._mask, size, mtime, stream)
            elif kind == b"l" and size <= 4096:
                self._link(name, _read(stream, size), mtime)
            else:
                raise OSError(errno.EBADMSG, "unknown entry in the stream")

    def _name(self, raw: bytes) -> str:
        if len(self._open) == 1:
            # The top entry has the name that the caller chose, whatever the stream says.
            return self._top
        if raw in (b"", b".", b"..") or b"/" in raw or b"\0" in raw:
            raise OSError(errno.EBADMSG, "an entry of the stream has a name that leads elsewhere")
        return os.fsdecode(raw)

    def _count(self, name: str, size: int) -> None:
        self._bytes += size
        self._entries += 1
        reason = ""
        if self._max_bytes is not None and self._bytes > self._max_bytes:
            whole = f", {self._bytes:,} with all before it" if self._bytes > size else ""
            reason = f"it has {size:,} bytes{whole}: more than max_bytes, {self._max_bytes:,}"
        elif self._max_entries is not None and self._entries > self._max_entries:
            reason = f"it is one more than max_entries, {self._max_entries:,}"
        if reason:
            raise TooMuch(reason, [*self._below, name] if len(self._open) > 1 else [])

    def _enter(self, name: str, mode: int, mtime: int) -> None:
        if len(self._open) > MAX_DEPTH + 1:
            raise OSError(errno.ELOOP, f"more than {MAX_DEPTH} levels of directories", name)
        try:
            os.mkdir(name, 0o700, dir_fd=self._open[-1])
        except FileExistsError:
            pass
        self._open.append(os.open(name, _OPEN_DIRECTORY, dir_fd=self._open[-1]))
        self._attributes.append((mode, mtime))
        if len(self._open) > 2:
            self._below.append(name)

    def _leave(self) -> None:
        if len(self._open) < 2:
            raise OSError(errno.EBADMSG, "the stream leaves the destination")
        fd = self._open.pop()
        mode, mtime = self._attributes.pop()
        if self._below:
            self._below.pop()
        try:
            os.fchmod(fd, mode)
            os.utime(fd, ns=(mtime, mtime))
        finally:
            os.close(fd)

    def _file(self, name: str, mode: int, size: int, mtime: int, stream: BinaryIO) -> None:
        directory = self._open[-1]
        temporary = f".minisandbox-{os.urandom(6).hex()}"
        fd = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory
        )
        try:
            try:
                while size:
                    part = _read(stream, min(size, _CHUNK))
                    _write(fd, part)
                    size -= len(part)
                os.fchmod(fd, mode)
                os.utime(fd, ns=(mtime, mtime))
            finally:
                os.close(fd)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(temporary, dir_fd=directory)
            raise

    def _link(self, name: str, target: bytes, mtime: int) -> None:
        directory = self._open[-1]
        temporary = f".minisandbox-{os.urandom(6).hex()}"
        os.symlink(target, os.fsencode(temporary), dir_fd=directory)
        os.utime(temporary, ns=(mtime, mtime), dir_fd=directory, follow_symlinks=False)
        try:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            os.unlink(temporary, dir_fd=directory)
            raise


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise OSError(errno.EBADMSG, "the stream ended too early")
    return data
