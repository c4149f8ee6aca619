"""Unpacks a tar stream into a new directory that can be a lower layer of an overlay.

Whoever wrote the archive decides nothing about the host: no member reaches outside of the
directory, none is a device or setuid, and sizes are bounded before a byte is written. Call
``unpack`` through ``idmap.call_mapped``: only there can users make whiteouts and give files to the
ids of the sandbox.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

from minisandbox.archive.beneath import Beneath
from minisandbox.archive.members import (
    OPAQUE_MARKER,
    OVERLAY_PREFIXES,
    WHITEOUT_PREFIX,
    Kind,
    Member,
)
from minisandbox.archive.reading import Malformed, Reader
from minisandbox.errors import HostUnsupported, UnsafeArchive
from minisandbox.idmap import IdMap

Parts = tuple[bytes, ...]


class Members(Protocol):
    """What is unpacked, in the order of an archive: a ``Reader``, or what is made up like one."""

    def __iter__(self) -> Iterator[Member]: ...

    def content(self) -> Iterator[bytes]:
        """The content of the current member in chunks; asked for once, for regular files."""
        ...


#: Writes a new file: its descriptor's directory, name, member and content are given.
Write = Callable[[Member, bytes, int, Iterator[bytes]], None]


class Files(Protocol):
    """How the content of a regular file gets to its place."""

    def add(
        self, member: Member, parts: Parts, parent: int, content: Iterator[bytes], write: Write
    ) -> None:
        """Make the file ``parts[-1]`` in the directory ``parent``, with ``write`` or without."""
        ...


@dataclass(frozen=True)
class Limits:
    """What one archive may become: bytes of all files together, and number of entries."""

    max_bytes: int = 64 << 30
    max_files: int = 4_000_000


def unpack(
    stream: BinaryIO,
    target: Path,
    *,
    idmap: IdMap,
    limits: Limits = Limits(),
    archive: str = "archive",
    files: Files | None = None,
) -> None:
    """Make ``target`` (which must not exist) from the tar in ``stream``, read to its end.

    Restores modes (without setuid and setgid), owners, dates and hard links; ``archive`` names the
    stream in errors; ``files`` makes the regular files. Raises ``UnsafeArchive`` for anything
    hostile or broken, and ``OSError`` where the kernel refuses (a full disk). After an error
    ``target`` holds what came before it, for the caller to remove with ``idmap.remove_tree``.
    """
    lay_out(Reader(stream), target, idmap=idmap, limits=limits, archive=archive, files=files)


def lay_out(
    members: Members,
    target: Path,
    *,
    idmap: IdMap,
    limits: Limits = Limits(),
    archive: str = "archive",
    files: Files | None = None,
) -> None:
    """``unpack`` of members that come from elsewhere than a tar."""
    os.mkdir(target, 0o700)
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with Beneath(root) as beneath:
            _Unpacker(beneath, root, idmap, limits, files).run(members)
    except Malformed as error:
        raise UnsafeArchive(archive, os.fsdecode(error.member), error.reason) from None
    finally:
        os.close(root)


class _Unpacker:
    """Makes members in turn; directories get mode and date last, as filling them changes both."""

    def __init__(
        self, beneath: Beneath, root: int, idmap: IdMap, limits: Limits, files: Files | None
    ) -> None:
        self._beneath = beneath
        self._root = root
        self._files_of = files
        self._idmap = idmap
        self._limits = limits
        self._bytes = 0
        self._files = 0
        self._directories: dict[Parts, Member] = {}
        self._current = Member(b"", Kind.DIRECTORY, 0o755, 0, 0, 0)

    def run(self, members: Members) -> None:
        for member in members:
            self._current = member
            try:
                self._add(member, members)
            except OSError as error:
                reason = _REFUSALS.get(error.errno or 0)
                if reason is None:
                    raise
                raise Malformed(member.path, reason) from error
        if () not in self._directories:
            self._directories[()] = _implied(b"", self._current)
        for parts in sorted(self._directories, reverse=True):
            self._finish_directory(parts, self._directories[parts])

    def _add(self, member: Member, members: Members) -> None:
        self._count(member.size)
        parts = _parts(member.path, member.path)
        if not parts:
            if member.kind is not Kind.DIRECTORY:
                raise Malformed(member.path, "it has no name")
            self._directories[()] = member
            return
        if any(part.startswith(WHITEOUT_PREFIX) for part in parts[:-1]):
            raise Malformed(member.path, "it is inside of a whiteout")
        parent = self._beneath.directory(parts[:-1], self._make_implied)
        if parts[-1].startswith(WHITEOUT_PREFIX):
            self._add_whiteout(member, parts, parent)
        elif member.kind is Kind.DIRECTORY:
            if parts not in self._directories:
                os.mkdir(parts[-1], 0o700, dir_fd=parent)
            self._directories[parts] = member
        elif member.kind is Kind.FILE:
            if self._files_of is None:
                self._write(member, parts[-1], parent, members.content())
            else:
                self._files_of.add(member, parts, parent, members.content(), self._write)
        elif member.kind is Kind.HARD_LINK:
            self._add_hard_link(member, parts, parent)
        else:
            self._add_special(member, parts[-1], parent)

    def _count(self, size: int) -> None:
        self._files += 1
        self._bytes += size
        if self._files > self._limits.max_files:
            raise Malformed(self._current.path, f"the limit is {self._limits.max_files} entries")
        if self._bytes > self._limits.max_bytes:
            raise Malformed(
                self._current.path, f"the limit is {self._limits.max_bytes} bytes in all"
            )

    def _make_implied(self, parent: int, parts: Parts) -> None:
        if parts[-1].startswith(WHITEOUT_PREFIX):
            raise Malformed(self._current.path, "it is inside of a whiteout")
        self._count(0)
        os.mkdir(parts[-1], 0o700, dir_fd=parent)
        self._directories[parts] = _implied(b"/".join(parts), self._current)

    def _write(self, member: Member, name: bytes, parent: int, content: Iterator[bytes]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            for chunk in content:
                view = memoryview(chunk)
                while view:
                    view = view[os.write(fd, view) :]
            self._dress(fd, member)
        finally:
            os.close(fd)

    def _dress(self, fd: int, member: Member) -> None:
        """Attributes, owner, mode and date of an open file or directory, in this order."""
        for name, value in member.xattrs.items():
            _set_attribute(fd, member, name, value)
        owner = self._owner(member)
        if owner is not None:
            os.chown(fd, *owner)
        os.chmod(fd, member.mode & 0o1777)
        os.utime(fd, ns=(member.mtime, member.mtime))

    def _owner(self, member: Member) -> tuple[int, int] | None:
        """Whom to give the member to, as this process names ids; None where there is one id."""
        idmap = self._idmap
        if idmap.count == 1:
            return None
        if not (0 <= member.uid < idmap.count and 0 <= member.gid < idmap.count):
            raise Malformed(
                member.path,
                f"it belongs to {member.uid}:{member.gid}, the sandbox has {idmap.count} ids",
            )
        if idmap.sees_inside:
            return member.uid, member.gid
        return idmap.host_uid(member.uid), idmap.host_gid(member.gid)

    def _add_special(self, member: Member, name: bytes, parent: int) -> None:
        if member.kind is Kind.SYMLINK:
            if not member.target:
                raise Malformed(member.path, "it is a symbolic link to nothing")
            os.symlink(member.target, name, dir_fd=parent)
        else:
            os.mkfifo(name, 0o600, dir_fd=parent)
        owner = self._owner(member)
        if owner is not None:
            os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)
        if member.kind is Kind.FIFO:
            os.chmod(name, member.mode & 0o1777, dir_fd=parent)
        times = (member.mtime, member.mtime)
        os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)

    def _add_hard_link(self, member: Member, parts: Parts, parent: int) -> None:
        source = _parts(member.target, member.path)
        if not source:
            raise Malformed(member.path, "it is a hard link to nothing")
        here = os.dup(parent)  # The next line moves ``beneath`` on, which closes ``parent``.
        try:
            there = self._beneath.directory(source[:-1])
            status = os.stat(source[-1], dir_fd=there, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise Malformed(
                    member.path, f"it is a hard link to {member.target!r}, which is no file"
                )
            os.link(source[-1], parts[-1], src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        except FileNotFoundError:
            reason = f"it is a hard link to {member.target!r}, which does not come before it"
            raise Malformed(member.path, reason) from None
        finally:
            os.close(here)

    def _add_whiteout(self, member: Member, parts: Parts, parent: int) -> None:
        if member.kind is not Kind.FILE or member.size:
            raise Malformed(member.path, "it is named as a whiteout, but not an empty file")
        if parts[-1] == OPAQUE_MARKER:
            self._mark_opaque(parts[:-1])
            return
        hidden = parts[-1].removeprefix(WHITEOUT_PREFIX)
        if hidden in (b"", b".", b"..") or hidden.startswith(WHITEOUT_PREFIX):
            raise Malformed(member.path, "it is a whiteout of no name")
        os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)

    def _mark_opaque(self, parts: Parts) -> None:
        kind = "user" if self._idmap.sees_inside else "trusted"
        fd = self._open_directory(parts)
        try:
            os.setxattr(fd, f"{kind}.overlay.opaque", b"y")
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EPERM):
                raise
            raise HostUnsupported(
                "an opaque directory",
                f"the file system of the node store refuses {kind}.* attributes ({error.strerror})",
                "set MINISANDBOX_NODE_STORE to a directory on ext4, xfs, btrfs, or a tmpfs (6.6)",
            ) from error
        finally:
            os.close(fd)

    def _finish_directory(self, parts: Parts, member: Member) -> None:
        fd = self._open_directory(parts)
        try:
            self._dress(fd, member)
        finally:
            os.close(fd)

    def _open_directory(self, parts: Parts) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        return os.open(b".", flags, dir_fd=self._beneath.directory(parts))


#: What the kernel says when a member is not possible where it wants to be.
_REFUSALS = {
    errno.EEXIST: "there is something else of that name in the archive",
    errno.ENOTDIR: "its path goes through something that is no directory",
    errno.ELOOP: "its path goes through a symbolic link",
    errno.EISDIR: "there is a directory of that name in the archive",
    errno.ENAMETOOLONG: "a name on its path, or its target, is longer than the kernel allows",
    errno.EMLINK: "it is one hard link more than the file system allows",
}


def _parts(path: bytes, member: bytes) -> Parts:
    """The components of a path of the archive; ``.`` and doubled slashes vanish."""
    if path.startswith(b"/"):
        raise Malformed(member, f"the path {os.fsdecode(path)!r} is absolute")
    parts = tuple(part for part in path.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise Malformed(member, f"the path {os.fsdecode(path)!r} goes up with ..")
    return parts


def _implied(path: bytes, cause: Member) -> Member:
    """A directory that the archive does not list, but ``cause`` is in it."""
    return replace(
        cause,
        path=path,
        kind=Kind.DIRECTORY,
        mode=0o755,
        uid=0,
        gid=0,
        size=0,
        target=b"",
        xattrs={},
    )


def _set_attribute(fd: int, member: Member, name: bytes, value: bytes) -> None:
    if name.startswith(OVERLAY_PREFIXES):
        raise Malformed(member.path, f"it sets {os.fsdecode(name)}, which is the overlay's own")
    if not name.startswith(b"user."):
        return  # Capabilities, ACLs, labels: they speak of the host that packed it.
    try:
        os.setxattr(fd, name, value)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
