"""Release 5 of the official grader in its environment, and rows that bring their evaluation.

Installing it needs the package index, the first time on a machine.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from minisandbox.evaluate import run_tests
from minisandbox.evaluate.grading import Grade, GraderFailed, Task
from minisandbox.evaluate.official.row_grader import LOG_PARSERS, RowGrader
from minisandbox.evaluate.official.tool import OfficialTool

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(600)]

SCRIPT = """\
#!/bin/bash
set -uxo pipefail
conda activate testbed
python -m pip install -e .
git checkout 0123 tests/test_a.py
: '>>>>> Start Test Output'
pytest -rA tests/test_a.py
: '>>>>> End Test Output'
git checkout 0123 tests/test_a.py
"""
TASK = Task(
    instance_id="one-1",
    repo="owner/name",
    version="1",
    base_commit="0123",
    test_patch="",
    fail_to_pass=("t.py::new",),
    pass_to_pass=("t.py::old",),
    evaluation={
        "eval_script": SCRIPT,
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "image": "somewhere/one:latest",
    },
)


@pytest.fixture(scope="module")
def grader() -> RowGrader:
    return RowGrader(OfficialTool("swebench-5"))


@pytest.fixture(scope="module")
def task(grader: RowGrader) -> Task:
    spec = grader.specify([TASK], mirrors={})["one-1"]
    assert isinstance(spec, str), spec
    return replace(TASK, test_spec=spec)


def graded(grader: RowGrader, task: Task, tests: str, *, code: int = 0) -> Grade:
    """The grade of a run whose every step worked, with this output of the tests."""
    log = (
        "+ conda activate testbed\n+ python -m pip install -e .\nSuccessfully installed x-1\n"
        f"+ : '>>>>> Start Test Output'\n{tests}\n+ SWEBENCH_TEST_EXIT_CODE={code}\n"
        f"+ : '>>>>> End Test Output'\n+ echo '>>>>> Test Exit Code: {code}'\n"
        f">>>>> Test Exit Code: {code}\n+ git checkout 0123 tests/test_a.py\n"
    )
    return grader.grade(task, [run_tests.TestOutput(log, 0, False, False, seconds=1.0)])[0]


def test_its_parsers_are_those_that_are_planned_with(grader: RowGrader) -> None:
    program = (
        "import json; from swebench.harness.log_parsers import PARSER_REGISTRY as known; "
        "print(json.dumps(sorted(known)))"
    )
    done = subprocess.run(
        [grader.tool.python(), "-I", "-c", program], check=True, capture_output=True
    )
    assert set(json.loads(done.stdout)) == LOG_PARSERS


def test_the_script_is_the_harness_s_own(task: Task) -> None:
    saved = json.loads(task.test_spec)
    assert (saved["grader"], saved["version"]) == ("swebench-5", "5.0.2")
    recorded = (
        "SWEBENCH_TEST_EXIT_CODE=$?\n: '>>>>> End Test Output'\n"
        'echo ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"\n'
    )
    assert saved["eval_script"] == SCRIPT.replace(": '>>>>> End Test Output'\n", recorded)


@pytest.mark.parametrize(
    ("tests", "code", "outcome", "failing"),
    [
        ("PASSED t.py::new\nPASSED t.py::old", 0, "resolved", ()),
        ("PASSED t.py::new\nXFAIL t.py::old", 0, "resolved", ()),
        ("FAILED t.py::new - x\nPASSED t.py::old", 1, "unresolved", ("t.py::new",)),
        ("PASSED t.py::new", 0, "unresolved", ("t.py::old",)),
        # What was skipped is kept, but nothing that is mended.
        ("PASSED t.py::new\nSKIPPED t.py::old", 0, "resolved", ()),
        ("SKIPPED t.py::new\nPASSED t.py::old", 0, "unresolved", ("t.py::new",)),
        # The log and the code contradict each other.
        ("PASSED t.py::new\nPASSED t.py::old", 3, "unresolved", ("t.py::new", "t.py::old")),
        ("nothing", 4, "unresolved", ("t.py::new", "t.py::old")),
        ("FAILED\nPASSED t.py::new\nPASSED t.py::old\nERROR", 0, "resolved", ()),
        ("PASSED t.py::new\n>>>>> Tests Errored", 0, "suspect", ()),
    ],
)
def test_its_rules_decide(
    grader: RowGrader, task: Task, tests: str, code: int, outcome: str, failing: tuple[str, ...]
) -> None:
    grade = graded(grader, task, tests, code=code)
    assert (grade.outcome, grade.failing) == (outcome, failing)


def test_a_status_on_a_later_line(grader: RowGrader) -> None:
    evaluation = {**TASK.evaluation, "log_parser": "parse_log_django"}
    django = replace(TASK, evaluation=evaluation, fail_to_pass=("a (b.C)",), pass_to_pass=())
    spec = grader.specify([django], mirrors={})["one-1"]
    assert isinstance(spec, str)
    late = "a (b.C) ... System check identified no issues (0 silenced).\nok"
    assert graded(grader, replace(django, test_spec=spec), late).resolved


def test_a_parser_that_it_lacks_does_not_stop_the_others(grader: RowGrader) -> None:
    evaluation = {**TASK.evaluation, "log_parser": "parse_log_mine"}
    other = replace(TASK, instance_id="two-2", evaluation=evaluation)
    found = grader.specify([other, TASK], mirrors={})
    assert isinstance(found["one-1"], str)
    assert isinstance(found["two-2"], GraderFailed)
    assert "it has no log parser 'parse_log_mine'" in str(found["two-2"])
