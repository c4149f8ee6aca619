"""Statuses to a verdict. A test that the log does not report did not pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from minisandbox.evaluate.logs import PARSERS, PASSING, Statuses


@dataclass(frozen=True)
class Grade:
    """How the tests that decide came out; ``failing`` are those that did not pass, in order."""

    resolved: bool
    fail_to_pass: tuple[int, int]
    pass_to_pass: tuple[int, int]
    failing: tuple[str, ...]


class Grader(Protocol):
    """What grades a log: ours here, the official ones as tools of their own."""

    def statuses(self, log: str) -> Statuses:
        """What the log says of each test."""
        ...

    def grade(self, log: str, *, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> Grade:
        """The verdict over the two lists."""
        ...


@dataclass(frozen=True)
class LogGrader:
    """Grades by a log parser of ours, named as in recipes."""

    parser: str

    def statuses(self, log: str) -> Statuses:
        return PARSERS[self.parser](log)

    def grade(self, log: str, *, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> Grade:
        statuses = self.statuses(log)
        return grade(statuses, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass)


def grade(statuses: Statuses, *, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> Grade:
    """Resolved means every test of both lists passed, and there is at least one fail-to-pass
    test.
    """
    f2p = passed_of(statuses, fail_to_pass)
    p2p = passed_of(statuses, pass_to_pass)
    failing = tuple(
        name for name in (*fail_to_pass, *pass_to_pass) if statuses.get(name) not in PASSING
    )
    return Grade(
        resolved=bool(fail_to_pass) and not failing,
        fail_to_pass=(f2p, len(fail_to_pass)),
        pass_to_pass=(p2p, len(pass_to_pass)),
        failing=failing,
    )


def passed_of(statuses: Statuses, names: Iterable[str]) -> int:
    """How many of ``names`` passed."""
    return sum(1 for name in names if statuses.get(name) in PASSING)


def derive_lists(before: Statuses, after: Statuses) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """FAIL_TO_PASS and PASS_TO_PASS from a run without and a run with the gold patch, sorted.

    A test that is missing before (its module could not be imported, or it is new) and passes after
    belongs to FAIL_TO_PASS, as in SWE-bench.
    """
    passing = sorted(name for name, status in after.items() if status in PASSING)
    fail_to_pass = tuple(name for name in passing if before.get(name) not in PASSING)
    pass_to_pass = tuple(name for name in passing if before.get(name) in PASSING)
    return fail_to_pass, pass_to_pass
