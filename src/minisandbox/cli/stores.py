"""``store``: the layers of a cache, loose and in packs, and with ``node_stores`` those unpacked."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisandbox import atomic
from minisandbox.cli import node_stores
from minisandbox.cli.subparsers import Subparsers
from minisandbox.cli.waiting import waiting_line
from minisandbox.errors import EXIT_FAILED, EXIT_OK, InvalidInput
from minisandbox.sizes import readable_size

if TYPE_CHECKING:
    from minisandbox.store import Store


def add_commands(commands: Subparsers) -> None:
    """Register the commands of this module."""
    store = commands.add_parser("store", help="layers: list, check, pack, prefetch, collect them")
    verbs = store.add_subparsers(dest="verb", metavar="VERB", required=True)

    verify = verbs.add_parser("verify", help="read every layer and compare it with its digest")
    _add_place(verify)
    _add_node(verify, "compare what is unpacked on this machine, file by file")
    verify.set_defaults(function=verify_store)

    listing = verbs.add_parser("ls", help="the packs, how many layers are loose, and their sizes")
    _add_place(listing)
    _add_node(listing, "list what is unpacked on this machine, for whom, and whether it is in use")
    listing.add_argument("--json", action="store_true", help="the same as JSON")
    listing.set_defaults(function=list_store)

    pack = verbs.add_parser(
        "pack", help="move loose layers into a pack, where what they have in common is kept once"
    )
    _add_place(pack)
    pack.add_argument(
        "--all",
        action="store_true",
        dest="anew",
        help="also what is in packs already: one pack in the place of several",
    )
    pack.add_argument("--level", type=int, help="of zstd, 1 to 22 (default: 12)")
    pack.add_argument("--threads", type=int, help="that compress (default: one a processor)")
    pack.add_argument(
        "--summary", type=Path, help="write what the store holds then, as `store ls --json` does"
    )
    pack.set_defaults(function=pack_store)
    node_stores.add_commands(verbs)


def _add_place(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--cache", default="results", type=Path, help="folder of the manifest (default: results)"
    )
    verb.add_argument("--store", type=Path, help="the store itself, where there is no manifest")


def _add_node(verb: argparse.ArgumentParser, what: str) -> None:
    verb.add_argument("--node", action="store_true", help=what)


def verify_store(arguments: argparse.Namespace) -> int:
    """``minisandbox store verify``: every layer that the manifest names, then those that only lie
    there.
    """
    if arguments.node:
        return node_stores.verify_items(arguments)
    if arguments.store:
        store, named = node_stores.store_at(arguments), set[str]()
    else:
        from minisandbox.runtime import open_cache

        cache = open_cache(arguments.cache)
        store = cache.store
        named = {layer.digest for row in cache.rows() for layer in row.layers}
    digests = sorted(named | set(store.digests()))
    total = sum(pack.index.file_size for pack in store.catalogue.packs())
    bad: list[str] = []
    with waiting_line() as report:
        report(f"reading {len(digests)} layers")
        for number, finding in enumerate(store.verify(digests), 1):
            total += finding.size
            report(f"{number} of {len(digests)} layers read, {readable_size(total)}")
            if finding.problem is not None:
                bad.append(f"{finding.digest}  {finding.path}: {finding.problem}")
    unreadable = [f"{path}: {reason}" for path, reason in sorted(store.unreadable().items())]
    for line in (*bad, *unreadable):
        print(line)
    print(
        f"{len(digests)} layers, {readable_size(total)}, {len(bad)} damaged or missing"
        + (f", {len(unreadable)} packs cannot be read" if unreadable else "")
    )
    return EXIT_FAILED if bad or unreadable else EXIT_OK


def list_store(arguments: argparse.Namespace) -> int:
    """``minisandbox store ls``."""
    if arguments.node:
        return node_stores.list_items(arguments)
    held = _holdings(node_stores.store_at(arguments))
    if arguments.json:
        print(json.dumps(held, indent=1))
        return EXIT_OK
    for pack in held["packs"]:
        print(
            f"{pack['name'][:12]}  {readable_size(pack['bytes']):>9}  {pack['layers']} layers, "
            f"{pack['contents']} contents, {pack['contents_of_others']} more of other packs"
        )
    for path, reason in held["unreadable"].items():
        print(f"{path}: {reason}")
    loose = held["loose"]
    print(f"{'loose':12}  {readable_size(loose['bytes']):>9}  {loose['layers']} layers")
    return EXIT_OK


def _holdings(store: Store) -> dict[str, Any]:
    loose = [store.path(digest).stat().st_size for digest in store.loose()]
    packs = [
        {
            "name": pack.index.name,
            "bytes": pack.index.file_size,
            "layers": len(pack.index.layers),
            "contents": pack.index.own,
            "contents_of_others": pack.index.contents - pack.index.own,
        }
        for pack in store.catalogue.packs()
    ]
    return {
        "loose": {"layers": len(loose), "bytes": sum(loose)},
        "packs": packs,
        "unreadable": {str(path): reason for path, reason in sorted(store.unreadable().items())},
    }


def pack_store(arguments: argparse.Namespace) -> int:
    """``minisandbox store pack``."""
    from minisandbox.store.packs.consolidation import consolidate
    from minisandbox.store.packs.writing import DEFAULT_LEVEL

    level = DEFAULT_LEVEL if arguments.level is None else arguments.level
    if not 1 <= level <= 22:
        raise InvalidInput("--level", f"is {level}", "expected 1 to 22")
    if arguments.threads is not None and arguments.threads < 1:
        raise InvalidInput("--threads", f"is {arguments.threads}", "expected 1 or more")
    store = node_stores.store_at(arguments)
    with waiting_line() as report:
        done = consolidate(
            store,
            level=level,
            threads=arguments.threads,
            anew=arguments.anew,
            report=report,
        )
    for digest, reason in sorted((done.stay | done.damaged).items()):
        print(f"{digest} stays as it is: {reason}")
    if done.pack is not None:
        before = readable_size(done.loose_bytes + done.replaced_bytes)
        made = f"{before} became {readable_size(done.pack_bytes)}"
        print(f"{len(done.layers)} layers packed, {made}: {done.pack}")
    elif done.layers:
        print(f"{len(done.layers)} layers were in packs already, their files are removed")
    else:
        print("no loose layers to pack")
    if arguments.summary is not None and not done.damaged:
        atomic.write_text(arguments.summary, json.dumps(_holdings(store), indent=1) + "\n")
    return EXIT_FAILED if done.damaged else EXIT_OK
