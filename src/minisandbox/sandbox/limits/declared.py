"""The limits of a profile, as data: the same on every host, so never a share of this machine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from minisandbox.errors import InvalidInput

_MIB = 1 << 20
_GIB = 1 << 30

#: The least that makes sense of each: below it not even PID 1, a monitor and a shell fit.
_LEAST = {
    "memory": 64 * _MIB,
    "cpus": 1,
    "processes": 8,
    "disk": _MIB,
    "inodes": 64,
    "open_files": 32,
}
#: The most of any that the kernel takes everywhere: beyond it is no limit, only an error.
_MOST = 1 << 53
_NO_LIMIT = "None (in a file null) for no limit"

#: What part of the memory limit memory file systems may take at most, /dev/shm and an upper
#: directory in memory. Together they stay below the whole: what is in a file is not freed by ending
#: a process, so a sandbox that filled its memory with files could run nothing any more, not ``rm``.
_SHM, _SHM_SHARE = 1 * _GIB, 4
_UPPER_SHARE = 2


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use; None is no limit.

    ``memory`` in bytes, what its files in memory file systems take included. ``cpus`` is how many
    processors it runs on and sees (fewer where the host has fewer). ``processes`` counts threads
    too, as the kernel does. ``disk`` (bytes) and ``inodes`` bound what it writes to its upper
    directory. ``open_files`` is for each process. ``time`` is seconds of the sandbox's life.

    The defaults stop what runs away and let builds and test suites of the field pass: 8 GiB and 16
    GiB of disk are beyond what they were seen to take, four processors are what ``pytest -n auto``
    and ``make -j`` should start workers for when many sandboxes share a machine, 4,096 threads are
    room for several virtual machines of Java or Node, and 16,384 descriptors are beyond the tests
    that open thousands and below what old programs take seconds to close. How long a rollout may
    last is the caller's business: no ``time``.
    """

    memory: int | None = 8 * _GIB
    cpus: int | None = 4
    processes: int | None = 4096
    disk: int | None = 16 * _GIB
    inodes: int | None = 1_000_000
    open_files: int | None = 16_384
    time: float | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidInput(
                    "limits", f"{name} is {value!r}", f"give a whole number, or {_NO_LIMIT}"
                )
            if not least <= value <= _MOST:
                bound = f"{least} or more" if value < least else f"{_MOST} at most"
                raise InvalidInput("limits", f"{name} is {value}", f"use {bound}, or {_NO_LIMIT}")
        if self.time is not None and not _are_seconds(self.time):
            raise InvalidInput(
                "limits", f"time is {self.time!r}", f"give seconds above 0, or {_NO_LIMIT}"
            )

    def identity(self) -> dict[str, Any]:
        """What of it decides how code behaves: all of it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def loosest(several: Iterable[Limits]) -> Limits:
    """Limits under which all has room that has room under one of ``several``."""
    given = [limits.identity() for limits in several]
    widest: dict[str, Any] = {}
    for field in fields(Limits):
        values = [limits[field.name] for limits in given]
        widest[field.name] = None if None in values else max(values)
    return Limits(**widest)


def _are_seconds(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0


def memory_file_systems(limits: Limits, *, upper_in_memory: bool) -> dict[str, int]:
    """Sizes in bytes of the private memory file systems of a sandbox with these limits; 0 leaves
    one to the kernel.

    ``shm`` is /dev/shm. ``upper`` takes half of the memory limit at most, whatever ``disk`` allows.
    """
    if limits.memory is None:
        return {"shm": _SHM, "upper": limits.disk or 0}
    share = limits.memory // _UPPER_SHARE
    return {
        "shm": min(_SHM, limits.memory // _SHM_SHARE),
        "upper": min(share, limits.disk or share) if upper_in_memory else 0,
    }
