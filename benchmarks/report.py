"""From the times of each round to a table for people and one JSON object for programs."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """What was measured, of whom, on which instance."""

    contender: str
    what: str
    subject: str


Times = Mapping[Row, Sequence[float]]


def median(times: Times, *row: str) -> float | None:
    """The median of a row in milliseconds; none if it was not measured."""
    values = times.get(Row(*row))
    return statistics.median(values) if values else None


def late(values: Sequence[float]) -> float:
    """The 95th percentile: what at most one in twenty exceeds."""
    return sorted(values)[max(0, -(-len(values) * 95 // 100) - 1)]


def table(times: Times) -> str:
    """All rows as Markdown, in milliseconds."""
    lines = [
        "| contender | what | instance | fastest | median | 95th percentile | rounds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, values in sorted(times.items(), key=_place):
        figures = f"{min(values):.1f} | {statistics.median(values):.1f} | {late(values):.1f}"
        lines.append(f"| {' | '.join(row)} | {figures} | {len(values)} |")
    return "\n".join(lines)


def _place(item: tuple[Row, Sequence[float]]) -> tuple[str, bool, float]:
    row, values = item
    return row.what, row.subject != "small", statistics.median(values)


def figures(times: Times) -> dict[str, float | None]:
    """Medians in milliseconds, and how many times as long a peer takes; none where one is
    missing.
    """

    def ours(what: str, subject: str = "small") -> float | None:
        return median(times, "minisandbox", what, subject)

    def ratio(peer: str, what: str, subject: str = "small") -> float | None:
        theirs, mine = median(times, peer, what, subject), ours(what, subject)
        return None if theirs is None or mine is None else theirs / mine

    return {
        "ours_first_command_ms": ours("first command"),
        "ours_first_command_large_ms": ours("first command", "large"),
        "ours_command_ms": ours("command"),
        "ours_reset_ms": ours("reset"),
        "ours_reset_and_command_ms": ours("reset and a command"),
        "ours_fork_ms": ours("fork"),
        "ours_fork_and_command_ms": ours("fork and a command"),
        "ours_close_ms": ours("close"),
        "ratio_first_command_vs_podman": ratio("podman", "first command"),
        "ratio_command_vs_podman": ratio("podman", "command"),
        "ratio_first_command_vs_bubblewrap": ratio("bubblewrap", "first command"),
        "ratio_first_command_vs_published_small": ratio("published method", "first command"),
        "ratio_first_command_vs_published_large": ratio(
            "published method", "first command", "large"
        ),
    }


def rounded(value: float | None) -> float | None:
    """Four significant digits: more is noise."""
    return None if value is None else float(f"{value:.4g}")


def surroundings() -> str:
    """Where this was measured."""
    peers = [
        subprocess.run([name, "--version"], capture_output=True, text=True, check=True).stdout
        for name in ("podman", "bwrap")
        if shutil.which(name)
    ]
    return ", ".join(
        [
            f"Linux {platform.release()}",
            f"Python {platform.python_version()}",
            f"{len(os.sched_getaffinity(0))} cores",
            f"load {os.getloadavg()[0]:.1f} at the start",
            *(peer.strip() for peer in peers),
        ]
    )
