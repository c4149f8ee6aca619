"""From the graded runs of an instance to what is wrong with it, or nothing.

A run without a verdict goes before everything: it says nothing of the instance. Then runs that
contradict each other, and only then what all of them say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minisandbox.build import stage
from minisandbox.errors import StageFailed
from minisandbox.evaluate.causes import Cause, CauseKind, FailureLog, tail_of
from minisandbox.evaluate.grading import Grade, Task
from minisandbox.evaluate.run_tests import TestOutput
from minisandbox.records.stages import FlakyTest, TestRun

Which = Literal["empty", "gold"]

#: Names of failing tests in a record; in a sentence.
_MAX_FAILING = 100
_NAMED = 3

#: Why tests fail, as the end of a sentence, and what may help.
_SAID: Mapping[CauseKind, tuple[str, str]] = {
    "program": (
        "for want of a program of the system",
        "have the base bring it ('system_packages' in the recipe)",
    ),
    "network": ("for want of a network", "leave the row out, or have the tests serve it inside"),
    "collection": ("because they cannot be collected", "see what the environment lacks"),
}


@dataclass(frozen=True)
class Run:
    """One run of the tests and its grade; ``tests`` is what the tests printed."""

    patch: Which
    output: TestOutput
    grade: Grade
    log: Path
    tests: str

    def record(self) -> TestRun:
        return TestRun(
            patch=self.patch,
            outcome=self.grade.outcome,
            resolved=self.grade.resolved,
            exit_code=self.output.exit_code,
            timed_out=self.output.timed_out,
            seconds=round(self.output.seconds, 3),
            passed=self.grade.passed,
            failed=self.grade.failed,
            fail_to_pass=self.grade.fail_to_pass,
            pass_to_pass=self.grade.pass_to_pass,
            failing=self.grade.failing[:_MAX_FAILING],
            log=str(self.log),
            limit=self.output.limit,
        )


@dataclass(frozen=True)
class Runs:
    """All runs of an instance, at least one with the gold patch and one without."""

    gold: tuple[Run, ...]
    empty: tuple[Run, ...]

    def deciding(self, which: Which) -> Run:
        """The run that speaks for all of its patch: one without a verdict, or that went wrong."""
        runs = self.gold if which == "gold" else self.empty
        wrong = which == "empty"
        return min(runs, key=lambda run: (run.grade.is_verdict, run.grade.resolved != wrong))

    def others(self) -> tuple[Run, ...]:
        """All runs but the deciding ones."""
        deciding = (self.deciding("gold"), self.deciding("empty"))
        return tuple(
            run for run in (*self.gold, *self.empty) if not any(run is one for one in deciding)
        )


def flaky_tests(task: Task, runs: Runs, derived: frozenset[str] | None = None) -> list[FlakyTest]:
    """The tests that decide of which two runs with the same patch say different things.

    ``derived`` are those that passed in one more run with the gold patch, from which the lists were
    made. Runs without a verdict do not count.
    """
    gold = [frozenset(run.grade.failing) for run in runs.gold if run.grade.is_verdict]
    empty = [frozenset(run.grade.failing) for run in runs.empty if run.grade.is_verdict]
    found: list[FlakyTest] = []
    for test in (*task.fail_to_pass, *task.pass_to_pass):
        with_gold = [test not in failing for failing in gold]
        if derived is not None:
            with_gold.append(test in derived)
        without = [test not in failing for failing in empty]
        if len(set(with_gold)) > 1 or len(set(without)) > 1:
            found.append(
                FlakyTest(
                    test,
                    gold=(sum(with_gold), len(with_gold)),
                    empty=(sum(without), len(without)),
                )
            )
    return found


def verdict(
    runs: Runs, flaky: Sequence[FlakyTest], *, is_absent: Callable[[str], bool]
) -> StageFailed | None:
    """Why the instance is not ok. ``is_absent`` looks for a program inside."""
    gold, empty = runs.deciding("gold"), runs.deciding("empty")
    failure = (
        _no_verdict(gold)
        or _no_verdict(empty)
        or _contradiction(runs, flaky)
        or (None if gold.grade.resolved else unresolved(gold, is_absent=is_absent))
    )
    if failure is None and empty.grade.resolved:
        failure = StageFailed(
            "empty-resolved",
            "every test passes without any change, so the instance asks for nothing",
        )
    return with_limit(failure, *(run.output for run in (*runs.gold, *runs.empty)))


def _no_verdict(run: Run) -> StageFailed | None:
    grade, lines = run.grade, tail_of(run.output.log)
    if grade.outcome == "timeout":
        return StageFailed(
            "timeout",
            f"the tests with the {run.patch} patch took too long",
            hint="raise 'timeout' in the recipe",
            lines=lines,
        )
    if grade.is_verdict:
        return None
    return StageFailed(
        grade.outcome,
        f"with the {run.patch} patch: {grade.reason}",
        hint=f"see {run.log}",
        lines=lines,
    )


def _contradiction(runs: Runs, flaky: Sequence[FlakyTest]) -> StageFailed | None:
    for which in ("gold", "empty"):
        of = runs.gold if which == "gold" else runs.empty
        # One more run with the gold patch may be behind it: the one that the lists were made from.
        tests = [test for test in flaky if 0 < getattr(test, which)[0] < getattr(test, which)[1]]
        resolved = sum(run.grade.resolved for run in of)
        deciding = runs.deciding(which)
        contradicted = 0 < resolved < len(of)
        if which == "gold" and not resolved:
            # That all of its failures are flaky is as much of a contradiction.
            contradicted = all(
                set(run.grade.failing) <= {test.test for test in tests} for run in of
            )
        if not contradicted:
            continue
        names = listed([test.test for test in tests])
        return StageFailed(
            "flaky",
            f"with the {which} patch the same tests come out differently: {names} "
            f"({resolved} of {len(of)} runs are resolved)",
            hint=f"see {deciding.log}",
            lines=FailureLog(deciding.tests).decisive([test.test for test in tests]),
        )
    return None


def unresolved(gold: Run, *, is_absent: Callable[[str], bool]) -> StageFailed:
    """Why a run with the gold patch leaves tests failing, as far as its log shows."""
    failing = gold.grade.failing
    because = f" ({gold.grade.reason})" if gold.grade.reason else ""
    return _explained(
        FailureLog(gold.tests),
        failing,
        StageFailed(
            "gold-unresolved",
            f"the gold patch leaves {counted(failing)} failing: {listed(failing)}{because}",
            hint=f"see {gold.log}",
        ),
        is_absent,
    )


def nothing_fixed(
    tests: str, failing: Sequence[str], message: str, *, log: Path, is_absent: Callable[[str], bool]
) -> StageFailed:
    """Why no test starts to pass with the gold patch, with which ``failing`` fail."""
    hint = f"the test patch does not tell the patch apart; see {log}"
    return _explained(
        FailureLog(tests), failing, StageFailed("derive", message, hint=hint), is_absent
    )


def _explained(
    log: FailureLog, failing: Sequence[str], failed: StageFailed, is_absent: Callable[[str], bool]
) -> StageFailed:
    """``failed`` with the lines of the log that say most; another kind of failure where the log
    shows one and the same for each of ``failing``.
    """
    causes = _confirmed(log.causes(failing), is_absent)
    lines = log.decisive(failing)
    kinds: Counter[CauseKind] = Counter(cause.kind for cause in causes.values())
    if len(kinds) == 1 and len(causes) == len(failing):
        (kind,) = kinds
        what = sorted({cause.what for cause in causes.values() if cause.what})
        said, help_ = _SAID[kind]
        named = f" ({listed(what)})" if what else ""
        return StageFailed(
            kind,
            f"the gold patch leaves {counted(failing)} failing {said}{named}: {listed(failing)}",
            hint=f"{help_}; {failed.hint}",
            lines=lines,
        )
    hints = [f"{number} of them {_SAID[kind][0]}" for kind, number in kinds.items()]
    if expired := log.expired(failing):
        hints.append(f"the date is suspected, for the log says: {expired}")
    return StageFailed(
        failed.kind, failed.message, hint="; ".join([*hints, failed.hint]), lines=lines
    )


def _confirmed(
    causes: Mapping[str, Cause], is_absent: Callable[[str], bool]
) -> Mapping[str, Cause]:
    """``causes`` without programs that are there after all: a test may print anything."""
    programs = {cause.what for cause in causes.values() if cause.kind == "program"}
    there = {program for program in programs if not is_absent(program)}
    return {
        test: cause
        for test, cause in causes.items()
        if cause.kind != "program" or cause.what not in there
    }


def nothing_reported(log: str, message: str, *, hint: str) -> StageFailed:
    """Why a run with the gold patch reports no test."""
    cause, lines = FailureLog(log).whole(), tail_of(log)
    if cause is None:
        return StageFailed("derive", message, hint=hint, lines=lines)
    said, help_ = _SAID[cause.kind]
    named = f" ({cause.what})" if cause.what else ""
    message = f"with the gold patch no test is reported, {said}{named}: {cause.line}"
    return StageFailed(cause.kind, message, hint=f"{help_}; {hint}", lines=lines)


def with_limit(failure: StageFailed | None, *outputs: TestOutput) -> StageFailed | None:
    """``failure``, with what it may come from where a run reached a limit of its sandbox."""
    limits = sorted({output.limit for output in outputs if output.limit})
    if failure is None or not limits:
        return failure
    hint = f"its sandbox reached the limit on {' and '.join(limits)}: {stage.RAISE_LIMITS}"
    return failure.with_hint(hint)


def listed(names: Sequence[str]) -> str:
    """The first few of ``names``, and how many more there are."""
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


def counted(names: Sequence[str]) -> str:
    """How many tests they are."""
    return f"{len(names)} test{'' if len(names) == 1 else 's'}"
