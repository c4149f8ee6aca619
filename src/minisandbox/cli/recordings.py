"""``records``: how the stages ended, and dropping records so that they run again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from minisandbox import atomic
from minisandbox.errors import EXIT_OK, EXIT_USAGE, InvalidInput

_FOLDERS = ("sources", "interpreters", "environments")


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the commands of this module."""
    records = commands.add_parser(
        "records", help="list the records of the stages, or drop some to run them again"
    )
    verbs = records.add_subparsers(dest="verb", metavar="VERB", required=True)
    ls = verbs.add_parser("ls", help="list records")
    ls.add_argument(
        "--cache", default="results", type=Path, help="folder of the records (default: results)"
    )
    ls.add_argument("--failed", action="store_true", help="only failed ones")
    ls.set_defaults(function=list_records)
    drop = verbs.add_parser("drop", help="remove records, so that the next run makes them again")
    drop.add_argument(
        "--cache", default="results", type=Path, help="folder of the records (default: results)"
    )
    drop.add_argument("--failed", action="store_true", help="those that failed")
    drop.add_argument(
        "--damaged", action="store_true", help="those that name a layer which is gone or damaged"
    )
    drop.add_argument(
        "names", nargs="*", metavar="NAME", help="an instance id, environment, repository or python"
    )
    drop.set_defaults(function=drop_records)


def list_records(arguments: argparse.Namespace) -> int:
    """``minisandbox records ls``."""
    count = 0
    for path, data in _records(arguments.cache):
        for record in _members(data):
            if arguments.failed and record.get("status") != "failed":
                continue
            count += 1
            failure = cast("dict[str, str] | None", record.get("failure"))
            reason = f"  [{failure['kind']}] {failure['message']}" if failure else ""
            print(
                f"{record.get('stage', '?'):12} {record.get('status', '?'):7} "
                f"{record.get('seconds', 0):>8} s  "
                f"{record.get('key', path)}{reason}"
            )
    print(f"{count} records")
    return EXIT_OK


def drop_records(arguments: argparse.Namespace) -> int:
    """``minisandbox records drop``: members of a batch leave it, the others of the batch are
    kept.
    """
    if not (arguments.failed or arguments.damaged or arguments.names):
        print("minisandbox records drop: name records, or give --failed or --damaged")
        return EXIT_USAGE
    damaged = _damaged_digests(arguments.cache) if arguments.damaged else set[str]()
    names = set(arguments.names)
    dropped: set[str] = set()

    def unwanted(record: dict[str, Any]) -> bool:
        layers = [*record.get("layers", ()), *filter(None, [record.get("layer")])]
        return (
            (arguments.failed and record.get("status") == "failed")
            or str(record.get("key")) in names
            or any(layer["digest"] in damaged for layer in layers)
        )

    for path, data in list(_records(arguments.cache)):
        members = _members(data)
        gone = [record for record in members if unwanted(record)]
        if not gone:
            continue
        dropped |= {f"{record['stage']} {record['key']}" for record in gone}
        if "instances" in data:
            _keep_members(path, [record for record in members if record not in gone])
        path.unlink()
    for name in sorted(dropped):
        print(f"dropped {name}")
    print(
        f"{len(dropped)} records dropped"
        + ("; run `snakemake` to make them again" if dropped else "")
    )
    missing = {name for name in names if not any(entry.endswith(f" {name}") for entry in dropped)}
    if missing:
        raise InvalidInput("records drop", f"there is no record of {', '.join(sorted(missing))}")
    return EXIT_OK


def _keep_members(path: Path, members: list[dict[str, Any]]) -> None:
    """Put what stays of a batch where its stage looks for finished members
    (``build.stage.Finished``).
    """
    folder = path.with_name(f".{path.stem}.partial")
    for record in members:
        atomic.write_text(
            folder / f"{record['key']}.json", json.dumps(record, ensure_ascii=False) + "\n"
        )


def _members(data: dict[str, Any]) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", data["instances"]) if "instances" in data else [data]


def _records(cache: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    if not cache.is_dir():
        raise InvalidInput(str(cache), "is not a folder", "give the results folder with --cache")
    for folder in _FOLDERS:
        for path in sorted((cache / folder).rglob("*.json")):
            if any(part.startswith(".") for part in path.relative_to(cache).parts):
                continue
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                raise InvalidInput(str(path), "is not JSON", "remove it") from None
            if isinstance(data, dict) and "stage" in data:
                yield path, cast("dict[str, Any]", data)


def _damaged_digests(cache: Path) -> set[str]:
    from minisandbox.store import Store

    named: set[str] = set()
    for _, data in _records(cache):
        for record in _members(data):
            layers = [*record.get("layers", ()), *filter(None, [record.get("layer")])]
            named |= {str(layer["digest"]) for layer in layers}
    try:
        plan = json.loads((cache / "plan/index.json").read_text(encoding="utf-8"))
        store = Store(Path(plan["store"]))
    except (FileNotFoundError, KeyError, ValueError):
        store = Store(cache / "store")
    return {
        finding.digest for finding in store.verify(sorted(named)) if finding.problem is not None
    }
