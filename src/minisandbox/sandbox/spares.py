"""Starters that the server holds ready: the half of a start that takes longest is done before
anybody asks.

Those kept are of the kinds that were asked for last, for a client asks for the same again and
again.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import time

from minisandbox.sandbox import wire

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from minisandbox.sandbox.box import Box
    from minisandbox.sandbox.limits.keeper import Reservation

#: What of a spec a starter must know before it gets its orders.
_KIND = ("kind", "ids", "uids", "gids", "network")
#: The limits for which something is reserved.
_RESERVED = ("memory", "cpus", "processes")
#: How many are kept: a fork takes two of a kind, and a client may alternate between two kinds.
_MOST = 2
#: Milliseconds without a request before one is prepared: the first command of the last sandbox
#: should not have to share the processors with it.
_PAUSE = 10
#: A user who may have fewer processes than this (``ulimit -u``) would miss the six of two spares,
#: and programs in the sandboxes with them.
_ROOM = 512
#: Seconds without a start after which all are let go: a client may live for days.
_IDLE = 60.0


def kind_of(spec: dict[str, Any]) -> dict[str, Any]:
    """What of ``spec`` decides how its sandbox is prepared."""
    return {name: spec[name] for name in _KIND}


class Start:
    """A starter, with or without a sandbox to start yet, and the PID 1 that it makes."""

    def __init__(self, reservation: Reservation) -> None:
        """Raises ``OSError`` where no more sockets can be had."""
        self.reservation = reservation
        self.pid = 0
        #: What it starts, once that is known.
        self.box: Box | None = None
        #: How PID 1 ended, if it did before the starter.
        self.code: int | None = None
        self._init = 0
        self.orders, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        #: The starter's ends: for its orders, and of the link to PID 1.
        self.theirs = [orders]
        try:
            #: Connected to PID 1.
            self.link, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            self.orders.close()
            orders.close()
            raise
        self.theirs.append(link)

    def began(self) -> None:
        """The starter holds its own ends now."""
        for end in self.theirs:
            end.close()

    def order(self, path: str, spec: int, control: int) -> None:
        """Have it start a sandbox at ``path``; raises ``OSError`` where it was killed."""
        # Whoever stopped one, or its PID 1, did not know that somebody would wait for it. Both are
        # there, or were not collected: no other process has their numbers.
        for pid in (self.pid, self.init):
            if pid:
                os.kill(pid, signal.SIGCONT)
        with self.orders:
            wire.send(self.orders, "start", path, fds=[spec, control])

    @property
    def init(self) -> int:
        """The process id of PID 1; 0 while there is none. It is known before PID 1 can become this
        process's child.
        """
        if not self._init:
            try:
                self._init = int.from_bytes(self.link.recv(4, socket.MSG_DONTWAIT), "little")
            except BlockingIOError:
                pass
        return self._init

    @property
    def alive(self) -> bool:
        """Whether it can be given orders."""
        return wire.is_connected(self.orders)

    def dismiss(self) -> None:
        """There will be no orders: it ends, and its PID 1 with it."""
        self.orders.close()
        os.kill(self.pid, signal.SIGCONT)  # it may be stopped, and the server waits for its end

    def close(self) -> None:
        """It has ended, or never began."""
        for end in (self.orders, self.link, *self.theirs):
            end.close()


class Spares:
    """The spare starters of one server. ``prepare`` makes one for a spec."""

    def __init__(self, prepare: Callable[[dict[str, Any]], Start]) -> None:
        self._prepare = prepare
        #: Each with what it is for, those that were prepared last at the end.
        self._ready: list[tuple[object, Start]] = []
        #: What was asked for last, while there should be more for it.
        self._wanted: dict[str, Any] | None = None
        self._asked = 0.0
        most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        self._has_room = most == resource.RLIM_INFINITY or most >= _ROOM

    def take(self, spec: dict[str, Any]) -> Start:
        """A starter for ``spec``, a spare one where there is one."""
        self._wanted = spec if self._has_room else None
        self._asked = time.monotonic()
        key = _key(spec)
        for position, (other, spare) in enumerate(self._ready):
            if other == key and spare.alive:
                del self._ready[position]
                return spare
        try:
            return self._prepare(spec)
        except OSError:
            self.close()
            raise

    def wait(self) -> int | None:
        """Milliseconds without requests after which :meth:`stand_by` is to be called; None if there
        is no need to.
        """
        if self._wanted is not None:
            return _PAUSE
        if not self._ready:
            return None
        return max(0, int((self._asked + _IDLE - time.monotonic()) * 1000) + 1)

    def stand_by(self) -> None:
        """Prepare one of the kind that was asked for last, at the cost of another kind's; let all
        of them go when nothing was asked for a long time.
        """
        spec = self._wanted
        if spec is None:
            if time.monotonic() - self._asked >= _IDLE:
                self.close()
            return
        key = _key(spec)
        others = [position for position, (other, _) in enumerate(self._ready) if other != key]
        mine = len(self._ready) - len(others)
        if mine and len(self._ready) >= _MOST:
            self._wanted = None
            return
        try:
            self._ready.append((key, self._prepare(spec)))
        except OSError:
            self._wanted = None  # the host is short of something: the next start says so
            return
        if len(self._ready) > _MOST:
            _, spare = self._ready.pop(others[0])
            spare.dismiss()

    def forget(self, start: Start) -> None:
        """A spare has ended."""
        ready = [(key, spare) for key, spare in self._ready if spare is not start]
        if len(ready) < len(self._ready):
            # Nobody told it to, and the next may fare no better: until somebody asks again.
            self._wanted = None
        self._ready = ready

    def close(self) -> None:
        """Let all of them end. They hold some of whatever the host may be short of."""
        self._wanted = None
        for _, spare in self._ready:
            spare.dismiss()
        self._ready = []


def _key(spec: dict[str, Any]) -> object:
    """Equal for specs that a starter can be prepared for alike."""
    limits = spec["limits"]
    return tuple(spec[name] for name in _KIND), tuple(limits[name] for name in _RESERVED)
