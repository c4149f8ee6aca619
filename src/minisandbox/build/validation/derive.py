"""The test lists of a row that lacks them: from a run without and a run with the gold patch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minisandbox.build import stage
from minisandbox.build.validation import verdicts
from minisandbox.build.validation.trials import Trials
from minisandbox.errors import StageFailed
from minisandbox.evaluate.grading import LogGrader, Task, derive_lists
from minisandbox.evaluate.logs import FAILING, Statuses
from minisandbox.evaluate.run_tests import TestOutput


def reported_tests(
    trials: Trials,
    grader: LogGrader,
    task: Task,
    patch: str,
    *,
    is_absent: Callable[[str], bool],
) -> tuple[Statuses, Statuses]:
    """What the tests report without and with the gold patch; raises ``StageFailed`` if that is too
    little to make lists of.

    A module that cannot be imported without the patch must not hide what the other modules do, so
    pytest goes on after it. Nothing is called failing that no run has shown to fail.
    """
    go_on = " --continue-on-collection-errors" if grader.parser == "pytest" else ""
    going_on = replace(grader, test_command=grader.test_command + go_on)
    before = trials.run(task, "", "derive-before", grader=going_on)
    after = trials.run(task, patch, "derive-after", grader=grader)
    _check_whole(trials, grader, before, "without the gold patch", "derive-before")
    _check_whole(trials, grader, after, "with the gold patch", "derive-after")
    statuses = grader.statuses(after.log)
    if not statuses:
        said = f"the {grader.parser} parser finds no test in the log of `{grader.test_command}`"
        hint = f"see {trials.log('derive-after')}; pytest needs -rA, unittest -v"
        raise verdicts.nothing_reported(after.log, said, hint=hint)
    earlier = grader.statuses(before.log)
    if not earlier and before.exit_code == 0:
        raise StageFailed(
            "derive",
            "the tests without the gold patch ended well without reporting a single one",
            hint=f"see {trials.log('derive-before')}",
            lines=stage.tail(trials.log("derive-before")),
        )
    if not derive_lists(earlier, statuses)[0]:
        failing = [name for name, status in statuses.items() if status in FAILING]
        said = (
            "no test fails without the gold patch and passes with it "
            f"({len(statuses)} tests, {len(failing)} fail)"
        )
        raise verdicts.nothing_fixed(
            after.log, failing, said, log=trials.log("derive-after"), is_absent=is_absent
        )
    return earlier, statuses


def _check_whole(
    trials: Trials, grader: LogGrader, output: TestOutput, which: str, name: str
) -> None:
    """A run that was cut short shows nothing; raises ``StageFailed``."""
    lines = stage.tail(trials.log(name))
    if output.timed_out:
        raise StageFailed(
            "timeout",
            f"the tests {which} took more than {grader.timeout:g} s",
            hint="raise 'timeout' in the recipe",
            lines=lines,
        )
    if output.truncated or output.exit_code > 128:
        why = "printed more than is kept" if output.truncated else f"ended with {output.exit_code}"
        raise StageFailed(
            "incomplete", f"the tests {which} {why}", hint=f"see {trials.log(name)}", lines=lines
        )
