"""Relaying the caller's terminal to one inside a sandbox."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import threading
import tty
from collections.abc import Generator
from contextlib import contextmanager

from minisandbox.sandbox import wire

_END_OF_INPUT = b"\x04"
#: Milliseconds between two ends of input.
_END_AGAIN_MS = 300
_CHUNK = 1 << 12


def size() -> tuple[int, int]:
    """Rows and columns of the caller's terminal, or 24 x 80."""
    try:
        columns, rows = os.get_terminal_size(_fd(sys.stdin, 0))
    except OSError:
        return 24, 80
    return rows or 24, columns or 80


def _fd(stream: object, default: int) -> int:
    try:
        return stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return default


@contextmanager
def _raw(fd: int) -> Generator[None, None, None]:
    """Pass every key on unread; the terminal gets its settings back however this ends."""
    if not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def _following_size(master: int) -> Generator[None, None, None]:
    """Give the inner terminal each new size of the outer one (signals reach the main thread
    only).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def resize(*_: object) -> None:
        rows, columns = size()
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    before = signal.signal(signal.SIGWINCH, resize)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


class _Keyboard:
    """What is still to be typed: never written blockingly, for the inner side may itself be waiting
    for its output to be read.
    """

    def __init__(self, source: int, master: int) -> None:
        self.source = source
        self.master = master
        self.pending = b""
        self.ended = False

    def read(self) -> None:
        """Take what the caller typed, or note that there will be no more."""
        data = os.read(self.source, _CHUNK)
        self.pending += data
        self.ended = not data

    def write(self) -> None:
        """Type as much as the inner terminal takes now."""
        try:
            self.pending = self.pending[os.write(self.master, self.pending) :]
        except BlockingIOError:
            pass
        except OSError:  # EIO: nobody is left to read it
            self.pending, self.ended = b"", False

    def end(self) -> None:
        """Type the end of input: again and again, for a program that is just changing the mode of
        its terminal loses what was typed before.
        """
        if self.ended and not self.pending:
            self.pending = _END_OF_INPUT
            self.write()


def relay(master: int, channel: socket.socket) -> list[str]:
    """Copy both ways until the program inside ends; returns the monitor's last packet. Closes
    ``master``.
    """
    source, sink = _fd(sys.stdin, 0), _fd(sys.stdout, 1)
    os.set_blocking(master, False)
    keyboard = _Keyboard(source, master)
    try:
        with _raw(source), _following_size(master):
            screen = True
            while True:
                poller = select.poll()
                poller.register(channel.fileno(), select.POLLIN)
                if not keyboard.ended and len(keyboard.pending) < _CHUNK:
                    poller.register(source, select.POLLIN)
                events = select.POLLIN if screen else 0
                if events or keyboard.pending:
                    poller.register(master, events | (select.POLLOUT if keyboard.pending else 0))
                ready = dict(poller.poll(_END_AGAIN_MS if keyboard.ended else None))
                if not ready:
                    keyboard.end()
                if ready.get(master, 0) & select.POLLOUT:
                    keyboard.write()
                if ready.get(master, 0) & ~select.POLLOUT:
                    screen = _copy(master, sink)
                if source in ready:
                    keyboard.read()
                if channel.fileno() in ready:
                    fields, _ = wire.receive(channel)
                    _drain(master, sink)
                    return fields
    finally:
        os.close(master)


def _copy(master: int, sink: int) -> bool:
    try:
        data = os.read(master, 1 << 16)
    except BlockingIOError:
        return True
    except OSError:  # EIO: every process on the inner terminal is gone
        return False
    _write(sink, data)
    return bool(data)


def _drain(master: int, sink: int) -> None:
    poller = select.poll()
    poller.register(master, select.POLLIN)
    for _ in range(64):  # a process left in the background may print for ever
        if not poller.poll(0) or not _copy(master, sink):
            return


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
