"""How much of layers the processes of a node unpack at once, in bytes.

What loads a disk is the data on its way to it, not the number of those who write: twenty small
differences are nothing where two environments are enough. The budget is cut into tokens, which are
locked files, so that they come back from whoever is killed. A layer takes as many as its size
needs; one that is larger than the budget takes all and has the disk for itself.

Whoever takes tokens first holds the *turn*. So one process at a time gathers them: nobody holds
some while waiting for others that another gatherer holds, and small layers that come later cannot
keep a large one waiting.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from minisandbox import mounts
from minisandbox.sizes import size_from_environment
from minisandbox.store.locks import open_lock, try_flock, unlock

VARIABLE = "MINISANDBOX_IO_BUDGET"
#: Bytes of two usual environments.
DEFAULT_BUDGET = 1 << 30
#: Where ``minisandbox store calibrate`` writes what devices can take, below the root of a node
#: store.
CALIBRATION = "calibration.json"

_TOKENS = 32
#: Seconds between two looks at the tokens. ``flock`` cannot wait for one of several files.
_POLL = 0.02


def io_budget(root: Path) -> int:
    """Bytes that may be unpacked at once in the node store ``root``: ``$MINISANDBOX_IO_BUDGET``,
    else what was measured for its device, else 1 GiB. Raises ``InvalidInput``.
    """
    return size_from_environment(VARIABLE) or calibrated(root) or DEFAULT_BUDGET


def calibrated(root: Path) -> int | None:
    """What ``calibrate`` found for the device that ``root`` is on now, None if it did not."""
    try:
        data = json.loads((root / CALIBRATION).read_bytes())
        budget = data["devices"][device_of(root)]["budget"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none, or no longer of this form: then it is as if nobody had measured
    return budget if isinstance(budget, int) and budget > 0 else None


def device_of(directory: Path) -> str:
    """What tells one device from another: its numbers and the type of its file system."""
    device = os.stat(directory).st_dev
    kind, _ = mounts.file_system(directory)
    return f"{os.major(device)}:{os.minor(device)} {kind}"


@contextmanager
def granted(directory: Path, budget: int, size: int) -> Generator[None]:
    """Hold ``size`` bytes of the ``budget`` that all who name ``directory`` share; waits for them.

    Do not wait in the block for what somebody may hold who still waits for a part of the budget.
    """
    wanted = min(_TOKENS, max(1, -(-size * _TOKENS // budget)))
    held: list[int] = []
    try:
        turn = open_lock(directory / "turn.lock")
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            _gather(directory, wanted, held)
        finally:
            unlock(turn)
        yield
    finally:
        for fd in held:
            unlock(fd)


def _gather(directory: Path, wanted: int, held: list[int]) -> None:
    waiting: list[int] = []
    try:
        waiting += [open_lock(directory / f"token-{n:02}.lock") for n in range(_TOKENS)]
        while True:
            for fd in [*waiting]:
                if len(held) < wanted and try_flock(fd):
                    waiting.remove(fd)
                    held.append(fd)
            if len(held) == wanted:
                return
            time.sleep(_POLL * (0.5 + random.random()))
    finally:
        for fd in waiting:
            os.close(fd)
