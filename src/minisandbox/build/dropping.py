"""Dropping records, so that the next run makes them again, and everything that follows from them.

What follows from a dropped record is not lost: its stage takes it back under its second name if it
turns out to be made from the same inputs. The summary of the manifest goes too; without that output
of the last rule, Snakemake would find nothing to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from minisandbox import atomic
from minisandbox.errors import InvalidInput
from minisandbox.records import codec
from minisandbox.records.manifest import SUMMARY_NAME
from minisandbox.records.plan import PlanIndex
from minisandbox.runtime.cache import store_of
from minisandbox.store import Store

_FOLDERS = ("sources", "bases", "interpreters", "environments")

Json = dict[str, Any]


def spare(path: Path) -> Path:
    """The second name of a record, under which its stage finds it again.

    Snakemake removes the outputs of a job before it runs it, be it only because a run was killed.
    """
    return path.with_name(f".{path.name}.spare")


def read_records(results: Path) -> Iterator[tuple[Path, Json]]:
    """Every record file below ``results``, parsed; raises ``InvalidInput``."""
    if not results.is_dir():
        raise InvalidInput(str(results), "is not a folder", "give the results folder with --cache")
    for folder in _FOLDERS:
        for path in sorted((results / folder).rglob("*.json")):
            if any(part.startswith(".") for part in path.relative_to(results).parts):
                continue
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                raise InvalidInput(str(path), "is not JSON", "remove it") from None
            if isinstance(data, dict) and "stage" in data:
                yield path, cast("Json", data)


def members(data: Json) -> list[Json]:
    """The instances of a batch, or the record itself."""
    return cast("list[Json]", data["instances"]) if "instances" in data else [data]


def layer_digests(record: Json) -> set[str]:
    """Digests of the layers that a record names."""
    layers = [*record.get("layers", ()), *filter(None, [record.get("layer")])]
    return {str(layer["digest"]) for layer in layers}


def drop(results: Path, unwanted: Callable[[Json], bool]) -> list[str]:
    """Drop every record (or member of a batch) that is ``unwanted``; returns ``stage key``
    of each.
    """
    dropped: set[str] = set()
    touched: set[Path] = set()
    for path, data in list(read_records(results)):
        gone = [record for record in members(data) if unwanted(record)]
        if not gone:
            continue
        dropped |= {f"{record['stage']} {record['key']}" for record in gone}
        touched.add(path)
        if "instances" in data:
            # No inputs digest: as a whole it is not finished, its members each have one of their
            # own.
            left = [record for record in members(data) if record not in gone]
            text = json.dumps({**data, "inputs": "", "instances": left}, ensure_ascii=False)
            atomic.write_text(spare(path), text + "\n")
        else:
            spare(path).unlink(missing_ok=True)
        path.unlink()
    if touched:
        for path in _following(results, touched):
            path.unlink(missing_ok=True)
        (results / SUMMARY_NAME).unlink(missing_ok=True)
    return sorted(dropped)


def damaged_digests(results: Path) -> set[str]:
    """Layers named by records that are gone or damaged; the store no longer names them."""
    named = {
        digest
        for _, data in read_records(results)
        for item in members(data)
        for digest in layer_digests(item)
    }
    store = Store(store_of(results))
    if not store.root.is_dir():
        raise InvalidInput(str(store.root), "is no store, so nothing can be said of its layers")
    bad: set[str] = set()
    for finding in store.verify(sorted(named)):
        if finding.problem is not None:
            bad.add(finding.digest)
            store.discard(finding.digest)
    store.set_aside_unreadable()
    return bad


def _plan(results: Path) -> PlanIndex:
    return codec.read(PlanIndex, results / "plan/index.json")


def _following(results: Path, dropped: set[Path]) -> Iterator[Path]:
    """The records that are made from dropped ones."""
    relative = {path.relative_to(results).as_posix() for path in dropped}
    index = _plan(results)
    if index.base and f"bases/{index.base}/base.json" in relative:
        # Everything stands on it.
        further = {f"bases/{slug}/base.json" for slug in index.bases}
        further |= {f"interpreters/{python}/interpreter.json" for python in index.pythons}
        yield from (results / path for path in sorted(further - relative))
        relative |= further
    for name, environment in index.environments.items():
        folder = f"environments/{name}"
        below = {f"interpreters/{environment.python}/interpreter.json"}
        if environment.base:
            below.add(f"bases/{environment.base}/base.json")
        remade = bool((below | {f"{folder}/environment.json"}) & relative)
        if below & relative:
            yield results / folder / "environment.json"
        for batch, entry in {**environment.commits, **environment.batches}.items():
            before = {f"sources/{repo}/clone.json" for repo in entry.repos}
            before |= {f"{folder}/batches/{commit}/instances.json" for commit in entry.commits}
            instances = f"{folder}/batches/{batch}/instances.json"
            if remade or before & relative:
                yield results / instances
            if remade or (before | {instances}) & relative:
                yield results / f"{folder}/batches/{batch}/validation.json"
