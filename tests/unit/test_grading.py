"""Verdicts: missing is failed, nothing to pass is unresolved, lists derive from two runs."""

from __future__ import annotations

from minisandbox.evaluate.grading import LogGrader, derive_lists, grade
from minisandbox.evaluate.logs import Status

P, F, X = Status.PASSED, Status.FAILED, Status.XFAIL


def test_resolved_needs_every_test_of_both_lists() -> None:
    statuses = {"a": P, "b": X, "c": F}
    assert grade(statuses, fail_to_pass=["a"], pass_to_pass=["b"]).resolved
    verdict = grade(statuses, fail_to_pass=["a", "c"], pass_to_pass=["b", "gone"])
    assert not verdict.resolved
    assert verdict.failing == ("c", "gone")
    assert verdict.fail_to_pass == (1, 2)
    assert verdict.pass_to_pass == (1, 2)


def test_an_empty_log_resolves_nothing() -> None:
    verdict = LogGrader("pytest").grade("", fail_to_pass=["a"], pass_to_pass=[])
    assert not verdict.resolved
    assert verdict.failing == ("a",)


def test_no_fail_to_pass_is_never_resolved() -> None:
    assert not grade({"a": P}, fail_to_pass=[], pass_to_pass=["a"]).resolved


def test_lists_are_derived_from_a_run_before_and_one_after() -> None:
    before = {"stays": P, "fixed": F, "breaks": P, "bad": F, "known": X}
    after = {"stays": P, "fixed": P, "breaks": F, "bad": F, "new": P, "known": X}
    assert derive_lists(before, after) == (("fixed", "new"), ("known", "stays"))
