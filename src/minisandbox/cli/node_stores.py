"""``store du | gc | prefetch | calibrate``, ``ls --node`` and ``verify --node``: layers unpacked on
this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minisandbox.cli.caches import print_table
from minisandbox.cli.subparsers import Subparsers
from minisandbox.cli.waiting import bar, waiting_line
from minisandbox.errors import EXIT_FAILED, EXIT_OK, InvalidInput
from minisandbox.sizes import readable_size

if TYPE_CHECKING:
    from minisandbox.runtime import Cache
    from minisandbox.store import NodeStore, Store
    from minisandbox.store.collecting import Collected
    from minisandbox.store.usage import Item, Survey


def add_commands(verbs: Subparsers) -> None:
    """Register the verbs of ``store`` that are of this module."""
    du = verbs.add_parser("du", help="how much of the disk that takes, and for what")
    _cache_option(du)
    du.add_argument("--instances", action="store_true", help="of each instance of the cache too")
    du.add_argument("--json", action="store_true", help="as JSON")
    du.set_defaults(function=show_usage)

    gc = verbs.add_parser("gc", help="remove what was not used for longest, never what is in use")
    gc.add_argument(
        "--max-size",
        metavar="SIZE",
        help="what may stay, such as 80GB (default: $MINISANDBOX_NODE_STORE_SIZE, else all)",
    )
    gc.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    gc.add_argument("--json", action="store_true", help="as JSON")
    gc.set_defaults(function=collect_items)

    prefetch = verbs.add_parser("prefetch", help="unpack and compile ahead of use")
    prefetch.add_argument("ids", nargs="*", metavar="ID", help="instances of the cache")
    prefetch.add_argument("--dataset", metavar="NAME", help="all instances of a dataset")
    prefetch.add_argument("--all", action="store_true", help="all instances of the cache")
    prefetch.add_argument("--jobs", "-j", type=int, help="processes (default: one a processor)")
    _cache_option(prefetch)
    prefetch.set_defaults(function=prefetch_instances)

    calibrate = verbs.add_parser(
        "calibrate", help="measure how much this machine's disk can unpack at once"
    )
    calibrate.add_argument("--show", action="store_true", help="only say what was measured before")
    calibrate.add_argument("--json", action="store_true", help="as JSON")
    calibrate.set_defaults(function=calibrate_device)


def _cache_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache", default="results", type=Path, help="folder of the manifest (default: results)"
    )


def store_at(arguments: argparse.Namespace) -> Store:
    """The store that was named, or that of the results; no manifest is needed."""
    from minisandbox.runtime.cache import store_of
    from minisandbox.store import Store

    place = arguments.store or store_of(arguments.cache)
    if not place.is_dir():
        option = "--store" if arguments.store else "--cache"
        raise InvalidInput(option, f"{place} is not a folder")
    return Store(place)


def _node() -> NodeStore:
    from minisandbox.store import NodeStore, default_node_root

    return NodeStore(default_node_root())


def _survey(node: NodeStore) -> Survey:
    from minisandbox.store import usage
    from minisandbox.store.faults import explained

    with waiting_line() as report, explained("look at the node store", node.base):
        report("looking at what is there")
        return usage.survey(node.base, node.idmap)


@dataclass(frozen=True)
class _Needs:
    """What a cache says of the items of a node store: what they are, and who needs them."""

    kinds: Mapping[str, str]
    instances: Mapping[str, Sequence[str]]


def _needs(folder: Path, items: Sequence[Item]) -> _Needs:
    """Empty where there is no manifest: a node store serves any number of caches."""
    from minisandbox.runtime import open_cache
    from minisandbox.runtime.cache import MANIFEST_NAME
    from minisandbox.store.usage import lower_of, owners_of

    kinds: dict[str, str] = {}
    instances: defaultdict[str, list[str]] = defaultdict(list)
    if not (folder / MANIFEST_NAME).is_file():
        return _Needs(kinds, instances)
    for row in open_cache(folder).rows():
        for layer in row.layers:
            name = layer.digest.partition(":")[2]
            kinds[name] = layer.kind
            instances[name].append(row.instance_id)
    names = [item.name for item in items]
    by_name = {item.name: item for item in items}
    for item in items:
        for owner in owners_of(item, names):
            instances[item.name] += instances.get(owner, [])
        own = list(instances.get(item.name, []))
        for lower in lower_of(item, by_name):
            instances[lower.name] += own
    unique = {name: list(dict.fromkeys(ids)) for name, ids in instances.items()}
    return _Needs(kinds, unique)


def _kind(item: Item, needs: _Needs) -> str:
    if item.kind == "derived":
        return item.name.partition("-")[0]
    return needs.kinds.get(item.name, item.kind)


def list_items(arguments: argparse.Namespace) -> int:
    """``minisandbox store ls --node``: the least recently used ones last."""
    from minisandbox.store import usage

    node = _node()
    found = _survey(node)
    needs, shares = _needs(arguments.cache, found.items), found.shares()
    rows: list[tuple[str, ...]] = []
    for item in sorted(found.items, key=lambda item: -item.last_use):
        ids, used = needs.instances.get(item.name, []), usage.in_use(node.base, item.name)
        size = shares[os.fspath(item.path)]
        if arguments.json:
            facts = {
                "kind": _kind(item, needs),
                "name": item.name,
                "path": str(item.path),
                "files": item.tree.files,
                "apparent_bytes": item.tree.apparent,
                "bytes": size,
                "last_use": int(item.last_use),
                "in_use": used,
                "reference": item.below,
                "instances": ids,
            }
            print(json.dumps(facts, ensure_ascii=False))
            continue
        name = item.name if item.kind == "derived" else item.name[:16]
        rows.append(
            (
                _kind(item, needs),
                name[:26],
                readable_size(size),
                _date(item.last_use),
                "in use" if used else "",
                ids[0] + (f" and {len(ids) - 1} more" if len(ids) > 1 else "") if ids else "",
            )
        )
    if not arguments.json:
        print_table([("KIND", "NAME", "ON DISK", "LAST USED", "", "INSTANCES"), *rows])
        print(f"\n{len(found.items)} in {node.base}, {readable_size(found.total)} on disk")
    return EXIT_OK


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def show_usage(arguments: argparse.Namespace) -> int:
    """``minisandbox store du``: bytes by kind, each inode counted once."""
    node = _node()
    found = _survey(node)
    needs, shares = _needs(arguments.cache, found.items), found.shares()
    kinds: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for item in found.items:
        tree, size = item.tree, shares[os.fspath(item.path)]
        row = kinds[_kind(item, needs)]
        for place, count in enumerate((1, tree.files, tree.apparent, size)):
            row[place] += count
    saved = sum(item.tree.allocated for item in found.items) - sum(shares.values())
    instances = _by_instance(found, needs, shares) if arguments.instances else {}
    if arguments.json:
        names = ("items", "files", "apparent_bytes", "bytes")
        facts = {
            "path": str(node.base),
            "kinds": {kind: dict(zip(names, row, strict=True)) for kind, row in kinds.items()},
            "pool_bytes": found.pool,
            "unused_bytes": found.unshared + found.waste,
            "shared_bytes": saved,
            "bytes": found.total,
            "instances": instances,
        }
        print(json.dumps(facts, ensure_ascii=False, indent=1))
        return EXIT_OK
    rows = [
        (kind, str(count), str(files), readable_size(apparent), readable_size(size))
        for kind, (count, files, apparent, size) in sorted(kinds.items())
    ]
    print_table([("KIND", "NUMBER", "FILES", "SIZE OF FILES", "ON DISK"), *rows])
    print(f"\nthe pool's directories    {readable_size(found.pool)}")
    print(f"unused, for `store gc`    {readable_size(found.unshared + found.waste)}")
    print(f"in all, on disk           {readable_size(found.total)}")
    print(f"saved by sharing files    {readable_size(saved)}")
    if instances:
        lines = [
            (name, readable_size(facts["bytes"]), readable_size(facts["alone_bytes"]))
            for name, facts in instances.items()
        ]
        print()
        print_table([("INSTANCE", "ON DISK", "ONLY FOR IT"), *lines])
    return EXIT_OK


def _by_instance(
    found: Survey, needs: _Needs, shares: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    by_instance: defaultdict[str, dict[str, int]] = defaultdict(
        lambda: {"bytes": 0, "alone_bytes": 0}
    )
    for item in found.items:
        ids = needs.instances.get(item.name, [])
        for instance_id in ids:
            by_instance[instance_id]["bytes"] += item.tree.allocated
            if len(ids) == 1:
                by_instance[instance_id]["alone_bytes"] += shares[os.fspath(item.path)]
    return dict(sorted(by_instance.items()))


def verify_items(arguments: argparse.Namespace) -> int:
    """``minisandbox store verify --node``: every directory against the packed layer that it came
    from.
    """
    from minisandbox.store.checking import verify_node
    from minisandbox.store.usage import items_in

    store = store_at(arguments)  # without one hardly anything could be checked
    node = _node()
    total = sum(1 for _ in items_in(node.base))
    damaged = unchecked = checked = 0
    with bar("checking", total, "item") as advance:
        for finding in verify_node(node, store):
            advance(1)
            checked += 1
            name = f"{finding.kind} {finding.name}"
            if finding.problem:
                damaged += 1
                moved = f"; moved to {finding.moved}" if finding.moved else ""
                print(f"{name}  damaged: {finding.problem}{moved}")
            elif finding.unchecked:
                unchecked += 1
                print(f"{name}  not checked: {finding.unchecked}")
    print(f"{checked} in {node.base}, {damaged} damaged, {unchecked} not checked")
    if damaged:
        print("damaged ones are made anew when they are used next")
    return EXIT_FAILED if damaged else EXIT_OK


def collect_items(arguments: argparse.Namespace) -> int:
    """``minisandbox store gc``; fails where what is in use is above the limit."""
    from minisandbox.sizes import parse_size, size_limit
    from minisandbox.store import collecting

    given: str | None = arguments.max_size
    limit = size_limit() if given is None else parse_size("--max-size", given)
    node = _node()
    with waiting_line() as report:
        done = collecting.collect(node, limit, dry_run=arguments.dry_run, report=report)
    if arguments.json:
        print(json.dumps(asdict(done), indent=1))
    else:
        _print_collected(done, "would be removed" if arguments.dry_run else "removed")
    if limit is not None and done.after > limit:
        if not arguments.json:
            print(f"the limit of {readable_size(limit)} cannot be met: the rest is in use or new")
        return EXIT_FAILED
    return EXIT_OK


def _print_collected(done: Collected, word: str) -> None:
    for item in done.removed:
        print(f"{item.kind:8} {item.name[:50]:52} {readable_size(item.freed):>9}")
    freed = sum(item.freed for item in done.removed)
    print(
        f"{len(done.removed)} {word}, {readable_size(freed)}; "
        f"{readable_size(done.swept)} of what nobody used any more; "
        f"{readable_size(done.after)} of {readable_size(done.before)} stay, "
        f"{readable_size(done.used)} of it in use"
    )


def prefetch_instances(arguments: argparse.Namespace) -> int:
    """``minisandbox store prefetch``: can be ended and called again; what is there is not made
    twice.
    """
    from minisandbox.runtime import open_cache
    from minisandbox.runtime.prefetching import prefetch

    cache = open_cache(arguments.cache)
    ids = _chosen(cache, arguments)
    jobs = arguments.jobs if arguments.jobs is not None else len(os.sched_getaffinity(0))
    if jobs < 1:
        raise InvalidInput("--jobs", f"is {jobs}", "give a number from 1 on")
    size, failed = 0, list[str]()
    with bar("prefetch", len(ids), "instance") as advance:
        for done in prefetch(cache, ids, jobs=jobs):
            advance(1)
            size += done.size
            if done.problem:
                failed.append(f"{done.instance_id}  {done.problem}")
    for line in failed:
        print(line)
    print(
        f"{len(ids) - len(failed)} of {len(ids)} instances are on this machine, "
        f"{readable_size(size)} were unpacked, {len(failed)} failed"
    )
    return EXIT_FAILED if failed else EXIT_OK


def _chosen(cache: Cache, arguments: argparse.Namespace) -> Sequence[str]:
    ways = [bool(arguments.ids), arguments.dataset is not None, arguments.all]
    if sum(ways) != 1:
        raise InvalidInput("store prefetch", "needs ids, --dataset or --all", "give one of them")
    if arguments.ids:
        for instance_id in arguments.ids:
            cache.row(instance_id)  # an unknown one is said before anything is done
        return list(dict.fromkeys(arguments.ids))
    rows = [row for row in cache.rows() if row.layers]
    if arguments.all:
        return [row.instance_id for row in rows]
    names = sorted({row.dataset for row in rows})
    if arguments.dataset not in names:
        raise InvalidInput(
            "--dataset", f"{arguments.dataset!r} is not in the cache", f"it has {', '.join(names)}"
        )
    return [row.instance_id for row in rows if row.dataset == arguments.dataset]


def calibrate_device(arguments: argparse.Namespace) -> int:
    """``minisandbox store calibrate``."""
    from minisandbox.store import budget, calibrating, default_node_root

    root = default_node_root()
    if arguments.show:
        known = calibrating.calibrations(root)
    else:
        with waiting_line() as report:
            known = [calibrating.calibrate(root, report)]
    if arguments.json:
        print(json.dumps([asdict(item) for item in known], indent=1))
        return EXIT_OK
    for item in known:
        print(f"device {item.device}, measured {_date(item.date)}")
        for level in item.levels:
            rate = readable_size(level.rate)
            print(f"  unpackers at once: {level.unpackers}  {rate}/s")
        print(f"  budget: {readable_size(item.budget)} unpacked at once")
    if arguments.show:
        print(f"in use for {root}: {readable_size(budget.io_budget(root))}")
    return EXIT_OK
