"""What puts bugs in: answers that are none are errors, and the plan's words stay the row's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minisandbox.build.checkouts import bugs
from minisandbox.build.checkouts.rows import complete
from minisandbox.errors import StageFailed
from minisandbox.evaluate import grading
from minisandbox.evaluate.grading import GraderFailed, Task
from minisandbox.evaluate.official.smith_grader import SmithGrader
from minisandbox.records.plan import InstancePlan
from minisandbox.records.stages import FoundRow
from minisandbox.sandbox.result import Result


class Shop:
    """A workshop in which every command has one result."""

    def __init__(self, result: Result) -> None:
        self.sandbox = SimpleNamespace(run=lambda *_, **__: result)

    def reached_limit(self, what: str, result: Result) -> StageFailed:
        return StageFailed("limit", f"{what} reached {result.limit}")


def result(stdout: bytes, **others: Any) -> Result:
    return Result(**{"stdout": stdout, "stderr": b"", "exit_code": 0, "duration": 0.1, **others})


@pytest.mark.parametrize(
    ("listed", "kind"),
    [
        (result(b""), "install"),
        (result(b"a.py\0", exit_code=128, stderr=b"fatal: bad index"), "install"),
        (result(b"a.py\0... left out ...", truncated=True), "install"),
        (result(b"a.py\0", exit_code=137, limit="memory"), "limit"),
    ],
)
def test_a_list_of_files_that_is_not_whole_hides_nothing_and_is_an_error(
    listed: Result, kind: str
) -> None:
    shop: Any = Shop(listed)
    with pytest.raises(StageFailed) as caught:
        bugs.plant(shop, "", hidden=["tests/test_a.py"], rebuild="", timeout=1)
    assert caught.value.kind == kind


def test_test_files_that_nobody_can_tell_are_an_error() -> None:
    answers = [{"FAIL_TO_PASS": ["a.py"], "PASS_TO_PASS": []}, {"error": "KeyError: 'x'"}]
    tool: Any = SimpleNamespace(
        test_files=lambda _rows: answers, pin=SimpleNamespace(name="swesmith-0.0.9")
    )
    tasks = [
        Task(
            instance_id=name,
            repo="a/b",
            version="12345678",
            base_commit="c" * 40,
            test_patch="",
            fail_to_pass=(),
            pass_to_pass=(),
        )
        for name in ("one", "two")
    ]
    found = SmithGrader(tool).test_files(tasks)
    assert found["one"] == grading.TestFiles(("a.py",))
    assert isinstance(found["two"], GraderFailed)
    assert "KeyError" in str(found["two"])


def test_the_words_of_a_bug_are_the_plans() -> None:
    plan = InstancePlan("i", "d", "a/b", "c" * 40, "1", patch="now", problem_statement="new words")
    row = complete(plan, FoundRow("f" * 40, "", "tests", "", ("a.py",)))
    assert (row.patch, row.problem_statement) == ("now", "new words")
    assert (row.base_commit, row.test_patch, row.trusted_files) == ("f" * 40, "tests", ("a.py",))
