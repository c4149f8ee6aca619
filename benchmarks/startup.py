"""How long a sandbox takes to start, to run a command, to be reset and forked, beside its peers.

    python benchmarks/startup.py [--rounds N] [--quick] [--work FOLDER] [--plot FILE.svg]

Two instances: the median one of the demo cache, and one with an environment of at least 300 MB,
which the pipeline builds on first use. Peers: podman, bubblewrap, and the published method (unpack
two archives per task, chroot). What is prepared (images, trees, archives, unpacked layers) is kept
in ``--work`` and not timed. Each round measures every contender once, in an order of its own, so
that a busy moment hits all; the page cache is warm. The last line is one JSON object; ``ratio_*``
is how many times as long the peer takes. A peer that is missing, or cannot run here, is null there,
with a line that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import report
import subjects
from chart import write_chart
from contenders import Contender, Unavailable
from contenders.bubblewrap import Bubblewrap
from contenders.ours import Ours
from contenders.podman import Podman
from contenders.published import Published, fastest
from crowd import crowd
from minisandbox import idmap, linux
from subjects import Subject

_SANDBOXES = 256
#: A round of the published method takes as long as dozens of the others: it takes part in every
#: so-manieth.
_SELDOM = 4
_UNIFIED = "/sys/fs/cgroup/unified"


def main() -> None:
    """Prepare, measure, print."""
    options = _options()
    if os.geteuid() == 0 and os.path.ismount(_UNIFIED):
        hide_unified_hierarchy()
    work: Path = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MINISANDBOX_NODE_STORE", str(work / "node"))
    trees = work / "trees"
    small = subjects.small(options.cache.resolve(), trees)
    large = subjects.large(work / "large", trees)
    where = report.surroundings()
    print(f"{where}; id map {idmap.current().kind}; everything lies in {work}.\n")
    for subject in (small, large):
        print(
            f"- {subject.name}: `{subject.instance_id}`, its environment holds "
            f"{subject.environment_bytes / 1e6:,.0f} MB"
        )
    contenders = _contenders(small, large, work, options.quick)
    rounds = 5 if options.quick else options.rounds
    try:
        times = _measure(contenders, rounds)
    finally:
        for _, contender in contenders:
            contender.close()
    many = crowd(small, _SANDBOXES, options.threads)
    print(f"\n{report.table(times)}\n")
    print(
        f"{_SANDBOXES} sandboxes from {options.threads} threads: up in {many.up_s:.2f} s, closed "
        f"in {many.close_s:.2f} s; {many.processes} processes; each sandbox "
        f"{many.pss_kib:,.0f} KiB proportional, {many.private_kib:,.0f} KiB private, all that "
        "started them included.\n"
    )
    if options.plot:
        _plot(options.plot, times, where)
    figures = {
        **report.figures(times),
        "sandboxes_256_s": many.up_s,
        "sandboxes_256_close_s": many.close_s,
        "pss_kib_per_sandbox": many.pss_kib,
        "private_kib_per_sandbox": many.private_kib,
    }
    print(json.dumps({name: report.rounded(value) for name, value in figures.items()}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="five rounds: does everything work?")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(f"/var/tmp/minisandbox-benchmark-{os.geteuid()}"),
        help="what is prepared, some 3 GB, kept for the next time (default: %(default)s)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=subjects.ROOT / "results",
        help="the demo cache, built if it is missing (default: results)",
    )
    parser.add_argument("--threads", type=int, default=4, help="that start the 256 sandboxes")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the medians as well")
    return parser.parse_args()


def hide_unified_hierarchy() -> None:
    """Be in a mount namespace of one's own without cgroup v2 beside v1.

    podman takes the mixture for v2 and fails to start. All contenders are measured in there.
    """
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_SLAVE)
    linux.umount(_UNIFIED)


def _contenders(
    small: Subject, large: Subject, work: Path, quick: bool
) -> list[tuple[Subject, Contender]]:
    found: list[tuple[Subject, Contender]] = [(small, Ours(small)), (large, Ours(large))]

    def add(subject: Subject, name: str, make: Callable[[], Contender]) -> None:
        try:
            found.append((subject, make()))
        except Unavailable as reason:
            print(f"- {name} is left out of the {subject.name} instance: {reason}")

    for subject in (small, large):
        add(subject, Podman.name, partial(Podman, subject, work / "podman"))
        add(subject, Bubblewrap.name, partial(Bubblewrap, subject))
        add(subject, Published.name, partial(Published, subject, work / "published"))
    published = [contender for _, contender in found if isinstance(contender, Published)]
    if published:
        chosen, tried = fastest(published[-1].environment, 1 if quick else 3)
        for contender in published:
            contender.unpacker = chosen
        seconds = ", ".join(f"{name} {took / 1000:.2f} s" for name, took in tried.items())
        size = published[-1].environment.stat().st_size
        print(
            f"- unpacking the large environment into memory, {size / 1e6:,.0f} MB of tar.gz: "
            f"{seconds}"
        )
        print(f"- the published method unpacks with {chosen.name}")
    return found


def _measure(contenders: list[tuple[Subject, Contender]], rounds: int) -> report.Times:
    times: dict[report.Row, list[float]] = defaultdict(list)
    order = random.Random(0)
    for number in range(rounds):
        order.shuffle(contenders)
        for subject, contender in contenders:
            if isinstance(contender, Published) and number % _SELDOM:
                continue
            for what, took in contender.round().items():
                times[report.Row(contender.name, what, subject.name)].append(took)
        if sys.stderr.isatty():
            print(f"round {number + 1} of {rounds}", end="\r", file=sys.stderr)
    return times


def _plot(path: Path, times: report.Times, where: str) -> None:
    shown = (
        ("first command", "small"),
        ("first command", "large"),
        ("command", "small"),
        ("fork", "small"),
        ("reset", "small"),
    )
    names = (Ours.name, Bubblewrap.name, Podman.name, Published.name)
    bars = [
        (f"{what}, {subject}: {name}", value, name == Ours.name)
        for what, subject in shown
        for name in names
        if (value := report.median(times, name, what, subject)) is not None
    ]
    write_chart(path, "Milliseconds, median", bars, unit="ms")
    print(f"The chart is in {path} ({where}).\n")


if __name__ == "__main__":
    main()
