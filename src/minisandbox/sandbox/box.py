"""One sandbox, as the server knows it."""

from __future__ import annotations

import os
import signal
import socket

from minisandbox.sandbox import scratch

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from typing import Any

    from minisandbox.sandbox.limits.keeper import Reservation
    from minisandbox.sandbox.spares import Start


class Box:
    """One sandbox: its directory, and the processes that the server waits for."""

    def __init__(self, spec: dict[str, Any], home: scratch.Home, name: str, path: str) -> None:
        self.spec = spec
        self.home = home
        self.name = name
        self.path = path
        #: What starts it, until that has ended.
        self.start: Start | None = None
        self.init = 0
        #: Whether a fork writes to its directory, which is not ended but waited for.
        self.filling = False
        #: Connected to PID 1.
        self.link: socket.socket | None = None
        #: What was set aside for it.
        self.reservation: Reservation | None = None
        #: How its PID 1 ended (negative: the signal); None while it has not.
        self.code: int | None = None
        #: Who wants to know that all its processes have ended.
        self.waiting: list[socket.socket] = []
        #: Who wants to know that its directory is gone; None while it shall stay.
        self.closing: list[socket.socket] | None = None

    @property
    def unwanted(self) -> bool:
        """Whether the client has asked for its end."""
        return self.closing is not None or bool(self.waiting)

    @property
    def alive(self) -> bool:
        """Whether a process of it may be left."""
        return self.start is not None or bool(self.init or self.filling)

    def kill(self) -> None:
        """End its processes; SIGCHLD comes when they are gone."""
        # Both are children that were not collected, so no other process has their numbers.
        for pid in (self.start.pid if self.start is not None else 0, self.init):
            if pid:
                os.kill(pid, signal.SIGKILL)
