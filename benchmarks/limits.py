"""What the limits of a profile cost a start: with all of them, with none, and with one at a time.

    python benchmarks/limits.py [--rounds N]

Bare sandboxes, as whoever calls it. In each round every profile is measured once, so that a busy
moment of the machine hits all. Nothing is written outside a temporary directory.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import fields, replace
from pathlib import Path

from minisandbox.sandbox import Limits, Profile, Sandbox

#: What a limit is set to where the defaults have none.
_SECONDS = 3600.0


def profiles() -> dict[str, Profile]:
    """The profiles by what is said of them."""
    default = Limits()
    none = replace(default, **dict.fromkeys((field.name for field in fields(Limits)), None))
    single = {
        "only memory": replace(none, memory=default.memory),
        "only cpus": replace(none, cpus=default.cpus),
        "only processes": replace(none, processes=default.processes),
        "only disk": replace(none, disk=default.disk),
        "only inodes": replace(none, inodes=default.inodes),
        "only open_files": replace(none, open_files=default.open_files),
        "only time": replace(none, time=_SECONDS),
    }
    whole = {"the defaults": default, "none": none, **single}
    return {name: Profile(limits=limits) for name, limits in whole.items()}


def milliseconds(scratch: Path, profile: Profile) -> float:
    """Wall time of one start, to when PID 1 serves."""
    started = time.perf_counter()
    box = Sandbox.start([], scratch=scratch, profile=profile)
    took = (time.perf_counter() - started) * 1000
    box.close()
    return took


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    rounds: int = parser.parse_args().rounds
    rows: dict[str, list[float]] = {name: [] for name in profiles()}
    with tempfile.TemporaryDirectory(prefix="limits-") as name:
        scratch = Path(name)
        Sandbox.start([], scratch=scratch).close()  # starts the server, builds the skeleton
        for _ in range(rounds):
            for said, profile in profiles().items():
                rows[said].append(milliseconds(scratch, profile))
    print("| limits | fastest | median |\n|---|---|---|")
    for said, values in rows.items():
        print(f"| {said} | {min(values):.1f} | {statistics.median(values):.1f} |")


if __name__ == "__main__":
    main()
