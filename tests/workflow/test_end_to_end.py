"""The main job on real input: releases from the index and local git repositories, to a cache.

One run builds everything; the tests look at what it left. The same run holds instances that cannot
be built, each for another reason, between others that can.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from minisandbox import open_cache
from minisandbox.errors import InstanceUnavailable, InstanceUnknown
from minisandbox.records import codec
from minisandbox.records.manifest import ManifestRow
from minisandbox.records.stages import EnvironmentRecord, InstancesRecord, ValidationsRecord
from minisandbox.runtime import profile_of
from minisandbox.sandbox import Limits, Profile
from minisandbox.store import Store
from minisandbox.store.packs.reading import PackReader

CLONE = Path(__file__).parents[2]
MINISANDBOX = str(Path(sys.executable).with_name("minisandbox"))

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(900)]

#: Why each of these cannot be built, and what the reason must name for a person to act on it.
UNBUILDABLE = {
    "no-such-requirement": ("environment", "environment", "no-such-distribution-minisandbox"),
    "no-such-repository": ("clone", "clone", "gone"),
    "no-such-commit": ("instances", "commit", "f" * 40),
    "no-such-python": ("interpreter", "interpreter", "system: /usr/bin"),
    "no-such-recipe": ("plan", "recipe", "local/unknown"),
    "wrong-patch": ("validate", "patch", "does not apply"),
    "hostile-git": ("instances", "install", "/testbed/.git is no directory"),
    "nothing-to-fix": ("validate", "derive", "no test fails"),
    "wants-a-program": ("validate", "program", "no-such-sendmail"),
}

RECIPE = """\
repo: local/calc
python: ">=3.11"
date: 2026-01-15
packages: [pytest==8.4.2, setuptools==80.9.0]
install: python -m pip install --no-build-isolation --no-deps -e .
imports: [calc]
test: python -m pytest -rA -p no:cacheprovider -q
timeout: 120
"""

FILES = {
    "pyproject.toml": (
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "calc"\nversion = "1"\n[tool.setuptools]\npy-modules = ["calc"]\n'
    ),
    "calc.py": "def add(a, b):\n    return a - b\n",
    "tests/test_calc.py": "import calc\n\n\ndef test_zero():\n    assert calc.add(0, 0) == 0\n",
    "data.bin": "\0\1\2",
}

PATCH = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""

#: The test module cannot even be imported without the fix.
MORE_PATCH = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,6 @@
 def add(a, b):
     return a - b
+
+
+def mul(a, b):
+    return a * b
"""

MORE_TEST_PATCH = """\
diff --git a/tests/test_mul.py b/tests/test_mul.py
new file mode 100644
--- /dev/null
+++ b/tests/test_mul.py
@@ -0,0 +1,5 @@
+from calc import mul
+
+
+def test_mul():
+    assert mul(2, 3) == 6
"""

TEST_PATCH = """\
diff --git a/tests/test_calc.py b/tests/test_calc.py
--- a/tests/test_calc.py
+++ b/tests/test_calc.py
@@ -3,3 +3,7 @@ import calc

 def test_zero():
     assert calc.add(0, 0) == 0
+
+
+def test_two():
+    assert calc.add(1, 1) == 2
"""


def git(folder: Path, *words: str, date: str = "2024-01-02T03:04:05Z") -> str:
    env = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_DATE": date,
    }
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, env=env, capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


def make_repository(folder: Path) -> tuple[str, str]:
    """A project with a past, a base commit and a future that has the fix; returns base and fix."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main", ".")
    (folder / "README").write_text("calc\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Begin", date="2023-01-01T00:00:00Z")
    git(folder, "tag", "v0")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (folder / "link").symlink_to("calc.py")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Add", date="2024-01-01T00:00:00Z")
    base = git(folder, "rev-parse", "HEAD")
    git(folder, "tag", "v1")
    git(folder, "tag", "-a", "v1-late", "-m", "THE ANSWER", date="2026-01-01T00:00:00Z")
    (folder / "calc.py").write_text(FILES["calc.py"].replace("a - b", "a + b"))
    git(folder, "commit", "-qam", "Fix: THE ANSWER", date="2025-01-01T00:00:00Z")
    git(folder, "tag", "v2")
    git(folder, "branch", "other")
    return base, git(folder, "rev-parse", "HEAD")


class Build:
    """A working directory as a user has it, and what was built in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results"
        self.base, self.fix = make_repository(folder / "git/local/calc.git")
        (folder / "recipes").mkdir()
        parse = (CLONE / "envs/recipes/parse.yaml").read_text()
        (folder / "recipes/parse.yaml").write_text(f"{parse}nested: true\nlimits: {{cpus: 1}}\n")
        self.recipe("calc", RECIPE)
        self.recipe(
            "broken", RECIPE, repo="local/other", packages="[no-such-distribution-minisandbox==1]"
        )
        escape = "mv .git /opt/git && ln -s / .git"
        self.recipe("hostile", RECIPE, repo="local/other", install=escape, imports="[]")
        self.recipe("future", RECIPE, repo="local/other", python='"3.99"')
        (folder / "config").mkdir()
        self.rows()
        (folder / "config/config.yaml").write_text(
            "datasets: [calc.yaml, broken.yaml, future.yaml, hostile.yaml, pairs.yaml]\n"
            f"recipes: recipes\ngit_url: {folder}/git/{{repo}}.git\nhistory: full\n"
            "limits: {open_files: 2000}\nvalidate_runs: 2\n"
        )

    def recipe(self, name: str, text: str, **changes: str) -> None:
        lines = [
            f"{key}: {changes.get(key, value)}"
            for key, _, value in (line.partition(": ") for line in text.splitlines())
        ]
        (self.folder / f"recipes/{name}.yaml").write_text("\n".join(lines) + "\n")

    def rows(self) -> None:
        row = {
            "repo": "local/calc",
            "base_commit": self.base,
            "patch": PATCH,
            "test_patch": TEST_PATCH,
            "problem_statement": "one plus one is zero\r\n",
            "difficulty": 3,
        }
        nothing = TEST_PATCH.replace("== 2", "== 0")
        wrong = PATCH.replace("a - b", "a * b")
        self.dataset(
            "calc",
            {**row, "instance_id": "calc-1"},
            {
                **row,
                "instance_id": "calc-2",
                "FAIL_TO_PASS": ["tests/test_calc.py::test_two"],
                "PASS_TO_PASS": '["tests/test_calc.py::test_zero"]',
            },
            {
                **row,
                "instance_id": "calc-3",
                "patch": MORE_PATCH,
                "test_patch": MORE_TEST_PATCH,
            },
            {**row, "instance_id": "no-such-commit", "base_commit": "f" * 40},
            {**row, "instance_id": "no-such-repository", "repo": "local/gone"},
            {**row, "instance_id": "no-such-recipe", "repo": "local/unknown"},
            {**row, "instance_id": "wrong-patch", "patch": wrong},
            {**row, "instance_id": "nothing-to-fix", "test_patch": nothing},
            {
                **row,
                "instance_id": "wants-a-program",
                "test_patch": TEST_PATCH.replace(
                    "calc.add(1, 1)", "__import__('subprocess').run(['no-such-sendmail'])"
                ),
                "FAIL_TO_PASS": ["tests/test_calc.py::test_two"],
                "PASS_TO_PASS": ["tests/test_calc.py::test_zero"],
            },
        )
        self.recipe("gone", RECIPE.replace("local/calc", "local/gone"))
        self.dataset("broken", {**row, "instance_id": "no-such-requirement"}, recipe="broken")
        self.dataset("hostile", {**row, "instance_id": "hostile-git"}, recipe="hostile")
        self.dataset("future", {**row, "instance_id": "no-such-python"}, recipe="future")
        (self.folder / "pairs.yaml").write_text(
            "name: pairs\nkind: release-pairs\npairs:\n"
            "  - {project: parse, before: '1.20.0', after: '1.20.1'}\n"
        )

    def dataset(self, name: str, *rows: dict[str, Any], recipe: str = "") -> None:
        text = f"name: {name}\nkind: rows\npath: {name}.jsonl\n"
        (self.folder / f"{name}.yaml").write_text(text + (f"recipe: {recipe}\n" if recipe else ""))
        lines = (json.dumps(row) + "\n" for row in rows)
        (self.folder / f"{name}.jsonl").write_text("".join(lines))

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path}

    def command(self, *arguments: str) -> list[str]:
        words = [
            "--snakefile",
            str(CLONE / "Snakefile"),
            "--profile",
            str(CLONE / "profiles/default"),
        ]
        return [sys.executable, "-m", "snakemake", *words, "--cores", "2", *arguments]

    def snakemake(self, *arguments: str) -> str:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def row(self, instance_id: str) -> ManifestRow:
        return open_cache(self.results).row(instance_id)

    def minisandbox(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [MINISANDBOX, *arguments],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def started(self) -> dict[str, str]:
        """When each record was made; one that was only reused keeps its time."""
        times: dict[str, str] = {}
        for folder in ("sources", "interpreters", "environments"):
            for path in (self.results / folder).rglob("[!.]*.json"):
                record = json.loads(path.read_text())
                for member in record.get("instances", [record]):
                    times[f"{member['stage']} {member['key']}"] = member["started"]
        return times


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("build")
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    made = Build(folder)
    made.snakemake()
    return made


def test_what_can_be_built_is_ok(build: Build) -> None:
    for instance_id in ("calc-1", "calc-2", "calc-3", "parse-1.20.1"):
        row = build.row(instance_id)
        assert row.status == "ok", row.reason
        assert row.gold_resolved is True
        assert row.empty_resolved is False
        assert [layer.kind for layer in row.layers] == [
            "interpreter",
            "environment",
            "source",
            "instance",
        ]


@pytest.mark.parametrize("instance_id", UNBUILDABLE)
def test_what_cannot_be_built_is_a_row_with_a_reason(build: Build, instance_id: str) -> None:
    stage, kind, named = UNBUILDABLE[instance_id]
    row = build.row(instance_id)
    assert (row.status, row.failed_stage, row.reason_kind) == ("failed", stage, kind)
    assert named in row.reason
    assert "\n" not in row.reason
    assert row.gold_resolved is not True


def test_what_validation_found_out_is_in_the_row(build: Build) -> None:
    good, failed = build.row("calc-2"), build.row("wants-a-program")
    assert (good.validate_runs, good.flaky_tests, good.failing_tests) == (2, (), ())
    assert (failed.validate_runs, failed.flaky_tests) == (2, ())
    assert failed.failing_tests == ("tests/test_calc.py::test_two",)
    assert "FileNotFoundError" in failed.log_tail
    assert failed.gold_resolved is False
    folder = (build.results / failed.logs.gold).parent
    assert (folder / "wants-a-program.gold-2.log").is_file()


def test_lists_are_derived_where_a_row_lacks_them(build: Build) -> None:
    derived, given = build.row("calc-1"), build.row("calc-2")
    assert (derived.tests_source, given.tests_source) == ("derived", "dataset")
    assert derived.FAIL_TO_PASS == given.FAIL_TO_PASS == ("tests/test_calc.py::test_two",)
    assert derived.PASS_TO_PASS == given.PASS_TO_PASS == ("tests/test_calc.py::test_zero",)


def test_a_module_that_cannot_be_imported_hides_no_other(build: Build) -> None:
    row = build.row("calc-3")
    assert row.FAIL_TO_PASS == ("tests/test_mul.py::test_mul",)
    assert row.PASS_TO_PASS == ("tests/test_calc.py::test_zero",)


def test_instances_share_what_is_equal(build: Build) -> None:
    one, two = build.row("calc-1"), build.row("calc-2")
    assert one.environment == two.environment
    assert one.layers == two.layers


def test_the_manifest_opens_everywhere(build: Build, tmp_path: Path) -> None:
    import datasets
    import pandas

    lines = (build.results / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    plain = {row["instance_id"]: row for row in map(json.loads, lines)}
    frame = pandas.read_parquet(build.results / "manifest.parquet")
    table = datasets.load_dataset(
        "parquet",
        data_files=str(build.results / "manifest.parquet"),
        split="train",
        cache_dir=str(tmp_path),
    )
    assert list(plain) == list(frame["instance_id"]) == list(table["instance_id"])
    assert len(plain) == 13
    for row in table:
        assert dict(row) == plain[row["instance_id"]]
    assert plain["calc-1"]["problem_statement"] == "one plus one is zero\r\n"
    assert json.loads(plain["calc-1"]["extra"]) == {"difficulty": 3}
    summary = json.loads((build.results / "manifest.summary.json").read_text())
    assert (summary["instances"], summary["ok"], summary["failed"]) == (13, 4, 9)
    assert (summary["tried"], summary["validated"], summary["infrastructure"]) == (12, 5, 0)
    assert sum(summary["reasons"].values()) == 9


def test_a_second_run_does_nothing(build: Build) -> None:
    before = build.started()
    assert "Nothing to be done" in build.snakemake()
    assert build.started() == before


def test_no_answers_in_the_box(build: Build) -> None:
    with open_cache(build.results).materialize("calc-1") as instance:

        def said(command: str) -> str:
            return instance.run(command, merge_stderr=True).text

        dates = said(
            "git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)' | "
            "awk '$1 == \"commit\" {print $2}' | xargs -n1 git show -s --format=%ct"
        )
        assert max(map(int, dates.split())) == 1704067200, "the date of the base commit"
        everything = said("git cat-file --batch-all-objects --batch --buffer | tr -d '\\0'")
        assert "THE ANSWER" not in everything
        assert "a + b" not in everything
        assert said("git log --oneline --all | wc -l").strip() == "3"
        assert said("git tag").split() == ["v0", "v1", "v1-late"]
        assert said("git describe --tags HEAD~1").strip() == "v1"
        assert said("git rev-parse HEAD~1").strip() == build.base
        for nothing in (
            "git reflog --all",
            "git remote",
            "git stash list",
            "git fsck --lost-found",
        ):
            assert said(nothing) == "", nothing
        assert said("git status --porcelain") == ""
        assert said("git show --stat --format=").strip() == ""
        assert (
            said("grep -rlE 'test_two|a [+] b' /testbed /tmp /root /etc /opt/miniconda3/etc") == ""
        )
        assert said("ls .git/FETCH_HEAD .git/ORIG_HEAD .git/logs 2>/dev/null") == ""


def test_an_instance_runs_offline_and_tells_its_changes(build: Build) -> None:
    with open_cache(build.results).materialize("calc-1") as instance:
        assert (
            instance.run("python -c 'import calc; print(calc.__file__)'").text
            == "/testbed/calc.py\n"
        )
        activated = "source /opt/miniconda3/bin/activate; conda activate testbed; which python"
        assert instance.run(activated).text == "/opt/miniconda3/envs/testbed/bin/python\n"
        assert instance.diff() == b""
        instance.write_file("/testbed/data.bin", bytes(range(256)))
        instance.write_file("/testbed/new file.txt", "no newline")
        instance.run("rm link && git commit -qam gone && git reset -q --hard HEAD~2 && rm -rf .git")
        instance.write_file("/testbed/calc.py", "def add(a, b):\n    return a + b\n")
        patch = instance.diff()
        assert b"GIT binary patch" in patch
        assert b"new file.txt" in patch
        instance.restore(["calc.py", "new file.txt", "link", "data.bin", "tests/test_calc.py"])
        assert b"calc.py" not in instance.diff()


def test_a_diff_applies_to_a_fresh_instance(build: Build) -> None:
    cache = open_cache(build.results)
    with cache.materialize("calc-1") as instance:
        instance.write_file("/testbed/data.bin", bytes(range(256)))
        instance.write_file("/testbed/sub/new", "no newline at end")
        instance.run(
            "rm link; chmod +x calc.py; git add -A; git commit -qm work; git checkout -qb x"
        )
        patch = instance.diff()
    with cache.materialize("calc-1") as other:
        other.apply_patch(patch.decode())
        assert other.read_file("/testbed/data.bin") == bytes(range(256))
        assert other.read_file("/testbed/sub/new") == b"no newline at end"
        assert other.run("test -e link || test -L link").exit_code == 1
        assert other.diff() == patch


def test_two_instances_do_not_see_each_other(build: Build) -> None:
    cache = open_cache(build.results)
    with cache.materialize("calc-1") as one, cache.materialize("calc-1") as two:
        one.write_file("/testbed/calc.py", "raise SystemExit('edited')\n")
        assert one.run("python -c 'import calc'").exit_code == 1
        assert two.run("python -c 'import calc'").exit_code == 0


def test_an_edit_never_runs_stale_byte_code(build: Build) -> None:
    with open_cache(build.results).materialize("calc-1") as instance:
        where = instance.run("python -c 'import pluggy; print(pluggy.__file__)'").text.strip()
        instance.write_file(where, "print('edited')\n")
        assert instance.run("python -c 'import pluggy'").text == "edited\n"


def test_what_does_not_exist_is_told_with_what_does(build: Build) -> None:
    cache = open_cache(build.results)
    with pytest.raises(InstanceUnknown, match="calc-1"):
        cache.materialize("calc-11")
    with pytest.raises(InstanceUnavailable, match="no-such-distribution-minisandbox"):
        cache.materialize("no-such-requirement")


def test_the_command_line(build: Build) -> None:
    listing = build.minisandbox("ls")
    assert listing.returncode == 0
    assert "4 of 13 rows planned are ok (12 tried, 5 validated); 9 failed: " in listing.stdout
    assert build.minisandbox("ls", "--strict").returncode == 1
    assert build.minisandbox("show", "calc-1", "--field", "status").stdout == "ok\n"
    tests = "python -m pytest -q -p no:cacheprovider"
    assert build.minisandbox("run", "--tests", "calc-1", "--", tests).returncode == 1
    assert build.minisandbox("run", "--gold", "--tests", "calc-1", "--", tests).returncode == 0
    assert build.minisandbox("run", "calc-1", "--", "sh", "-c", "exit 7").returncode == 7
    assert build.minisandbox("run", "calc-1", "--", "no-such-program", "x").returncode == 127
    assert build.minisandbox("run", "--timeout", "1", "calc-1", "--", "sleep 60").returncode == 124
    unknown = build.minisandbox("run", "calc-11", "--", "true")
    assert unknown.returncode == 125
    assert "did you mean calc-1" in unknown.stderr
    nowhere = build.minisandbox("ls", "--cache", "nowhere")
    assert nowhere.returncode == 2
    assert len(nowhere.stderr.splitlines()) == 1
    verified = build.minisandbox("store", "verify")
    assert verified.returncode == 0
    assert " 0 damaged or missing" in verified.stdout
    assert build.minisandbox("records", "ls", "--failed").stdout.count("no-such-commit") == 2


def programs_of(page: str) -> str:
    text = (CLONE / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_every_program_of_the_page_on_caches_works(build: Build, tmp_path: Path) -> None:
    program = programs_of("docs/how-to/use-a-cache.md")
    for theirs, ours in {
        "sqlparse-0.4.4": "parse-1.20.1",
        "sqlparse/__init__.py": "parse.py",
        "/testbed/docs": "/testbed/tests",
        "/tmp/sqlparse-docs": str(tmp_path / "docs"),
        "/tmp/run.log": str(tmp_path / "run.log"),
    }.items():
        assert theirs in program
        program = program.replace(theirs, ours)
    (build.folder / "README.md").write_text("notes\n")
    done = subprocess.run(
        [sys.executable, "-c", program + "\nprint(patch.decode())"],
        cwd=build.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "13 instances" in done.stdout
    assert "True ()" in done.stdout
    assert "True memory goes on" in done.stdout
    assert "+# a change" in done.stdout
    assert list((tmp_path / "docs").iterdir())


def test_every_program_of_the_page_on_inspect_works(build: Build, tmp_path: Path) -> None:
    program = programs_of("docs/how-to/inspect.md")
    assert "sqlparse-0.4.4" in program
    program = program.replace("sqlparse-0.4.4", "parse-1.20.1")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=build.folder,
        env={**os.environ, "INSPECT_LOG_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "success C {'outcome': 'resolved', 'failing': []}" in done.stdout, done.stdout


#: Runs each line of its input as a command in an instance of its own, and answers in JSON.
CLIENT = """
import json, sys
from minisandbox import open_cache
with open_cache(sys.argv[1]).materialize("calc-1") as instance:
    for line in sys.stdin:
        print(json.dumps(instance.run(line, cwd="/").text), flush=True)
"""


def test_clients_of_one_instance_do_not_see_each_others_edits(build: Build) -> None:
    """D5: the package that is installed is the one in this client's /testbed."""
    argv = [sys.executable, "-c", CLIENT, str(build.results)]
    with (
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):

        def said(client: subprocess.Popen[str], command: str) -> str:
            assert client.stdin is not None
            assert client.stdout is not None
            print(command, file=client.stdin, flush=True)
            return json.loads(client.stdout.readline())

        call = "python -c 'import calc; print(calc.__file__, calc.add(3, 1))'"
        for client in (one, other):
            assert said(client, call) == "/testbed/calc.py 2\n"
        assert said(one, "echo 'def add(a, b): raise RuntimeError(a)' > /testbed/calc.py") == ""
        assert "RuntimeError: 3" in said(one, call)
        assert said(other, call) == "/testbed/calc.py 2\n"
        assert said(other, "git -C /testbed status --porcelain") == ""
        for client in (one, other):
            assert client.stdin is not None
            client.stdin.close()
            assert client.wait() == 0
    with open_cache(build.results).materialize("calc-1") as fresh:
        assert fresh.run(call, cwd="/").text == "/testbed/calc.py 2\n"


def test_a_shell_is_interactive(build: Build) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(build.folder)
        os.execv(MINISANDBOX, ["minisandbox", "shell", "calc-1"])
    with open(terminal, "r+b", buffering=0) as screen:

        def until(text: bytes, *, type_again: bytes = b"") -> bytes:
            seen = b""
            for _ in range(60):
                while select.select([screen], [], [], 1)[0]:
                    seen += screen.read(65536)
                    if text in seen:
                        return seen
                screen.write(type_again)
            raise AssertionError(seen)

        assert b"(calc-1)" in until(b"/testbed# ")
        screen.write(b"sleep 100 &\n")
        until(b"[1]")
        screen.write(b"jobs; tty; which python; fg\n")
        seen = until(b"python\r\nsleep 100")
        assert b"Running" in seen
        assert b"/dev/pts/" in seen
        assert b"/opt/miniconda3/envs/testbed/bin/python" in seen
        # bash names the job before it hands it the terminal; typed in between, the key is lost.
        screen.write(b"\x1a")
        until(b"Stopped", type_again=b"\x1a")
        # bash leaves on the second `exit` if a job is still stopped at the first.
        screen.write(b"kill -9 %1; wait; echo waited\n")
        until(b"\r\nwaited")
        ended = 0
        while not ended:
            try:
                screen.write(b"exit 3\n")
                assert select.select([screen], [], [], 60)[0]
                screen.read(65536)
            except OSError:  # EIO: the client has gone, and the terminal with it
                pass
            ended, status = os.waitpid(pid, os.WNOHANG)
            time.sleep(0.2)
        assert os.waitstatus_to_exitcode(status) == 3


def test_an_instance_starts_as_it_was_validated_and_other_limits_build_nothing(
    build: Build,
) -> None:
    looks = "nproc; ulimit -n; unshare -Ur id -u 2>&1"
    for cpus in (1, 2):
        row = build.row("parse-1.20.1")
        wanted = Limits(cpus=cpus, open_files=2000)
        assert profile_of(row) == Profile(nested=True, limits=wanted)
        with open_cache(build.results).materialize("parse-1.20.1") as instance:
            seen = min(cpus, os.cpu_count() or 1)
            assert instance.run(looks).stdout_text.split() == [str(seen), "2000", "0"]
        ran = build.minisandbox("run", "parse-1.20.1", "--", looks)
        assert ran.stdout.split() == [str(seen), "2000", "0"]
        environment = build.results / "environments" / row.environment
        batch = environment / "batches/parse-0000"
        (validated,) = codec.read(ValidationsRecord, batch / "validation.json").instances
        assert validated.limits == wanted.identity()
        assert validated.profile == profile_of(row).digest()
        (built,) = codec.read(InstancesRecord, batch / "instances.json").instances
        assert built.limits == Limits(cpus=1, open_files=2000).identity()
        # Of recipes that ask for equal environments, the one with more room decides.
        shared = codec.read(EnvironmentRecord, environment / "environment.json")
        assert shared.limits == Limits(open_files=2000).identity()
        if cpus == 2:
            break
        before = build.started()
        time.sleep(1.1)  # records tell time in seconds
        recipe = build.folder / "recipes/parse.yaml"
        recipe.write_text(recipe.read_text().replace("cpus: 1", "cpus: 2"))
        build.snakemake()
        after = build.started()
        again = {name for name in after if after[name] != before[name]}
        assert again == {"validate parse-1.20.1"}
    with open_cache(build.results).materialize("calc-1") as instance:
        assert "Operation not permitted" in instance.run(looks).stdout_text
    shown = build.minisandbox("show", "parse-1.20.1").stdout
    assert "sandbox:         nested, cpus 2, open_files 2000\n" in shown


def test_a_layer_is_the_same_however_often_it_is_built(build: Build) -> None:
    before = [layer.digest for layer in build.row("calc-1").layers]
    names = ["calc-1", build.row("calc-1").environment]
    assert build.minisandbox("records", "drop", *names).returncode == 0
    build.snakemake()
    row = build.row("calc-1")
    assert row.status == "ok"
    assert [layer.digest for layer in row.layers] == before


def test_dropped_failures_are_tried_again_and_nothing_else(build: Build) -> None:
    before = build.started()
    dropped = build.minisandbox("records", "drop", "--failed")
    assert dropped.returncode == 0
    time.sleep(1.1)  # records tell time in seconds
    build.snakemake()
    after = build.started()
    failed = {line.removeprefix("dropped ") for line in dropped.stdout.splitlines()[:-1]}
    assert {name for name in after if after[name] != before[name]} - failed == {
        name for name in after if "/" in name and after[name] != before[name]
    }
    assert after["validate calc-1"] == before["validate calc-1"]
    assert after["instances calc-1"] == before["instances calc-1"]


def test_a_killed_run_is_taken_up_where_it_was(build: Build, tmp_path: Path) -> None:
    for name in ("parse-1.20.1", "calc-1"):
        assert build.minisandbox("records", "drop", name).returncode == 0
    before = build.started()
    running = subprocess.Popen(
        build.command(),
        cwd=build.folder,
        env=build.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while "instances calc-1" not in build.started() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    during = build.started()
    assert "instances calc-1" in during, "the run never came so far"
    build.snakemake()
    after = build.started()
    for name, time_made in during.items():
        if "/" not in name:  # batches as a whole are written again, their members are not
            assert after[name] == time_made, name
    assert set(before) <= set(after)
    assert {build.row(name).status for name in ("parse-1.20.1", "calc-1")} == {"ok"}


def damage(store: Store, digest: str) -> None:
    """Flip a bit of the first content of a layer, in the pack that it is in."""
    raw = bytes.fromhex(digest.removeprefix("sha256:"))
    pack = store.catalogue.find(raw)
    assert pack is not None
    with PackReader(pack, store.catalogue) as reader:
        numbers = reader.skeleton(pack.index.layers[raw]).contents
        own = next(number for number in numbers if number < pack.index.own)
        span = pack.index.frames[reader.pack.record(own).place]
    data = bytearray(pack.path.read_bytes())
    data[span.offset + span.packed // 2] ^= 1
    pack.path.chmod(0o644)
    pack.path.write_bytes(data)


def test_a_damaged_layer_is_found_and_built_again(build: Build) -> None:
    layer = build.row("parse-1.20.1").layers[-1]
    damage(Store(build.results / "store"), layer.digest)
    found = build.minisandbox("store", "verify")
    assert found.returncode == 1
    assert layer.digest in found.stdout
    assert build.minisandbox("records", "drop", "--damaged").returncode == 0
    build.snakemake()
    assert build.minisandbox("store", "verify").returncode == 0
    assert build.row("parse-1.20.1").status == "ok"
