"""Rows that bring their own evaluation, from nothing to a verdict: a SWE-bench 5 task repository,
and a SWE-rebench row. The repository that they are about is a local one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from minisandbox import open_cache
from repositories import commit_files

CLONE = Path(__file__).parents[2]
MINISANDBOX = str(Path(sys.executable).with_name("minisandbox"))
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(900)]

FILES = {
    "pyproject.toml": (
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "demo"\nversion = "1"\n[tool.setuptools]\npackages = ["demo"]\n'
    ),
    "demo/__init__.py": "def double(number):\n    return number + 2\n",
    "tests/test_old.py": "import demo\n\n\ndef test_two():\n    assert demo.double(2) == 4\n",
    ".gitignore": "*.egg-info\n__pycache__\n",
}
PATCH = """\
diff --git a/demo/__init__.py b/demo/__init__.py
--- a/demo/__init__.py
+++ b/demo/__init__.py
@@ -1,2 +1,2 @@
 def double(number):
-    return number + 2
+    return number * 2
"""
#: A new file and a changed one: base has nothing to restore the first from, at the end.
TEST_PATCH = """\
diff --git a/tests/test_new.py b/tests/test_new.py
new file mode 100644
--- /dev/null
+++ b/tests/test_new.py
@@ -0,0 +1,8 @@
+import pathlib
+
+import demo
+
+
+def test_three():
+    expected = pathlib.Path(__file__).with_name("data") / "expected.bin"
+    assert bytes([demo.double(3), 255]) == expected.read_bytes()
diff --git a/tests/test_old.py b/tests/test_old.py
--- a/tests/test_old.py
+++ b/tests/test_old.py
@@ -2,4 +2,4 @@


 def test_two():
-    assert demo.double(2) == 4
+    assert demo.double(2) == 2 + 2
"""
PLAIN_TEST_PATCH = """\
diff --git a/tests/test_old.py b/tests/test_old.py
--- a/tests/test_old.py
+++ b/tests/test_old.py
@@ -2,4 +2,8 @@


 def test_two():
     assert demo.double(2) == 4
+
+
+def test_three():
+    assert demo.double(3) == 6
"""
#: What the patch under test would be judged by if its files were not replaced.
OWN_TESTS = """\
diff --git a/tests/data/expected.bin b/tests/data/expected.bin
new file mode 100644
--- /dev/null
+++ b/tests/data/expected.bin
@@ -0,0 +1 @@
+wrong
diff --git a/tests/test_new.py b/tests/test_new.py
new file mode 100644
--- /dev/null
+++ b/tests/test_new.py
@@ -0,0 +1,2 @@
+def test_three():
+    pass
"""
INSTALL = "python -m pip install --no-build-isolation -e ."
EVAL = """\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
git status
git show
git -c core.fileMode=false diff {base}
source /opt/miniconda3/bin/activate
conda activate testbed
{install}
git checkout {base} tests/test_new.py tests/test_old.py
git apply -v - <<'EOF_114329324912'
{test_patch}
EOF_114329324912
: '>>>>> Start Test Output'
pytest -rA tests/test_new.py tests/test_old.py
: '>>>>> End Test Output'
git checkout {base} tests/test_new.py tests/test_old.py
"""
DOCKERFILE = """\
FROM python:{python}-slim
RUN apt-get update && apt-get install -y git
RUN pip install pytest==8.4.2 setuptools==80.9.0
RUN git clone https://github.com/local/demo.git /testbed
WORKDIR /testbed
RUN git reset --hard {base} && {install}
"""
TASK = """\
instance_id: {name}
repo: local/demo
version: '1'
base_commit: {base}
split: test
image: registry/{name}:latest
log_parser: parse_log_pytest
eval_type: {eval_type}
datasets: [local/demo]
"""
TESTS: Mapping[str, Any] = {
    "FAIL_TO_PASS": ["tests/test_new.py::test_three"],
    "PASS_TO_PASS": ["tests/test_old.py::test_two"],
}


class Built:
    """A working directory with two datasets, built."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = commit_files(folder / "git/local/demo.git", FILES, "Base")
        tasks = folder / "tasks-of-mine"
        tasks.mkdir()
        (tasks / "sweb.yaml").write_text("datasets: [local/demo]\nsplits: [test]\n")
        values = {"base": self.base, "install": INSTALL, "python": PYTHON}
        dockerfile = DOCKERFILE.format(**values)
        self._task("local__demo-1", Dockerfile=dockerfile)
        self._task("local__demo-2", Dockerfile=dockerfile + "COPY x.patch /\n")
        self._task("local__demo-3", eval_type="fail_only", Dockerfile=dockerfile)
        assets = tasks / "tasks/local__demo-1/test_assets/tests/data"
        assets.mkdir(parents=True)
        (assets / "expected.bin").write_bytes(b"\x06\xff")
        (folder / "five.yaml").write_text("name: five\nkind: rows\npath: tasks-of-mine\n")
        self._rebench_row()
        (folder / "recipes").mkdir()
        (folder / "config.yaml").write_text(
            "datasets: [five.yaml, rebench.yaml]\nrecipes: recipes\npack: false\n"
            f"git_url: {folder}/git/{{repo}}.git\n"
        )
        argv = [sys.executable, "-m", "snakemake", "--snakefile", str(CLONE / "Snakefile")]
        argv += ["--profile", str(CLONE / "profiles/default"), "--cores", "2"]
        done = subprocess.run(
            [*argv, "--configfile", "config.yaml"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        self.cache = open_cache(folder / "results")

    def _task(self, name: str, *, eval_type: str = "pass_and_fail", **files: str) -> None:
        task = self.folder / "tasks-of-mine/tasks" / name
        task.mkdir(parents=True)
        script = EVAL.format(base=self.base, install=INSTALL, test_patch=TEST_PATCH)
        content = {
            "task.yaml": TASK.format(name=name, base=self.base, eval_type=eval_type),
            "tests.json": json.dumps(TESTS),
            "problem_statement.md": "Doubling is wrong.\n",
            "gold.patch": PATCH,
            "test.patch": TEST_PATCH,
            "eval.sh": script,
            **files,
        }
        for file, text in content.items():
            (task / file).write_text(text)

    def _rebench_row(self) -> None:
        name = "tests/test_old.py"
        row = {
            "instance_id": "local__demo-4",
            "repo": "local/demo",
            "version": "1",
            "base_commit": self.base,
            "created_at": "2024-01-01",
            "patch": PATCH,
            "test_patch": PLAIN_TEST_PATCH,
            "problem_statement": "Doubling is wrong.",
            "FAIL_TO_PASS": [f"{name}::test_three"],
            "PASS_TO_PASS": [f"{name}::test_two"],
            "install_config": {
                "python": PYTHON,
                "packages": None,
                "pip_packages": ["pytest==8.4.2", "setuptools==80.9.0"],
                "pre_install": ["apt-get update"],
                "install": INSTALL,
                "test_cmd": "pytest -rA",
                "log_parser": "parse_log_pytest",
                "env_vars": None,
            },
        }
        (self.folder / "rebench.jsonl").write_text(json.dumps(row) + "\n")
        (self.folder / "rebench.yaml").write_text(
            "name: rebench\nkind: rows\npath: rebench.jsonl\n"
        )

    def grade(self, instance_id: str, *words: str) -> Mapping[str, Any]:
        argv = [MINISANDBOX, "grade", instance_id, "--cache", str(self.folder / "results")]
        # Not the package index: the grader is the one that the build installed.
        env = {**os.environ, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
        done = subprocess.run(
            [*argv, *words, "--json"], cwd=self.folder, env=env, capture_output=True, check=False
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("own-evaluation"))


@pytest.mark.parametrize("instance_id", ["local__demo-1", "local__demo-4"])
def test_gold_resolves_and_empty_does_not(built: Built, instance_id: str) -> None:
    row = built.cache.row(instance_id)
    assert row.status == "ok", (row.reason, row.log_tail)
    assert (row.grader, row.log_parser) == ("swebench-5", "parse_log_pytest")
    assert (row.gold_resolved, row.empty_resolved) == (True, False)
    assert (row.tests_source, row.test_command) == ("dataset", "pytest -rA")
    assert "pytest==8.4.2" in row.packages


def test_rows_that_are_not_understood_name_what_is_not(built: Built) -> None:
    reasons = {
        name: (row.failed_stage, row.reason_kind, row.reason)
        for name in ("local__demo-2", "local__demo-3")
        if (row := built.cache.row(name))
    }
    copied, fail_only = reasons["local__demo-2"], reasons["local__demo-3"]
    assert copied[:2] == ("plan", "recipe")
    assert "line 7: `COPY x.patch /`" in copied[2]
    assert fail_only[:2] == ("plan", "format")
    assert "fail_only" in fail_only[2]


def test_the_files_that_a_patch_cannot_carry_are_there_for_the_tests_alone(built: Built) -> None:
    with built.cache.materialize("local__demo-1") as instance:
        found = instance.run("find / -name expected.bin -o -name test_new.py 2> /dev/null; true")
        assert found.stdout_text == ""
    log = (built.folder / "results" / built.cache.row("local__demo-1").logs.gold).read_text()
    assert re.search(r"cp (-- )?/test_assets/0 (\./)?tests/data/expected\.bin", log)


def test_grading_again_needs_the_cache_alone(built: Built, tmp_path: Path) -> None:
    for name in ("results/mirrors", "tasks-of-mine"):
        (built.folder / name).rename(tmp_path / Path(name).name)
    try:
        graded = [built.grade("local__demo-1", which) for which in ("--gold", "--empty")]
    finally:
        for name in ("results/mirrors", "tasks-of-mine"):
            (tmp_path / Path(name).name).rename(built.folder / name)
    assert [grade["outcome"] for grade in graded] == ["resolved", "unresolved"]


def test_a_patch_is_judged_by_the_trusted_files(built: Built) -> None:
    patch = built.folder / "own-tests.patch"
    patch.write_text(OWN_TESTS)
    assert built.grade("local__demo-1", "--patch", str(patch))["outcome"] == "unresolved"
    patch.write_text(PATCH + OWN_TESTS)
    assert built.grade("local__demo-1", "--patch", str(patch))["outcome"] == "resolved"


def test_a_run_that_hides_its_failures_is_no_success(built: Built) -> None:
    """A test command that fails while its log names only passes is not believed."""
    code = """\
import os


def pytest_collection_finish(session):
    session.config.pluginmanager.getplugin("capturemanager").suspend_global_capture()
    for name in ("new.py::test_three", "old.py::test_two"):
        os.write(1, f"\\nPASSED tests/test_{name}\\n".encode())
    os._exit(3)
"""
    lines = [f"+{line}" for line in code.splitlines()]
    head = f"--- /dev/null\n+++ b/conftest.py\n@@ -0,0 +1,{len(lines)} @@\n"
    patch = built.folder / "hiding.patch"
    patch.write_text(head + "\n".join(lines) + "\n")
    grade = built.grade("local__demo-1", "--patch", str(patch))
    assert grade["outcome"] == "unresolved"
    assert grade["reason"] == "the test command ended with 3, but its log names no test that failed"
