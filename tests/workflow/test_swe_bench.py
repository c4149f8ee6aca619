"""Rows as SWE-bench has them, built by the official specification, graded by the official code.

The repository is a local one under the name of a project that the specifications know: a source
release of it from the package index, with one line taken out as the bug. Its requirement file,
which the official code would fetch from GitHub, exists at one commit of that repository only.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from minisandbox import open_cache
from minisandbox.build.index.package_index import Index, download, find_release
from repositories import commit_files, git

CLONE = Path(__file__).parents[2]
MINISANDBOX = str(Path(sys.executable).with_name("minisandbox"))

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(900)]

FIX = "        if not name:\n            raise ValueError(\"'name' may not be empty.\")\n\n"
TESTS = "tests/test_blueprints.py"
FAIL_TO_PASS = [f"{TESTS}::test_empty_name_not_allowed"]
PASS_TO_PASS = [f"{TESTS}::test_blueprint_prefix_slash[-/-/]", f"{TESTS}::test_nested_blueprint"]
#: The end of the test file at base; the test patch adds to it.
SHADOW = "\n\ndef test_empty_name_not_allowed(app, client):\n"

#: What `setup.py` of the patch under test does to the official script's own install.
BREAKING_PATCH = """\
diff --git a/pyproject.toml b/pyproject.toml
--- a/pyproject.toml
+++ b/pyproject.toml
@@ -1,1 +1,1 @@
-{line}
+[project
"""


class Built:
    """A working directory with one row, built."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        repository = folder / "git/pallets/flask.git"
        repository.mkdir(parents=True)
        self._unpack(repository, folder / "downloads")
        listed = {"requirements/dev.txt": "-r tests.txt\n-e .\n"}
        environment_commit = commit_files(repository, listed, "The environment commit")
        (repository / "requirements/dev.txt").unlink()
        blueprints, tests = repository / "src/flask/blueprints.py", repository / TESTS
        fixed, tested = blueprints.read_text(), tests.read_text()
        assert FIX in fixed
        assert SHADOW in tested
        start = tested.index(SHADOW)
        end = tested.index("\n\ndef ", start + 2)
        blueprints.write_text(fixed.replace(FIX, ""))
        tests.write_text(tested[:start] + tested[end:])
        git(repository, "commit", "-qam", "The base commit")
        base = git(repository, "rev-parse", "HEAD").strip()
        blueprints.write_text(fixed)
        patch = git(repository, "diff")
        git(repository, "checkout", "-q", ".")
        tests.write_text(tested)
        test_patch = git(repository, "diff")
        git(repository, "checkout", "-q", ".")
        self.first_line = (repository / "pyproject.toml").read_text().splitlines()[0]
        row = {
            "instance_id": "pallets__flask-0",
            "repo": "pallets/flask",
            "version": "2.3",
            "base_commit": base,
            "environment_setup_commit": environment_commit,
            "created_at": "2023-06-01T00:00:00Z",
            "patch": patch,
            "test_patch": test_patch,
            "problem_statement": "An empty name is taken.\r\n",
            "FAIL_TO_PASS": json.dumps(FAIL_TO_PASS),
            "PASS_TO_PASS": json.dumps(PASS_TO_PASS),
        }
        unknown = {**row, "instance_id": "pallets__flask-1", "version": "99"}
        (folder / "rows.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(unknown)}\n")
        (folder / "rows.yaml").write_text(
            "name: rows\nkind: rows\npath: rows.jsonl\nspecifications: swebench-4.1\n"
            'date: "2024-11-30"\n'
        )
        (folder / "config.yaml").write_text(
            f"datasets: [rows.yaml]\nrecipes: {CLONE}/envs/recipes\npack: false\n"
            f"git_url: {folder}/git/{{repo}}.git\n"
        )
        argv = [
            sys.executable,
            "-m",
            "snakemake",
            "--snakefile",
            str(CLONE / "Snakefile"),
            "--cores",
            "2",
        ]
        done = subprocess.run(
            [*argv, "--profile", str(CLONE / "profiles/default"), "--configfile", "config.yaml"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        self.cache = open_cache(folder / "results")

    @staticmethod
    def _unpack(repository: Path, cache: Path) -> None:
        release = find_release("flask", "2.3.2", index=Index.of_this_machine())
        with tarfile.open(fileobj=io.BytesIO(download(release, cache).read_bytes())) as archive:
            # The argument `filter` came with Python 3.11.4.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            for member in archive.getmembers():
                member.name = member.name.partition("/")[2]
                if member.isfile() and not member.name.startswith(("docs/", "examples/")):
                    archive.extract(member, repository)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("swe-bench"))


def test_the_official_grader_resolves_the_gold_patch_and_not_the_empty_one(built: Built) -> None:
    row = built.cache.row("pallets__flask-0")
    assert row.status == "ok", (row.reason, row.log_tail)
    assert row.grader == "swebench-4.1"
    assert row.gold_resolved is True
    assert row.empty_resolved is False
    assert row.tests_source == "dataset"
    log = (built.folder / "results" / row.logs.gold).read_text()
    before, _, _ = log.partition(">>>>> Start Test Output")
    assert "Successfully installed" in before.rpartition("+ conda activate testbed")[2]


def test_its_environment_is_that_of_the_specification_and_of_its_day(built: Built) -> None:
    row = built.cache.row("pallets__flask-0")
    packages = dict(line.split("==") for line in row.packages)
    assert packages["pytest"] == "7.3.1"  # of the requirement file at the environment commit
    assert packages["Werkzeug"] == "2.3.7"  # of the specification's own list
    kinds = [layer.kind for layer in row.layers]
    assert kinds == ["interpreter", "environment", "source", "wheelhouse", "instance"]


def test_a_version_that_nobody_specified_is_a_row_with_the_reason(built: Built) -> None:
    row = built.cache.row("pallets__flask-1")
    assert (row.failed_stage, row.reason_kind) == ("plan", "recipe")
    assert "swebench-4.1" in row.reason
    assert "99" in row.reason


def test_grading_again_needs_the_cache_alone(built: Built, tmp_path: Path) -> None:
    (built.folder / "results/mirrors").rename(tmp_path / "mirrors")
    argv = [MINISANDBOX, "grade", "pallets__flask-0", "--cache", str(built.folder / "results")]
    # Not the package index: the grader is the one that the build installed.
    env = {**os.environ, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    try:
        gold, empty = (
            json.loads(
                subprocess.run(
                    [*argv, which, "--json"],
                    cwd=tmp_path,
                    env=env,
                    check=True,
                    capture_output=True,
                ).stdout
            )
            for which in ("--gold", "--empty")
        )
    finally:
        (tmp_path / "mirrors").rename(built.folder / "results/mirrors")
    assert (gold["outcome"], empty["outcome"]) == ("resolved", "unresolved")


def test_a_patch_that_breaks_the_install_gets_no_verdict(built: Built, tmp_path: Path) -> None:
    patch = tmp_path / "breaking.patch"
    row = built.cache.row("pallets__flask-0")
    patch.write_text(row.patch + BREAKING_PATCH.format(line=built.first_line))
    argv = [MINISANDBOX, "grade", row.instance_id, "--cache", str(built.folder / "results")]
    done = subprocess.run(
        [*argv, "--patch", str(patch), "--json"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout, done.stderr
    assert json.loads(done.stdout)["outcome"] == "install"
