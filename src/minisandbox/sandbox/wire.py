"""How client, server, PID 1 and command monitors talk.

Each message is one packet (SOCK_SEQPACKET keeps boundaries, so several threads can send at once): a
kind and text fields, with descriptors attached. Bulk data never goes through a packet: requests,
scripts and standard input are memory files, output is a pipe. Requests are marshal (client to
sandbox, same interpreter); what comes back out of a sandbox is only ever split into text, as
nothing from there may be trusted.
"""

from __future__ import annotations

import array
import marshal
import os
import select
import socket
from collections.abc import Sequence

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from typing import Any

_MAX_PACKET = 64 * 1024
#: More than any message carries (at the start: a profile's listening sockets, and one more).
_MAX_FDS = 24


def channel(fd: int) -> socket.socket:
    """The socket ``fd`` of this protocol, whose kind Python then need not ask the kernel for."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)


def send(
    sock: socket.socket, kind: str, *fields: str, fds: Sequence[int] = (), flags: int = 0
) -> None:
    """Send one packet; raises ``OSError`` (``BrokenPipeError``) when the other side is gone."""
    data = "\0".join((kind, *fields)).encode("utf-8", "surrogateescape")
    rights = (
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
    )
    sock.sendmsg([data[:_MAX_PACKET]], rights, socket.MSG_NOSIGNAL | flags)


def receive(sock: socket.socket, flags: int = 0) -> tuple[list[str], list[int]]:
    """Receive one packet as its fields (kind first) and descriptors; no fields at the end of the
    stream.
    """
    space = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
    try:
        data, ancillary, _, _ = sock.recvmsg(_MAX_PACKET, space, socket.MSG_CMSG_CLOEXEC | flags)
    except ConnectionError:
        return [], []
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    fields = data.decode("utf-8", "surrogateescape").split("\0") if data else []
    return fields, list(fds)


def is_connected(sock: socket.socket) -> bool:
    """Whether both ends are open."""
    if sock.fileno() == -1:
        return False
    poller = select.poll()
    poller.register(sock, select.POLLRDHUP)
    return not poller.poll(0)


def memory_file(name: str, data: bytes | memoryview) -> int:
    """A descriptor, at its beginning, of an anonymous file that holds ``data``."""
    fd = os.memfd_create(name)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_all(fd: int) -> bytes:
    """Everything from the start of a memory file."""
    size = os.fstat(fd).st_size
    parts = bytearray()
    while len(parts) < size:
        part = os.pread(fd, size - len(parts), len(parts))
        if not part:
            break
        parts += part
    return bytes(parts)


def pack(request: dict[str, Any]) -> bytes:
    """A request as bytes; strings may hold file names that are no UTF-8 (surrogateescape)."""
    return marshal.dumps(request)


def unpack(data: bytes) -> dict[str, Any]:
    """The request that :func:`pack` made."""
    return marshal.loads(data)
