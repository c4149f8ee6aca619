"""Files in and out, the side inside the sandbox.

Paths are resolved here, where the sandbox's root is the root, so no link in it can lead to a file
of the host. A file to read goes out as a descriptor: exact, of any size, without a copy.
"""

from __future__ import annotations

import errno
import os
import socket
import stat

from minisandbox import linux
from minisandbox.sandbox import accounts, trees, wire

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from typing import Any


def serve(request: dict[str, Any], channel: socket.socket, files: list[int], ids: int) -> None:
    """Do one of ``read``, ``write``, ``upload``, ``download``; raises ``OSError`` for the
    client. ``ids`` is how many ids exist inside.
    """
    path: str = request["path"]
    user: str | int | None = request.get("user")
    if user is not None:
        _act_as(user, ids)
    try:
        if request["operation"] == "read":
            _read(path, channel)
        elif request["operation"] == "write":
            if user is None:
                _replace(path, request["mode"], files[0])
            else:
                _write_in_place(path, request["mode"], files[0])
            wire.send(channel, "done")
        elif request["operation"] == "upload":
            _upload(path, files[0])
            wire.send(channel, "done")
        elif request["operation"] == "download":
            trees.send(path, files[0])
            wire.send(channel, "done")
        else:
            raise OSError(errno.ENOSYS, "unknown operation")
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or path) from error


def _read(path: str, channel: socket.socket) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not block
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        wire.send(channel, "file", fds=[fd])
        channel.recv(1)  # until the client has read it: a file of /proc/self lives as long as we do
    finally:
        os.close(fd)


def _act_as(user: str | int, ids: int) -> None:
    """Let the permissions of ``user`` decide from here on; the process ends with its request.

    Only the effective ids change: a process of that user could signal, or trace, one whose real id
    is its own.
    """
    account = accounts.find(user)
    if ids == 1 and (account.uid or account.gid):
        raise OSError(errno.EINVAL, "only id 0 exists inside", str(user))
    if ids > 1:
        os.setgroups(account.groups)
    os.setegid(account.gid)
    os.seteuid(account.uid)
    linux.drop_capabilities()


def _write_in_place(path: str, mode: int, source: int) -> None:
    """Write as any program of the user would: what is there keeps its mode, owner and links."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(path, flags, mode)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        os.ftruncate(fd, 0)
        _copy(source, fd)
    finally:
        os.close(fd)


def _copy(source: int, target: int) -> None:
    left = os.fstat(source).st_size
    while left:
        left -= os.sendfile(target, source, None, left)


def _replace(path: str, mode: int, source: int) -> None:
    final = os.path.realpath(path)
    os.makedirs(os.path.dirname(final), exist_ok=True)
    temporary = os.path.join(os.path.dirname(final), f".minisandbox-{os.urandom(6).hex()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    try:
        try:
            _copy(source, fd)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
        os.rename(temporary, final)
    except BaseException:
        os.unlink(temporary)
        raise


def _upload(path: str, pipe: int) -> None:
    receiver = trees.Receiver(path, mode_mask=0o7777)
    try:
        with open(pipe, "rb", buffering=1 << 20, closefd=False) as stream:
            receiver.receive(stream)
    except OSError as error:
        # It may name an entry, of a directory that nobody knows.
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        receiver.close()
