"""Collecting what a command prints, in bounded memory and without waiting for the end of a pipe."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import termios
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from minisandbox.errors import InvalidInput
from minisandbox.sandbox import arguments, wire
from minisandbox.sandbox.steps import Cancelled, Steps, Wait

_CHUNK = 1 << 18
#: Seconds a monitor gets to end a tree before PID 1 does it (a command can stop its monitor).
KILL_PATIENCE = 15.0


class Stream:
    """The beginning and the end of a stream, at most ``limit`` bytes in all; all of it in
    ``whole``.
    """

    def __init__(
        self,
        limit: int,
        watch: Callable[[bytes], None] | None = None,
        whole: BinaryIO | None = None,
    ) -> None:
        self._watch = watch
        self._whole = whole
        self._head_room = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail: deque[bytearray] = deque()
        self._tail_size = 0
        self.dropped = 0

    def add(self, data: bytes) -> None:
        """Append ``data``; what falls out of the middle is counted."""
        if not data:
            return
        if self._watch is not None:
            self._watch(data)
        if self._whole is not None:
            try:
                self._whole.write(data)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._whole.name) from error
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
    """How a request ended: the monitor's last packet, or no fields if it died or kept silent.

    ``cancelled`` says that the caller is to be told by :class:`Cancelled`.
    """

    def __init__(self, fields: list[str], *, timed_out: bool, cancelled: bool) -> None:
        self.fields = fields
        self.timed_out = timed_out
        self.cancelled = cancelled


@contextmanager
def open_streams(
    *,
    merged: bool,
    limit: int,
    watch: Callable[[str, bytes], None] | None,
    stdout_file: Path | None,
    stderr_file: Path | None,
) -> Generator[list[Stream], None, None]:
    """The streams of one command; raises ``OSError`` for a file that cannot be written."""
    limit = arguments.size("max_output", limit)
    arguments.function("on_output", watch)
    if merged and stderr_file is not None:
        raise InvalidInput(
            "stderr_file", "has no stream with merge_stderr", "both are in stdout_file"
        )
    files = {"stdout": stdout_file} if merged else {"stdout": stdout_file, "stderr": stderr_file}
    paths = {
        name: None if path is None else arguments.host_path(f"{name}_file", path)
        for name, path in files.items()
    }
    with ExitStack() as stack:
        yield [
            Stream(
                limit,
                partial(watch, name) if watch is not None else None,
                stack.enter_context(open(path, "wb")) if path is not None else None,
            )
            for name, path in paths.items()
        ]


def collect(
    channel: socket.socket,
    pipes: list[int],
    streams: list[Stream],
    deadline: float | None,
    stop: tuple[str, ...] = ("kill",),
) -> Steps[Ended]:
    """Read until the monitor reports the end; closes ``pipes``.

    When ``deadline`` (monotonic) passes, or the caller cancels, the monitor is sent ``stop``, upon
    which it ends the command's whole tree. A monitor that does not answer even that is given up
    after ``KILL_PATIENCE`` seconds: the fields are then empty.
    """
    by_fd = dict(zip(pipes, streams, strict=True))
    for fd in pipes:
        os.set_blocking(fd, False)
    timed_out, cancelled = False, False
    try:
        while True:
            try:
                ready = yield Wait((channel.fileno(), *by_fd), deadline)
            except Cancelled:
                if cancelled:
                    raise
                cancelled, ready = True, set[int]()
                deadline = deadline if timed_out else 0.0
            if channel.fileno() in ready:
                fields, _ = wire.receive(channel)
                for fd, stream in by_fd.items():
                    _read_what_is_there(fd, stream)
                return Ended(fields, timed_out=timed_out, cancelled=cancelled)
            if deadline is not None and time.monotonic() >= deadline:
                if timed_out:
                    return Ended([], timed_out=True, cancelled=cancelled)
                timed_out, deadline = True, time.monotonic() + KILL_PATIENCE
                _tell(channel, stop)
            for fd in ready:
                if not _read_once(fd, by_fd[fd]):
                    os.close(fd)
                    del by_fd[fd]
    finally:
        for fd in by_fd:
            os.close(fd)


def _tell(channel: socket.socket, packet: tuple[str, ...]) -> None:
    try:
        wire.send(channel, *packet)
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
