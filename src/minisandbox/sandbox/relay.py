"""Passing a stream on to a reader that may be slow, or never read at all.

A reader that reads gets everything. Whoever writes is held up by one that does not for a second:
then of what has not been read the newest is kept, up to a limit, and a line takes the place of the
rest.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import termios
import time

_CHUNK = 1 << 16
#: Bytes below which a piece is joined with the one before: a million tiny writes must not become a
#: million objects.
_SMALL = 1 << 12
#: More bytes than a terminal holds.
_TERMINAL = 1 << 17
#: Seconds without a sign of the reader after which nobody waits for it.
_PATIENCE = 1.0


class Relay:
    """One stream from the descriptor ``source`` to ``sink``; both are closed when it is through.

    With ``limit`` None nothing is left out, and what cannot be passed on is not taken either.
    """

    def __init__(self, source: int, sink: int, limit: int | None) -> None:
        self._source = source
        self._sink = sink
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._dropped = 0
        self._over = False
        #: When the reader is given up, or was: set while it has read nothing since all was full.
        self._deadline = 0.0
        os.set_blocking(source, False)
        os.set_blocking(sink, False)

    @property
    def through(self) -> bool:
        """Whether everything that will ever be passed on has been."""
        return self._sink == -1

    def register(self, poller: select.poll) -> float | None:
        """Ask ``poller`` for what this relay waits for, for so many milliseconds at most."""
        wait = None
        if self._limit is None:
            full = bool(self._parts)
        else:
            full = self._size >= self._limit and not self._over
            if full and not self._deadline:
                self._deadline = time.monotonic() + _PATIENCE
            left = self._deadline - time.monotonic()
            full = full and left > 0
            wait = left * 1000 if full else None
        if self._source != -1 and not full:
            poller.register(self._source, select.POLLIN)
        if self._sink != -1 and (self._parts or self._dropped):
            poller.register(self._sink, select.POLLOUT)
        return wait

    def handle(self, ready: set[int]) -> None:
        """Read and write as far as the descriptors in ``ready`` allow without waiting."""
        if self._source in ready:
            self._take(_CHUNK)
        if self._sink in ready:
            self._give()
        self._settle()

    def finish(self) -> None:
        """Pass on what is in the stream now; what comes later is read and dropped."""
        if self._source != -1 and not self._over:
            if os.isatty(self._source):
                left = _TERMINAL  # the count would leave out what the kernel has yet to pass on
            else:
                size = array.array("i", [0])
                fcntl.ioctl(self._source, termios.FIONREAD, size)
                left = size[0]
            while left > 0 and self._source != -1:
                left -= self._take(min(left, _CHUNK))
        self._over = True
        self._settle()

    def abandon(self) -> None:
        """Pass nothing on any more."""
        for fd in {self._source, self._sink} - {-1}:
            os.close(fd)
        self._source = self._sink = -1
        self._parts, self._over = [], True

    def _take(self, size: int) -> int:
        """Read up to ``size`` bytes; returns how many fewer there are to read now."""
        try:
            data = os.read(self._source, size)
        except BlockingIOError:
            return size
        except OSError:  # EIO: every program on a terminal is gone
            data = b""
        if not data:
            os.close(self._source)
            self._source = -1
            self._over = True
            return size
        if not self._over and self._sink != -1:
            self._keep(data)
        return len(data)

    def _keep(self, data: bytes) -> None:
        if self._parts and len(self._parts[-1]) < _SMALL:
            self._parts[-1] += data
        else:
            self._parts.append(data)
        self._size += len(data)
        given_up = self._deadline and time.monotonic() >= self._deadline
        while given_up and self._limit is not None and self._size > self._limit:
            oldest = self._parts.pop(0)
            self._size -= len(oldest)
            self._dropped += len(oldest)

    def _give(self) -> None:
        if self._dropped:
            # A pipe that is writable takes at least PIPE_BUF bytes: this line is never cut.
            self._parts.insert(0, b"\n[... %d bytes left out ...]\n" % self._dropped)
            self._size += len(self._parts[0])
            self._dropped = 0
        try:
            while self._parts:
                count = os.write(self._sink, self._parts[0])
                self._deadline = 0.0
                self._size -= count
                self._parts[0] = self._parts[0][count:]
                if not self._parts[0]:
                    self._parts.pop(0)
        except BlockingIOError:
            pass
        except OSError:  # nobody will read it
            self._parts, self._size = [], 0
            self._over = True

    def _settle(self) -> None:
        if self._over and not self._parts and not self._dropped and self._sink != -1:
            os.close(self._sink)
            self._sink = -1
