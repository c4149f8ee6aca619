"""The official grader's own code in its environment: test specs from a mirror, and no network.

Installing it needs the package index, the first time on a machine.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox.evaluate import run_tests
from minisandbox.evaluate.grading import GraderFailed, Task
from minisandbox.evaluate.official.grader import OfficialGrader
from minisandbox.evaluate.official.pins import BRIDGE_RUNNER
from minisandbox.evaluate.official.tool import OfficialTool, RequirementsAt

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(600)]

TEST_PATCH = """\
diff --git a/tests/test_app.py b/tests/test_app.py
--- a/tests/test_app.py
+++ b/tests/test_app.py
@@ -1 +1,3 @@
 import flask
+def test_new():
+    pass
"""

FILES = {
    "requirements/dev.txt": "-r docs.txt\n-r ./tests.txt\n# a comment\ntox\n",
    "requirements/docs.txt": "sphinx>=4\n",
    "requirements/tests.txt": "pytest\ntypes-pkg_resources==0.1\n",
    "tests/test_app.py": "import flask\n",
}


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "safe.directory=*"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def tool() -> OfficialTool:
    return OfficialTool("swebench-4.1")


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A bare repository with requirement files, and its commit."""
    root = tmp_path_factory.mktemp("mirror")
    work = root / "work"
    for name, content in FILES.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(content)
    git(work, "init", "-q", "-b", "main", ".")
    git(work, "add", ".")
    git(work, "commit", "-q", "-m", "base")
    git(root, "clone", "-q", "--bare", "work", "bare")
    return root / "bare", git(work, "rev-parse", "HEAD")


def task(mirror: tuple[Path, str], **fields: str) -> Task:
    plain = Task(
        instance_id="pallets__flask-1",
        repo="pallets/flask",
        version="2.0",
        base_commit=mirror[1],
        test_patch=TEST_PATCH,
        fail_to_pass=("tests/test_app.py::test_new",),
        pass_to_pass=("tests/test_app.py::test_old",),
    )
    return replace(plain, **fields)


def log(task: Task, tests: str) -> run_tests.TestOutput:
    """What the evaluation script prints where every step of it works."""
    text = (
        "+ source /opt/miniconda3/bin/activate\n+ conda activate testbed\n"
        "+ python -m pip install -e .\nSuccessfully installed flask-2.0\n"
        f"+ git checkout {task.base_commit} tests/test_app.py\n+ git apply -v -\n"
        f"+ : '>>>>> Start Test Output'\n{tests}\n+ : '>>>>> End Test Output'\n"
        f"+ git checkout {task.base_commit} tests/test_app.py\n"
    )
    return run_tests.TestOutput(text, 0, False, False, seconds=1.0)


def specified(grader: OfficialGrader, mirror: tuple[Path, str], task: Task) -> Task:
    spec = grader.specify([task], mirrors={task.repo: mirror[0]})[task.instance_id]
    assert isinstance(spec, str)
    return replace(task, test_spec=spec)


def test_specifications_are_the_harness_s_own(tool: OfficialTool) -> None:
    known, unknown = ("pallets/flask", "2.0"), ("pallets/flask", "99")
    found = tool.specifications([known, unknown, ("no/such", "1")])
    flask = found[known]
    assert flask is not None
    assert flask.entry["python"] == "3.9"
    assert flask.entry["packages"] == "requirements.txt"
    assert found[unknown] is None
    assert found["no/such", "1"] is None


def test_requirement_files_come_from_the_mirror(
    tool: OfficialTool, mirror: tuple[Path, str]
) -> None:
    asked = RequirementsAt("pallets__flask-1", "pallets/flask", "2.0", mirror[1])
    elsewhere = replace(asked, commit="f" * 40)
    nowhere = replace(asked, repo="django/django", version="3.0")
    unlisted = replace(asked, repo="pytest-dev/pytest", version="6.0")
    answers = tool.requirements(
        [asked, elsewhere, nowhere, unlisted], mirrors={"pallets/flask": mirror[0]}
    )
    assert answers[0].kind == "requirements.txt"
    assert [line for line in answers[0].text.splitlines() if line] == [
        "sphinx>=4",
        "pytest",
        "types-setuptools",
        "tox",
    ]
    assert f"{mirror[0]} does not hold that commit" in answers[1].error
    assert "https://raw.githubusercontent.com/django/django/" in answers[2].error
    assert "no mirror of django/django" in answers[2].error
    assert answers[3].kind == "packages"
    assert not answers[3].error


def test_a_spec_needs_neither_mirror_nor_network_to_grade(
    tool: OfficialTool, mirror: tuple[Path, str]
) -> None:
    grader = OfficialGrader(tool)
    one = specified(grader, mirror, task(mirror))
    saved = json.loads(one.test_spec)
    assert (saved["grader"], saved["version"]) == ("swebench-4.1", "4.1.0")
    assert saved["install"] == "python -m pip install -e ."
    assert saved["eval_script"].startswith("#!/bin/bash\nset -uxo pipefail\n")
    assert saved["test_spec"]["FAIL_TO_PASS"] == list(one.fail_to_pass)
    both = "PASSED tests/test_app.py::test_new\nPASSED tests/test_app.py::test_old"
    resolved, half, missing, nothing = grader.grade(
        one,
        [
            log(one, both),
            log(one, both.replace("PASSED", "FAILED", 1)),
            log(one, both.splitlines()[0]),
            log(one, "ERROR tests/test_app.py"),
        ],
    )
    assert resolved.resolved
    assert resolved.fail_to_pass == resolved.pass_to_pass == (1, 1)
    assert (resolved.passed, resolved.failed) == (2, 0)
    assert half.outcome == "unresolved"
    assert half.failing == one.fail_to_pass
    assert missing.failing == one.pass_to_pass
    assert nothing.outcome == "unresolved"
    assert nothing.failing == (*one.fail_to_pass, *one.pass_to_pass)


def test_one_row_that_has_no_spec_does_not_stop_the_others(
    tool: OfficialTool, mirror: tuple[Path, str]
) -> None:
    rows = [
        task(mirror),
        task(mirror, instance_id="version", version="99"),
        task(mirror, instance_id="commit", environment_commit="f" * 40),
        task(mirror, instance_id="crlf", test_patch=TEST_PATCH.replace("\n", "\r\n")),
    ]
    found = OfficialGrader(tool).specify(rows, mirrors={"pallets/flask": mirror[0]})
    assert isinstance(found["pallets__flask-1"], str)
    reasons = {name: str(value) for name, value in found.items() if isinstance(value, GraderFailed)}
    assert set(reasons) == {"version", "commit", "crlf"}
    assert "pallets/flask 99" in reasons["version"]
    assert "does not hold that commit" in reasons["commit"]
    assert "CRLF" in reasons["crlf"]


def test_nothing_leaves_the_machine(tool: OfficialTool) -> None:
    program = (
        "import runpy, socket, sys, requests\n"
        f"runner = runpy.run_path({str(BRIDGE_RUNNER)!r})\n"
        f"bridge = runpy.run_path({str(tool.pin.bridge_path)!r})\n"
        "sys.addaudithook(runner['refuse_connections'])\n"
        "asked = [lambda: socket.create_connection(('127.0.0.1', 9)),\n"
        "         lambda: socket.gethostbyname('example.org'),\n"
        "         lambda: socket.getaddrinfo('example.org', 80)]\n"
        "bridge['prepare']({})\n"
        "asked += [lambda: requests.get('https://example.org/a/b/c/d'),\n"
        "          lambda: requests.get('https://raw.githubusercontent.com/a/b/main/c'),\n"
        "          lambda: requests.post('https://raw.githubusercontent.com/a/b/' + 40 * '0')]\n"
        "for one in asked:\n"
        "    try:\n        one()\n"
        "    except Exception as error:\n        print(type(error).__name__, error)\n"
        "    else:\n        print('was not refused')\n"
    )
    done = subprocess.run(
        [tool.python(), "-I", "-c", program], check=True, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("Refused ") for line in lines)
    assert "GET https://example.org/a/b/c/d was refused" in lines[3]


def test_the_grader_is_installed_once(tool: OfficialTool) -> None:
    first = tool.python()
    said: list[str] = []
    assert OfficialTool("swebench-4.1", report=said.append).python() == first
    assert first.is_file()
    assert said == []
