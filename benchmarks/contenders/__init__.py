"""What is measured side by side: each contender once a round, one after the other.

A time is milliseconds of wall time. Of a peer it ends with the first bytes of output, before the
peer has ended and cleaned up; of ours with the end of the command, which comes later.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from minisandbox.runtime.instance import VENV

#: What every contender is asked first, and what each command after it is.
FIRST = ("/bin/sh", "-c", "echo x")
#: The environment's own interpreter; most of its time is Python's.
PYTHON = (f"{VENV}/bin/python", "-c", "print('x')")
ANSWER = b"x\n"


class Unavailable(Exception):
    """A peer that cannot be measured here, and why."""


class Contender(Protocol):
    """One way to get from nothing to the output of a command in an instance."""

    name: str

    def round(self) -> dict[str, float]:
        """Each of the contender's rows, measured once."""
        ...

    def close(self) -> None:
        """End what was left running between the rounds."""
        ...


def milliseconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


def first_output(argv: Sequence[str | Path], *, since: float | None = None) -> float:
    """Run a peer's program to its end; the time until it printed, from ``since`` or its start on.

    Raises ``Unavailable`` with the peer's own words when it does not answer as it should.
    """
    with tempfile.TemporaryFile() as complaints:
        started = time.perf_counter() if since is None else since
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints
        )
        assert process.stdout is not None
        with process.stdout as stdout:
            answer = os.read(stdout.fileno(), len(ANSWER))
            took = (time.perf_counter() - started) * 1000
            answer += stdout.read()
        code = process.wait()
        complaints.seek(0)
        said = complaints.read().decode("utf-8", "replace").strip()
    if code or answer != ANSWER:
        raise Unavailable(f"{argv[0]} ended with {code}: {said[-300:] or 'it said nothing'}")
    return took
