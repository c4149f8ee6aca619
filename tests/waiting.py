"""Waiting for what happens a moment later, in processes that tests do not control."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(claim: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether ``claim`` becomes true; the bound only says that it does not hang."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if claim():
            return True
        time.sleep(0.02)
    return claim()
