"""SWE-smith's own code in its environment: profiles, test commands, verdicts, and no network."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from minisandbox.evaluate import grading, run_tests
from minisandbox.evaluate.grading import GraderFailed, Task
from minisandbox.evaluate.official.smith_grader import SmithGrader
from minisandbox.evaluate.official.tool import OfficialTool

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(600)]

TASK = Task(
    instance_id="google__textfsm.c31b6007.x__1",
    repo="google/textfsm",
    version="c31b6007",
    base_commit="c31b600743895f018e7583f93405a3738a9f4d55",
    test_patch="",
    fail_to_pass=("tests/a_test.py::A::test_bug",),
    pass_to_pass=("tests/b_test.py::B::test_b", "tests/a_test.py::A::test_other"),
)
ALL = (*TASK.fail_to_pass, *TASK.pass_to_pass)


@pytest.fixture(scope="module")
def tool() -> OfficialTool:
    return OfficialTool("swesmith-0.0.9")


def log(text: str) -> run_tests.TestOutput:
    """What the evaluation script prints, with ``text`` as the output of the tests."""
    traced = (
        "+n cd /testbed\n+n : '>>>>> Start Test Output'\n+n pytest\n"
        f"{text}\n+n : '>>>>> End Test Output'\n+n echo 'the tests have ended'\n"
    )
    return run_tests.TestOutput(traced, 0, timed_out=False, truncated=False, seconds=1.0, nonce="n")


def test_a_profile_is_a_specification(tool: OfficialTool) -> None:
    asked = [("google/textfsm", "c31b6007"), ("caolan/async", "23dbf76a"), ("no/thing", "00000000")]
    python, other, unknown = tool.specifications(asked).values()
    assert python is not None
    assert python.entry["python"] == "3.10"
    assert python.entry["pre_install"] == ["python -m pip install -e ."]
    assert other is not None
    assert "python" not in other.entry
    assert unknown is None


def test_what_is_missing_skipped_or_failed_did_not_pass(tool: OfficialTool) -> None:
    grader = SmithGrader(tool)
    spec = grader.specify([TASK], mirrors={})[TASK.instance_id]
    assert isinstance(spec, str)
    assert json.loads(spec)["test_command"].endswith("--verbose")
    task = replace(TASK, test_spec=spec)
    words = {"all": "PASSED", "failed": "FAILED", "skipped": "SKIPPED"}
    runs = ["\n".join(f"{name} {word} [ 9%]" for name in ALL) for word in words.values()]
    runs += [f"{ALL[0]} PASSED", "", "PASSED", f"{ALL[0]} PAS\nSED"]
    grades = grader.grade(task, [log(text) for text in runs])
    assert [grade.outcome for grade in grades] == ["resolved", *["unresolved"] * 6]
    assert grades[0].fail_to_pass == (1, 1)
    assert grades[0].pass_to_pass == (2, 2)
    assert grades[2].failing == ALL
    assert grades[3].failing == TASK.pass_to_pass
    assert grades[4].failing == ALL


def test_a_run_that_was_cut_short_is_no_verdict(tool: OfficialTool) -> None:
    grader = SmithGrader(tool)
    spec = grader.specify([TASK], mirrors={})[TASK.instance_id]
    assert isinstance(spec, str)
    whole = log("\n".join(f"{name} PASSED" for name in ALL))
    cut = replace(whole, log=whole.log.partition("+n : '>>>>> End")[0])
    twice = replace(whole, log=whole.log + "\n+ : '>>>>> End Test Output'\n")
    late = replace(whole, timed_out=True)
    grades = grader.grade(replace(TASK, test_spec=spec), [cut, twice, late])
    assert [grade.outcome for grade in grades] == ["incomplete", "suspect", "timeout"]


def test_profiles_say_where_tests_are(tool: OfficialTool) -> None:
    slugify = replace(TASK, instance_id="s", repo="un33k/python-slugify", version="872b3750")
    unknown = replace(TASK, instance_id="u", repo="no/thing")
    found = SmithGrader(tool).test_files([TASK, slugify, unknown])
    nothing = found.pop("u")
    assert isinstance(nothing, GraderFailed)
    assert "no__thing" in str(nothing)
    assert found == {
        TASK.instance_id: grading.TestFiles(
            ("tests/a_test.py",), ("tests/a_test.py", "tests/b_test.py")
        ),
        "s": grading.TestFiles(("test.py",), ("test.py",)),
    }
    failed = SmithGrader(tool).specify([unknown], mirrors={})["u"]
    assert isinstance(failed, GraderFailed)
    assert "no__thing" in str(failed)
