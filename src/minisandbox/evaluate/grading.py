"""Statuses to a verdict, and what every grader is: ours by log parser, the official ones as tools.

A test that the log does not report did not pass. A run that was cut short is no verdict at all, and
neither is a grader that fails: both are outcomes of their own, never "unresolved".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from minisandbox.errors import EXIT_FAILED, EXIT_TRANSIENT, MiniSandboxError
from minisandbox.evaluate.logs import FAILING, PARSERS, PASSING, Statuses
from minisandbox.evaluate.outages import KILLED, outage
from minisandbox.evaluate.run_tests import PreparationFailed as PreparationFailed
from minisandbox.evaluate.run_tests import TestOutput, TestSpec, run_tests
from minisandbox.evaluate.test_files import test_files
from minisandbox.runtime import Instance

#: How a run is judged. ``resolved`` and ``unresolved`` are verdicts, and ``patch`` (the patch under
#: test does not apply) is one too: nothing was solved. The others say why there is no verdict, in
#: the words of failed stages: ``install`` (installing the patched project again failed),
#: ``timeout``, ``incomplete`` (the run was cut short), ``suspect`` (the log holds what only the
#: evaluation may write) and ``grader`` (the grader failed).
Outcome = Literal[
    "resolved", "unresolved", "patch", "install", "timeout", "incomplete", "suspect", "grader"
]

VERDICTS: frozenset[Outcome] = frozenset({"resolved", "unresolved", "patch"})


class GraderFailed(MiniSandboxError):
    """A grader cannot make a test spec of an instance, or broke on its log."""

    def __init__(self, grader: str, instance_id: str, reason: str) -> None:
        self.grader = grader
        self.instance_id = instance_id
        self.reason = reason
        super().__init__(f"{grader} cannot grade {instance_id}: {reason}")


class GraderUnavailable(MiniSandboxError):
    """An official grader cannot be installed or started, or does not answer; ``transient`` says
    that it may later, and is the exit code 75. ``remedy`` tells what to do otherwise.
    """

    def __init__(self, grader: str, reason: str, *, remedy: str, transient: bool = False) -> None:
        self.grader = grader
        self.reason = reason
        self.remedy = remedy
        self.transient = transient
        self.exit_code = EXIT_TRANSIENT if transient else EXIT_FAILED
        hint = "try again" if transient else remedy
        super().__init__(f"the grader {grader} is not available: {reason}; {hint}")


@dataclass(frozen=True)
class Grade:
    """How the tests that decide came out.

    ``fail_to_pass`` and ``pass_to_pass`` are ``(passed, total)``; ``failing`` are the tests of both
    lists that did not pass, in order; ``passed`` and ``failed`` count everything that the log
    reports. ``reason`` is a sentence where ``outcome`` is no verdict over tests.
    """

    outcome: Outcome
    fail_to_pass: tuple[int, int] = (0, 0)
    pass_to_pass: tuple[int, int] = (0, 0)
    failing: tuple[str, ...] = ()
    passed: int = 0
    failed: int = 0
    reason: str = ""

    @property
    def resolved(self) -> bool:
        """Whether every test that decides passed, in a run that can be trusted to be whole."""
        return self.outcome == "resolved"

    @property
    def is_verdict(self) -> bool:
        """Whether this says something of the patch, and not of the machine or the grader."""
        return self.outcome in VERDICTS


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a grader has to know of an instance.

    ``environment_commit`` is where requirement files are read (SWE-bench's
    ``environment_setup_commit``), or empty. ``evaluation`` holds the columns of a row that says
    itself how it is evaluated. ``trusted_files`` are put back to the recorded tree before the tests
    run, whatever a patch did to them, as those of ``test_patch`` are. ``test_spec`` is what
    ``Grader.specify`` said of it.
    """

    instance_id: str
    repo: str
    version: str
    base_commit: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    environment_commit: str = ""
    evaluation: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trusted_files: tuple[str, ...] = ()
    test_spec: str = ""


@dataclass(frozen=True)
class TestFiles:
    """Files that hold the tests of each list of a task; whether they exist is another question."""

    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()


class Grader(Protocol):
    """Runs the tests of a task in a fresh instance, and judges what came out."""

    @property
    def name(self) -> str:
        """As recipes and the manifest name it."""
        ...

    @property
    def identity(self) -> Mapping[str, str]:
        """Versions of all that decides its verdicts."""
        ...

    def test_files(self, tasks: Sequence[Task]) -> Mapping[str, TestFiles | GraderFailed]:
        """Where the tests of each task are, by instance id, or why that is not known; raises
        ``GraderUnavailable``.
        """
        ...

    def specify(
        self, tasks: Sequence[Task], *, mirrors: Mapping[str, Path]
    ) -> Mapping[str, str | GraderFailed]:
        """The test spec of each task by instance id, as text to be kept, or why there is none.

        ``mirrors`` are bare repositories by ``owner/name``. With the text, the other methods need
        neither them nor a network. Raises ``GraderUnavailable``.
        """
        ...

    def run(self, instance: Instance, task: Task, *, patch: str, log_path: Path) -> TestOutput:
        """Apply ``patch`` to the fresh ``instance`` and run the tests, with the log at
        ``log_path``.

        Raises ``PatchFailed``, ``RebuildFailed``, ``PreparationFailed``, ``GraderFailed`` or
        ``GraderUnavailable``.
        """
        ...

    def grade(self, task: Task, outputs: Sequence[TestOutput]) -> tuple[Grade, ...]:
        """The grade of each run of ``task``; raises ``GraderFailed`` or ``GraderUnavailable``."""
        ...

    def tests_of(self, output: TestOutput) -> str:
        """The part of a log in which the tests ran."""
        ...


@dataclass(frozen=True)
class LogGrader:
    """Runs the commands of a recipe, and reads the log with a parser of ours.

    ``timeout`` is in seconds, for the rebuild and for the tests each.
    """

    parser: str
    test_command: str
    rebuild_command: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout: float = 1800.0

    @property
    def name(self) -> str:
        return "log"

    @property
    def identity(self) -> Mapping[str, str]:
        return {"log": self.parser}

    def statuses(self, log: str) -> Statuses:
        """What the log says of each test."""
        return PARSERS[self.parser](log)

    def test_files(self, tasks: Sequence[Task]) -> Mapping[str, TestFiles | GraderFailed]:
        """What the names of the tests say."""
        return files_by_name(tasks)

    def specify(
        self, tasks: Sequence[Task], *, mirrors: Mapping[str, Path]
    ) -> Mapping[str, str | GraderFailed]:
        """Empty texts: everything is in the recipe. ``mirrors`` are not read."""
        del mirrors
        return {task.instance_id: "" for task in tasks}

    def run(self, instance: Instance, task: Task, *, patch: str, log_path: Path) -> TestOutput:
        spec = TestSpec(
            test_command=self.test_command,
            parser=self.parser,
            test_patch=task.test_patch,
            trusted_files=task.trusted_files,
            rebuild_command=self.rebuild_command,
            env=self.env,
            timeout=self.timeout,
        )
        return run_tests(instance, spec, patch=patch, log_path=log_path)

    def grade(self, task: Task, outputs: Sequence[TestOutput]) -> tuple[Grade, ...]:
        return tuple(self._grade(task, output) for output in outputs)

    def tests_of(self, output: TestOutput) -> str:
        return output.log

    def _grade(self, task: Task, output: TestOutput) -> Grade:
        if (cut := cut_short(output)) is not None:
            return cut
        graded = grade(
            self.statuses(output.log),
            fail_to_pass=task.fail_to_pass,
            pass_to_pass=task.pass_to_pass,
        )
        return without_blame(graded, output, output.log)


def files_by_name(tasks: Sequence[Task]) -> Mapping[str, TestFiles]:
    """What the names of tests say of their files, by instance id."""
    return {
        task.instance_id: TestFiles(test_files(task.fail_to_pass), test_files(task.pass_to_pass))
        for task in tasks
    }


def cut_short(output: TestOutput) -> Grade | None:
    """Why a run is no verdict, whatever its log says: over time, killed, or not kept whole."""
    if output.timed_out:
        return Grade("timeout", reason=f"the tests were ended after {output.seconds:.0f} s")
    if output.truncated:
        return Grade("incomplete", reason="the tests printed more than is kept of a log")
    if (name := KILLED.get(output.exit_code - 128)) is not None:
        return Grade("incomplete", reason=f"the tests were killed by {name}")
    return None


def without_blame(grade: Grade, output: TestOutput, tests: str) -> Grade:
    """``grade``, or ``incomplete`` where it is ``unresolved`` and the machine failed the run.

    ``tests`` is the part of the log in which the tests ran. A resolved run had all that it needed.
    """
    if grade.outcome != "unresolved":
        return grade
    if output.full:
        said = f"the file system of {output.full} in the sandbox was full when the tests had ended"
    elif (shown := outage(tests)) is not None:
        said = f"the machine failed the tests: {shown}"
    else:
        return grade
    return replace(grade, outcome="incomplete", reason=said)


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
        outcome="resolved" if fail_to_pass and not failing else "unresolved",
        fail_to_pass=(f2p, len(fail_to_pass)),
        pass_to_pass=(p2p, len(pass_to_pass)),
        failing=failing,
        passed=sum(status in PASSING for status in statuses.values()),
        failed=sum(status in FAILING for status in statuses.values()),
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
