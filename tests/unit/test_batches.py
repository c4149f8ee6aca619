"""Batches and single stages: what is made, what is taken back, and what ends as which exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from minisandbox.build import batches, stage
from minisandbox.build.dropping import drop, spare
from minisandbox.errors import (
    EXIT_OK,
    EXIT_TRANSIENT,
    InvalidInput,
    SandboxDied,
    StageFailed,
)
from minisandbox.records import codec
from minisandbox.records.plan import PLAN_SCHEMA, BatchEntry, EnvironmentEntry, PlanIndex
from minisandbox.records.stages import InstanceRecord, InstancesRecord


class Batch:
    """A batch whose members note that they were made."""

    def __init__(self, folder: Path) -> None:
        self.results = folder
        self.path = folder / "environments/env/batches/b/instances.json"
        self.made: list[str] = []
        self.raises: dict[str, Exception] = {}

    def run(self, *members: str, attempt: int = stage.ATTEMPTS) -> stage.Ended:
        """Run members ``key`` or ``key=inputs``."""
        return batches.run_batch(
            InstanceRecord,
            InstancesRecord,
            self.path,
            [self.member(text) for text in members],
            name="instances",
            environment="env",
            attempt=stage.Attempt(attempt),
            store=None,
        )

    def member(self, text: str) -> batches.Member[InstanceRecord]:
        key, _, inputs = text.partition("=")

        def work() -> InstanceRecord:
            self.made.append(key)
            if key in self.raises:
                raise self.raises[key]
            return stage.new(InstanceRecord)

        return batches.Member(key, inputs or "same", self.path.parent / f"{key}.log", work)

    def taken(self) -> list[str]:
        made, self.made = self.made, []
        return made

    @property
    def record(self) -> InstancesRecord:
        return codec.read(InstancesRecord, self.path)


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


def test_nothing_is_made_twice(batch: Batch) -> None:
    assert batch.run("a", "b").exit_code == EXIT_OK
    assert batch.taken() == ["a", "b"]
    assert batch.run("a", "b").line.endswith("nothing has changed")
    assert batch.taken() == []
    assert [record.key for record in batch.record.instances] == ["a", "b"]


def test_a_removed_record_is_taken_back(batch: Batch) -> None:
    batch.run("a")
    batch.path.unlink()  # as Snakemake does before it runs a job again
    batch.run("a")
    assert batch.taken() == ["a"]
    assert batch.record.instances[0].key == "a"


def test_only_what_changed_is_made_again(batch: Batch) -> None:
    batch.run("a", "b")
    batch.taken()
    batch.path.unlink()
    batch.run("a", "b=changed", "c")
    assert batch.taken() == ["b", "c"]


def test_an_interrupted_batch_goes_on(batch: Batch) -> None:
    batch.raises["b"] = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        batch.run("a", "b")
    assert not batch.path.exists()
    batch.raises.clear()
    batch.run("a", "b")
    assert batch.taken() == ["a", "b", "b"]


def test_a_narrower_run_loses_nothing(batch: Batch) -> None:
    batch.run("a", "b", "c")
    batch.path.unlink()
    batch.run("b")
    assert [record.key for record in batch.record.instances] == ["b"]
    batch.path.unlink()
    batch.run("a", "b", "c")
    assert batch.taken() == ["a", "b", "c"]


def test_one_bad_member_is_a_record_beside_the_others(batch: Batch) -> None:
    batch.raises = {
        "bug": ZeroDivisionError("1/0"),
        "layer": InvalidInput("layer x", "cannot be stacked"),
        "bad": StageFailed("install", "no"),
    }
    ended = batch.run("a", "bug", "layer", "bad", "z")
    assert ended.exit_code == EXIT_OK
    assert "5 instances, 2 ok, 3 failed" in ended.line
    kinds = {item.key: item.failure and item.failure.kind for item in batch.record.instances}
    assert kinds == {"a": None, "bug": "internal", "layer": "internal", "bad": "install", "z": None}
    assert "ZeroDivisionError" in (batch.path.parent / "bug.log").read_text()


@pytest.mark.parametrize(
    "error", [SandboxDied("s", "killed"), StageFailed("clone", "503", transient=True)]
)
def test_what_may_pass_is_tried_again_until_the_last(batch: Batch, error: Exception) -> None:
    batch.raises["b"] = error
    for attempt in range(1, stage.ATTEMPTS):
        assert batch.run("a", "b", attempt=attempt).exit_code == EXIT_TRANSIENT
        assert not batch.path.exists()
    assert batch.run("a", "b").exit_code == EXIT_OK
    assert batch.taken() == ["a", "b", "b", "b"]
    failure = batch.record.instances[1].failure
    assert failure is not None
    assert failure.kind in ("sandbox", "clone")


def test_what_a_limit_ended_is_not_tried_again_under_the_same(batch: Batch) -> None:
    batch.raises["a"] = SandboxDied("s", "its time of 5 s was over", limit="time")
    assert batch.run("a", attempt=1).exit_code == EXIT_OK
    failure = batch.record.instances[0].failure
    assert failure is not None
    assert (failure.kind, failure.hint) == ("limit", stage.RAISE_LIMITS)
    assert "its time of 5 s was over" in failure.message


@pytest.mark.parametrize(
    ("kind", "again"), [("timeout", True), ("limit", True), ("index", True), ("install", False)]
)
def test_a_failure_of_the_clock_is_not_taken_back(batch: Batch, kind: str, again: bool) -> None:
    batch.raises["a"] = StageFailed(kind, "no")
    batch.run("a", "b")
    batch.taken()
    batch.raises.clear()
    batch.run("a", "b")
    assert batch.taken() == (["a"] if again else [])


def plan(results: Path) -> None:
    entry = EnvironmentEntry("3.11", {"b": BatchEntry(("repo",), 2)})
    index = PlanIndex(PLAN_SCHEMA, "x", "s", ("repo",), ("3.11",), {"env": entry}, 2, 0)
    codec.write(results / "plan/index.json", index)


def named(*keys: str) -> Callable[[dict[str, object]], bool]:
    return lambda record: record["key"] in keys


def test_a_dropped_member_is_made_again_and_no_other(batch: Batch) -> None:
    plan(batch.results)
    batch.run("a", "b")
    batch.taken()
    assert drop(batch.results, named("b")) == ["instances b"]
    assert not batch.path.exists()
    batch.run("a", "b")
    assert batch.taken() == ["b"]


def test_dropping_a_record_brings_those_after_it_back(batch: Batch) -> None:
    plan(batch.results)
    batch.run("a")
    summary = batch.results / "manifest.summary.json"
    summary.write_text("{}")
    clone = batch.results / "sources/repo/clone.json"
    clone.parent.mkdir(parents=True)
    clone.write_text('{"stage": "clone", "key": "repo", "status": "failed"}')
    assert drop(batch.results, named("repo")) == ["clone repo"]
    assert not batch.path.exists()
    assert spare(batch.path).exists()
    assert not summary.exists()
    batch.run("a")
    assert batch.taken() == ["a"]


@pytest.mark.parametrize(
    ("dropped", "stay"),
    [
        ("debian-12", {"sources/repo/clone.json"}),
        (
            "variant",
            {
                "sources/repo/clone.json",
                "bases/debian-12/base.json",
                "interpreters/3.11/interpreter.json",
                "environments/plain/environment.json",
            },
        ),
    ],
)
def test_what_stands_on_a_dropped_base_goes_with_it(
    tmp_path: Path, dropped: str, stay: set[str]
) -> None:
    index = PlanIndex(
        schema=PLAN_SCHEMA,
        digest="x",
        store="s",
        repos=("repo",),
        pythons=("3.11",),
        environments={
            "plain": EnvironmentEntry("3.11", {}, base="debian-12"),
            "more": EnvironmentEntry("3.11", {"b": BatchEntry(("repo",), 2)}, base="variant"),
        },
        instances=2,
        unplanned=0,
        base="debian-12",
        bases={"debian-12": "", "variant": "debian-12"},
    )
    codec.write(tmp_path / "plan/index.json", index)
    records = {
        "sources/repo/clone.json": "repo",
        "bases/debian-12/base.json": "debian-12",
        "bases/variant/base.json": "variant",
        "interpreters/3.11/interpreter.json": "3.11",
        "environments/plain/environment.json": "plain",
        "environments/more/environment.json": "more",
        "environments/more/batches/b/instances.json": "b",
        "environments/more/batches/b/validation.json": "b",
    }
    for path, key in records.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f'{{"stage": "x", "key": "{key}", "status": "ok"}}')
    assert drop(tmp_path, named(dropped)) == [f"x {dropped}"]
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")}
    assert left - {"plan/index.json"} == stay
