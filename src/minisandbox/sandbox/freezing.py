"""Stopping everything in a sandbox for a moment, the side inside.

By signals, which a program can see: a shell with job control that is stopped before its children
and continued after them does not notice that they were. A program that has a timer send it SIGCONT
is not held, and its files may be copied half-written; nothing else hangs on it (``copying``).
Invariant: what was stopped before stays stopped, and all else runs again, also when the client is
gone.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import time

from minisandbox.sandbox import processes, wire

#: Seconds in which everything must have stopped; a program that forks without end may not.
_PATIENCE = 10.0


def serve(channel: socket.socket) -> None:
    """Stop all processes but PID 1 and this one, say so, and let them go on when told, or when
    the client is gone. Raises ``OSError`` (EAGAIN) if they do not stop.
    """
    stopped: list[int] = []
    try:
        _stop_all(stopped)
        wire.send(channel, "frozen")
        channel.recv(1)
    finally:
        for pid in reversed(stopped):
            processes.send_signal(pid, signal.SIGCONT)


def _stop_all(stopped: list[int]) -> None:
    deadline = time.monotonic() + _PATIENCE
    me, asked = os.getpid(), set[int]()
    while True:
        # Parents first: a new process is below one that runs, so the next look finds it.
        below = [pid for pid in processes.descendants(1) if pid != me]
        running = [pid for pid in below if not processes.is_stopped(pid)]
        if not running:
            return
        for pid in running:
            if pid not in asked:
                asked.add(pid)
                stopped.append(pid)
            # Again and again: one that still runs may have let it go on.
            processes.send_signal(pid, signal.SIGSTOP)
        if time.monotonic() > deadline:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), "the processes of the sandbox")
        time.sleep(0.0005)
