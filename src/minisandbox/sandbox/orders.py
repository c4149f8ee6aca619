"""The file with which a sandbox is ordered: what it shall be, and how far its start has come.

A memory file that client, server, starter and PID 1 hold. Whoever is at work writes the name of the
step into it, which costs a microsecond; the client reads it when a start takes too long.
"""

from __future__ import annotations

import os

from minisandbox.sandbox import wire

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from typing import Any

#: Bytes at the beginning, for the name of a step.
_WIDTH = 16

#: The file of the sandbox that this process starts.
_followed = -1


def make(spec: dict[str, Any]) -> int:
    """A descriptor of the file for a sandbox."""
    return wire.memory_file("spec", bytes(_WIDTH) + wire.pack(spec))


def read(fd: int) -> dict[str, Any]:
    """What the sandbox shall be."""
    return wire.unpack(wire.read_all(fd)[_WIDTH:])


def follow(fd: int) -> dict[str, Any]:
    """Like :func:`read`, in a process that then does some of the steps."""
    global _followed
    _followed = fd
    return read(fd)


def at(step: str) -> None:
    """Say that ``step`` begins, which is one that ``refusals`` knows."""
    if _followed >= 0:
        os.pwrite(_followed, step.encode().ljust(_WIDTH, b"\0"), 0)


def step(fd: int) -> str:
    """What is being done; empty before the first step that follows orders."""
    return os.pread(fd, _WIDTH, 0).rstrip(b"\0").decode()
