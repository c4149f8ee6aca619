"""Rows whose patch puts a bug in, from a local repository to a verdict: one install for all bugs of
a commit, and nothing of the healthy tree in the box.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from minisandbox import open_cache
from minisandbox.evaluate.judging import judge
from minisandbox.records import codec
from minisandbox.records.manifest import ManifestRow
from minisandbox.records.stages import InstancesRecord
from minisandbox.runtime import Cache, Instance
from repositories import commit_files, git

CLONE = Path(__file__).parents[2]

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(600)]

FILES = {
    "calc/__init__.py": "",
    "calc/add.py": "def add(one, two):\n    return one + two\n",
    "calc/times.py": "def times(one, two):\n    return one * two  # the healthy way\n",
    "setup.py": "from setuptools import setup\nsetup(name='calc', packages=['calc'])\n",
    "tests/test_add.py": (
        "from calc.add import add\n\n\ndef test_two():\n    assert add(2, 2) == 4\n\n\n"
        "def test_zero():\n    assert add(2, 0) == 2\n"
    ),
    "tests/test_times.py": (
        "from calc.times import times\n\n\ndef test_two():\n    assert times(2, 3) == 6\n\n\n"
        "def test_one():\n    assert times(2, 1) == 2\n"
    ),
    "tests/test_both.py": (
        "from calc.add import add\nfrom calc.times import times\n\n\n"
        "def test_sum():\n    assert times(add(1, 1), 3) == 6\n"
    ),
    "README": "calc\n",
}
RECIPE: dict[str, Any] = {
    "repo": "team/calc",
    "python": ">=3.11",
    "packages": ["pytest==8.4.2", "setuptools==80.9.0"],
    "install": "pip install --no-build-isolation --no-deps -e . && echo made >> made.txt",
    "imports": ["calc"],
    "test": "python -m pytest -rA --no-header -p no:cacheprovider",
    "timeout": 120,
}
WRONG_ADD = (
    "diff --git a/calc/add.py b/calc/add.py\n--- a/calc/add.py\n+++ b/calc/add.py\n"
    "@@ -1,2 +1,2 @@\n def add(one, two):\n-    return one + two\n+    return one - two\n"
)
WRONG_TIMES = (
    "diff --git a/calc/times.py b/calc/times.py\n--- a/calc/times.py\n+++ b/calc/times.py\n"
    "@@ -1,2 +1,2 @@\n def times(one, two):\n"
    "-    return one * two  # the healthy way\n+    return one + two\n"
)
BOTH = ["tests/test_both.py::test_sum"]
ADD = {"FAIL_TO_PASS": ["tests/test_add.py::test_two"], "PASS_TO_PASS": BOTH}
ADD["PASS_TO_PASS"] = ["tests/test_add.py::test_zero", "tests/test_times.py::test_two"]


def commit_project(repository: Path, files: Mapping[str, str]) -> str:
    """A repository of which the last commit but one is the healthy one; returns its hash."""
    commit_files(repository, {}, "Begin")
    healthy = commit_files(repository, files, "Add it all")
    git(repository, "tag", "v1")
    commit_files(repository, {"README": "later\n"}, "Later")
    return healthy


@dataclass(frozen=True)
class Built:
    """What was built of a few rows, and where."""

    folder: Path
    commit: str

    @property
    def cache(self) -> Cache:
        return open_cache(self.folder / "results")

    def row(self, name: str) -> ManifestRow:
        return self.cache.row(f"team__calc.{self.commit[:8]}.{name}")

    def materialize(self, name: str) -> Instance:
        return self.cache.materialize(self.row(name).instance_id)

    def judge(self, name: str, patch: str) -> str:
        row = self.row(name)
        log = self.folder / "judged.log"
        return judge(self.cache, row, patch=patch, log_path=log).grade.outcome


def build(
    folder: Path,
    rows: Mapping[str, Mapping[str, Any]],
    recipe: Mapping[str, Any],
    files: Mapping[str, str] = FILES,
) -> Built:
    commit = commit_project(folder / "git/team/calc.git", files)
    name = f"team__calc.{commit[:8]}"
    with (folder / "rows.jsonl").open("w") as lines:
        for number, (bug, row) in enumerate(rows.items()):
            # Official rows name a mirror and no commit.
            said = {"repo": f"mirrors/{name}"} if number % 2 else {"base_commit": "main"}
            whole = {"instance_id": f"{name}.{bug}", "repo": "team/calc", **said, **row}
            print(json.dumps(whole), file=lines)
    (folder / "rows.yaml").write_text("name: bugs\nkind: rows\npath: rows.jsonl\n")
    (folder / "recipes").mkdir()
    (folder / "recipes/calc.yaml").write_text(yaml.safe_dump(dict(recipe)))
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(
        "datasets: [rows.yaml]\nrecipes: recipes\nbatch_size: 2\npack: false\n"
        f"git_url: {folder}/git/{{repo}}.git\n"
    )
    run_workflow(folder)
    return Built(folder, commit)


def run_workflow(folder: Path, *arguments: str) -> str:
    argv = [sys.executable, "-m", "snakemake", "--snakefile", str(CLONE / "Snakefile")]
    argv += ["--profile", str(CLONE / "profiles/default"), "--cores", "2", *arguments]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    times = ["tests/test_times.py::test_two", *BOTH]
    rows: dict[str, dict[str, Any]] = {
        "add__1": {"patch": WRONG_ADD, **ADD},
        "times__1": {
            "patch": WRONG_TIMES,
            "PASS_TO_FAIL": times,
            "PASS_TO_PASS": ["tests/test_add.py::test_two"],
        },
        "derived__1": {"patch": WRONG_TIMES},
        "nothing__1": {"patch": WRONG_ADD.replace("one - two", "one + two "), **ADD},
        "misfit__1": {"patch": WRONG_ADD.replace("one + two", "one"), **ADD},
        "short__1": {"patch": WRONG_ADD, **ADD, "instance_id": "team__calc.00000000.short__1"},
        "test__1": {
            "patch": WRONG_ADD
            + WRONG_ADD.replace("calc/add.py", "tests/test_add.py").replace(
                " def add(one, two):\n-    return one + two\n+    return one - two\n",
                "-from calc.add import add\n+from calc import add\n \n",
            ),
            **ADD,
        },
    }
    return build(tmp_path_factory.mktemp("smith"), rows, RECIPE)


def test_gold_resolves_and_nothing_does_not(built: Built) -> None:
    states = {row.instance_id.split(".")[-1]: row for row in built.cache.rows()}
    for name in ("add__1", "times__1", "derived__1"):
        row = states[name]
        assert (row.status, row.reason) == ("ok", "")
        assert (row.gold_resolved, row.empty_resolved) == (True, False)
        assert row.base_commit == built.commit
        assert row.repo == "team/calc"
    assert list(states["times__1"].FAIL_TO_PASS) == ["tests/test_times.py::test_two", *BOTH]
    assert states["derived__1"].tests_source == "derived"
    assert set(states["derived__1"].FAIL_TO_PASS) == {"tests/test_times.py::test_two", *BOTH} | {
        "tests/test_times.py::test_one"
    }
    assert states["nothing__1"].reason_kind == "empty-resolved"
    short = states["short__1"]
    assert (short.reason_kind, short.failed_stage) == ("commit", "instances")
    assert "has no commit 00000000" in short.reason
    for name in ("misfit__1", "test__1"):
        assert (states[name].reason_kind, states[name].failed_stage) == ("patch", "instances")
    assert "tests/test_add.py" in states["test__1"].reason


def test_the_patch_takes_the_bug_out(built: Built) -> None:
    row = built.row("add__1")
    assert "+    return one + two" in row.patch
    assert built.judge("add__1", row.patch) == "resolved"
    assert built.judge("add__1", "") == "unresolved"
    assert built.judge("add__1", row.patch.replace("one + two", "one * two")) == "unresolved"


def test_one_install_for_all(built: Built) -> None:
    records = list((built.folder / "results/environments").glob("*/batches/*/instances.json"))
    batches = [codec.read(InstancesRecord, path) for path in records]
    (healthy,) = (
        record
        for batch in batches
        for record in batch.instances
        if record.key == f"team__calc.{built.commit[:8]}"
    )
    logs = (built.folder / "results/environments").rglob("*.build.log")
    installs = [path for path in logs if "echo made" in path.read_text()]
    assert len(installs) == 1
    add, times = built.row("add__1"), built.row("times__1")
    assert add.layers[:-1] == times.layers[:-1] == healthy.layers
    assert [layer.kind for layer in add.layers if layer.kind not in ("wheelhouse",)][-3:] == [
        "source",
        "instance",
        "bug",
    ]
    assert add.layers[-1].unpacked_size < 20_000
    with built.materialize("add__1") as instance:
        assert instance.read_file("/testbed/made.txt") == b"made\n"


def objects(instance: Instance) -> dict[str, str]:
    """Every object that git has, with its type."""
    shown = "--batch-check='%(objectname) %(objecttype)'"
    said = instance.run(f"git cat-file --batch-all-objects {shown}").stdout_text
    return dict(line.split() for line in said.splitlines())


@pytest.mark.parametrize("name", ["add__1", "times__1"])
def test_nothing_of_the_healthy_tree_is_in_the_box(built: Built, name: str) -> None:
    path = "calc/add.py" if name == "add__1" else "calc/times.py"
    hidden = ["tests/test_add.py"] if name == "add__1" else ["tests/test_times.py", BOTH[0][:-10]]
    repository = built.folder / "git/team/calc.git"
    answers = [
        git(repository, "rev-parse", f"{built.commit}:{part}").strip() for part in (path, *hidden)
    ]
    with built.materialize(name) as instance:
        known = objects(instance)
        assert not {*answers, built.commit} & known.keys()
        assert list(known.values()).count("commit") == 2
        assert instance.run("git log --format=%s").stdout_text.splitlines() == [
            "minisandbox: the repository as installed",
            "minisandbox: the repository",
        ]
        assert instance.run("git rev-list --all --objects").exit_code == 0
        for command in ("git reflog --all", "git stash list", "git tag", "git remote", "git fsck"):
            done = instance.run(command)
            assert (done.exit_code, done.stdout_text) == (0, ""), command
        assert instance.run("git status --porcelain").stdout_text == ""
        assert not {*instance.run("ls tests").stdout_text.split()} & {
            part.rpartition("/")[2] for part in hidden
        }
        # Wherever it is read from: objects that git does not know of, layers below.
        healthy = FILES[path].splitlines()[1].strip()
        for text in (healthy, "assert add(2, 2) == 4" if name == "add__1" else "times(2, 3) == 6"):
            found = instance.run(
                ["grep", "-rlF", "--exclude-dir=proc", "--exclude-dir=sys", text, "/"],
                timeout=300,
            )
            assert found.stdout_text == ""
        search = "find /run /testbed -path '*/objects/??/*' -type f | wc -l"
        assert int(instance.run(search).stdout_text) == 2 * len(known)


def test_what_an_agent_does_is_told_against_the_bug(built: Built) -> None:
    with built.materialize("add__1") as instance:
        assert instance.diff() == b""
        instance.run(
            "sed -i 's/one - two/two - one/' calc/add.py && git commit -qam x && rm -r .git"
        )
        assert b"-    return one - two\n+    return two - one\n" in instance.diff()


def test_hidden_and_other_tests_are_those_of_the_healthy_commit(built: Built) -> None:
    cheat = (
        "diff --git a/tests/test_add.py b/tests/test_add.py\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/tests/test_add.py\n@@ -0,0 +1,4 @@\n"
        "+def test_two():\n+    pass\n+def test_zero():\n+    pass\n"
    )
    assert built.judge("add__1", cheat) == "unresolved"
    row = built.row("add__1")
    assert row.trusted_files == ("tests/test_times.py",)
    gone = (
        "diff --git a/tests/test_times.py b/tests/test_times.py\ndeleted file mode 100644\n"
        "--- a/tests/test_times.py\n+++ /dev/null\n@@ -1,9 +0,0 @@\n"
        + "".join(f"-{line}\n" for line in FILES["tests/test_times.py"].splitlines())
    )
    assert built.judge("add__1", row.patch + gone) == "resolved"


def test_nothing_is_built_again(built: Built) -> None:
    assert "Nothing to be done" in run_workflow(built.folder)


INSIDE = {name.replace("tests/", "calc/tests/"): text for name, text in FILES.items()} | {
    "calc/tests/__init__.py": "",
    "setup.py": (
        "from setuptools import setup\nsetup(name='calc', packages=['calc', 'calc.tests'])\n"
    ),
}


@pytest.mark.parametrize("rebuild", [False, True])
def test_hidden_tests_that_were_installed_as_copies_are_gone_too(
    tmp_path: Path, rebuild: bool
) -> None:
    install = "pip install --no-build-isolation --no-deps ."
    recipe = {**RECIPE, "install": install, **({"rebuild": install} if rebuild else {})}
    tests = {
        key: [name.replace("tests/", "calc/tests/") for name in names] for key, names in ADD.items()
    }
    built = build(tmp_path, {"add__1": {"patch": WRONG_ADD, **tests}}, recipe, files=INSIDE)
    with built.materialize("add__1") as instance:
        kept = instance.run("find / -xdev -name 'test_times.py' -not -path '/proc/*'").stdout_text
        assert "site-packages/calc/tests/test_times.py" in kept
        assert "/testbed/build/lib/calc/tests/test_times.py" in kept
        left = instance.run("find / -xdev -name 'test_add*' -not -path '/proc/*'").stdout_text
        assert left == ""
        places = ["/testbed", instance.run("echo $VIRTUAL_ENV").stdout_text.strip()]
        for text in ("assert add(2, 2) == 4", "calc/tests/test_add", "return one + two"):
            assert instance.run(["grep", "-rlF", text, *places], timeout=300).stdout_text == ""
    assert built.row("add__1").status == "ok"
