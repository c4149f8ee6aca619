"""Rebuilding from a lock: the index files that an earlier build was served, and no others.

The lock is the earlier records themselves. A resolver that sees only the files it chose from last
time chooses the same, whatever was uploaded or yanked since, so no date is needed. They are found
by what was asked for, not by name: the day, the machine and the cut into batches may differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from minisandbox import keys
from minisandbox.errors import InvalidInput, StageFailed
from minisandbox.records import codec
from minisandbox.records.lock import IndexFile
from minisandbox.records.plan import BatchPlan, EnvironmentPlan
from minisandbox.records.stages import (
    RECORD_SCHEMA,
    EnvironmentRecord,
    InstanceRecord,
    InstancesRecord,
    Record,
)

R = TypeVar("R", bound=Record)

_HINT = "give the results folder of a build that went well with network 'index'"


@dataclass(frozen=True)
class Lock:
    """The files of an earlier build; of an environment also its Python, and what it had
    ``name==version`` of in the end.
    """

    path: Path
    files: tuple[IndexFile, ...]
    resolved: tuple[str, ...] = ()
    python: str = ""

    @property
    def digest(self) -> str:
        """What identifies the lock among the inputs of a build."""
        files = [[file.filename, file.sha256] for file in self.files]
        return keys.digest_of([files, list(self.resolved)])

    def check_python(self, python: str) -> None:
        """Raises ``StageFailed`` if a rebuild has a Python that other files are for."""
        if _minor(python) != _minor(self.python):
            raise StageFailed(
                "lock",
                f"{self.path} was built with Python {self.python}, and here is {python}",
                hint="name a Python of that version in the recipe",
            )

    def check(self, resolved: tuple[str, ...]) -> None:
        """Raises ``StageFailed`` if a rebuild has other packages than the locked build."""
        differing = sorted(set(self.resolved) ^ set(resolved))
        if differing:
            raise StageFailed(
                "lock",
                f"rebuilding from {self.path} gave other packages: {', '.join(differing[:10])}",
                hint="was the recipe changed since?",
            )


def environment_lock(place: Path, plan: EnvironmentPlan) -> Lock:
    """The lock of an environment, in a results folder or a record; raises ``StageFailed``."""
    if plan.network != "index":
        raise StageFailed("lock", f"a lock needs network 'index', not {plan.network!r}")
    if place.is_dir():
        own = place / "environments" / plan.slug / "environment.json"
        others = sorted(place.glob("environments/*/environment.json"))
        found = [path for path in (own, *others) if _asks(path, plan.lock_key)]
        if not found:
            raise StageFailed(
                "lock", f"{place} has no environment that was asked for as {plan.slug}", hint=_HINT
            )
        place = found[0]
    record = _read(EnvironmentRecord, place)
    _check_usable(record, record.reach, place)
    return Lock(place, record.network.files, record.packages, record.python)


class InstanceLocks:
    """The locks of the instances of a batch, in a results folder or in a batch's record.

    Each record is read once, and only as far as an instance that is asked for is not found yet.
    """

    def __init__(self, place: Path, plan: BatchPlan) -> None:
        self._place = place
        self._plan = plan
        self._unread = _batches(place, plan) if place.is_dir() else iter([place])
        self._found: dict[str, tuple[Path, InstanceRecord]] = {}
        self._broken: StageFailed | None = None

    def of(self, instance_id: str) -> Lock:
        """The lock of an instance; raises ``StageFailed``."""
        if self._plan.network != "index":
            raise StageFailed("lock", f"a lock needs network 'index', not {self._plan.network!r}")
        while instance_id not in self._found:
            if self._broken is not None:
                raise self._broken
            path = next(self._unread, None)
            if path is None:
                raise StageFailed("lock", f"{self._place} has no {instance_id}", hint=_HINT)
            try:
                batch = _read(InstancesRecord, path)
            except StageFailed as error:
                self._broken = error
                raise
            for record in batch.instances:
                self._found.setdefault(record.key, (path, record))
        path, record = self._found[instance_id]
        _check_usable(record, record.reach, path)
        return Lock(path, record.network.files)


def _batches(folder: Path, plan: BatchPlan) -> Iterator[Path]:
    """Records of batches, the one of the same name first: mostly it is the right one."""
    own = folder / "environments" / plan.environment / "batches" / plan.slug / "instances.json"
    if own.is_file():
        yield own
    yield from (
        path
        for path in sorted(folder.glob("environments/*/batches/*/instances.json"))
        if path != own
    )


def _asks(path: Path, lock_key: str) -> bool:
    try:
        record = codec.read(EnvironmentRecord, path)
    except (FileNotFoundError, InvalidInput):
        return False
    return record.lock_key == lock_key


def _check_usable(record: EnvironmentRecord | InstanceRecord, reach: str, path: Path) -> None:
    if record.status != "ok":
        raise StageFailed("lock", f"in {path} the build of {record.key} failed", hint=_HINT)
    if record.schema != RECORD_SCHEMA or reach != "index":
        raise StageFailed(
            "lock", f"{path} does not say which files {record.key} was served", hint=_HINT
        )


def _read(cls: type[R], path: Path) -> R:
    try:
        return codec.read(cls, path)
    except FileNotFoundError:
        raise StageFailed("lock", f"there is no lock {path}", hint=_HINT) from None
    except InvalidInput as error:
        raise StageFailed("lock", f"{path} is no lock: {error}", hint=_HINT) from None


def _minor(python: str) -> list[str]:
    return python.split(".")[:2]
