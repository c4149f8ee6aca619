"""Grading by the evaluation that a row brings: what becomes of the official answer, and what is
refused before anything runs.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minisandbox.build.planning.config import DatasetConfig
from minisandbox.build.planning.dataset import read_rows
from minisandbox.evaluate import run_tests
from minisandbox.evaluate.grading import Grade, GraderFailed, Task
from minisandbox.evaluate.judging import evaluation_of
from minisandbox.evaluate.official.row_grader import LOG_PARSERS, RowGrader, understood
from minisandbox.evaluate.official.tool import OfficialTool

NONCE = "n0nce"
PATCH = """\
diff --git a/tests/test_new.py b/tests/test_new.py
new file mode 100644
--- /dev/null
+++ b/tests/test_new.py
@@ -0,0 +1 @@
+x = 1
"""
SCRIPT = f"""\
#!/bin/bash
set -uxo pipefail
conda activate testbed
python -m pip install -e .
git checkout 0123 tests/test_new.py
git apply -v - <<'EOF'
{PATCH}
EOF
: '>>>>> Start Test Output'
pytest -rA tests/test_new.py
: '>>>>> End Test Output'
git checkout 0123 tests/test_new.py
"""
EVALUATION: dict[str, Any] = {
    "eval_script": SCRIPT,
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
    "image": "somewhere/one:latest",
}
TASK = Task(
    instance_id="one-1",
    repo="owner/name",
    version="1",
    base_commit="0123",
    test_patch=PATCH,
    fail_to_pass=("t::new",),
    pass_to_pass=("t::old", "t::maybe"),
    evaluation=EVALUATION,
)


class Tool(OfficialTool):
    """Answers as the harness would, from here."""

    def __init__(self, answer: Mapping[str, Any] | None = None) -> None:
        super().__init__("swebench-5")
        self.answer = answer or {}
        self.logs: list[str] = []

    def row_specs(self, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [{"test_spec": dict(row), "eval_script": row["eval_script"]} for row in rows]

    def grade_rows(self, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        self.logs += [item["log"] for item in items]
        return [self.answer for _ in items]


def specified(task: Task = TASK, **evaluation: Any) -> Task | str:
    """The task with its test spec, or why it has none."""
    task = replace(task, evaluation={**task.evaluation, **evaluation})
    spec = RowGrader(Tool()).specify([task], mirrors={})["one-1"]
    return str(spec) if isinstance(spec, GraderFailed) else replace(task, test_spec=spec)


def output(
    tests: str = "PASSED t::new", *, code: str = "0", end: str = "", exit_code: int = 0
) -> run_tests.TestOutput:
    """A whole run of the script as release 5 has it."""
    log = (
        f"+{NONCE} conda activate testbed\n+{NONCE} python -m pip install -e .\n"
        f"Successfully installed x-1\n+{NONCE} git checkout 0123 tests/test_new.py\n"
        f"error: pathspec 'tests/test_new.py' did not match any file(s) known to git\n"
        f"+{NONCE} git apply -v -\n+{NONCE} : '>>>>> Start Test Output'\n"
        f"+{NONCE} pytest -rA tests/test_new.py\n{tests}\n+{NONCE} SWEBENCH_TEST_EXIT_CODE={code}\n"
        f"+{NONCE} : '>>>>> End Test Output'\n+{NONCE} echo '>>>>> Test Exit Code: {code}'\n"
        f">>>>> Test Exit Code: {code}\n+{NONCE} git checkout 0123 tests/test_new.py\n{end}"
    )
    return run_tests.TestOutput(log, exit_code, False, False, seconds=1.0, nonce=NONCE)


def report(**lists: tuple[list[str], list[str]]) -> Mapping[str, Any]:
    """An official answer; each list as (success, failure)."""
    status = {name: {"success": good, "failure": bad} for name, (good, bad) in lists.items()}
    resolved = not any(bad for _, bad in lists.values())
    return {
        "report": {"resolved": resolved, "tests_status": status},
        "words": [],
        "statuses": 3,
        "passed": 3,
        "failed": 0,
    }


GOOD = report(FAIL_TO_PASS=(["t::new"], []), PASS_TO_PASS=(["t::old", "t::maybe"], []))
NO_RUN: dict[str, Any] = {**GOOD, "report": {"resolved": False}}


def graded(answer: Mapping[str, Any] = GOOD, run: run_tests.TestOutput | None = None) -> Grade:
    task = specified()
    assert isinstance(task, Task)
    return RowGrader(Tool(answer)).grade(task, [run or output()])[0]


def test_the_official_lists_decide() -> None:
    assert graded().outcome == "resolved"
    assert graded().pass_to_pass == (2, 2)
    broken = report(FAIL_TO_PASS=(["t::new"], []), PASS_TO_PASS=(["t::maybe"], ["t::old"]))
    grade = graded(broken)
    assert (grade.outcome, grade.failing, grade.pass_to_pass) == ("unresolved", ("t::old",), (1, 2))


def test_a_test_in_neither_list_did_not_pass() -> None:
    grade = graded(report(FAIL_TO_PASS=([], []), PASS_TO_PASS=(["t::old", "t::maybe"], [])))
    assert (grade.outcome, grade.failing) == ("unresolved", ("t::new",))


def test_the_harness_reads_what_the_tests_printed_and_how_they_ended() -> None:
    task = specified()
    assert isinstance(task, Task)
    tool = Tool(GOOD)
    RowGrader(tool).grade(task, [output(code="1")])
    (log,) = tool.logs
    assert "PASSED t::new" in log
    assert "Successfully installed" not in log
    assert log.endswith(">>>>> Test Exit Code: 1\n")
    assert log.count(">>>>> Test Exit Code") == 1


@pytest.mark.parametrize(
    ("answer", "outcome", "reason"),
    [
        ({**NO_RUN}, "unresolved", "the test command ended with 0, but its log names no test"),
        ({**NO_RUN, "statuses": 0}, "unresolved", "the log names no test"),
        ({**NO_RUN, "words": [">>>>> Tests Errored"]}, "suspect", ">>>>> Tests Errored"),
        ({"error": "KeyError: x"}, "grader", "KeyError: x"),
    ],
)
def test_a_log_that_the_harness_does_not_take_solves_nothing(
    answer: Mapping[str, Any], outcome: str, reason: str
) -> None:
    grade = graded(answer)
    assert grade.outcome == outcome
    assert reason in grade.reason


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        # A test cannot say for the script how it ended: the harness would take the first it finds.
        (output("PASSED t::new\n>>>>> Test Exit Code: 0", code="1"), "suspect"),
        (output("x\n/eval.sh: line 9:    12 Killed   pytest", code="137"), "incomplete"),
        (output(end="error: pathspec 'tests/other.py' did not match any file(s) known to git\n",
                exit_code=1), "incomplete"),
        (output(end="fatal: Unable to create index.lock\n", exit_code=128), "incomplete"),
    ],
)  # fmt: skip
def test_a_run_that_shows_a_broken_step_is_no_verdict(
    run: run_tests.TestOutput, outcome: str
) -> None:
    grade = graded(run=run)
    assert grade.outcome == outcome
    assert not grade.is_verdict


def test_a_file_that_the_test_patch_makes_cannot_be_restored_from_base() -> None:
    missing = "error: pathspec 'tests/test_new.py' did not match any file(s) known to git\n"
    assert graded(run=output(end=missing, exit_code=1)).outcome == "resolved"


def test_a_quiet_install_that_says_nothing_worked() -> None:
    task = specified(eval_script=SCRIPT.replace("install -e .", "install -q -e ."))
    assert isinstance(task, Task)
    said = output().log.replace("install -e .\nSuccessfully installed x-1", "install -q -e .")
    quiet = replace(output(), log=said)
    failed = replace(output(), log=said.replace("-q -e .\n", "-q -e .\nERROR: no setuptools\n"))
    grades = RowGrader(Tool(GOOD)).grade(task, [quiet, failed])
    assert [grade.outcome for grade in grades] == ["resolved", "install"]


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ({"eval_script": ""}, "the row brings no 'eval_script'"),
        ({"log_parser": None}, "the row brings no 'log_parser'"),
        ({"eval_type": "fail_only"}, "has the eval_type 'fail_only', and only 'pass_and_fail'"),
        ({"eval_script": "pytest\n"}, "has an eval_script that has no line"),
        ({"eval_script": SCRIPT.replace("\n", "\r\n")}, "CRLF line ends"),
        ({"test_assets": {"../x": ""}}, "is no path of a repository"),
        ({"test_assets": {".git/hooks/x": ""}}, "is no path of a repository"),
        ({"test_assets": {".GIT/config": ""}}, "is no path of a repository"),
        ({"test_assets": {"x/": ""}}, "is no path of a repository"),
        ({"test_assets": {"x\0y": ""}}, "is no path of a repository"),
        ({"test_assets": {"x": "%"}}, "is not base64"),
        (
            {"image_assets": '{"test_patch": [{"path": "a.png", "url": "https://host/a"}]}'},
            "needs the file 'a.png' for its tests",
        ),
    ],
)
def test_what_cannot_be_run_is_refused(evaluation: Mapping[str, Any], said: str) -> None:
    found = specified(**evaluation)
    assert isinstance(found, str)
    assert said in found


def test_files_for_the_tests_are_kept_in_the_spec_and_copied_by_the_script() -> None:
    content = base64.b64encode(b"\x89PNG").decode()
    task = specified(
        test_assets={"tests/it's.png": content},
        image_assets={"test_patch": [{"path": "tests/it's.png"}]},
    )
    assert isinstance(task, Task)
    spec = json.loads(task.test_spec)
    assert spec["files"] == {"tests/it's.png": content}
    assert spec["restored"] == ["tests/it's.png", "tests/test_new.py"]
    copied = """mkdir -p -- tests && cp -- /test_assets/0 'tests/it'"'"'s.png'"""
    assert f"EOF\n{copied}\n: '>>>>> Start" in spec["eval_script"]


def test_the_paths_of_the_script_s_own_patch_count_as_trusted_too() -> None:
    task = specified(replace(TASK, test_patch=""))
    assert isinstance(task, Task)
    spec = json.loads(task.test_spec)
    assert (spec["restored"], spec["created"]) == (["tests/test_new.py"], ["tests/test_new.py"])


def test_a_spec_without_its_parts_is_refused() -> None:
    task = specified()
    assert isinstance(task, Task)
    spec = json.loads(task.test_spec)
    del spec["restored"]
    damaged = replace(task, test_spec=json.dumps(spec))
    with pytest.raises(GraderFailed, match=r"its test spec is damaged \(restored\)"):
        RowGrader(Tool(GOOD)).grade(damaged, [output()])


@pytest.mark.parametrize(
    ("code", "outcome"), [("137", "incomplete"), ("143", "incomplete"), ("139", "unresolved")]
)
def test_tests_that_were_killed_are_no_verdict(code: str, outcome: str) -> None:
    task = specified()
    assert isinstance(task, Task)
    (grade,) = RowGrader(Tool(report(FAIL_TO_PASS=([], ["t::new"]), PASS_TO_PASS=([], [])))).grade(
        task, [output(code=code)]
    )
    assert grade.outcome == outcome


#: A folder of real dataset files; where it is not set, no test is collected.
DATA = os.environ.get("MINISANDBOX_TEST_DATA")

if DATA:

    @pytest.mark.parametrize("name", ["verified", "lite-dev", "multilingual"])
    def test_every_real_row_brings_an_evaluation_that_can_be_read(name: str) -> None:
        path = Path(DATA) / f"swe-bench-5/{name}.parquet"
        rows = read_rows(DatasetConfig("d", "rows", path=str(path)), path.parent / "d.yaml")
        for row in rows:
            evaluation = evaluation_of(row.instance.extra)
            script = understood(evaluation)
            assert evaluation["log_parser"] in LOG_PARSERS
            assert [patch.strip("\n") for patch in script.patches] == [
                row.instance.test_patch.strip("\n")
            ]
            assert script.tests
            assert name == "multilingual" or script.installs
