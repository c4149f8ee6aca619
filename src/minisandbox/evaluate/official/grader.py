"""The project's grader Protocol, spoken by an official grader."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minisandbox.evaluate.grading import (
    Grade,
    GraderFailed,
    Task,
    TestFiles,
    files_by_name,
    without_blame,
)
from minisandbox.evaluate.official.script import graded_part, run_script, tests_part, trouble
from minisandbox.evaluate.official.tool import Answer, OfficialTool
from minisandbox.evaluate.run_tests import TestOutput
from minisandbox.runtime import Instance

#: Version of what is done around the official code: how a patch is applied, what a log must show,
#: what of the harness's report decides. A change of meaning in this module or in script.py counts
#: it up, and makes every validation anew.
_METHOD = 4

#: What a test spec is kept as, besides who made it.
_KEPT = (("test_spec", dict), ("eval_script", str), ("install", str))


@dataclass(frozen=True)
class OfficialGrader:
    """Grades as the benchmark's own harness does: its script, its parsers, its verdict.

    ``env`` are further variables of the script, ``timeout`` is in seconds for all of it.
    """

    tool: OfficialTool
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout: float = 1800.0

    @property
    def name(self) -> str:
        return self.tool.pin.name

    @property
    def identity(self) -> Mapping[str, str]:
        pin = self.tool.pin
        return {
            pin.distribution: pin.version,
            "requirements": pin.digest,
            "bridge": pin.bridge_digest,
            "method": str(_METHOD),
        }

    def test_files(self, tasks: Sequence[Task]) -> Mapping[str, TestFiles | GraderFailed]:
        return files_by_name(tasks)

    def specify(
        self, tasks: Sequence[Task], *, mirrors: Mapping[str, Path]
    ) -> Mapping[str, str | GraderFailed]:
        answers = self.tool.test_specs([_row(task) for task in tasks], mirrors=mirrors)
        return {
            task.instance_id: self._spec(task, answer)
            for task, answer in zip(tasks, answers, strict=True)
        }

    def _spec(self, task: Task, answer: Answer) -> str | GraderFailed:
        if "error" in answer:
            reason = f"it makes no test spec of {task.repo} {task.version}: {answer['error']}"
            return GraderFailed(self.name, task.instance_id, reason)
        # The patch's own lines may end as they like: git compares them with the file. A script
        # with such line ends looks for tests in files of other names.
        if "\r" in answer.get("eval_script", "").replace(task.test_patch, ""):
            reason = "its evaluation script has CRLF line ends; convert the row's patches to LF"
            return GraderFailed(self.name, task.instance_id, reason)
        saved = {"grader": self.name, "version": self.tool.pin.version, **answer}
        return json.dumps(saved, ensure_ascii=False, sort_keys=True)

    def run(self, instance: Instance, task: Task, *, patch: str, log_path: Path) -> TestOutput:
        script = self._saved(task)["eval_script"]
        self.tool.python()  # before minutes of tests that nothing could grade
        return run_script(
            instance,
            script,
            patch=patch,
            test_patch=task.test_patch,
            env=self.env,
            timeout=self.timeout,
            log_path=log_path,
        )

    def grade(self, task: Task, outputs: Sequence[TestOutput]) -> tuple[Grade, ...]:
        saved = self._saved(task)
        grades = [trouble(output, install=saved["install"]) for output in outputs]
        items = [
            {"test_spec": saved["test_spec"], "patch": "", "log": graded_part(output)}
            for output, grade in zip(outputs, grades, strict=True)
            if grade is None
        ]
        answers = iter(self.tool.grade(items))
        return tuple(
            grade or without_blame(grade_of(task, next(answers)), output, tests_part(output))
            for output, grade in zip(outputs, grades, strict=True)
        )

    def tests_of(self, output: TestOutput) -> str:
        return tests_part(output) or output.log

    @property
    def kept(self) -> Sequence[tuple[str, type]]:
        """What a test spec is kept as, besides who made it."""
        return _KEPT

    def _saved(self, task: Task) -> Mapping[str, Any]:
        """The spec that was kept; raises ``GraderFailed`` for one of another grader, or none."""
        try:
            saved: Any = json.loads(task.test_spec)
            if (saved["grader"], saved["version"]) == (self.name, self.tool.pin.version):
                damaged = [
                    name for name, kind in self.kept if not isinstance(saved.get(name), kind)
                ]
                if not damaged:
                    return saved
                found = f"its test spec is damaged ({', '.join(damaged)})"
            else:
                found = f"its test spec is one of {saved['grader']} {saved['version']}"
        except (ValueError, KeyError, TypeError):
            found = "it has no test spec"
        raise GraderFailed(self.name, task.instance_id, f"{found}; build its validation again")


def _row(task: Task) -> dict[str, Any]:
    """The columns that the harness reads; a missing column means something to it."""
    row: dict[str, Any] = {
        "instance_id": task.instance_id,
        "repo": task.repo,
        "version": task.version,
        "base_commit": task.base_commit,
        "test_patch": task.test_patch,
        "FAIL_TO_PASS": list(task.fail_to_pass),
        "PASS_TO_PASS": list(task.pass_to_pass),
    }
    if task.environment_commit:
        row["environment_setup_commit"] = task.environment_commit
    return row


def grade_of(task: Task, answer: Answer) -> Grade:
    """The harness's report on a run as a grade of ours."""
    if "error" in answer:
        return Grade("grader", reason=f"the official grader broke on the log: {answer['error']}")
    report = answer["report"]
    lists = report.get("tests_status")
    if lists is None:
        # One of its own words of failure. Nothing but the harness writes them, and it did not run.
        said = "the tests printed a word of failure that is the harness's own"
        return Grade("suspect", reason=said)
    # The harness drops a test that its parser reads as skipped from both sides of the account, and
    # an account of nothing is a success to it: a patch that has the tests skipped would resolve.
    passed = {name for kind in ("FAIL_TO_PASS", "PASS_TO_PASS") for name in lists[kind]["success"]}
    failing = tuple(name for name in (*task.fail_to_pass, *task.pass_to_pass) if name not in passed)
    # No test that has to start passing is nothing solved, whatever the harness makes of it.
    resolved = report["resolved"] and bool(task.fail_to_pass) and not failing
    return Grade(
        outcome="resolved" if resolved else "unresolved",
        fail_to_pass=_passed_of(passed, task.fail_to_pass),
        pass_to_pass=_passed_of(passed, task.pass_to_pass),
        failing=failing,
        passed=answer["passed"],
        failed=answer["failed"],
    )


def _passed_of(passed: Set[str], names: Sequence[str]) -> tuple[int, int]:
    return sum(name in passed for name in names), len(names)
