"""A record of the connections that programs in a sandbox try, kept by a thread of the client.

The kernel stops each connect(2), and each sendto(2) with an address, until this thread has noted
the address and let the call go on. It is a record and no boundary: the network namespace decides
what can be reached. A program that changes the address in its memory after it was read, or uses
sendmsg(2), connects unseen, but to nothing that it could not reach anyway. Invariant:
the call goes on, whatever cannot be read or understood; when this thread ends, calls fail with
ENOSYS and none waits.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from contextlib import ExitStack
from dataclasses import dataclass

from minisandbox import linux
from minisandbox.sandbox.seccomp import notify

#: Distinct addresses that are kept; a program can try any number.
MOST_ADDRESSES = 1_000
#: Stands last for all addresses beyond :data:`MOST_ADDRESSES` together.
OTHERS = "others"
#: Stands for addresses whose memory cannot be read, or that are shorter than a family.
UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Attempt:
    """An address that programs inside tried to reach, ``count`` times.

    ``address`` reads ``127.0.0.1:5432``, ``[::1]:80``, ``unix:/path`` or ``unix:@name`` (abstract;
    bytes that are no printing ASCII are ``\\xNN``), ``netlink``, and ``family 17`` for what has no
    such form, disconnects (``family 0``) among them; ``unreadable`` for bad pointers and
    for what is too short to have a family, ``others`` for all that exceed ``MOST_ADDRESSES``.
    """

    address: str
    count: int


def describe(address: bytes) -> str:
    """A socket address, as the kernel was given it, in the form of :attr:`Attempt.address`."""
    if len(address) < 2:
        return UNREADABLE
    family = int.from_bytes(address[:2], "little")
    if family == socket.AF_INET and len(address) >= 8:
        port = struct.unpack_from(">H", address, 2)[0]
        return f"{socket.inet_ntop(socket.AF_INET, address[4:8])}:{port}"
    if family == socket.AF_INET6 and len(address) >= 24:
        port = struct.unpack_from(">H", address, 2)[0]
        return f"[{socket.inet_ntop(socket.AF_INET6, address[8:24])}]:{port}"
    if family == socket.AF_UNIX:
        return f"unix:{_unix_name(address[2:])}"
    return "netlink" if family == socket.AF_NETLINK else f"family {family}"


def _unix_name(path: bytes) -> str:
    if path[:1] == b"\0":  # abstract: the length ends it, zero bytes are part of it
        return f"@{_printable(path[1:])}"
    name = _printable(path.partition(b"\0")[0])
    return f"\\x40{name[1:]}" if name.startswith("@") else name


def _printable(name: bytes) -> str:
    return "".join(chr(b) if 32 <= b < 127 and b != ord("\\") else f"\\x{b:02x}" for b in name)


class Record:
    """Counts by address, in order of the first try; several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._others = 0

    def add(self, address: str, count: int = 1) -> None:
        """Count one try, or several."""
        with self._lock:
            known = address in self._counts or len(self._counts) < MOST_ADDRESSES
            if known and address != OTHERS:
                self._counts[address] = self._counts.get(address, 0) + count
            else:
                self._others += count

    def attempts(self) -> tuple[Attempt, ...]:
        """What was counted so far."""
        with self._lock:
            counted = [*self._counts.items()]
            if self._others:
                counted.append((OTHERS, self._others))
        return tuple(Attempt(address, count) for address, count in counted)


class Watcher:
    """The thread that answers for one sandbox; ends with the last process inside, or by
    :meth:`stop`.
    """

    def __init__(self, fd: int) -> None:
        """``fd``, the listener, belongs to the watcher from here on."""
        self._record = Record()
        with ExitStack() as undo:
            undo.callback(os.close, fd)
            # The thread holds no reference to this object: one that is forgotten closes its end,
            # and the thread goes.
            self._stop, stopped = socket.socketpair()
            undo.callback(self._stop.close)
            undo.callback(stopped.close)
            arguments = (fd, notify.Listener(fd), stopped, self._record)
            # A daemon: an interpreter that ends must not wait for a sandbox nobody closed.
            self._thread = threading.Thread(
                target=_serve, args=arguments, name="minisandbox-watcher", daemon=True
            )
            self._thread.start()
            undo.pop_all()  # the thread closes its own

    def attempts(self) -> tuple[Attempt, ...]:
        """Every call that the kernel has gone on with is in it."""
        return self._record.attempts()

    def go_on_from(self, attempts: tuple[Attempt, ...]) -> None:
        """Count on from what another watcher has counted, before anything runs in the sandbox."""
        for attempt in attempts:
            self._record.add(attempt.address, attempt.count)

    def stop(self) -> None:
        """End the thread, when the sandbox has ended: calls still waiting would fail."""
        self._stop.close()
        self._thread.join()


def _serve(fd: int, listener: notify.Listener, stopped: socket.socket, record: Record) -> None:
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.register(stopped, select.POLLIN)
        while True:
            events = dict(poller.poll())
            if stopped.fileno() in events:
                return
            if not events.get(fd, 0) & select.POLLIN:
                return  # POLLHUP: no process is left that the filter applies to
            notification = listener.receive()
            if notification is not None:
                _answer(listener, notification, record)
    finally:
        os.close(fd)
        stopped.close()


def _answer(listener: notify.Listener, notification: notify.Notification, record: Record) -> None:
    length = min(notification.length, notify.LONGEST_ADDRESS)
    try:
        address = linux.read_memory(notification.thread, notification.address, length)
    except OSError:
        address = b""  # a bad pointer, which the kernel refuses, or a program closed to the caller
    # Checked after reading: a thread id may by now be another process's.
    if listener.is_valid(notification):
        record.add(describe(address))
    listener.let_continue(notification)
