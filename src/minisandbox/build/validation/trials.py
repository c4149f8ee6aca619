"""The test runs of one instance: each in a fresh sandbox on its packed layers, with a log of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from minisandbox.build import stage
from minisandbox.build.validation.clock import clock_variables, set_clock
from minisandbox.build.validation.verdicts import Run, Runs, Which
from minisandbox.errors import PatchFailed, RebuildFailed, StageFailed
from minisandbox.evaluate.grading import (
    Grader,
    GraderFailed,
    GraderUnavailable,
    PreparationFailed,
    Task,
)
from minisandbox.evaluate.run_tests import TestOutput
from minisandbox.records.stages import InstanceRecord
from minisandbox.runtime import Instance, start_instance
from minisandbox.sandbox import Profile
from minisandbox.store import NodeStore, Store


@dataclass(frozen=True)
class Trials:
    """Runs the tests of one built instance; ``logs`` is the folder of its batch."""

    record: InstanceRecord
    grader: Grader
    store: Store
    node: NodeStore
    profile: Profile
    logs: Path

    def log(self, name: str) -> Path:
        """Where the log of the run of that name is."""
        return self.logs / f"{self.record.key}.{name}.log"

    def start(self, name: str, env: Mapping[str, str] | None = None) -> Instance:
        """A fresh instance; raises what ``start_instance`` does."""
        return start_instance(
            self.record.layers,
            head_tree=self.record.head_tree,
            store=self.store,
            node=self.node,
            name=f"{self.record.key}-{name}",
            profile=self.profile,
            env={**self.record.env, **(env or {})},
        )

    def run(
        self,
        task: Task,
        patch: str,
        name: str,
        *,
        grader: Grader | None = None,
        at: datetime | None = None,
    ) -> TestOutput:
        """Run the tests once, with the clock ``at`` another time if it is given; raises
        ``StageFailed``, and ``ClockUnavailable``.
        """
        with self.start(name, clock_variables(at) if at else None) as instance:
            if at is not None:
                set_clock(instance, at)
            try:
                return (grader or self.grader).run(
                    instance, task, patch=patch, log_path=self.log(name)
                )
            except RebuildFailed as error:
                raise StageFailed(
                    "install",
                    str(error),
                    hint="see 'rebuild' in the recipe",
                    lines=stage.tail(self.log(name)),
                ) from None
            except PatchFailed as error:
                raise StageFailed(
                    "patch", str(error), hint="check the row's 'patch' and 'test_patch'"
                ) from None
            except PreparationFailed as error:
                raise StageFailed("incomplete", str(error), hint="was something full?") from None
            except GraderFailed as error:
                raise StageFailed("grader", str(error)) from None
            except GraderUnavailable as error:
                raise unavailable(error) from error

    def run_all(self, task: Task, patch: str, times: int) -> Runs:
        """That many runs without and with the gold patch, graded in one call of the grader.

        A run that took too long is the last one: there is no verdict, whatever others would say.
        """
        ran: list[tuple[Which, str, TestOutput]] = []
        for number in range(1, times + 1):
            pair: tuple[tuple[Which, str], ...] = (("empty", ""), ("gold", patch))
            for which, tried in pair:
                name = which if number == 1 else f"{which}-{number}"
                ran.append((which, name, self.run(task, tried, name)))
            if any(output.timed_out for *_, output in ran):
                break
        graded = self._grade(task, ran)
        return Runs(
            gold=tuple(run for run in graded if run.patch == "gold"),
            empty=tuple(run for run in graded if run.patch == "empty"),
        )

    def run_gold(self, task: Task, patch: str, name: str, *, at: datetime | None = None) -> Run:
        """One more run with the gold patch, graded."""
        output = self.run(task, patch, name, at=at)
        (run,) = self._grade(task, [("gold", name, output)])
        return run

    def is_absent(self, program: str) -> bool:
        """Whether no program of that name, or at that path, is in the instance."""
        with self.start("program") as instance:
            words = ["/bin/bash", "-c", 'command -v -- "$1"', "bash", program]
            return instance.run(words, timeout=60).exit_code != 0

    def _grade(self, task: Task, ran: Sequence[tuple[Which, str, TestOutput]]) -> list[Run]:
        try:
            grades = self.grader.grade(task, [output for *_, output in ran])
        except GraderFailed as error:
            raise StageFailed("grader", str(error)) from error
        except GraderUnavailable as error:
            raise unavailable(error) from error
        return [
            Run(which, output, grade, self.log(name), self.grader.tests_of(output))
            for (which, name, output), grade in zip(ran, grades, strict=True)
        ]


def unavailable(error: GraderUnavailable) -> StageFailed:
    """A grader that does not answer, as the end of a stage."""
    return StageFailed("grader", str(error), transient=error.transient)
