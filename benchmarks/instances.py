"""What the instances of a cache cost, and what their checkouts hold: one row each, as Markdown.

    python benchmarks/instances.py results [--git]

Seconds and bytes are those of the manifest. ``--git`` starts each instance, network ``none``, and
measures in it: the time of ``git status`` (the median of five, the first left out), the bytes that
``git show`` prints, and the newest date of any commit or tag object that is there at all, beside
that of the base commit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from minisandbox.records.manifest import ManifestRow
from minisandbox.runtime import Cache, open_cache

#: Every commit and tag object of the repository, reachable or not, with its newest date.
_NEWEST = (
    "git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)' "
    "| sed -n 's/^\\(commit\\|tag\\) //p' | git cat-file --batch "
    "| sed -n 's/^\\(committer\\|tagger\\) .*> \\([0-9]*\\) .*/\\2/p' | sort -n | tail -n 1"
)
_STAGES = ("environment", "checkout", "install", "pack", "validate")
_KINDS = ("interpreter", "environment", "source", "wheelhouse", "instance")


def main() -> int:
    """Print the tables; the last line is one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("cache", type=Path)
    parser.add_argument("--git", action="store_true", help="look into the checkouts as well")
    arguments = parser.parse_args()
    cache = open_cache(arguments.cache)
    rows = list(cache.rows())
    print(
        _table(
            ["instance", *(f"{name}, s" for name in _STAGES), "gold", "empty"], map(_times, rows)
        )
    )
    print(_table(["instance", *(f"{kind}, kB" for kind in _KINDS)], map(_sizes, rows)))
    if arguments.git:
        titles = ["instance", "git status, ms", "git show, bytes", "clean", "newest object <= base"]
        print(_table(titles, (_checkout(cache, row) for row in rows if row.layers)))
    resolved = [
        row.instance_id for row in rows if row.gold_resolved and row.empty_resolved is False
    ]
    print(json.dumps({"instances": len(rows), "gold_resolved_empty_not": len(resolved)}))
    return 0 if len(resolved) == len(rows) else 1


def _times(row: ManifestRow) -> list[str]:
    seconds = row.build_seconds
    cells = [getattr(seconds, name) for name in _STAGES]
    verdicts = [
        {True: "resolved", False: "unresolved", None: "not run"}[value]
        for value in (row.gold_resolved, row.empty_resolved)
    ]
    return [row.instance_id, *("-" if cell is None else f"{cell:.1f}" for cell in cells), *verdicts]


def _sizes(row: ManifestRow) -> list[str]:
    sizes = {layer.kind: layer.size for layer in row.layers}
    return [
        row.instance_id,
        *(f"{sizes[kind] / 1e3:,.0f}" if kind in sizes else "-" for kind in _KINDS),
    ]


def _checkout(cache: Cache, row: ManifestRow) -> list[str]:
    with cache.materialize(row.instance_id) as instance:
        durations = [instance.run(["git", "status", "--porcelain"]) for _ in range(6)]
        status = statistics.median(result.duration for result in durations[1:]) * 1e3
        shown = len(instance.run(["git", "show"], max_output=2**30).stdout)
        base = int(instance.run(["git", "show", "-s", "--format=%ct", row.base_commit]).text)
        newest = int(instance.run(_NEWEST).text)
    clean = all(result.exit_code == 0 and not result.stdout for result in durations)
    return [row.instance_id, f"{status:.0f}", f"{shown:,}", _yes(clean), _yes(newest <= base)]


def _yes(claim: bool) -> str:
    return "yes" if claim else "NO"


def _table(titles: list[str], rows: Iterable[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
