"""Rebuilding from a lock: the index files that an earlier build was served, and no others.

The lock is the earlier record itself. A resolver that sees only the files it chose from last time
chooses the same, whatever was uploaded or yanked since, so no date is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from minisandbox import keys
from minisandbox.errors import InvalidInput, StageFailed
from minisandbox.records import codec
from minisandbox.records.lock import IndexFile
from minisandbox.records.stages import EnvironmentRecord, InstancesRecord, Record

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Lock:
    """The files of an earlier build, and what it had ``name==version`` of in the end."""

    path: Path
    files: tuple[IndexFile, ...]
    resolved: tuple[str, ...] = ()

    def check(self, resolved: tuple[str, ...]) -> None:
        """Raises ``StageFailed`` if a rebuild has other packages than the locked build."""
        differing = sorted(set(self.resolved) ^ set(resolved))
        if differing:
            raise StageFailed(
                "environment",
                f"rebuilding from {self.path} gave other packages: {', '.join(differing[:10])}",
                hint="was the recipe changed since?",
            )


def lock_digest(path: Path | None) -> str | None:
    """What identifies a lock among the inputs of a build; ``None`` without one."""
    if path is None:
        return None
    try:
        return keys.digest_of(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"unreadable: {path}"


def read_environment_lock(path: Path) -> Lock:
    """The lock of an environment; raises ``StageFailed`` if the record cannot serve as one."""
    record = _read(EnvironmentRecord, path)
    return Lock(path, record.network.files, record.lock)


def read_instance_locks(path: Path) -> dict[str, Lock]:
    """The locks of a batch by instance id, those of failed instances left out; raises
    ``StageFailed``.
    """
    record = _read(InstancesRecord, path)
    return {
        instance.key: Lock(path, instance.network.files)
        for instance in record.instances
        if instance.status == "ok"
    }


def _read(cls: type[R], path: Path) -> R:
    hint = "give the results folder of a build that was made with network 'index'"
    try:
        record = codec.read(cls, path)
    except FileNotFoundError:
        raise StageFailed("lock", f"there is no lock {path}", hint=hint) from None
    except InvalidInput as error:
        raise StageFailed("lock", f"{path} is no lock: {error}", hint=hint) from None
    if record.status != "ok":
        raise StageFailed("lock", f"{path} tells of a build that failed", hint=hint)
    return record
