"""Logs that misled graders before: statuses on a later line, bare status words, docstrings for
names, missing and skipped tests, bytes that are no UTF-8, a grader that breaks.

The official parsers are used as they are; what is shown is that none of this ends in a wrong
verdict of ours.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from minisandbox.evaluate import run_tests
from minisandbox.evaluate.grading import Grade, Task
from minisandbox.evaluate.official.grader import OfficialGrader
from minisandbox.evaluate.official.tool import OfficialTool

# The grader is installed from the package index the first time on a machine.
pytestmark = [pytest.mark.workflow, pytest.mark.timeout(600)]

INSTALLED = {
    "python -m pip install -e .": "Successfully installed x-1",
    "python -m pip install -e .[dev]": "Successfully installed x-1",
    "python -m pip install -e .[test]": "Successfully installed x-1",
    "python -m pip install .": "Successfully installed x-1",
    "python setup.py install": "Finished processing dependencies for x==1",
}
NEW_FILE = """\
diff --git a/tests/test_new.py b/tests/test_new.py
new file mode 100644
--- /dev/null
+++ b/tests/test_new.py
@@ -0,0 +1 @@
+x = 1
"""


@pytest.fixture(scope="module")
def grader() -> OfficialGrader:
    return OfficialGrader(OfficialTool("swebench-4.1"))


def specified(
    grader: OfficialGrader, repo: str, version: str, *names: str, passing: tuple[str, ...] = ()
) -> Task:
    task = Task(
        instance_id="one-1",
        repo=repo,
        version=version,
        base_commit="0" * 40,
        test_patch=NEW_FILE,
        fail_to_pass=names,
        pass_to_pass=passing,
    )
    spec = grader.specify([task], mirrors={})["one-1"]
    assert isinstance(spec, str), spec
    return replace(task, test_spec=spec)


def grade(
    grader: OfficialGrader, task: Task, *tests: str | bytes, before: str = ""
) -> tuple[Grade, ...]:
    """The grades of runs whose every step worked, each with this output of the tests."""
    install = json.loads(task.test_spec)["install"]
    outputs: list[run_tests.TestOutput] = []
    for output in tests:
        text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
        log = (
            f"{before}+ conda activate testbed\n+ {install}\n{INSTALLED[install]}\n"
            "+ git apply -v -\n"
            f"+ : '>>>>> Start Test Output'\n{text}\n+ : '>>>>> End Test Output'\n"
            "+ git checkout 0123\n"
        )
        outputs.append(run_tests.TestOutput(log, 0, False, False, seconds=1.0))
    return grader.grade(task, outputs)


@pytest.fixture(scope="module")
def django(grader: OfficialGrader) -> Task:
    # A version whose environment needs no requirement file.
    return specified(grader, "django/django", "1.6", "test_one (app.tests.Case)")


def test_a_status_on_a_later_line(grader: OfficialGrader, django: Task) -> None:
    late, silent, failed = grade(
        grader,
        django,
        "test_one (app.tests.Case) ... System check identified no issues (0 silenced).\nok",
        "test_one (app.tests.Case) ... System check identified no issues (0 silenced).",
        "test_one (app.tests.Case) ... some warning\nFAIL",
    )
    assert late.outcome == "resolved"
    assert silent.outcome == failed.outcome == "unresolved"


def test_a_docstring_for_a_name(grader: OfficialGrader, django: Task) -> None:
    task = replace(django, fail_to_pass=("Labels are kept.",))
    spec = json.loads(task.test_spec)
    spec["test_spec"]["FAIL_TO_PASS"] = list(task.fail_to_pass)
    task = replace(task, test_spec=json.dumps(spec))
    passed, failed = grade(
        grader,
        task,
        "test_labels (app.tests.Case)\nLabels are kept. ... ok",
        "test_labels (app.tests.Case)\nLabels are kept. ... FAIL",
    )
    assert passed.outcome == "resolved"
    assert failed.failing == ("Labels are kept.",)


def test_a_bare_status_word_breaks_a_parser_and_is_no_verdict(grader: OfficialGrader) -> None:
    task = specified(grader, "mwaskom/seaborn", "0.12", "tests/test_a.py::test_a")
    bare, whole = grade(
        grader,
        task,
        "PASSED tests/test_a.py::test_a\nFAILED\n",
        "PASSED tests/test_a.py::test_a\n",
    )
    assert bare.outcome == "grader"
    assert not bare.is_verdict
    assert "IndexError" in bare.reason
    assert whole.outcome == "resolved"


def test_a_missing_test_did_not_pass(grader: OfficialGrader) -> None:
    task = specified(grader, "pytest-dev/pytest", "7.0", "testing/test_a.py::test_a")
    nothing, error, other = grade(
        grader,
        task,
        "",
        "ERROR testing/test_a.py - SyntaxError: invalid syntax",
        "PASSED testing/test_a.py::test_ab",
    )
    assert nothing.outcome == error.outcome == other.outcome == "unresolved"
    assert nothing.failing == task.fail_to_pass


FIRST, SECOND, THIRD = (f"test_{n} (app.tests.Case)" for n in ("one", "two", "three"))


@pytest.mark.parametrize(
    ("skipped", "fail_to_pass", "pass_to_pass"),
    [
        ((), (1, 1), (2, 2)),
        ((FIRST,), (0, 1), (2, 2)),
        ((SECOND,), (1, 1), (1, 2)),
        ((FIRST, SECOND, THIRD), (0, 1), (0, 2)),
    ],
)
def test_a_skipped_test_did_not_pass(
    grader: OfficialGrader,
    skipped: tuple[str, ...],
    fail_to_pass: tuple[int, int],
    pass_to_pass: tuple[int, int],
) -> None:
    """The harness leaves those that it reads as skipped out, and calls no test at all a success."""
    task = specified(grader, "django/django", "1.6", FIRST, passing=(SECOND, THIRD))
    words = {name: "skipped 'no'" if name in skipped else "ok" for name in (FIRST, SECOND, THIRD)}
    (found,) = grade(grader, task, "\n".join(f"{name} ... {words[name]}" for name in words))
    assert found.outcome == ("unresolved" if skipped else "resolved")
    assert found.failing == skipped
    assert (found.fail_to_pass, found.pass_to_pass) == (fail_to_pass, pass_to_pass)


@pytest.mark.parametrize(
    ("repo", "version", "line"),
    [
        # The summary of today's pytest has a place and a count for skipped tests, and no names.
        ("pytest-dev/pytest", "7.0", "SKIPPED [1] testing/test_a.py:3: no"),
        ("sphinx-doc/sphinx", "3.0", "SKIPPED testing/test_a.py::test_b"),
        ("psf/requests", "2.0", "SKIPPED testing/test_a.py::test_b"),
    ],
)
def test_a_test_that_pytest_skips_did_not_pass(
    grader: OfficialGrader, repo: str, version: str, line: str
) -> None:
    first, second = "testing/test_a.py::test_a", "testing/test_a.py::test_b"
    task = specified(grader, repo, version, first, passing=(second,))
    whole, skips = grade(
        grader, task, f"PASSED {first}\nPASSED {second}\n", f"PASSED {first}\n{line}\n"
    )
    assert whole.outcome == "resolved"
    assert skips.outcome == "unresolved"
    assert skips.failing == (second,)
    assert skips.pass_to_pass == (0, 1)


def test_bytes_that_are_no_text(grader: OfficialGrader) -> None:
    task = specified(grader, "pytest-dev/pytest", "7.0", "testing/test_a.py::test_a")
    before, after = grade(
        grader,
        task,
        b"x" * 410_000 + b"\xe2\nPASSED testing/test_a.py::test_a\n",
        b"PASSED testing/test_a.py::test_a\n\xff\xfe\x00",
    )
    assert before.outcome == after.outcome == "resolved"


@pytest.mark.parametrize("word", ["Patch Apply Failed", "Tests Timed Out", "Tests Errored"])
def test_words_of_failure_that_a_test_prints(grader: OfficialGrader, word: str) -> None:
    """To the harness they say that it failed itself; here nothing writes them but tested code."""
    task = specified(grader, "pytest-dev/pytest", "7.0", "testing/test_a.py::test_a")
    (printed,) = grade(grader, task, f">>>>> {word}\nPASSED testing/test_a.py::test_a\n")
    assert printed.outcome == "suspect"
    assert not printed.is_verdict


def test_names_of_files_are_no_tests(grader: OfficialGrader, django: Task) -> None:
    """The harness reads the whole log where no test was reported, `git status` included."""
    name = "\ttest_one (app.tests.Case) ... ok\n"
    before = f"+ git status\nUntracked files:\n{name}"
    broken, whole = grade(
        grader, django, "ImportError", "test_one (app.tests.Case) ... ok", before=before
    )
    assert broken.outcome == "unresolved"
    assert broken.failing == django.fail_to_pass
    assert whole.outcome == "resolved"


def test_the_script_restores_no_file_where_the_patch_only_adds_some(
    grader: OfficialGrader,
) -> None:
    """What test_grading_evaluation_script.py is about is still what this release does."""
    task = specified(grader, "pytest-dev/pytest", "7.0", "testing/test_a.py::test_a")
    script: str = json.loads(task.test_spec)["eval_script"]
    assert len(re.findall(r"^git checkout 0{40} *$", script, re.MULTILINE)) == 2
