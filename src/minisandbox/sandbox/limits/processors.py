"""Which processors a sandbox runs on.

By affinity, so that ``nproc`` and every runtime that asks the kernel start as many workers as there
are processors for them. A program may widen its affinity again (sched_setaffinity(2) has no bound
but a cpuset); the watchdog narrows it, and where there is a cgroup of version 2 its quota holds.
"""

from __future__ import annotations

import errno
import os


class Spread:
    """Hands out processors of this host, the least used ones first."""

    def __init__(self, allowed: set[int]) -> None:
        self._used = dict.fromkeys(sorted(allowed), 0)
        # Each client has a server of its own, and all of them would begin with processor 0.
        self._turn = int.from_bytes(os.urandom(2), "little")

    def take(self, count: int | None) -> list[int]:
        """``count`` processors, or all; to be given back."""
        numbers = list(self._used)
        turn = self._turn % len(numbers)
        self._turn += 1
        numbers = numbers[turn:] + numbers[:turn]
        numbers.sort(key=self._used.__getitem__)  # stable: ties go round
        taken = sorted(numbers[: len(numbers) if count is None else count])
        for number in taken:
            self._used[number] += 1
        return taken

    def give_back(self, taken: list[int]) -> None:
        """End the use of processors that :meth:`take` gave."""
        for number in taken:
            self._used[number] -= 1


def visible(count: int | None) -> int:
    """How many processors a sandbox limited to ``count`` sees when it is started from here."""
    allowed = len(os.sched_getaffinity(0))
    return allowed if count is None else min(count, allowed)


def narrow(threads: list[int], processors: list[int]) -> bool:
    """Bring threads (host ids) that left ``processors`` back; whether there were any."""
    allowed = set(processors)
    found = False
    for thread in threads:
        try:
            if os.sched_getaffinity(thread) - allowed:
                os.sched_setaffinity(thread, allowed)
                found = True
        except OSError as error:
            # It has ended, or the host has just taken these processors away.
            if error.errno not in (errno.ESRCH, errno.EINVAL):
                raise
    return found
