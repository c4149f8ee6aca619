"""The kernel's way to report system calls to another process: filter, notifications, answers.

A process installs the filter for itself and all it starts, and gets a descriptor, the listener,
which it hands to whoever shall be asked (seccomp_unotify(2)). Layouts are those of linux/seccomp.h,
of 64-bit little-endian machines.
"""

from __future__ import annotations

import errno
import fcntl
import struct
from dataclasses import dataclass

from minisandbox import linux
from minisandbox.sandbox.seccomp import bpf
from minisandbox.sandbox.seccomp.numbers import ARCHITECTURES, NUMBERS

# _IOWR('!', 0, struct seccomp_notif), _IOWR('!', 1, struct seccomp_notif_resp), _IOW('!', 2, u64)
_IOCTL_RECEIVE = 0xC0502100
_IOCTL_SEND = 0xC0182101
_IOCTL_IS_VALID = 0x40082102
_FLAG_CONTINUE = 1

#: struct seccomp_notif: id, pid, flags, then seccomp_data: nr, arch, instruction, six arguments.
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
#: struct seccomp_notif_resp: id, value, error, flags.
_ANSWER = struct.Struct("=QqiI")

_CONNECT = frozenset(numbers["connect"] for numbers in NUMBERS.values())

#: sizeof(struct sockaddr_storage): the longest address the kernel takes.
LONGEST_ADDRESS = 128


def report_connections(machine: str) -> bytes:
    """A filter that reports connect(2), and sendto(2) with an address; the rest is not slowed.

    ``machine`` is that of uname(2); the answer is empty where its numbers are not known. Programs
    of another architecture on the same kernel (32-bit ones) pass unseen, as far as they are let.
    """
    if machine not in NUMBERS:
        return b""
    numbers = NUMBERS[machine]
    with_address = bpf.ALLOW
    for half in (bpf.low_half(4), bpf.high_half(4)):
        with_address = bpf.load(half, bpf.if_equal(0, with_address, bpf.NOTIFY))
    sendto = bpf.if_equal(numbers["sendto"], with_address, bpf.ALLOW)
    by_number = bpf.load(bpf.NUMBER, bpf.if_equal(numbers["connect"], bpf.NOTIFY, sendto))
    own = bpf.if_equal(ARCHITECTURES[machine], by_number, bpf.ALLOW)
    return bpf.assemble(bpf.load(bpf.ARCHITECTURE, own))


@dataclass(frozen=True)
class Notification:
    """A system call that waits for an answer.

    ``thread`` is the caller's thread id in the pid namespace of who reads this; ``address`` and
    ``length`` are where it says that the socket address lies, in its own memory.
    """

    number: int
    thread: int
    address: int
    length: int


class Listener:
    """The descriptor that :func:`linux.install_reporting_filter` returned, wherever it is now."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # A newer kernel writes more than this knows; less is not possible.
        notification, answer = linux.notification_sizes()
        self._room = max(notification, _NOTIFICATION.size)
        self._padding = bytes(max(answer - _ANSWER.size, 0))

    def receive(self) -> Notification | None:
        """The next call that waits; None when its process ended meanwhile. Poll first."""
        buffer = bytearray(self._room)  # all zero, or the kernel refuses it
        if not self._ioctl(_IOCTL_RECEIVE, buffer):
            return None
        fields = _NOTIFICATION.unpack_from(buffer)
        number, thread, call, arguments = fields[0], fields[1], fields[3], fields[6:]
        address, length = arguments[1:3] if call in _CONNECT else arguments[4:6]
        return Notification(number, thread, address, length & 0xFFFFFFFF)

    def is_valid(self, notification: Notification) -> bool:
        """Whether the call still waits: only then its thread id still names the same thread."""
        return self._ioctl(_IOCTL_IS_VALID, bytearray(struct.pack("=Q", notification.number)))

    def let_continue(self, notification: Notification) -> None:
        """The kernel goes on with the call as if it had not been reported; a dead caller is
        fine.
        """
        answer = _ANSWER.pack(notification.number, 0, 0, _FLAG_CONTINUE)
        self._ioctl(_IOCTL_SEND, bytearray(answer + self._padding))

    def _ioctl(self, code: int, buffer: bytearray) -> bool:
        while True:
            try:
                fcntl.ioctl(self._fd, code, buffer)
                return True
            except InterruptedError:
                continue  # by a signal of the client: unlike most of Python, ioctl does not retry
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
                return False
