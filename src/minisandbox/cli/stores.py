"""``store``: the packed layers of a cache."""

from __future__ import annotations

import argparse
from pathlib import Path

from minisandbox.cli.caches import readable_size
from minisandbox.cli.subparsers import Subparsers
from minisandbox.cli.waiting import waiting_line
from minisandbox.errors import EXIT_FAILED, EXIT_OK, InvalidInput


def add_commands(commands: Subparsers) -> None:
    """Register the commands of this module."""
    store = commands.add_parser("store", help="check the packed layers of a cache")
    verbs = store.add_subparsers(dest="verb", metavar="VERB", required=True)
    verify = verbs.add_parser("verify", help="read every layer and compare it with its digest")
    verify.add_argument(
        "--cache", default="results", type=Path, help="folder of the manifest (default: results)"
    )
    verify.add_argument("--store", type=Path, help="the store itself, where there is no manifest")
    verify.set_defaults(function=verify_store)


def verify_store(arguments: argparse.Namespace) -> int:
    """``minisandbox store verify``: every layer that the manifest names, then those that only lie
    there.
    """
    from minisandbox.store import Store

    if arguments.store:
        if not arguments.store.is_dir():
            raise InvalidInput("--store", f"{arguments.store} is not a folder")
        store, named = Store(arguments.store), set[str]()
    else:
        from minisandbox.runtime import open_cache

        cache = open_cache(arguments.cache)
        store = cache.store
        named = {layer.digest for row in cache.rows() for layer in row.layers}
    digests = sorted(named | set(store.digests()))
    total = 0
    bad: list[str] = []
    with waiting_line() as report:
        report(f"reading {len(digests)} layers")
        for number, finding in enumerate(store.verify(digests), 1):
            total += finding.size
            report(f"{number} of {len(digests)} layers read, {readable_size(total)}")
            if finding.problem is not None:
                bad.append(f"{finding.digest}  {finding.problem}")
    for line in bad:
        print(line)
    print(f"{len(digests)} layers, {readable_size(total)}, {len(bad)} damaged or missing")
    return EXIT_FAILED if bad else EXIT_OK
