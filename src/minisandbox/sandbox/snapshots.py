"""States of a sandbox that others start from: sealed or copied upper directories.

A snapshot names a stack of layers of which nothing is written any more. Invariant: a directory is
removed when the last sandbox that stands on it and the last snapshot that names it are closed, or
with the server, whichever is first.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minisandbox.closing import Closing, Shared
from minisandbox.sandbox.connection import Server

#: ``sealed``: nothing ran, so the upper directory was left as it is, and the sandbox goes on above
#: it. ``copied``: processes were stopped, the upper directory was copied, and they went on.
SnapshotWay = Literal["sealed", "copied"]
#: ``restarted``: all processes were ended, and PID 1 begins anew on the layers.
ResetWay = Literal["restarted"]


class Kept:
    """The directory of a sandbox without processes, counted by who needs it."""

    def __init__(self, server: Server, name: str, upper: Path) -> None:
        self.upper = upper
        self._server = server
        self._name = name
        self._users = 0
        self._lock = threading.Lock()

    @property
    def there(self) -> bool:
        """Whether it still is: not once its server was killed, since the next one removes it."""
        return self._server.alive

    def retain(self) -> Kept:
        """Need it, until :meth:`release`."""
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """Need it no longer; the last one has it removed."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            try:
                self._server.ask("close", self._name)
            except OSError:
                pass  # its server was killed: the next one removes what is left


class Snapshot(Closing):
    """What a sandbox held at one moment, for :meth:`Sandbox.start_from`; a context manager.

    ``way`` says how it was taken, ``seconds`` how long that took. Files only: processes, and what
    lies in /dev/shm, belong to the sandbox. Valid in the process that took it, and until
    :meth:`close`; sandboxes that were started from it do not need it any more.
    """

    def __init__(
        self,
        layers: Sequence[Path],
        kept: Sequence[Kept],
        way: SnapshotWay,
        seconds: float,
        lease: Shared | None = None,
    ) -> None:
        self.layers = tuple(layers)
        self.way: SnapshotWay = way
        self.seconds = seconds
        self._kept = tuple(part.retain() for part in kept)
        self._lease = lease.retain() if lease else None
        self._closed = False

    @property
    def uppers(self) -> tuple[Path, ...]:
        """What was changed since the sandbox was started, as directories for an overlay, the oldest
        first.
        """
        return tuple(part.upper for part in self._kept)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The directories that it needs, oldest first."""
        return self._kept

    @property
    def closed(self) -> bool:
        """Whether it can no longer be started from."""
        return self._closed

    def close(self) -> None:
        """Let go of its directories; harmless when done already."""
        if not self._closed:
            self._closed = True
            for part in self._kept:
                part.release()
            if self._lease is not None:
                self._lease.release()


@dataclass(frozen=True)
class Reset:
    """How a sandbox was put back to its layers, and how many seconds that took."""

    way: ResetWay
    seconds: float
