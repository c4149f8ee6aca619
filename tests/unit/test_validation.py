"""The validate stage where nothing has to be tested: what it passes on, what it asks for, and what
makes its records anew.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from minisandbox import keys
from minisandbox.build import stage, validate
from minisandbox.build.validation import trials
from minisandbox.errors import (
    EXIT_OK,
    InvalidInput,
    MiniSandboxError,
    PatchFailed,
    SandboxDied,
)
from minisandbox.evaluate import run_tests
from minisandbox.evaluate.grading import (
    Grade,
    GraderFailed,
    GraderUnavailable,
    LogGrader,
    PreparationFailed,
)
from minisandbox.records import codec
from minisandbox.records.plan import BatchPlan, InstancePlan, Recipe
from minisandbox.records.stages import (
    FAILURE_KINDS,
    RECORD_SCHEMA,
    CloneRecord,
    Failure,
    InstanceRecord,
    InstancesRecord,
    Record,
    ValidationsRecord,
)
from minisandbox.sandbox import Limits, Profile

ROW = InstancePlan(
    instance_id="one",
    dataset="rows",
    repo="owner/name",
    base_commit="0" * 40,
    version="1",
    patch="diff",
    fail_to_pass=("a",),
    pass_to_pass=(),
    extra={"environment_setup_commit": "1" * 40},
)
GONE = Failure("clone", "the repository is gone")


class Stage:
    """The files that the stage reads, and one run of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.row = ROW
        self.recipe = Recipe("r", ROW.repo, "3.11", "pytest -rA", grader="swebench-4.1")
        self.failure: Failure | None = GONE
        self.clones = True
        self.limits: dict[str, object] = {}
        self.runs = 1

    def write(self, name: str, cls: type[Record], key: str, **fields: object) -> Path:
        record = cls(
            schema=RECORD_SCHEMA,
            stage="",
            key=key,
            status="failed",
            inputs="",
            started="",
            seconds=0,
            log="",
            **fields,  # type: ignore[arg-type]
        )
        path = self.folder / name
        codec.write(path, record)
        return path

    def run(self) -> ValidationsRecord:
        plan = BatchPlan(
            slug="b",
            environment="env",
            recipe=self.recipe,
            instances=(self.row,),
            history="none",
            network="none",
            timeout=10,
            store=str(self.folder / "store"),
            tools=str(self.folder / "tools"),
            index_cache=str(self.folder / "index"),
            files_cache=str(self.folder / "files"),
            limits=self.limits,
            validate_runs=self.runs,
        )
        codec.write(self.folder / "plan.json", plan)
        key = keys.slug(ROW.repo)
        clone = self.write("clone.json", CloneRecord, key, failure=GONE)
        instance = codec.read(
            InstanceRecord,
            self.write("instance.json", InstanceRecord, ROW.instance_id, failure=self.failure),
        )
        instances = self.write("instances.json", InstancesRecord, "b", instances=(instance,))
        record = self.folder / "batch/validation.json"
        ended = validate.run(
            self.folder / "plan.json",
            instances,
            [clone] if self.clones else [],
            record,
            stage.Attempt(stage.ATTEMPTS),
        )
        assert ended.exit_code == EXIT_OK
        return codec.read(ValidationsRecord, record)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "node"))
    return Stage(tmp_path)


def test_what_failed_before_is_passed_on_and_no_grader_is_made(job: Stage) -> None:
    (record,) = job.run().instances
    assert record.failure is not None
    assert (record.failure.kind, record.failure.message) == (GONE.kind, GONE.message)
    assert not (job.folder / "tools").exists()


def test_an_official_grader_asks_for_the_clones(job: Stage) -> None:
    job.clones = False
    with pytest.raises(InvalidInput, match="owner__name"):
        job.run()
    job.recipe = replace(job.recipe, grader="log")
    assert job.run().instances[0].status == "failed"


def test_an_unknown_grader_is_named_with_those_that_are_known(job: Stage) -> None:
    job.recipe = replace(job.recipe, grader="swebench-9")
    with pytest.raises(InvalidInput, match=r"swebench-9.*log, swebench-4\.1"):
        job.run()


@pytest.mark.parametrize("lists", [(None, None), ((), ("a",)), (("a",), None)])
def test_an_official_grader_derives_nothing(
    job: Stage, lists: tuple[tuple[str, ...] | None, tuple[str, ...] | None]
) -> None:
    job.failure = None
    job.row = replace(ROW, fail_to_pass=lists[0], pass_to_pass=lists[1])
    (record,) = job.run().instances
    assert record.failure is not None
    assert record.failure.kind == "derive"
    assert record.failure.kind in FAILURE_KINDS
    assert "FAIL_TO_PASS" in record.failure.message


@dataclass(frozen=True, kw_only=True)
class Breaking(LogGrader):
    """Ends every run, or every grading, with an error."""

    error: MiniSandboxError
    when: str

    def run(self, instance: object, task: object, **options: object) -> run_tests.TestOutput:
        if self.when == "run":
            raise self.error
        return run_tests.TestOutput("", 0, False, False, seconds=1.0)

    def grade(self, task: object, outputs: object) -> tuple[Grade, ...]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (GraderFailed("swebench-4.1", "one", "it is Tuesday"), "grader"),
        (PreparationFailed("one", "no space left"), "incomplete"),
        (PatchFailed("test patch", "no such file"), "patch"),
        (GraderUnavailable("swebench-4.1", "it ended early", remedy="wait"), "grader"),
    ],
)
def test_what_a_grader_raises_is_no_bug_of_ours(
    job: Stage, monkeypatch: pytest.MonkeyPatch, error: MiniSandboxError, kind: str
) -> None:
    job.failure = None
    monkeypatch.setattr(trials, "start_instance", lambda *_, **__: nullcontext())
    for when in ("run", "grade") if kind == "grader" else ("run",):
        job.recipe = replace(job.recipe, parser=when)  # makes the record anew
        grader = Breaking("pytest", "pytest -rA", error=error, when=when)
        monkeypatch.setattr(validate, "grader_of_recipe", lambda *_, found=grader, **__: found)
        (record,) = job.run().instances
        assert record.failure is not None
        assert (record.failure.kind, record.failure.message) == (kind, str(error))


@pytest.mark.parametrize(
    ("grader", "changed", "anew"),
    [
        ("swebench-4.1", {"version": "2"}, True),
        ("swebench-4.1", {"extra": {"environment_setup_commit": "2" * 40}}, True),
        ("swebench-4.1", {"hints_text": "none"}, False),
        ("log", {"version": "2"}, False),
        ("log", {"test_patch": "another"}, True),
    ],
)
def test_what_decides_a_verdict_makes_it_anew(
    job: Stage, grader: str, changed: dict[str, object], anew: bool
) -> None:
    job.recipe = replace(job.recipe, grader=grader)
    before = job.run().instances[0].inputs
    job.row = replace(ROW, **changed)  # type: ignore[arg-type]
    assert (job.run().instances[0].inputs != before) == anew


@pytest.mark.parametrize("changed", ["limits", "nested", "runs"])
def test_what_the_tests_run_under_decides_a_verdict(job: Stage, changed: str) -> None:
    before = job.run().instances[0].inputs
    if changed == "runs":
        job.runs = 2
    elif changed == "limits":
        job.limits = {"memory": 1 << 30}
    else:
        job.recipe = replace(job.recipe, nested=True)
    assert job.run().instances[0].inputs != before


def test_a_limit_that_is_the_default_changes_nothing(job: Stage) -> None:
    before = job.run().instances[0].inputs
    job.limits = Limits().identity()
    assert job.run().instances[0].inputs == before


def test_a_record_says_what_was_tested_under_and_which_limit_was_reached(
    job: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.failure, job.limits = None, {"memory": 1 << 30}
    job.recipe = replace(job.recipe, grader="log", nested=True)
    started: list[Profile] = []

    def start(*_: object, profile: Profile, **__: object) -> nullcontext[None]:
        started.append(profile)
        return nullcontext()

    def run(*_: object, **__: object) -> run_tests.TestOutput:
        return run_tests.TestOutput("", 1, False, False, seconds=1.0, limit="memory")

    monkeypatch.setattr(trials, "start_instance", start)
    monkeypatch.setattr(LogGrader, "run", run)
    (record,) = job.run().instances
    profile = Profile(nested=True, limits=Limits(memory=1 << 30))
    assert started == [profile, profile]
    assert (record.profile, record.limits) == (profile.digest(), profile.limits.identity())
    assert record.nested
    assert record.gold is not None
    assert record.gold.limit == "memory"
    assert record.failure is not None
    assert record.failure.kind == "gold-unresolved"
    assert "its sandbox reached the limit on memory: raise it in 'limits'" in record.failure.hint


def test_a_failure_before_the_verdict_says_what_was_tested_under(
    job: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.failure, job.limits = None, {"time": 5}
    job.recipe = replace(job.recipe, grader="log")

    def died(*_: object, **__: object) -> nullcontext[None]:
        raise SandboxDied("one", "its time of 5 s was over", limit="time")

    monkeypatch.setattr(trials, "start_instance", died)
    (record,) = job.run().instances
    assert record.failure is not None
    assert record.failure.kind == "limit"
    assert record.limits == {**Limits().identity(), "time": 5.0}


def test_graders_do_not_share_verdicts(job: Stage) -> None:
    before = job.run().instances[0].inputs
    job.recipe = replace(job.recipe, grader="log")
    assert job.run().instances[0].inputs != before
