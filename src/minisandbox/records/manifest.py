"""One row of the manifest: everything a loader, a trainer or a grader needs to know of an instance.

``docs/formats.md`` describes every field; a test keeps the two in step.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from minisandbox.errors import InvalidInput
from minisandbox.records.layer import LayerRef
from minisandbox.records.stages import INFRASTRUCTURE, Status

#: Version of the row; readers accept every version in ``READABLE_SCHEMAS``.
MANIFEST_SCHEMA = 1
READABLE_SCHEMAS = (1,)

#: Beside the manifest: how many instances there are, and how many failed for which reason.
SUMMARY_NAME = "manifest.summary.json"


@dataclass(frozen=True)
class Counts:
    """Rows by what became of them.

    All of ``planned`` are rows that the plan selected; on those that are ``tried`` a stage worked;
    of those ``validated`` the tests were run with and without the gold patch. ``reasons`` counts
    the rows that are not ``ok`` by kind, and ``infrastructure`` is how many of them say nothing of
    the row.
    """

    planned: int
    tried: int
    validated: int
    ok: int
    infrastructure: int
    reasons: Mapping[str, int]

    @property
    def failed(self) -> int:
        return self.planned - self.ok

    def __str__(self) -> str:
        said = (
            f"{self.ok} of {self.planned} rows planned are ok "
            f"({self.tried} tried, {self.validated} validated)"
        )
        if not self.reasons:
            return said
        kinds = ", ".join(f"{number} {kind}" for kind, number in self.reasons.items())
        return f"{said}; {self.failed} failed: {kinds}"


class Tally:
    """Counts rows that are read one by one: a manifest need not fit into memory."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def add(self, row: ManifestRow) -> None:
        """Count one row."""
        self._seen["planned"] += 1
        self._seen["tried"] += row.failed_stage != "plan"
        tested = row.gold_resolved is not None and row.empty_resolved is not None
        self._seen["validated"] += tested
        if row.status == "failed":
            self._reasons[row.reason_kind] += 1

    @property
    def counts(self) -> Counts:
        """The counts of the rows so far."""
        return Counts(
            planned=self._seen["planned"],
            tried=self._seen["tried"],
            validated=self._seen["validated"],
            ok=self._seen["planned"] - self._reasons.total(),
            infrastructure=sum(self._reasons[kind] for kind in INFRASTRUCTURE),
            reasons=dict(self._reasons.most_common()),
        )


@dataclass(frozen=True)
class Base:
    """What the environment was compiled against; ``packages`` is a digest of the installed system
    packages.
    """

    kind: str = ""
    os: str = ""
    os_version: str = ""
    libc: str = ""
    arch: str = ""
    packages: str = ""


@dataclass(frozen=True)
class BuildSeconds:
    """Wall time of each stage that had a part in the instance, in seconds; ``None`` where it did
    not run.

    The first three are shared with other instances; ``instance`` is the sum of checkout to pack.

    """

    interpreter: float | None = None
    clone: float | None = None
    environment: float | None = None
    checkout: float | None = None
    install: float | None = None
    smoke: float | None = None
    pack: float | None = None
    instance: float | None = None
    validate: float | None = None


@dataclass(frozen=True)
class Logs:
    """Logs of the stages, relative to the folder of the manifest; empty where there is none."""

    environment: str = ""
    build: str = ""
    gold: str = ""
    empty: str = ""


@dataclass(frozen=True, kw_only=True)
class ManifestRow:
    """An instance, built or not. Times are seconds, sizes bytes, digests those of uncompressed
    tars.

    ``env``, ``test_env`` and ``extra`` (columns of the dataset that have no field here) are JSON
    text, because their keys differ from row to row and a column has one type. ``test_spec`` is JSON
    text too: what an official grader needs beside the row to grade without mirror or network.
    ``trusted_files`` are put back before tests run, whatever a patch did to them.
    ``limits`` (JSON text, by the names of ``sandbox.Limits``), ``nested`` and ``blackhole`` are
    those of the sandboxes that it is validated in, ``validate_runs`` how often its tests ran there
    with the gold patch, and how often without; ``flaky_tests`` came out differently.
    """

    schema: int
    instance_id: str
    dataset: str
    repo: str
    version: str
    base_commit: str
    head_commit: str
    head_tree: str
    problem_statement: str
    hints_text: str
    patch: str
    test_patch: str
    FAIL_TO_PASS: tuple[str, ...]
    PASS_TO_PASS: tuple[str, ...]
    tests_source: Literal["", "dataset", "derived"]
    status: Status
    failed_stage: str
    reason_kind: str
    reason: str
    log_tail: str
    environment: str
    environment_key: str
    layers: tuple[LayerRef, ...]
    base: Base
    profile: str
    python: str
    python_prefix: str
    packages: tuple[str, ...]
    install_command: str
    test_command: str
    rebuild_command: str
    test_env: str
    test_timeout: int
    log_parser: str
    grader: str = "log"
    test_spec: str = ""
    trusted_files: tuple[str, ...] = ()
    env: str = "{}"
    limits: str = "{}"
    nested: bool = False
    blackhole: bool = False
    build_seconds: BuildSeconds
    gold_resolved: bool | None
    empty_resolved: bool | None
    gold_seconds: float | None
    empty_seconds: float | None
    validate_runs: int = 0
    flaky_tests: tuple[str, ...] = ()
    failing_tests: tuple[str, ...] = ()
    logs: Logs
    extra: str


def variables_of(row: ManifestRow, column: Literal["env", "test_env"]) -> dict[str, str]:
    """Environment variables of a row; raises ``InvalidInput`` if the text is none."""
    found = _object_of(row, column)
    for name, value in found.items():
        if not isinstance(value, str) or "=" in name or "\0" in name + value or not name:
            raise _damaged(row, column, f"gives {name!r} as {value!r}, which no variable can be")
    return found


def limits_of(row: ManifestRow) -> dict[str, Any]:
    """Limits of a row's sandboxes; raises ``InvalidInput`` if the text is no object."""
    return _object_of(row, "limits")


def extra_of(row: ManifestRow) -> dict[str, Any]:
    """Further columns of a row's dataset; raises ``InvalidInput`` if the text is no object."""
    return _object_of(row, "extra")


def _object_of(
    row: ManifestRow, column: Literal["env", "test_env", "limits", "extra"]
) -> dict[str, Any]:
    try:
        found: Any = json.loads(getattr(row, column))
    except (ValueError, RecursionError) as error:
        raise _damaged(row, column, f"is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise _damaged(row, column, "is not a JSON object")
    return cast("dict[str, Any]", found)


def _damaged(row: ManifestRow, column: str, problem: str) -> InvalidInput:
    where = f"manifest row {row.instance_id}: key {column!r}"
    return InvalidInput(where, problem, "build the manifest again")
