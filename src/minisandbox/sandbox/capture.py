"""Collecting what a command prints, in bounded memory and without waiting for the end of a pipe."""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import termios
import time
from collections import deque
from collections.abc import Callable

from minisandbox.sandbox import wire

_CHUNK = 1 << 18
#: Seconds: poll(2) counts milliseconds in an int, which 25 days overflow.
LONGEST_WAIT = 86_400.0
#: Seconds a monitor gets to end a tree before PID 1 does it (a command can stop its monitor).
KILL_PATIENCE = 15.0


class Stream:
    """The beginning and the end of a stream, at most ``limit`` bytes in all."""

    def __init__(self, limit: int, watch: Callable[[bytes], None] | None = None) -> None:
        self._watch = watch
        self._head_room = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail: deque[bytearray] = deque()
        self._tail_size = 0
        self.dropped = 0

    def add(self, data: bytes) -> None:
        """Append ``data``; what falls out of the middle is counted."""
        if self._watch is not None and data:
            self._watch(data)
        if self._head_room:
            self._head += data[: self._head_room]
            taken = min(len(data), self._head_room)
            self._head_room -= taken
            data = data[taken:]
        if not data:
            return
        if self._tail and len(self._tail[-1]) < _CHUNK:
            self._tail[-1] += data  # many tiny writes must not become many objects
        else:
            self._tail.append(bytearray(data))
        self._tail_size += len(data)
        while self._tail_size > self._tail_limit:
            oldest = self._tail.popleft()
            excess = min(self._tail_size - self._tail_limit, len(oldest))
            self._tail_size -= excess
            self.dropped += excess
            if excess < len(oldest):
                self._tail.appendleft(oldest[excess:])

    def content(self) -> bytes:
        """Everything kept, with a line in the middle that tells what is missing."""
        marker = b"\n[... %d bytes left out ...]\n" % self.dropped if self.dropped else b""
        return bytes(self._head) + marker + b"".join(self._tail)


class Ended:
    """How a request ended: ``exit`` with a code, ``error`` with its fields, or None if the monitor
    died.
    """

    def __init__(self, fields: list[str], *, timed_out: bool) -> None:
        self.fields = fields
        self.timed_out = timed_out


def collect(
    channel: socket.socket, pipes: list[int], streams: list[Stream], deadline: float | None
) -> Ended:
    """Read until the monitor reports the end; closes ``pipes``.

    When ``deadline`` (monotonic) passes, the monitor is told to end the command's whole tree. A
    monitor that does not answer even that is given up after ``KILL_PATIENCE`` seconds: the fields
    are then empty.
    """
    poller = select.poll()  # not select(): descriptors may be above 1023
    poller.register(channel, select.POLLIN)
    by_fd = dict(zip(pipes, streams, strict=True))
    for fd in pipes:
        os.set_blocking(fd, False)
        poller.register(fd, select.POLLIN)
    timed_out = False
    try:
        while True:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = {fd for fd, _ in poller.poll(None if wait is None else _milliseconds(wait))}
            if channel.fileno() in ready:
                fields, _ = wire.receive(channel)
                for fd, stream in by_fd.items():
                    _read_what_is_there(fd, stream)
                return Ended(fields, timed_out=timed_out)
            if deadline is not None and time.monotonic() >= deadline:
                if timed_out:
                    return Ended([], timed_out=True)
                timed_out, deadline = True, time.monotonic() + KILL_PATIENCE
                _tell_to_kill(channel)
            for fd in ready:
                if not _read_once(fd, by_fd[fd]):
                    poller.unregister(fd)
                    os.close(fd)
                    del by_fd[fd]
    finally:
        for fd in by_fd:
            os.close(fd)


def _milliseconds(seconds: float) -> float:
    return min(seconds, LONGEST_WAIT) * 1000


def _tell_to_kill(channel: socket.socket) -> None:
    try:
        wire.send(channel, "kill")
    except OSError:
        pass  # it ended this moment; its last packet is still to be read


def _read_once(fd: int, stream: Stream) -> bool:
    try:
        data = os.read(fd, _CHUNK)
    except BlockingIOError:
        return True
    stream.add(data)
    return bool(data)


def _read_what_is_there(fd: int, stream: Stream) -> None:
    # The shell wrote before it ended, so all of its output is in the pipe now. Only as much as
    # that: a process left in the background may be writing for ever.
    size = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, size)
    left = size[0]
    while left > 0:
        try:
            data = os.read(fd, min(left, _CHUNK))
        except BlockingIOError:
            return
        if not data:
            return
        stream.add(data)
        left -= len(data)
