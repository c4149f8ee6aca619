"""What the sources of all instances of a repository take, packed together.

    python benchmarks/sources.py rows.parquet --mirror matplotlib/matplotlib=/srv/matplotlib.git

``rows.parquet`` is a dataset with ``repo`` and ``base_commit``, the mirrors are bare repositories
that have these commits. Each commit is checked out as an instance's, without its past, and all of a
repository are packed alone in a temporary store. ``benchmarks/storage.py`` extrapolates from a few
that lie years apart; here nothing is. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import cast

import pandas
from tqdm import tqdm

from minisandbox.build.checkouts.checkout import make_checkout
from minisandbox.errors import StageFailed
from minisandbox.idmap import current, remove_tree
from minisandbox.sandbox import Limits
from minisandbox.store import Store
from minisandbox.store.packs.consolidation import consolidate
from minisandbox.store.packs.writing import DEFAULT_LEVEL


def main() -> int:
    """Measure, and print a table; the last line is one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--mirror", action="append", required=True, metavar="REPO=FOLDER")
    parser.add_argument("--work", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--level", type=int, default=DEFAULT_LEVEL, help="of zstd in the packs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    table = pandas.read_parquet(arguments.rows, columns=["repo", "base_commit"])
    rows = cast("list[dict[str, str]]", table.to_dict("records"))
    answer: dict[str, object] = {"level": arguments.level}
    print("| repository | commits | alone | together | each |\n|---|---|---|---|---|")
    for given in arguments.mirror:
        repo, _, mirror = given.partition("=")
        commits = sorted({row["base_commit"] for row in rows if row["repo"] == repo})
        if not commits:
            raise SystemExit(f"{arguments.rows} has no row of {repo!r}")
        with tempfile.TemporaryDirectory(dir=arguments.work) as work:
            sizes, together = _measure(
                Path(mirror), commits, Path(work), arguments.level, arguments.jobs
            )
        number, alone = len(sizes), sum(sizes)
        each = together / max(1, number)
        print(f"| {repo} | {number} | {alone:,} | {together:,} | {each:,.0f} |", flush=True)
        answer[repo] = {
            "commits": number,
            "commits_asked_for": len(commits),
            "bytes_alone": alone,
            "bytes_together": together,
        }
    print(json.dumps(answer))
    return 0


def _measure(
    mirror: Path, commits: Sequence[str], work: Path, level: int, jobs: int
) -> tuple[list[int], int]:
    """Bytes of each source compressed alone, and of all packed together."""
    node, place = work / "node", work / "store"
    try:
        with ProcessPoolExecutor(jobs) as pool:
            made = pool.map(partial(_check_out, mirror, place, node), commits)
            sizes = [size for size in tqdm(made, total=len(commits), disable=None) if size]
        consolidate(Store(place), level=level)
    finally:
        remove_tree(node, current())
    return sizes, sum(path.stat().st_size for path in (place / "packs").iterdir())


def _check_out(mirror: Path, place: Path, node: Path, commit: str) -> int:
    """Bytes of the layer; 0, and a sentence, where the mirror lacks something of the commit."""
    os.environ["MINISANDBOX_NODE_STORE"] = os.fspath(node)
    try:
        checkout = make_checkout(
            mirror,
            commit,
            history="none",
            store=Store(place),
            log=place.parent / f"{commit}.log",
            name=commit[:12],
            url=os.fspath(mirror),
            clone="benchmark",
            limits=Limits(),
        )
    except StageFailed as error:
        print(f"not measured: {commit}: {error}", file=sys.stderr)
        return 0
    return checkout.layer.size


if __name__ == "__main__":
    sys.exit(main())
