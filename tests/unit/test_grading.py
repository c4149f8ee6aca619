"""Verdicts: missing is failed, nothing to pass is unresolved, lists derive from two runs, and a run
that was cut short is no verdict.
"""

from __future__ import annotations

import pytest

from minisandbox.evaluate import run_tests
from minisandbox.evaluate.grading import LogGrader, Task, derive_lists, grade
from minisandbox.evaluate.logs import Status

P, F, X = Status.PASSED, Status.FAILED, Status.XFAIL

TASK = Task(
    instance_id="one",
    repo="owner/name",
    version="1",
    base_commit="0" * 40,
    test_patch="",
    fail_to_pass=("a",),
    pass_to_pass=(),
)
PASSED = "=== short test summary info ===\nPASSED a\n"


def output(
    log: str, *, exit_code: int = 0, timed_out: bool = False, truncated: bool = False
) -> run_tests.TestOutput:
    return run_tests.TestOutput(log, exit_code, timed_out, truncated, seconds=1.0)


def test_resolved_needs_every_test_of_both_lists() -> None:
    statuses = {"a": P, "b": X, "c": F}
    assert grade(statuses, fail_to_pass=["a"], pass_to_pass=["b"]).resolved
    verdict = grade(statuses, fail_to_pass=["a", "c"], pass_to_pass=["b", "gone"])
    assert verdict.outcome == "unresolved"
    assert verdict.failing == ("c", "gone")
    assert verdict.fail_to_pass == (1, 2)
    assert verdict.pass_to_pass == (1, 2)
    assert (verdict.passed, verdict.failed) == (2, 1)


def test_an_empty_log_resolves_nothing() -> None:
    (verdict,) = LogGrader("pytest", "pytest -rA").grade(TASK, [output("")])
    assert verdict.outcome == "unresolved"
    assert verdict.failing == ("a",)


def test_no_fail_to_pass_is_never_resolved() -> None:
    assert not grade({"a": P}, fail_to_pass=[], pass_to_pass=["a"]).resolved


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (output(PASSED), "resolved"),
        (output(PASSED, exit_code=1), "resolved"),
        (output(PASSED, exit_code=124, timed_out=True), "timeout"),
        (output(PASSED, truncated=True), "incomplete"),
        (output(PASSED, exit_code=137), "incomplete"),
        (output("", exit_code=143), "incomplete"),
        (output(PASSED, exit_code=129), "incomplete"),
        (output(PASSED, exit_code=255), "resolved"),
        (output("", exit_code=139), "unresolved"),
    ],
)
def test_a_run_that_was_cut_short_is_no_verdict(run: run_tests.TestOutput, outcome: str) -> None:
    (verdict,) = LogGrader("pytest", "pytest -rA").grade(TASK, [run])
    assert verdict.outcome == outcome
    assert verdict.is_verdict == (outcome in ("resolved", "unresolved"))
    assert bool(verdict.reason) == (not verdict.is_verdict)


def test_the_log_grader_keeps_no_spec() -> None:
    assert LogGrader("pytest", "pytest").specify([TASK], mirrors={}) == {"one": ""}


def test_lists_are_derived_from_a_run_before_and_one_after() -> None:
    before = {"stays": P, "fixed": F, "breaks": P, "bad": F, "known": X}
    after = {"stays": P, "fixed": P, "breaks": F, "bad": F, "new": P, "known": X}
    assert derive_lists(before, after) == (("fixed", "new"), ("known", "stays"))
