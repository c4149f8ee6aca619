"""The validate stage: do the tests say what the row claims? From the packed layers, with the
shipped runtime.

Every run has a sandbox of its own, network ``none``, on layers fetched from the store. Rows that
lack their test lists get them from a run without and a run with the gold patch; then, whoever made
the lists, two further runs are graded (or two each, or more, as the configuration says): the gold
patch has to resolve the instance, an empty one must not, and all runs have to agree. An official
grader derives nothing: its rows bring their lists along.

A gold patch that leaves tests failing for no reason that the log shows is tried once more with the
clock at the row's date.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minisandbox import keys
from minisandbox.build import batches, stage
from minisandbox.build.checkouts.rows import complete
from minisandbox.build.system_packages import missing_hint
from minisandbox.build.validation import verdicts
from minisandbox.build.validation.clock import date_of
from minisandbox.build.validation.dates import try_date
from minisandbox.build.validation.derive import reported_tests
from minisandbox.build.validation.trials import Trials, unavailable
from minisandbox.errors import InvalidInput, MiniSandboxError, StageFailed, keep_facts
from minisandbox.evaluate.grading import (
    GraderFailed,
    GraderUnavailable,
    LogGrader,
    Task,
    derive_lists,
)
from minisandbox.evaluate.judging import (
    environment_commit,
    evaluation_of,
    grader_of_recipe,
    task_of_plan,
)
from minisandbox.evaluate.logs import PASSING
from minisandbox.evaluate.official.pins import PINS
from minisandbox.records import codec
from minisandbox.records.plan import BatchPlan, InstancePlan
from minisandbox.records.stages import (
    CloneRecord,
    InstanceRecord,
    InstancesRecord,
    ValidationRecord,
    ValidationsRecord,
)
from minisandbox.runtime.profiles import limits_from
from minisandbox.sandbox import Profile
from minisandbox.store import NodeStore, Store, default_node_root

#: Version of how validation is done; a change of meaning makes every record anew.
_METHOD = 5


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
        self.grader = grader_of_recipe(plan.recipe, tools=Path(plan.tools), report=tqdm.write)
        limits = limits_from(plan.limits, where=f"plan of batch {plan.slug}")
        self.profile = Profile(
            network="none",
            nested=plan.recipe.nested,
            blackhole=plan.recipe.blackhole,
            limits=limits,
        )

    @property
    def ran_under(self) -> Mapping[str, Any]:
        """What a record says of the sandboxes."""
        return {
            "profile": self.profile.digest(),
            "limits": self.profile.limits.identity(),
            "nested": self.profile.nested,
            "blackhole": self.profile.blackhole,
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
            and (task := _task(complete(instance, record.found))) is not None
        ]
        try:
            return self.grader.specify(tasks, mirrors=self.mirrors)
        except GraderUnavailable as error:
            raise unavailable(error) from error


@dataclass(frozen=True)
class _Case:
    """One instance under validation."""

    batch: _Batch
    instance: InstancePlan

    @property
    def record(self) -> InstanceRecord:
        return self.batch.built[self.instance.instance_id]

    @functools.cached_property
    def trials(self) -> Trials:
        batch = self.batch
        return Trials(self.record, batch.grader, batch.store, batch.node, batch.profile, batch.logs)


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


def _inputs(batch: _Batch, instance: InstancePlan) -> str:
    record, recipe = batch.built[instance.instance_id], batch.plan.recipe
    missing = record.missing_packages
    row = complete(instance, record.found)
    test: dict[str, object] = {"env": dict(recipe.env), "timeout": recipe.timeout}
    if recipe.grader == "log":
        test |= {"test": recipe.test, "parser": recipe.parser, "rebuild": recipe.rebuild}
    else:
        test |= {
            "grader": [recipe.grader, dict(batch.grader.identity)],
            "row": [row.repo, row.version, row.base_commit, environment_commit(row.extra)],
        }
        if not PINS[recipe.grader].has_specifications:
            test["evaluation"] = evaluation_of(row.extra)
    return keys.digest_of(
        {
            "method": _METHOD,
            "layers": [layer.digest for layer in record.layers],
            "env": dict(record.env),
            "failure": [record.failure.kind, record.failure.message] if record.failure else None,
            **({"missing_packages": list(missing)} if missing else {}),
            "patches": [row.patch, row.test_patch],
            "lists": [row.fail_to_pass, row.pass_to_pass],
            "date": [row.extra.get("created_at"), recipe.date],
            **({"trusted": list(row.trusted_files)} if row.trusted_files else {}),
            "test": test,
            "runs": batch.plan.validate_runs,
            # Not the profile's digest: a rule more about system calls is no reason to test again.
            "sandbox": {
                "limits": batch.profile.limits.identity(),
                "nested": recipe.nested,
                **({"blackhole": True} if recipe.blackhole else {}),
            },
        }
    )


def _task(row: InstancePlan) -> Task | None:
    """What a grader has to know of a row; ``None`` if the row does not say which tests decide."""
    if not row.fail_to_pass or row.pass_to_pass is None:
        return None
    return task_of_plan(row)


def _validate(case: _Case) -> ValidationRecord:
    failure = case.record.failure
    if failure is not None:
        raise StageFailed(failure.kind, failure.message, hint=failure.hint)
    row = complete(case.instance, case.record.found)
    if not row.patch.strip():
        raise StageFailed("patch", "the row has no gold patch, so it cannot be validated")
    try:
        return _tested(case, row)
    except MiniSandboxError as error:
        keep_facts(error, **case.batch.ran_under)
        raise


def _tested(case: _Case, row: InstancePlan) -> ValidationRecord:
    """The record of a row whose tests were run; raises ``StageFailed`` where that tells nothing."""
    grader, times, trials = case.batch.grader, case.batch.plan.validate_runs, case.trials
    is_absent = functools.cache(trials.is_absent)
    source, derived = "dataset", None
    if isinstance(grader, LogGrader):
        if row.fail_to_pass is None or row.pass_to_pass is None:
            source = "derived"
            row, derived = _with_lists(trials, grader, row, is_absent)
        task = _task(row)
        if task is None:
            raise StageFailed(
                "gold-unresolved", "the row names no test that the gold patch makes pass"
            )
    else:
        task = _specified(case, row)
    runs = trials.run_all(task, row.patch, times)
    flaky = verdicts.flaky_tests(task, runs, derived)
    failure = verdicts.verdict(runs, flaky, is_absent=is_absent)
    at, dated = date_of(row, case.batch.plan.recipe), None
    if failure is not None and failure.kind == "gold-unresolved" and at is not None:
        dated = try_date(trials, task, row.patch, at, failure)
        failure = dated.failure
    if failure is not None:
        failure = failure.with_hint(missing_hint(case.record.missing_packages))
    record = stage.new(
        ValidationRecord,
        tests_source=source,
        fail_to_pass=task.fail_to_pass,
        pass_to_pass=task.pass_to_pass,
        runs=len(runs.gold),  # fewer than asked for where one took too long
        empty=runs.deciding("empty").record(),
        gold=runs.deciding("gold").record(),
        repeats=tuple(run.record() for run in runs.others()),
        flaky=tuple(flaky),
        dated_at=at.date().isoformat() if at and dated and dated.dated else "",
        dated=dated.dated.record() if dated and dated.dated else None,
        again=dated.again.record() if dated and dated.again else None,
        grader=grader.name,
        test_spec=task.test_spec,
        tools=grader.identity,
        **case.batch.ran_under,
    )
    return stage.with_failure(record, failure)


def _with_lists(
    trials: Trials, grader: LogGrader, row: InstancePlan, is_absent: Callable[[str], bool]
) -> tuple[InstancePlan, frozenset[str]]:
    """``row`` with the list that it lacks, or both, and the tests that pass with the gold patch;
    raises ``StageFailed``.
    """
    asked = _task(replace(row, fail_to_pass=("?",), pass_to_pass=()))
    assert asked is not None
    before, after = reported_tests(trials, grader, asked, row.patch, is_absent=is_absent)
    fail_to_pass, pass_to_pass = derive_lists(before, after)
    row = replace(
        row,
        fail_to_pass=fail_to_pass if row.fail_to_pass is None else row.fail_to_pass,
        pass_to_pass=pass_to_pass if row.pass_to_pass is None else row.pass_to_pass,
    )
    return row, frozenset(name for name, status in after.items() if status in PASSING)


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
