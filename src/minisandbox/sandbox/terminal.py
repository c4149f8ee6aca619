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


def relay(master: int, channel: socket.socket) -> list[str]:
    """Copy both ways until the program inside ends; returns the monitor's last packet. Closes
    ``master``.
    """
    source, sink = _fd(sys.stdin, 0), _fd(sys.stdout, 1)
    poller = select.poll()
    for fd in (source, master, channel.fileno()):
        poller.register(fd, select.POLLIN)
    try:
        with _raw(source), _following_size(master):
            while True:
                ready = {fd for fd, _ in poller.poll()}
                if master in ready and not _copy(master, sink):
                    poller.unregister(master)
                if source in ready and not _type(source, master):
                    poller.unregister(source)
                if channel.fileno() in ready:
                    fields, _ = wire.receive(channel)
                    _drain(master, sink)
                    return fields
    finally:
        os.close(master)


def _type(source: int, master: int) -> bool:
    data = os.read(source, 1 << 12)
    _write(master, data or _END_OF_INPUT)
    return bool(data)


def _copy(master: int, sink: int) -> bool:
    try:
        data = os.read(master, 1 << 16)
    except OSError:  # EIO: every process on the inner terminal is gone
        return False
    _write(sink, data)
    return bool(data)


def _drain(master: int, sink: int) -> None:
    os.set_blocking(master, False)
    for _ in range(64):  # a process left in the background may print for ever
        if not _copy(master, sink):
            return


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
