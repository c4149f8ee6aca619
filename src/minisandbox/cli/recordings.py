"""``records``: how the stages ended, and dropping records so that they run again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from minisandbox.cli.subparsers import Subparsers
from minisandbox.errors import EXIT_OK, InvalidInput


def add_commands(commands: Subparsers) -> None:
    """Register the commands of this module."""
    records = commands.add_parser(
        "records", help="list the records of the stages, or drop some to run them again"
    )
    verbs = records.add_subparsers(dest="verb", metavar="VERB", required=True)
    ls = verbs.add_parser("ls", help="list records")
    ls.add_argument("--failed", action="store_true", help="only failed ones")
    ls.set_defaults(function=list_records)
    drop = verbs.add_parser("drop", help="remove records, so that the next run makes them again")
    drop.add_argument("--failed", action="store_true", help="those that failed")
    drop.add_argument(
        "--damaged", action="store_true", help="those that name a layer which is gone or damaged"
    )
    drop.add_argument(
        "names", nargs="*", metavar="NAME", help="an instance id, environment, repository or python"
    )
    drop.set_defaults(function=drop_records)
    for parser in (ls, drop):
        parser.add_argument(
            "--cache", default="results", type=Path, help="folder of the records (default: results)"
        )


def list_records(arguments: argparse.Namespace) -> int:
    """``minisandbox records ls``."""
    from minisandbox.build.dropping import members, read_records

    count = 0
    for path, data in read_records(arguments.cache):
        for record in members(data):
            if arguments.failed and record.get("status") != "failed":
                continue
            count += 1
            failure = record.get("failure")
            reason = f"  [{failure['kind']}] {failure['message']}" if failure else ""
            print(
                f"{record.get('stage', '?'):12} {record.get('status', '?'):7} "
                f"{record.get('seconds', 0):>8} s  {record.get('key', path)}{reason}"
            )
    print(f"{count} records")
    return EXIT_OK


def drop_records(arguments: argparse.Namespace) -> int:
    """``minisandbox records drop``: members of a batch leave it, the others of the batch stay."""
    from minisandbox.build.dropping import damaged_digests, drop, layer_digests

    if not (arguments.failed or arguments.damaged or arguments.names):
        raise InvalidInput("records drop", "names nothing", "give names, --failed or --damaged")
    damaged = damaged_digests(arguments.cache) if arguments.damaged else set[str]()
    names = set(arguments.names)

    def unwanted(record: dict[str, Any]) -> bool:
        return (
            (arguments.failed and record.get("status") == "failed")
            or str(record.get("key")) in names
            or bool(layer_digests(record) & damaged)
        )

    dropped = drop(arguments.cache, unwanted)
    for name in dropped:
        print(f"dropped {name}")
    print(
        f"{len(dropped)} records dropped"
        + ("; run `snakemake` to make them again" if dropped else "")
    )
    missing = names - {entry.split(" ", 1)[1] for entry in dropped}
    if missing:
        raise InvalidInput("records drop", f"there is no record of {', '.join(sorted(missing))}")
    return EXIT_OK
