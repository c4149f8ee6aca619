"""A scorer for samples whose sandbox is an instance: by the tests that its cache has."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from inspect_ai.scorer import (
    CORRECT,
    INCORRECT,
    Score,
    Scorer,
    Target,
    accuracy,
    scorer,
    stderr,
)
from inspect_ai.solver import TaskState
from inspect_ai.util import concurrency as at_most
from inspect_ai.util import sandbox

from minisandbox.errors import InvalidInput
from minisandbox.evaluate.grading import Grade, GraderFailed
from minisandbox.evaluate.judging import judge
from minisandbox.integrations.inspect_ai.provider import (
    MiniSandboxEnvironment,
    cache_in,
)
from minisandbox.runtime import Instance
from minisandbox.sandbox.aio import in_thread


@scorer(metrics=[accuracy(), stderr()])
def resolved(cache: str) -> Scorer:
    """Whether the tests that decide pass with what was changed in the sample's instance.

    The patch that the sandbox holds now is judged in a fresh instance of ``cache``, by the grader
    that the cache was validated with. A run that is no verdict (a grader that fails, a timeout)
    raises ``GraderFailed``: the sample then has an error and no score.
    """

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001 - the protocol's
        instance = sandbox().as_type(MiniSandboxEnvironment).instance
        if instance is None:
            raise InvalidInput(
                "scorer `resolved`", "has no instance to judge", "give the sandbox a cache"
            )
        async with at_most("minisandbox-grading", len(os.sched_getaffinity(0))):
            patch, grade = await in_thread(lambda: _judge(cache, instance))
        if not grade.is_verdict:
            raise GraderFailed(
                "the grader", instance.sandbox.name, f"{grade.outcome}: {grade.reason}"
            )
        return Score(
            value=CORRECT if grade.resolved else INCORRECT,
            answer=patch,
            explanation=grade.reason or f"not passed: {', '.join(grade.failing) or 'none'}",
            metadata={"outcome": grade.outcome, "failing": list(grade.failing)},
        )

    return score


def _judge(folder: str, instance: Instance) -> tuple[str, Grade]:
    cache = cache_in(folder)
    patch = instance.diff().decode("utf-8", "surrogateescape")
    row = cache.row(instance.sandbox.name)
    with tempfile.TemporaryDirectory(prefix="minisandbox-") as place:
        grade = judge(cache, row, patch=patch, log_path=Path(place, "tests.log")).grade
    return patch.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), grade
