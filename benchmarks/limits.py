"""What the limits of a profile cost a start: with all of them, with none, and with one at a time.

    python benchmarks/limits.py [--rounds N]

Bare sandboxes, as whoever calls it. Each profile is started twice in each round: at once, when its
starter has yet to be made, and after a pause in which the server has prepared one. All profiles
take turns, so that a busy moment of the machine hits all. Nothing is written outside a temporary
directory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import fields, replace
from pathlib import Path
from statistics import median

from minisandbox.sandbox import Limits, Profile, Sandbox

#: What a limit is set to where the defaults have none.
_SECONDS = 3600.0
#: Seconds in which the server prepares the next start.
_PAUSE = 0.1
#: Of no profile that is measured.
_OTHER = 100


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
    rows: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in profiles()}
    other = Profile(network="host", limits=Limits(processes=_OTHER))
    with tempfile.TemporaryDirectory(prefix="limits-") as name:
        scratch = Path(name)
        for _ in range(rounds):
            for said, profile in profiles().items():
                # What the server has prepared by then is for another kind of sandbox.
                for _ in range(2):
                    Sandbox.start([], scratch=scratch, profile=other).close()
                    time.sleep(_PAUSE)
                rows[said][0].append(milliseconds(scratch, profile))
                time.sleep(_PAUSE)
                rows[said][1].append(milliseconds(scratch, profile))
    print("| limits | at once: fastest | median | prepared: fastest | median |")
    print("|---|---|---|---|---|")
    for said, found in rows.items():
        figures = [f"{figure:.1f}" for row in found for figure in (min(row), median(row))]
        print(f"| {said} | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
