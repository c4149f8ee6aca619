"""The validate stage: do the tests say what the row claims? From the packed layers, with the
shipped runtime.

Every run has a sandbox of its own, network ``none``, on layers fetched from the store. Rows that
lack their test lists get them from a run without and a run with the gold patch; then, whoever made
the lists, two further runs are graded: the gold patch has to resolve the instance, an empty one
must not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minisandbox import keys
from minisandbox.build import batches, stage
from minisandbox.build.rows import complete
from minisandbox.errors import PatchFailed, RebuildFailed, StageFailed
from minisandbox.evaluate.grading import Grader, LogGrader, derive_lists
from minisandbox.evaluate.logs import Status
from minisandbox.evaluate.run_tests import TestOutput, TestSpec, run_tests
from minisandbox.records import codec
from minisandbox.records.plan import BatchPlan, InstancePlan, Recipe
from minisandbox.records.stages import (
    InstanceRecord,
    InstancesRecord,
    TestRun,
    ValidationRecord,
    ValidationsRecord,
)
from minisandbox.runtime import start_instance
from minisandbox.sandbox import Profile
from minisandbox.store import NodeStore, Store, default_node_root

#: Version of how validation is done; a change of meaning makes every record anew.
_METHOD = 2
_MAX_FAILING = 100


@dataclass(frozen=True)
class _Case:
    """One instance under validation."""

    instance: InstancePlan
    record: InstanceRecord
    recipe: Recipe
    store: Store
    node: NodeStore
    logs: Path


def run(
    plan_path: Path, instances_path: Path, record_path: Path, attempt: stage.Attempt
) -> stage.Ended:
    """``minisandbox build validate``."""
    plan = codec.read(BatchPlan, plan_path)
    built = {record.key: record for record in codec.read(InstancesRecord, instances_path).instances}
    store = Store(Path(plan.store))
    logs = record_path.parent / "logs"
    node = NodeStore(default_node_root())
    members: list[batches.Member[ValidationRecord]] = []
    for instance in plan.instances:
        record = built[instance.instance_id]
        case = _Case(instance, record, plan.recipe, store, node, logs)
        members.append(
            batches.Member(
                key=instance.instance_id,
                inputs=_inputs(instance, record, plan.recipe),
                log=logs / f"{instance.instance_id}.validate.log",
                work=functools.partial(_validate, case),
            )
        )
    return batches.run_batch(
        ValidationRecord,
        ValidationsRecord,
        record_path,
        members,
        name="validate",
        environment=plan.environment,
        attempt=attempt,
        store=None,
    )


def _inputs(instance: InstancePlan, record: InstanceRecord, recipe: Recipe) -> str:
    row = complete(instance, record.release)
    return keys.digest_of(
        {
            "method": _METHOD,
            "layers": [layer.digest for layer in record.layers],
            "failure": [record.failure.kind, record.failure.message] if record.failure else None,
            "patches": [row.patch, row.test_patch],
            "lists": [row.fail_to_pass, row.pass_to_pass],
            "test": [recipe.test, recipe.parser, recipe.rebuild, dict(recipe.env), recipe.timeout],
        }
    )


def _validate(case: _Case) -> ValidationRecord:
    failure = case.record.failure
    if failure is not None:
        raise StageFailed(failure.kind, failure.message, hint=failure.hint)
    row = complete(case.instance, case.record.release)
    if not row.patch.strip():
        raise StageFailed("patch", "the row has no gold patch, so it cannot be validated")
    fail_to_pass, pass_to_pass = row.fail_to_pass, row.pass_to_pass
    source: Literal["dataset", "derived"] = "dataset"
    if fail_to_pass is None or pass_to_pass is None:
        source = "derived"
        derived = _derive(case, row)
        fail_to_pass = derived[0] if fail_to_pass is None else fail_to_pass
        pass_to_pass = derived[1] if pass_to_pass is None else pass_to_pass
    lists = {"fail_to_pass": fail_to_pass, "pass_to_pass": pass_to_pass}
    empty = _graded(case, row, "empty", lists)
    gold = _graded(case, row, "gold", lists)
    record = stage.new(
        ValidationRecord,
        tests_source=source,
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        empty=empty,
        gold=gold,
    )
    return stage.with_failure(
        record, _verdict(empty, gold, case.logs / f"{case.instance.instance_id}.gold.log")
    )


def _verdict(empty: TestRun, gold: TestRun, log: Path) -> StageFailed | None:
    if gold.timed_out or empty.timed_out:
        which = "gold" if gold.timed_out else "empty"
        return StageFailed(
            "timeout",
            f"the tests with the {which} patch took too long",
            hint="raise 'timeout' in the recipe",
        )
    if not gold.resolved:
        count = len(gold.failing)
        return StageFailed(
            "gold-unresolved",
            f"the gold patch leaves {count}{'+' if count == _MAX_FAILING else ''} tests failing, "
            f"such as {gold.failing[0]}"
            if gold.failing
            else "the row names no test that the gold patch makes pass",
            hint=f"see {log}",
        )
    if empty.resolved:
        return StageFailed(
            "empty-resolved",
            "every test passes without any change, so the instance asks for nothing",
        )
    return None


def _derive(case: _Case, row: InstancePlan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Both lists from two runs; raises ``StageFailed`` of kind ``derive`` if they tell too little.

    A module that cannot be imported without the patch must not hide what the other modules do, so
    pytest goes on after it. Nothing is called failing that no run has shown to fail.
    """
    grader: Grader = LogGrader(case.recipe.parser)
    go_on = " --continue-on-collection-errors" if case.recipe.parser == "pytest" else ""
    before = _run(case, row, "", "derive-before", more=go_on)
    after = _run(case, row, row.patch, "derive-after")
    _check_whole(case, before, "without the gold patch", "derive-before")
    _check_whole(case, after, "with the gold patch", "derive-after")
    statuses = grader.statuses(after.log)
    if not statuses:
        raise StageFailed(
            "derive",
            f"the {case.recipe.parser} parser finds no test in the log of `{case.recipe.test}`",
            hint=f"see {_log(case, 'derive-after')}; pytest needs -rA, unittest -v",
        )
    earlier = grader.statuses(before.log)
    if not earlier and before.exit_code == 0:
        raise StageFailed(
            "derive",
            "the tests without the gold patch ended well without reporting a single one",
            hint=f"see {_log(case, 'derive-before')}",
        )
    fail_to_pass, pass_to_pass = derive_lists(earlier, statuses)
    if not fail_to_pass:
        failed = sum(status in (Status.FAILED, Status.ERROR) for status in statuses.values())
        raise StageFailed(
            "derive",
            "no test fails without the gold patch and passes with it "
            f"({len(statuses)} tests, {failed} fail)",
            hint="the test patch does not tell the patch apart",
        )
    return fail_to_pass, pass_to_pass


def _check_whole(case: _Case, output: TestOutput, which: str, name: str) -> None:
    """A run that was cut short shows nothing; raises ``StageFailed``."""
    if output.timed_out:
        raise StageFailed(
            "timeout",
            f"the tests {which} took more than {case.recipe.timeout} s",
            hint="raise 'timeout' in the recipe",
        )
    if output.truncated or output.exit_code > 128:
        why = "printed more than is kept" if output.truncated else f"ended with {output.exit_code}"
        raise StageFailed("derive", f"the tests {which} {why}", hint=f"see {_log(case, name)}")


def _graded(
    case: _Case,
    row: InstancePlan,
    which: Literal["empty", "gold"],
    lists: Mapping[str, tuple[str, ...]],
) -> TestRun:
    output = _run(case, row, row.patch if which == "gold" else "", which)
    grader: Grader = LogGrader(case.recipe.parser)
    statuses = grader.statuses(output.log)
    grade = grader.grade(
        output.log, fail_to_pass=lists["fail_to_pass"], pass_to_pass=lists["pass_to_pass"]
    )
    complete_run = not output.timed_out and not output.truncated
    return TestRun(
        patch=which,
        resolved=grade.resolved and complete_run,
        exit_code=output.exit_code,
        timed_out=output.timed_out,
        seconds=round(output.seconds, 3),
        passed=sum(status in (Status.PASSED, Status.XFAIL) for status in statuses.values()),
        failed=sum(status in (Status.FAILED, Status.ERROR) for status in statuses.values()),
        fail_to_pass=grade.fail_to_pass,
        pass_to_pass=grade.pass_to_pass,
        failing=grade.failing[:_MAX_FAILING],
        log=str(_log(case, which)),
    )


def _run(case: _Case, row: InstancePlan, patch: str, name: str, *, more: str = "") -> TestOutput:
    recipe = case.recipe
    spec = TestSpec(
        test_command=recipe.test + more,
        parser=recipe.parser,
        test_patch=row.test_patch,
        rebuild_command=recipe.rebuild,
        env=recipe.env,
        timeout=recipe.timeout,
    )
    with start_instance(
        case.record.layers,
        head_tree=case.record.head_tree,
        store=case.store,
        node=case.node,
        name=f"{row.instance_id}-{name}",
        profile=Profile(network="none"),
    ) as instance:
        try:
            return run_tests(instance, spec, patch=patch, log_path=_log(case, name))
        except RebuildFailed as error:
            raise StageFailed("install", str(error), hint="see 'rebuild' in the recipe") from None
        except PatchFailed as error:
            raise StageFailed(
                "patch", str(error), hint="check the row's 'patch' and 'test_patch'"
            ) from None


def _log(case: _Case, name: str) -> Path:
    return case.logs / f"{case.instance.instance_id}.{name}.log"
