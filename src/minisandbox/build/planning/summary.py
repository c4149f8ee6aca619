"""What a plan will come to, before it is built: environments, who shares them, and expected sizes.

Sizes are measured where records of an earlier build speak of the same environment or instance, else
from a table of sizes that were measured once per project; what neither knows is counted, and not
guessed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from minisandbox import keys
from minisandbox.errors import InvalidInput
from minisandbox.records import codec
from minisandbox.records.plan import BatchPlan, EnvironmentPlan, PlanIndex
from minisandbox.records.stages import EnvironmentRecord, InstancesRecord

_MEGABYTE = 10**6
_OF_INSTANCES = ("source", "wheelhouse", "instance", "bug")


@dataclass(frozen=True)
class Expected:
    """Bytes of files, unpacked: least and most. ``source`` is ``record``, ``table`` or ``unknown``
    (then both are 0).
    """

    least: int
    most: int
    source: Literal["record", "table", "unknown"]


@dataclass(frozen=True)
class EnvironmentSummary:
    """One environment: how many instances share it, in how many batches."""

    slug: str
    python: str
    instances: int
    batches: int
    expected: Expected


@dataclass(frozen=True)
class Summary:
    """``environments`` are sorted by the instances that share them. ``checkouts`` is what the
    instances add to them: the layers of those of ``known_checkouts``, each counted once however
    many share it; of the others nothing is known.
    """

    instances: int
    repositories: int
    environments: tuple[EnvironmentSummary, ...]
    formats: Mapping[str, int]
    unplanned: Mapping[str, int]
    checkouts: int
    known_checkouts: int
    table: str

    @property
    def expected(self) -> tuple[int, int]:
        """Least and most of all environments whose size is expected."""
        sizes = [environment.expected for environment in self.environments]
        return sum(size.least for size in sizes), sum(size.most for size in sizes)

    def text(self) -> str:
        """The summary for people."""
        width = max((len(item.slug) for item in self.environments), default=0)
        lines = [f"{'environment':{width}}  instances  batches  expected size"]
        for item in self.environments:
            size = f"{_said(item.expected.least, item.expected.most)} ({item.expected.source})"
            if item.expected.source == "unknown":
                size = "unknown"
            lines.append(f"{item.slug:{width}}  {item.instances:9}  {item.batches:7}  {size}")
        lines += ["", self._sharing(), f"rows: {_counted(self.formats)}"]
        sources = [item.expected.source for item in self.environments]
        lines.append(
            f"expected of the environments, unpacked: {_said(*self.expected)} "
            f"({sources.count('record')} as in records of an earlier build, "
            f"{sources.count('table')} by the table, {sources.count('unknown')} unknown)"
        )
        of_checkouts = f"unknown for {self.instances - self.known_checkouts} instances"
        if self.known_checkouts:
            known = f"{_said(self.checkouts)} for {self.known_checkouts} as in such records"
            of_checkouts = f"{known}, {of_checkouts}"
        lines.append(f"expected of checkouts and installs, unpacked: {of_checkouts}")
        if "table" in sources:
            lines.append(f"the table: {self.table}")
        refused = sum(self.unplanned.values())
        lines.append(f"{refused} rows cannot be built{_reasons(self.unplanned)}")
        return "\n".join(lines) + "\n"

    def _sharing(self) -> str:
        alone = sum(item.instances == 1 for item in self.environments)
        return (
            f"{self.instances} instances of {self.repositories} repositories in "
            f"{len(self.environments)} environments: {self.instances - alone} share "
            f"{len(self.environments) - alone}, {alone} have one of their own"
        )


def summarise(index: PlanIndex, results: Path, earlier: Sequence[Path]) -> Summary:
    """The summary of the plan in ``results``; ``earlier`` are results folders of builds, these
    included, of which the first that knows something is believed.
    """
    environments, instances = _Records(earlier), 0
    slugs = {keys.slug(repo): sizes for repo, sizes in _table()["environments"].items()}
    found: list[EnvironmentSummary] = []
    layers: dict[str, int] = {}
    known = 0
    for slug, entry in index.environments.items():
        plan = codec.read(EnvironmentPlan, results / f"plan/environments/{slug}.json")
        repos = sorted({repo for batch in entry.batches.values() for repo in batch.repos})
        count = sum(batch.instances for batch in entry.batches.values())
        expected = environments.of(plan) or _of_table(slugs, repos)
        found.append(EnvironmentSummary(slug, plan.python, count, len(entry.batches), expected))
        instances += count
        for name in entry.batches:
            batch = codec.read(BatchPlan, results / f"plan/batches/{slug}/{name}.json")
            for item in batch.instances:
                if (own := environments.checkouts.get(item.instance_id)) is not None:
                    layers |= own
                    known += 1
    return Summary(
        instances=instances,
        repositories=len(index.repos),
        environments=tuple(sorted(found, key=lambda item: (-item.instances, item.slug))),
        formats=index.formats,
        unplanned=index.reasons,
        checkouts=sum(layers.values()),
        known_checkouts=known,
        table=" ".join(str(_table()["source"]).split()),
    )


class _Records:
    """What records of earlier builds say of sizes."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._environments: dict[str, EnvironmentRecord] = {}
        #: Of an instance, the size of each of its layers that no environment has, by digest.
        self.checkouts: dict[str, dict[str, int]] = {}
        for folder in folders:
            for path in sorted(folder.glob("environments/*/environment.json")):
                record = _read(EnvironmentRecord, path)
                if record is not None and record.layers:
                    self._environments.setdefault(record.lock_key, record)
            for path in sorted(folder.glob("environments/*/batches/*/instances.json")):
                record = _read(InstancesRecord, path)
                for member in record.instances if record is not None else ():
                    if member.layers:
                        own = {
                            layer.digest: layer.unpacked_size
                            for layer in member.layers
                            if layer.kind in _OF_INSTANCES
                        }
                        self.checkouts.setdefault(member.key, own)

    def of(self, plan: EnvironmentPlan) -> Expected | None:
        """The environment itself, its interpreter not counted: others stand on that too."""
        record = self._environments.get(plan.lock_key)
        if record is None:
            return None
        size = sum(item.unpacked_size for item in record.layers if item.kind == "environment")
        return Expected(size, size, "record")


def _read(cls: type[Any], path: Path) -> Any:
    try:
        return codec.read(cls, path)
    except (OSError, InvalidInput):  # of another version, or being written
        return None


@functools.cache
def _table() -> Mapping[str, Any]:
    file = resources.files("minisandbox.build.planning") / "sizes.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def _of_table(table: Mapping[str, Sequence[int]], repos: Sequence[str]) -> Expected:
    known = [table[repo] for repo in repos if repo in table]
    if not known:
        return Expected(0, 0, "unknown")
    least, most = min(size[0] for size in known), max(size[1] for size in known)
    return Expected(least * _MEGABYTE, most * _MEGABYTE, "table")


def _said(least: int, most: int | None = None) -> str:
    most = least if most is None else most
    unit, name, digits = (_MEGABYTE, "MB", 0) if most < 2 * 10**9 else (10**9, "GB", 1)
    low, high = f"{least / unit:.{digits}f}", f"{most / unit:.{digits}f}"
    return f"{low} {name}" if low == high else f"{low}-{high} {name}"


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items())


def _reasons(numbers: Mapping[str, int]) -> str:
    return f" ({_counted(numbers)}); the manifest will say why" if numbers else ""
