"""The validate stage: do the tests say what the row claims? From the packed layers, with the
shipped runtime.

Every run has a sandbox of its own, network ``none``, on layers fetched from the store. Rows that
lack their test lists get them from a run without and a run with the gold patch; then, whoever made
the lists, two further runs are graded: the gold patch has to resolve the instance, an empty one
must not. An official grader derives nothing: its rows bring their lists along.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from minisandbox import keys
from minisandbox.build import batches, stage
from minisandbox.build.checkouts.rows import complete
from minisandbox.build.system_packages import missing_hint
from minisandbox.errors import (
    InvalidInput,
    MiniSandboxError,
    PatchFailed,
    RebuildFailed,
    StageFailed,
    keep_facts,
)
from minisandbox.evaluate.grading import (
    Grade,
    Grader,
    GraderFailed,
    GraderUnavailable,
    LogGrader,
    PreparationFailed,
    Task,
    derive_lists,
)
from minisandbox.evaluate.judging import environment_commit, grader_named
from minisandbox.evaluate.logs import Status
from minisandbox.evaluate.run_tests import TestOutput
from minisandbox.records import codec
from minisandbox.records.plan import BatchPlan, InstancePlan, Recipe
from minisandbox.records.stages import (
    CloneRecord,
    InstanceRecord,
    InstancesRecord,
    TestRun,
    ValidationRecord,
    ValidationsRecord,
)
from minisandbox.runtime import start_instance
from minisandbox.runtime.profiles import limits_from
from minisandbox.sandbox import Profile
from minisandbox.store import NodeStore, Store, default_node_root

#: Version of how validation is done; a change of meaning makes every record anew.
_METHOD = 4
_MAX_FAILING = 100


class _Batch:
    """What one job works with."""

    def __init__(
        self,
        plan: BatchPlan,
        built: Mapping[str, InstanceRecord],
        mirrors: Mapping[str, Path],
        logs: Path,
    ) -> None:
        self.plan = plan
        self.built = built
        self.mirrors = mirrors
        self.logs = logs
        self.store = Store(Path(plan.store))
        self.node = NodeStore(default_node_root())
        self.grader = _grader(plan)
        limits = limits_from(plan.limits, where=f"plan of batch {plan.slug}")
        self.profile = Profile(network="none", nested=plan.recipe.nested, limits=limits)

    @property
    def ran_under(self) -> Mapping[str, Any]:
        """What a record says of the sandboxes."""
        return {
            "profile": self.profile.digest(),
            "limits": self.profile.limits.identity(),
            "nested": self.profile.nested,
        }

    @functools.cached_property
    def specs(self) -> Mapping[str, str | GraderFailed]:
        """The test specs of all instances that can be tested, asked for once, when one is
        needed.
        """
        tasks = [
            task
            for instance in self.plan.instances
            if (record := self.built[instance.instance_id]).failure is None
            and (task := _task(complete(instance, record.release))) is not None
        ]
        try:
            return self.grader.specify(tasks, mirrors=self.mirrors)
        except GraderUnavailable as error:
            raise _unavailable(error) from error


@dataclass(frozen=True)
class _Case:
    """One instance under validation."""

    batch: _Batch
    instance: InstancePlan

    @property
    def record(self) -> InstanceRecord:
        return self.batch.built[self.instance.instance_id]

    @property
    def recipe(self) -> Recipe:
        return self.batch.plan.recipe

    def log(self, name: str) -> Path:
        return self.batch.logs / f"{self.instance.instance_id}.{name}.log"


def run(
    plan_path: Path,
    instances_path: Path,
    clone_paths: Sequence[Path],
    record_path: Path,
    attempt: stage.Attempt,
) -> stage.Ended:
    """``minisandbox build validate``; an official grader reads files of the clones' mirrors."""
    plan = codec.read(BatchPlan, plan_path)
    built = {record.key: record for record in codec.read(InstancesRecord, instances_path).instances}
    # By key: a clone that failed has a record that says nothing else of the repository.
    clones = {clone.key: clone for clone in (codec.read(CloneRecord, path) for path in clone_paths)}
    mirrors = {
        instance.repo: Path(clone.mirror)
        for instance in plan.instances
        if (clone := clones.get(keys.slug(instance.repo))) is not None and clone.failure is None
    }
    batch = _Batch(plan, built, mirrors, record_path.parent / "logs")
    missing = {keys.slug(item.repo) for item in plan.instances} - clones.keys()
    if missing and not isinstance(batch.grader, LogGrader):
        raise InvalidInput("--clone", f"the record of {', '.join(sorted(missing))} is not given")
    members = [
        batches.Member(
            key=instance.instance_id,
            inputs=_inputs(batch, instance),
            log=batch.logs / f"{instance.instance_id}.validate.log",
            work=functools.partial(_validate, _Case(batch, instance)),
        )
        for instance in plan.instances
    ]
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


def _grader(plan: BatchPlan) -> Grader:
    recipe = plan.recipe
    commands = LogGrader(recipe.parser, recipe.test, recipe.rebuild, recipe.env, recipe.timeout)
    where = f"recipe {recipe.name}"
    return grader_named(recipe.grader, where, commands, tools=Path(plan.tools), report=tqdm.write)


def _inputs(batch: _Batch, instance: InstancePlan) -> str:
    record, recipe = batch.built[instance.instance_id], batch.plan.recipe
    missing = record.missing_packages
    row = complete(instance, record.release)
    test: dict[str, object] = {"env": dict(recipe.env), "timeout": recipe.timeout}
    if recipe.grader == "log":
        test |= {"test": recipe.test, "parser": recipe.parser, "rebuild": recipe.rebuild}
    else:
        test |= {
            "grader": [recipe.grader, dict(batch.grader.identity)],
            "row": [row.repo, row.version, row.base_commit, environment_commit(row.extra)],
        }
    return keys.digest_of(
        {
            "method": _METHOD,
            "layers": [layer.digest for layer in record.layers],
            "env": dict(record.env),
            "failure": [record.failure.kind, record.failure.message] if record.failure else None,
            **({"missing_packages": list(missing)} if missing else {}),
            "patches": [row.patch, row.test_patch],
            "lists": [row.fail_to_pass, row.pass_to_pass],
            "test": test,
            # Not the profile's digest: a rule more about system calls is no reason to test again.
            "sandbox": {"limits": batch.profile.limits.identity(), "nested": recipe.nested},
        }
    )


def _task(row: InstancePlan) -> Task | None:
    """What a grader has to know of a row; ``None`` if the row does not say which tests decide."""
    if not row.fail_to_pass or row.pass_to_pass is None:
        return None
    return Task(
        instance_id=row.instance_id,
        repo=row.repo,
        version=row.version,
        base_commit=row.base_commit,
        test_patch=row.test_patch,
        fail_to_pass=row.fail_to_pass,
        pass_to_pass=row.pass_to_pass,
        environment_commit=environment_commit(row.extra),
    )


def _validate(case: _Case) -> ValidationRecord:
    failure = case.record.failure
    if failure is not None:
        raise StageFailed(failure.kind, failure.message, hint=failure.hint)
    row = complete(case.instance, case.record.release)
    if not row.patch.strip():
        raise StageFailed("patch", "the row has no gold patch, so it cannot be validated")
    try:
        return _tested(case, row)
    except MiniSandboxError as error:
        keep_facts(error, **case.batch.ran_under)
        raise


def _tested(case: _Case, row: InstancePlan) -> ValidationRecord:
    """The record of a row whose tests were run; raises ``StageFailed`` where that tells nothing."""
    grader, source = case.batch.grader, "dataset"
    if isinstance(grader, LogGrader):
        if row.fail_to_pass is None or row.pass_to_pass is None:
            source, row = "derived", _with_lists(case, grader, row)
        task = _task(row)
        if task is None:
            raise StageFailed(
                "gold-unresolved", "the row names no test that the gold patch makes pass"
            )
    else:
        task = _specified(case, row)
    empty, gold = _graded(case, task, row.patch)
    record = stage.new(
        ValidationRecord,
        tests_source=source,
        fail_to_pass=task.fail_to_pass,
        pass_to_pass=task.pass_to_pass,
        empty=empty[1],
        gold=gold[1],
        grader=grader.name,
        test_spec=task.test_spec,
        tools=grader.identity,
        **case.batch.ran_under,
    )
    failure = _verdict(empty[0], gold[0], case.log("gold"))
    failure = _with_hint(failure, missing_hint(case.record.missing_packages))
    return stage.with_failure(record, _with_limit(failure, empty[1], gold[1]))


def _specified(case: _Case, row: InstancePlan) -> Task:
    """The task of a row with the official test spec; raises ``StageFailed``."""
    task = _task(row)
    if task is None:
        raise StageFailed(
            "derive",
            f"{case.batch.grader.name} grades by FAIL_TO_PASS and PASS_TO_PASS, "
            "which the row does not have",
            hint="official graders derive nothing; with `grader: log` the lists come from runs",
        )
    spec = case.batch.specs[task.instance_id]
    if isinstance(spec, GraderFailed):
        raise StageFailed("grader", str(spec), hint="check the row's 'repo' and 'version'")
    return replace(task, test_spec=spec)


def _verdict(empty: Grade, gold: Grade, log: Path) -> StageFailed | None:
    for which, graded in (("gold", gold), ("empty", empty)):
        if graded.outcome == "timeout":
            return StageFailed(
                "timeout",
                f"the tests with the {which} patch took too long",
                hint="raise 'timeout' in the recipe",
            )
        if not graded.is_verdict:
            hint = f"see {log.with_name(log.name.replace('.gold.', f'.{which}.'))}"
            return StageFailed(
                graded.outcome, f"with the {which} patch: {graded.reason}", hint=hint
            )
    if not gold.resolved:
        count = len(gold.failing)
        return StageFailed(
            "gold-unresolved",
            f"the gold patch leaves {count} tests failing, such as {gold.failing[0]}",
            hint=f"see {log}",
        )
    if empty.resolved:
        return StageFailed(
            "empty-resolved",
            "every test passes without any change, so the instance asks for nothing",
        )
    return None


def _with_limit(failure: StageFailed | None, *runs: TestRun) -> StageFailed | None:
    """``failure``, with what it may come from where a run reached a limit of its sandbox."""
    limits = " and ".join(sorted({run.limit for run in runs if run.limit}))
    hint = f"its sandbox reached the limit on {limits}: {stage.RAISE_LIMITS}"
    return _with_hint(failure, hint if limits else "")


def _with_hint(failure: StageFailed | None, hint: str) -> StageFailed | None:
    if failure is None or not hint:
        return failure
    hints = filter(None, (failure.hint, hint))
    return StageFailed(failure.kind, failure.message, hint="; ".join(hints))


def _with_lists(case: _Case, grader: LogGrader, row: InstancePlan) -> InstancePlan:
    """``row`` with the list that it lacks, or both, from two runs; raises ``StageFailed``."""
    fail_to_pass, pass_to_pass = _derive(case, grader, row)
    return replace(
        row,
        fail_to_pass=fail_to_pass if row.fail_to_pass is None else row.fail_to_pass,
        pass_to_pass=pass_to_pass if row.pass_to_pass is None else row.pass_to_pass,
    )


def _derive(
    case: _Case, grader: LogGrader, row: InstancePlan
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Both lists from two runs; raises ``StageFailed`` of kind ``derive`` if they tell too little.

    A module that cannot be imported without the patch must not hide what the other modules do, so
    pytest goes on after it. Nothing is called failing that no run has shown to fail.
    """
    go_on = " --continue-on-collection-errors" if case.recipe.parser == "pytest" else ""
    going_on = replace(grader, test_command=grader.test_command + go_on)
    task = _task(replace(row, fail_to_pass=("?",), pass_to_pass=()))
    assert task is not None
    before = _run(case, going_on, task, "", "derive-before")
    after = _run(case, grader, task, row.patch, "derive-after")
    _check_whole(case, before, "without the gold patch", "derive-before")
    _check_whole(case, after, "with the gold patch", "derive-after")
    statuses = grader.statuses(after.log)
    if not statuses:
        raise StageFailed(
            "derive",
            f"the {case.recipe.parser} parser finds no test in the log of `{case.recipe.test}`",
            hint=f"see {case.log('derive-after')}; pytest needs -rA, unittest -v",
        )
    earlier = grader.statuses(before.log)
    if not earlier and before.exit_code == 0:
        raise StageFailed(
            "derive",
            "the tests without the gold patch ended well without reporting a single one",
            hint=f"see {case.log('derive-before')}",
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
        raise StageFailed("derive", f"the tests {which} {why}", hint=f"see {case.log(name)}")


def _graded(
    case: _Case, task: Task, patch: str
) -> tuple[tuple[Grade, TestRun], tuple[Grade, TestRun]]:
    """The runs without and with the gold patch, graded in one call of the grader."""
    grader = case.batch.grader
    outputs = [_run(case, grader, task, "", "empty"), _run(case, grader, task, patch, "gold")]
    try:
        empty, gold = grader.grade(task, outputs)
    except GraderFailed as error:
        raise StageFailed("grader", str(error)) from error
    except GraderUnavailable as error:
        raise _unavailable(error) from error
    return (
        (empty, _test_run(case, "empty", outputs[0], empty)),
        (gold, _test_run(case, "gold", outputs[1], gold)),
    )


def _test_run(
    case: _Case, which: Literal["empty", "gold"], output: TestOutput, grade: Grade
) -> TestRun:
    return TestRun(
        patch=which,
        outcome=grade.outcome,
        resolved=grade.resolved,
        exit_code=output.exit_code,
        timed_out=output.timed_out,
        seconds=round(output.seconds, 3),
        passed=grade.passed,
        failed=grade.failed,
        fail_to_pass=grade.fail_to_pass,
        pass_to_pass=grade.pass_to_pass,
        failing=grade.failing[:_MAX_FAILING],
        log=str(case.log(which)),
        limit=output.limit,
    )


def _run(case: _Case, grader: Grader, task: Task, patch: str, name: str) -> TestOutput:
    with start_instance(
        case.record.layers,
        head_tree=case.record.head_tree,
        store=case.batch.store,
        node=case.batch.node,
        name=f"{task.instance_id}-{name}",
        profile=case.batch.profile,
        env=case.record.env,
    ) as instance:
        try:
            return grader.run(instance, task, patch=patch, log_path=case.log(name))
        except RebuildFailed as error:
            raise StageFailed("install", str(error), hint="see 'rebuild' in the recipe") from None
        except PatchFailed as error:
            raise StageFailed(
                "patch", str(error), hint="check the row's 'patch' and 'test_patch'"
            ) from None
        except PreparationFailed as error:
            raise StageFailed("incomplete", str(error), hint="was something full?") from None
        except GraderFailed as error:
            raise StageFailed("grader", str(error)) from None
        except GraderUnavailable as error:
            raise _unavailable(error) from error


def _unavailable(error: GraderUnavailable) -> StageFailed:
    return StageFailed("grader", str(error), transient=error.transient)
