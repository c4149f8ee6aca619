"""The manifest stage: all records joined into one row an instance, failures with their reasons.

Always runs: what failed is a row like any other. Parquet for pandas and ``datasets``, JSON lines
for the runtime and plain Python, with the same fields.
"""

# pyarrow and datasets come without types; what crosses the border is checked by the codec.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from minisandbox import atomic, keys
from minisandbox.build import stage
from minisandbox.build.checkouts.rows import complete
from minisandbox.build.schemas import manifest_schema
from minisandbox.errors import EXIT_OK
from minisandbox.records import codec
from minisandbox.records.manifest import (
    MANIFEST_SCHEMA,
    Base,
    BuildSeconds,
    Logs,
    ManifestRow,
    Tally,
)
from minisandbox.records.plan import (
    BatchPlan,
    EnvironmentPlan,
    InstancePlan,
    PlanIndex,
    Unplanned,
)
from minisandbox.records.stages import (
    CloneRecord,
    EnvironmentRecord,
    Failure,
    InstanceRecord,
    InstancesRecord,
    InterpreterRecord,
    Record,
    ValidationRecord,
    ValidationsRecord,
)
from minisandbox.runtime.cache import CACHE_NAME


@dataclass(frozen=True)
class _Environment:
    """An environment's plan and record, and the record of its interpreter."""

    plan: EnvironmentPlan
    record: EnvironmentRecord
    interpreter: InterpreterRecord


def run(
    plan_path: Path, results: Path, *, parquet_path: Path, jsonl_path: Path, summary_path: Path
) -> stage.Ended:
    """``minisandbox build manifest``."""
    index = codec.read(PlanIndex, plan_path)
    rows = sorted(_rows(index, results), key=lambda row: (row.dataset, row.instance_id))
    table = _table(rows)
    with atomic.replacing(jsonl_path) as temporary, temporary.open("w", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(codec.encode(row), ensure_ascii=False) + "\n")
    with atomic.replacing(parquet_path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    store = os.path.relpath(index.store, results)
    atomic.write_text(results / CACHE_NAME, json.dumps({"schema": 1, "store": store}) + "\n")
    tally = Tally()
    for row in rows:
        tally.add(row)
    counts = tally.counts
    summary = {
        "schema": 1,
        "instances": counts.planned,
        "tried": counts.tried,
        "validated": counts.validated,
        "ok": counts.ok,
        "failed": counts.failed,
        "infrastructure": counts.infrastructure,
        "reasons": dict(counts.reasons),
    }
    atomic.write_text(summary_path, json.dumps(summary, indent=1) + "\n")
    return stage.Ended(EXIT_OK, f"manifest: {counts}")


def _table(rows: list[ManifestRow]) -> pa.Table:
    frame = pd.DataFrame(
        [asdict(row) for row in rows], columns=[field.name for field in manifest_schema()]
    )
    return pa.Table.from_pandas(frame, schema=manifest_schema(), preserve_index=False)


def _rows(index: PlanIndex, results: Path) -> Iterator[ManifestRow]:
    clones = {
        repo: codec.read(CloneRecord, results / "sources" / repo / "clone.json")
        for repo in index.repos
    }
    for name, entry in tqdm(index.environments.items(), desc="join", unit="environment"):
        environment = _Environment(
            plan=codec.read(EnvironmentPlan, results / "plan/environments" / f"{name}.json"),
            record=codec.read(
                EnvironmentRecord, results / "environments" / name / "environment.json"
            ),
            interpreter=codec.read(
                InterpreterRecord, results / "interpreters" / entry.python / "interpreter.json"
            ),
        )
        for batch in entry.batches:
            plan = codec.read(BatchPlan, results / "plan/batches" / name / f"{batch}.json")
            folder = results / "environments" / name / "batches" / batch
            built = {
                item.key: item
                for item in codec.read(InstancesRecord, folder / "instances.json").instances
            }
            validated = {
                item.key: item
                for item in codec.read(ValidationsRecord, folder / "validation.json").instances
            }
            for instance in plan.instances:
                record = built[instance.instance_id]
                yield _row(
                    instance,
                    plan,
                    environment,
                    record,
                    validated[instance.instance_id],
                    clones[keys.slug(instance.repo)],
                    results,
                )
    for item in cast(
        "list[Any]", json.loads((results / "plan/unplanned.json").read_text(encoding="utf-8"))
    ):
        yield _unplanned_row(codec.decode(Unplanned, item, where="plan/unplanned.json"))


def _row(
    instance: InstancePlan,
    plan: BatchPlan,
    environment: _Environment,
    record: InstanceRecord,
    validation: ValidationRecord,
    clone: CloneRecord,
    results: Path,
) -> ManifestRow:
    row, recipe = complete(instance, record.found), plan.recipe
    failed_stage, failure = _first_failure(clone, environment, record, validation)
    return ManifestRow(
        schema=MANIFEST_SCHEMA,
        instance_id=row.instance_id,
        dataset=row.dataset,
        repo=row.repo,
        version=row.version,
        base_commit=record.base_commit or row.base_commit,
        head_commit=record.head_commit,
        head_tree=record.head_tree,
        problem_statement=row.problem_statement,
        hints_text=row.hints_text,
        patch=row.patch,
        test_patch=row.test_patch,
        FAIL_TO_PASS=validation.fail_to_pass or row.fail_to_pass or (),
        PASS_TO_PASS=validation.pass_to_pass or row.pass_to_pass or (),
        tests_source=validation.tests_source or ("dataset" if row.fail_to_pass else ""),
        status="ok" if failure is None else "failed",
        failed_stage=failed_stage,
        reason_kind=failure.kind if failure else "",
        reason=_sentence(failure),
        log_tail=failure.log_tail if failure else "",
        environment=environment.plan.slug,
        environment_key=environment.record.inputs,
        layers=record.layers,
        base=codec.decode(Base, dict(environment.plan.base), where=environment.plan.slug),
        profile=environment.record.profile,
        python=environment.record.python,
        python_prefix=environment.record.prefix,
        packages=environment.record.packages,
        install_command=recipe.install,
        test_command=recipe.test,
        rebuild_command=recipe.rebuild,
        test_env=json.dumps(dict(recipe.env), sort_keys=True),
        test_timeout=recipe.timeout,
        log_parser=recipe.parser,
        grader=recipe.grader,
        test_spec=validation.test_spec,
        trusted_files=row.trusted_files,
        env=json.dumps(dict(record.env), sort_keys=True),
        limits=json.dumps(dict(plan.limits)),
        nested=recipe.nested,
        blackhole=recipe.blackhole,
        build_seconds=BuildSeconds(
            interpreter=environment.interpreter.seconds,
            clone=clone.seconds,
            environment=_ran(environment.record, environment.interpreter),
            checkout=record.stage_seconds.get("checkout"),
            install=record.stage_seconds.get("install"),
            smoke=record.stage_seconds.get("smoke"),
            pack=record.stage_seconds.get("pack"),
            instance=_ran(record, clone, environment.interpreter, environment.record),
            validate=_ran(validation, record),
        ),
        gold_resolved=validation.gold.resolved if validation.gold else None,
        empty_resolved=validation.empty.resolved if validation.empty else None,
        gold_seconds=validation.gold.seconds if validation.gold else None,
        empty_seconds=validation.empty.seconds if validation.empty else None,
        validate_runs=validation.runs,
        flaky_tests=tuple(item.test for item in validation.flaky),
        failing_tests=validation.gold.failing if validation.gold else (),
        logs=Logs(
            environment=_relative(environment.record.log, results),
            build=_relative(record.log, results),
            gold=_relative(validation.gold.log, results) if validation.gold else "",
            empty=_relative(validation.empty.log, results) if validation.empty else "",
        ),
        extra=json.dumps(dict(row.extra), sort_keys=True, ensure_ascii=False),
    )


def _ran(record: Record, *before: Record) -> float | None:
    """The seconds of a stage, ``None`` if it only passed on the failure of one before it."""
    return None if any(item.failure is not None for item in before) else record.seconds


def _first_failure(
    clone: CloneRecord,
    environment: _Environment,
    record: InstanceRecord,
    validation: ValidationRecord,
) -> tuple[str, Failure | None]:
    """The earliest stage that failed is the reason; the later ones only repeat it."""
    for name, failure in (
        ("clone", clone.failure),
        ("interpreter", environment.interpreter.failure),
        ("environment", environment.record.failure),
        ("instances", record.failure),
        ("validate", validation.failure),
    ):
        if failure is not None:
            return name, failure
    return "", None


def _sentence(failure: Failure | None) -> str:
    if failure is None:
        return ""
    return failure.message + (f"; {failure.hint}" if failure.hint else "")


def _relative(log: str, results: Path) -> str:
    """Logs are named relative to the results folder, so that a moved cache still finds them."""
    return os.path.relpath(log, results) if log else ""


#: Text fields that only a plan or a record could fill.
_NOT_PLANNED = (
    "head_commit",
    "head_tree",
    "log_tail",
    "environment",
    "environment_key",
    "profile",
    "python",
    "python_prefix",
    "install_command",
    "test_command",
    "rebuild_command",
    "log_parser",
    "grader",
    "test_spec",
)


def _unplanned_row(item: Unplanned) -> ManifestRow:
    row = item.instance
    blank: dict[str, Any] = dict.fromkeys(_NOT_PLANNED, "")
    return ManifestRow(
        schema=MANIFEST_SCHEMA,
        instance_id=row.instance_id,
        dataset=row.dataset,
        repo=row.repo,
        version=row.version,
        base_commit=row.base_commit,
        problem_statement=row.problem_statement,
        hints_text=row.hints_text,
        patch=row.patch,
        test_patch=row.test_patch,
        FAIL_TO_PASS=row.fail_to_pass or (),
        PASS_TO_PASS=row.pass_to_pass or (),
        tests_source="dataset" if row.fail_to_pass else "",
        status="failed",
        failed_stage="plan",
        reason_kind=item.kind,
        reason=item.message,
        layers=(),
        base=Base(),
        packages=(),
        test_env="{}",
        env="{}",
        test_timeout=0,
        build_seconds=BuildSeconds(),
        gold_resolved=None,
        empty_resolved=None,
        gold_seconds=None,
        empty_seconds=None,
        logs=Logs(),
        extra=json.dumps(dict(row.extra), sort_keys=True, ensure_ascii=False),
        **blank,
    )
