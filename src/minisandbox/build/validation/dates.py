"""Whether the tests of an instance depend on the date: only said where two runs show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from minisandbox.build.validation.clock import ClockUnavailable
from minisandbox.build.validation.trials import Trials
from minisandbox.build.validation.verdicts import Run, listed
from minisandbox.errors import SandboxDied, StageFailed
from minisandbox.evaluate.grading import Task


@dataclass(frozen=True)
class Dated:
    """The failure as it is now known, and the runs that were made for it."""

    failure: StageFailed
    dated: Run | None = None
    again: Run | None = None


def try_date(trials: Trials, task: Task, patch: str, at: datetime, failed: StageFailed) -> Dated:
    """``failed``, a gold patch that leaves tests failing for no reason that the log shows, with
    what they do at another date.

    Only tests that pass then and fail again now depend on it: by the first alone, one that fails by
    chance would. What goes wrong meanwhile is told, and is no failure of its own.
    """
    day = at.date().isoformat()
    try:
        dated = trials.run_gold(task, patch, "gold-dated", at=at)
        if not dated.grade.is_verdict:
            said = f"with the clock at {day} there is no verdict: {dated.grade.reason}"
            return Dated(failed.with_hint(said), dated)
        if not dated.grade.resolved:
            return Dated(failed.with_hint(f"no better with the clock at {day}"), dated)
        again = trials.run_gold(task, patch, "gold-again")
    except (ClockUnavailable, StageFailed, SandboxDied) as error:
        return Dated(failed.with_hint(f"another date could not be tried: {error}"))
    if not again.grade.is_verdict:
        said = f"resolved with the clock at {day}, then no verdict: {again.grade.reason}"
        return Dated(failed.with_hint(said), dated, again)
    if again.grade.resolved:
        kind = "flaky"
        message = f"{failed.message}; run again, all of them pass"
    else:
        kind = "time"
        message = (
            f"the gold patch resolves it with the clock at {day}, and now leaves tests failing: "
            f"{listed(again.grade.failing)}"
        )
    failure = StageFailed(kind, message, hint=failed.hint, lines=failed.lines)
    return Dated(failure, dated, again)
