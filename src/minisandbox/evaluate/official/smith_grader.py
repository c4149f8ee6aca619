"""The grader of SWE-smith rows, whose patch puts a bug in.

As its harness does: the tests that an agent may not see are put back, those that it may are made
what they were, the profile's command runs, its parser reads the log, its code decides. The script
is the harness's, between ours: it applies the hidden tests first, and says in the end that it came
so far.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minisandbox import keys
from minisandbox.evaluate.grading import Grade, GraderFailed, Task, TestFiles, without_blame
from minisandbox.evaluate.official.eval_script import END, START
from minisandbox.evaluate.official.grader import OfficialGrader, grade_of
from minisandbox.evaluate.official.script import run_script, tests_part, trouble
from minisandbox.evaluate.run_tests import TestOutput
from minisandbox.runtime import Instance

#: Version of what this module does around the official code; counted up with a change of meaning.
_METHOD = 1


@dataclass(frozen=True)
class SmithGrader(OfficialGrader):
    """Grades by the profile of a row's project, of the commit that its ``version`` names."""

    @property
    def identity(self) -> Mapping[str, str]:
        return {**super().identity, "bugs": str(_METHOD)}

    def test_files(self, tasks: Sequence[Task]) -> Mapping[str, TestFiles | GraderFailed]:
        answers = self.tool.test_files([_row(task) for task in tasks])
        return {
            # Where nobody knows the tests, none could be hidden.
            task.instance_id: GraderFailed(self.name, task.instance_id, str(answer["error"]))
            if "error" in answer
            else TestFiles(tuple(answer["FAIL_TO_PASS"]), tuple(answer["PASS_TO_PASS"]))
            for task, answer in zip(tasks, answers, strict=True)
        }

    def specify(
        self, tasks: Sequence[Task], *, mirrors: Mapping[str, Path]
    ) -> Mapping[str, str | GraderFailed]:
        """As ``Grader.specify`` says; ``mirrors`` are not read."""
        answers = self.tool.test_specs([_row(task) for task in tasks], mirrors={})
        del mirrors
        return {
            task.instance_id: self._spec(task, answer)
            for task, answer in zip(tasks, answers, strict=True)
        }

    @property
    def kept(self) -> Sequence[tuple[str, type]]:
        return (("test_command", str),)

    def run(self, instance: Instance, task: Task, *, patch: str, log_path: Path) -> TestOutput:
        command = self._saved(task)["test_command"]
        self.tool.python()  # before minutes of tests that nothing could grade
        return run_script(
            instance,
            _script(command, task.test_patch),
            patch=patch,
            test_patch=task.test_patch,
            trusted=task.trusted_files,
            env=self.env,
            timeout=self.timeout,
            log_path=log_path,
        )

    def grade(self, task: Task, outputs: Sequence[TestOutput]) -> tuple[Grade, ...]:
        self._saved(task)
        applies = bool(task.test_patch.strip())
        grades = [trouble(output, install="", applies=applies) for output in outputs]
        row = _row(task)
        items = [
            {**row, "log": tests_part(output)}
            for output, grade in zip(outputs, grades, strict=True)
            if grade is None
        ]
        answers = iter(self.tool.grade(items))
        return tuple(
            grade or without_blame(grade_of(task, next(answers)), output, tests_part(output))
            for output, grade in zip(outputs, grades, strict=True)
        )


def _row(task: Task) -> dict[str, Any]:
    return {
        "profile": f"{keys.slug(task.repo)}.{task.version}",
        "FAIL_TO_PASS": list(task.fail_to_pass),
        "PASS_TO_PASS": list(task.pass_to_pass),
    }


def _script(command: str, test_patch: str) -> str:
    lines = ["#!/bin/bash", "set -uxo pipefail", "cd /testbed"]
    if test_patch.strip():
        end = "EOF_" + hashlib.sha256(test_patch.encode("utf-8", "surrogateescape")).hexdigest()
        lines += [f"git apply -v - <<'{end}'", test_patch.removesuffix("\n"), end]
    lines += [f": '{START}'", command, f": '{END}'", "echo 'the tests have ended'"]
    return "\n".join(lines) + "\n"
