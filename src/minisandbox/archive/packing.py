"""A directory tree as a tar stream whose bytes depend on the content of the tree and on nothing
else.

Not on where the tree is, who packs it, when, in which order files were made, on directory order,
Python or zstd. Call ``pack`` through ``idmap.call_mapped``: only there do users see the ids that
the tree has inside.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from minisandbox.archive.beneath import Beneath
from minisandbox.archive.members import (
    BLOCK,
    OPAQUE_MARKER,
    OVERLAY_PREFIXES,
    WHITEOUT_PREFIX,
    Kind,
    Member,
    encode_header,
    padding,
)
from minisandbox.errors import UnpackableTree
from minisandbox.idmap import IdMap

#: 1980-01-02 UTC: zip archives and wheels cannot hold an older date in any time zone.
EARLIEST_DATE = 315_619_200

#: What an id looks like that the user namespace does not map (``/proc/sys/kernel/overflowuid``).
_OVERFLOW_ID = 65534
#: Overlay attributes that change what a directory shows; the others are hints of the overlay to
#: itself.
_UNSPEAKABLE = {"redirect", "metacopy", "whiteout"}
_CHUNK = 1 << 20


@dataclass(frozen=True)
class PackStats:
    """What went in: bytes of the regular files, and their number (hard links counted once)."""

    unpacked_size: int
    files: int


def _nothing(_: str) -> bool:
    return False


def pack(
    tree: Path,
    out: BinaryIO,
    *,
    date: int,
    idmap: IdMap,
    exclude: Callable[[str], bool] = _nothing,
    newer: frozenset[str] = frozenset(),
) -> PackStats:
    """Write the content of ``tree`` (an ordinary tree, or the upper directory of an overlay) as a
    tar.

    ``date`` (seconds since the epoch, 1980-01-02 or later) becomes the date of everything but the
    paths in ``newer``, which get ``date + 1``: a git index no younger than the files it lists makes
    git compare their content on every ``git status``. ``exclude`` is asked with each path below
    ``tree``; a directory goes with all that is in it. Both speak of paths as inside the sandbox,
    without a leading slash. Raises ``UnpackableTree``, and ``OSError`` where the kernel refuses to
    read.
    """
    if date < EARLIEST_DATE:
        raise ValueError(f"date {date} is before 1980-01-02, zip archives cannot hold it")
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with Beneath(root) as beneath:
            return _Packer(beneath, out, date, idmap, newer).run(_scan(beneath, exclude))
    finally:
        os.close(root)


def _scan(beneath: Beneath, exclude: Callable[[str], bool]) -> list[bytes]:
    """Every path to pack, sorted bytewise, so that a directory comes right before what is in it."""
    found: list[bytes] = []
    pending: list[bytes] = [b""]
    while pending:
        parent = pending.pop()
        fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=beneath.directory(_parts(parent)))
        try:
            with os.scandir(fd) as entries:
                # ``scandir`` of a descriptor gives text; surrogateescape keeps any bytes.
                listing = [(os.fsencode(e.name), e.is_dir(follow_symlinks=False)) for e in entries]
                names = {name for name, _ in listing}
                for name, is_directory in listing:
                    path = parent + b"/" + name if parent else name
                    if _is_byte_code(name, is_directory, names, fd) or exclude(os.fsdecode(path)):
                        continue
                    if name.startswith(WHITEOUT_PREFIX):
                        raise UnpackableTree(
                            os.fsdecode(path), "a layer says 'deleted' with names in .wh."
                        )
                    found.append(path)
                    if is_directory:
                        pending.append(path)
        finally:
            os.close(fd)
    found.sort()
    return found


def _is_byte_code(name: bytes, is_directory: bool, siblings: set[bytes], fd: int) -> bool:
    """Byte-code holds dates and differs from run to run; each node makes its own.

    A whiteout of ``__pycache__`` goes too: whether there was anything to delete depends on the
    node.
    """
    if name == b"__pycache__":
        return is_directory or _is_whiteout(os.stat(name, dir_fd=fd, follow_symlinks=False))
    return name.endswith(b".pyc") and name[:-1] in siblings and not is_directory


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _parts(path: bytes) -> list[bytes]:
    return path.split(b"/") if path else []


class _Packer:
    """Writes members one after the other; remembers inodes that have further names."""

    def __init__(
        self, beneath: Beneath, out: BinaryIO, date: int, idmap: IdMap, newer: frozenset[str]
    ) -> None:
        self._beneath = beneath
        self._out = out
        self._date = date
        self._idmap = idmap
        self._newer = {os.fsencode(path) for path in newer}
        self._first_names: dict[tuple[int, int], bytes] = {}
        self._size = 0
        self._files = 0

    def run(self, paths: list[bytes]) -> PackStats:
        self._opaque(self._attributes_of(b""), b"")
        for path in paths:
            parent, _, name = path.rpartition(b"/")
            self._add(path, name, self._beneath.directory(_parts(parent)))
        self._out.write(bytes(2 * BLOCK))
        return PackStats(unpacked_size=self._size, files=self._files)

    def _add(self, path: bytes, name: bytes, parent: int) -> None:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        mode = status.st_mode
        if stat.S_ISREG(mode):
            self._add_file(path, name, parent, status)
        elif stat.S_ISDIR(mode):
            attributes = self._attributes_of(path)
            self._write(self._member(path, Kind.DIRECTORY, status, xattrs=attributes.kept))
            self._opaque(attributes, path + b"/")
        elif stat.S_ISLNK(mode):
            target = os.readlink(name, dir_fd=parent)
            self._write(
                replace(self._member(path, Kind.SYMLINK, status), mode=0o777, target=target)
            )
        elif _is_whiteout(status):
            self._marker(path[: len(path) - len(name)] + WHITEOUT_PREFIX + name)
        elif stat.S_ISFIFO(mode):
            self._write(self._member(path, Kind.FIFO, status))
        elif stat.S_ISSOCK(mode):
            return  # The name of a process that is gone: nothing could ever answer there.
        else:
            raise UnpackableTree(os.fsdecode(path), "it is a device")

    def _add_file(self, path: bytes, name: bytes, parent: int, status: os.stat_result) -> None:
        if status.st_nlink > 1:
            first = self._first_names.setdefault((status.st_dev, status.st_ino), path)
            if first is not path:
                link = self._member(path, Kind.HARD_LINK, status)
                self._write(replace(link, target=first))
                return
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            xattrs = self._attributes(path, fd).kept
            member = self._member(path, Kind.FILE, status, xattrs=xattrs)
            self._write(replace(member, size=status.st_size))
            self._copy(path, fd, status.st_size)
        finally:
            os.close(fd)
        self._size += status.st_size
        self._files += 1

    def _copy(self, path: bytes, fd: int, size: int) -> None:
        left = size
        while left:
            data = os.read(fd, min(left, _CHUNK))
            if not data:
                raise UnpackableTree(os.fsdecode(path), "it was changed while it was read")
            self._out.write(data)
            left -= len(data)
        self._out.write(bytes(padding(size)))

    def _member(
        self,
        path: bytes,
        kind: Kind,
        status: os.stat_result,
        *,
        xattrs: Mapping[bytes, bytes] = {},
    ) -> Member:
        return Member(
            path=path,
            kind=kind,
            # No setuid, no setgid: sandboxes are nosuid, and a node store must not collect such
            # files.
            mode=stat.S_IMODE(status.st_mode) & 0o1777,
            uid=self._inside(status.st_uid, self._idmap.inside_uid),
            gid=self._inside(status.st_gid, self._idmap.inside_gid),
            mtime=(self._date + (path in self._newer)) * 1_000_000_000,
            xattrs=xattrs,
        )

    def _inside(self, seen: int, inside: Callable[[int], int]) -> int:
        """The id inside; 0 for ids outside the map, as when a tree of the host is packed.

        An unmapped id looks like nobody in a user namespace, so nobody is 0 too, for everybody.
        """
        try:
            known = seen if self._idmap.sees_inside else inside(seen)
        except ValueError:
            return 0
        return 0 if known == _OVERFLOW_ID else known

    def _marker(self, path: bytes) -> None:
        date = self._date * 1_000_000_000
        self._write(Member(path=path, kind=Kind.FILE, mode=0, uid=0, gid=0, mtime=date))

    def _opaque(self, attributes: _Attributes, prefix: bytes) -> None:
        if attributes.opaque:
            self._marker(prefix + OPAQUE_MARKER)

    def _write(self, member: Member) -> None:
        self._out.write(encode_header(member))

    def _attributes_of(self, path: bytes) -> _Attributes:
        here = self._beneath.directory(_parts(path))
        fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
        try:
            return self._attributes(path, fd)
        finally:
            os.close(fd)

    def _attributes(self, path: bytes, fd: int) -> _Attributes:
        try:
            names = os.listxattr(fd)
        except OSError as error:
            if error.errno == errno.ENOTSUP:
                return _NO_ATTRIBUTES
            raise
        if not names:
            return _NO_ATTRIBUTES
        return _read_attributes(path, fd, names)


@dataclass(frozen=True)
class _Attributes:
    """The extended attributes that mean something: ``user.*``, and the overlay's opaque mark."""

    kept: Mapping[bytes, bytes]
    opaque: bool = False


_NO_ATTRIBUTES = _Attributes({})


def _read_attributes(path: bytes, fd: int, names: list[str]) -> _Attributes:
    kept: dict[bytes, bytes] = {}
    opaque = False
    for name in names:
        if os.fsencode(name).startswith(OVERLAY_PREFIXES):
            attribute = name.split(".", 2)[2]
            if attribute in _UNSPEAKABLE:
                raise UnpackableTree(
                    os.fsdecode(path) or ".",
                    f"part of it is elsewhere ({name}); mount the overlay with redirect_dir=off",
                )
            opaque |= attribute == "opaque" and os.getxattr(fd, name) == b"y"
        elif name.startswith("user."):
            kept[os.fsencode(name)] = os.getxattr(fd, name)
    return _Attributes(kept, opaque)
