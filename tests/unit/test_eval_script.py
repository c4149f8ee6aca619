"""Evaluation scripts that rows bring, read without running them."""

from __future__ import annotations

import re

import pytest

from minisandbox.evaluate.official.eval_script import (
    APPLY,
    EvalScript,
    NotUnderstood,
    read_eval_script,
    with_files,
)
from minisandbox.evaluate.official.row_grader import test_command as command_of

PATCH = """\
diff --git a/tests/test_a.py b/tests/test_a.py
--- a/tests/test_a.py
+++ b/tests/test_a.py
@@ -1 +1,2 @@
 x = 1
+: '>>>>> Start Test Output'
"""
SCRIPT = f"""\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
pip install early
source /opt/miniconda3/bin/activate
conda activate testbed
python -m pip install -e .[dev]
# python -m pip install not-this
git checkout 0123 tests/test_a.py
git apply -v - <<'EOF_114329324912'
{PATCH}
EOF_114329324912
python -m pip install -q 'pytest<7.2'
: '>>>>> Start Test Output'
pytest -rA tests/test_a.py
: '>>>>> End Test Output'
git checkout 0123 tests/test_a.py
"""


def test_its_parts_are_told_apart() -> None:
    script = read_eval_script(SCRIPT)
    assert script.text == SCRIPT
    assert script.tests == ("pytest -rA tests/test_a.py",)
    assert script.installs == (
        "python -m pip install -e .[dev]",
        "python -m pip install -q 'pytest<7.2'",
    )
    assert script.patches == (PATCH + "\n",)


@pytest.mark.parametrize(
    "line",
    [
        ": '>>>>> Start Test Output'",
        ': ">>>>> Start Test Output"',
        "echo '>>>>> Start Test Output'",
        '  echo ">>>>> Start Test Output" ',
    ],
)
def test_markers_become_lines_that_only_the_shell_tells_of(line: str) -> None:
    text = f"set -x\n{line}\npytest\necho '>>>>> End Test Output'\n"
    expected = "set -x\n: '>>>>> Start Test Output'\npytest\n: '>>>>> End Test Output'\n"
    assert read_eval_script(text).text == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (SCRIPT.replace("\n", "\r\n"), "has CRLF line ends"),
        (SCRIPT.replace("-rA tests/test_a.py\n", "-rA tests/test_a.py\r\n"), "has CRLF line ends"),
        ("pytest\n", "has no line `: '>>>>> Start Test Output'`"),
        (": '>>>>> Start Test Output'\npytest\n", "has no line `: '>>>>> End Test Output'`"),
        (": '>>>>> End Test Output'\n", "before the other"),
        (SCRIPT + ": '>>>>> End Test Output'\n", "a second time"),
        (SCRIPT + "cat <<X\n", "has text up to 'X' that does not end"),
    ],
)
def test_a_script_that_does_not_say_where_its_tests_are_is_refused(text: str, said: str) -> None:
    with pytest.raises(NotUnderstood, match=re.escape(said)):
        read_eval_script(text)


def test_files_are_put_in_place_after_the_patch_and_before_the_tests() -> None:
    lines = with_files(SCRIPT, ["cp 1 2"]).split("\n")
    place = lines.index("cp 1 2")
    assert lines[place - 1] == "python -m pip install -q 'pytest<7.2'"
    assert lines[place + 1] == ": '>>>>> Start Test Output'"
    assert lines[:place] + lines[place + 1 :] == SCRIPT.split("\n")


@pytest.mark.parametrize(
    ("tests", "command"),
    [
        (("pytest -rA tests/test_a.py",), "pytest -rA"),
        (("./tests/run.py --v test_a other",), "./tests/run.py --v other"),
        (("cd sub", "tests/test_a.py -v"), "tests/test_a.py -v"),  # the program itself
        ((), ""),
    ],
)
def test_the_command_of_a_repository_names_no_file_of_a_row(
    tests: tuple[str, ...], command: str
) -> None:
    assert command_of(EvalScript("", (), tests, (PATCH,)), "") == command


def test_lines_of_a_patch_may_end_as_they_like() -> None:
    patch = PATCH.replace("x = 1\n", "x = 1\r\n")
    assert read_eval_script(SCRIPT.replace(PATCH, patch)).patches == (patch + "\n",)


def test_a_command_over_several_lines_is_one() -> None:
    text = SCRIPT.replace("install -e .[dev]", "\\\n    install \\\n    -e .[dev]")
    text = text.replace("pytest -rA tests", "pytest \\\n  -rA \\\n  tests")
    script = read_eval_script(text)
    assert script.text == text
    assert script.installs[0] == "python -m pip install -e .[dev]"
    assert script.tests == ("pytest -rA tests/test_a.py",)
    assert command_of(script, PATCH) == "pytest -rA"


@pytest.mark.parametrize("command", ["git apply -", "git apply --whitespace=nowarn -p1 -"])
def test_however_git_applies_it_the_patch_is_seen_and_so_is_its_trace(command: str) -> None:
    script = read_eval_script(SCRIPT.replace("git apply -v -", command))
    assert script.patches == (PATCH + "\n",)
    assert re.fullmatch(APPLY, command)
