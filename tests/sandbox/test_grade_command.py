"""``minisandbox grade`` on a cache packed by hand: verdicts, what is none, and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minisandbox.cli.main import main
from minisandbox.evaluate.official.pins import PINS
from minisandbox.evaluate.official.venv import place_of
from minisandbox.idmap import call_mapped, current, remove_tree
from minisandbox.records import codec
from minisandbox.records.manifest import Base, BuildSeconds, Logs, ManifestRow
from minisandbox.store import Store

DATE = 1_600_000_000

FIX = """\
diff --git a/code.sh b/code.sh
--- a/code.sh
+++ b/code.sh
@@ -1 +1 @@
-answer=41
+answer=42
"""
#: Prints what pytest would of one test that needs the fix.
RUN = (
    ". ./code.sh; echo '=== short test summary info ==='; "
    "[ $answer = 42 ] && echo PASSED t::a || echo FAILED t::a"
)

TEST_PATCH = """\
diff --git a/test.sh b/test.sh
new file mode 100644
--- /dev/null
+++ b/test.sh
@@ -0,0 +1 @@
+true
"""
SCRIPT = f"""\
set -x
git apply -v - <<'EOF'
{TEST_PATCH}
EOF
: '>>>>> Start Test Output'
bash test.sh
: '>>>>> End Test Output'
git checkout HEAD code.sh
"""
SPEC = {
    "grader": "swebench-4.1",
    "version": "4.1.0",
    "eval_script": SCRIPT,
    "install": "",
    "test_spec": {},
}


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "safe.directory=*"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", *identity, *words],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def write_layers(root: Path) -> str:
    testbed = root / "source/testbed"
    testbed.mkdir(parents=True)
    (testbed / "code.sh").write_text("answer=41\n")
    git(testbed, "init", "-q", "-b", "main", "--template=", ".")
    git(testbed, "add", "-A", ".")
    git(testbed, "commit", "-q", "-m", "base")
    (root / "instance/testbed/.git/info").mkdir(parents=True)
    (root / "instance/testbed/.git/info/exclude").write_text("")
    return git(testbed, "rev-parse", "HEAD^{tree}")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of instances that differ in how their tests run."""
    root, idmap = tmp_path_factory.mktemp("cache"), current()
    trees = root / "trees"
    head_tree = call_mapped(idmap, partial(write_layers, trees))
    if idmap.kind == "root":
        for path in (trees, *trees.rglob("*")):
            os.chown(path, idmap.host_uid(0), idmap.host_gid(0), follow_symlinks=False)
    store = Store(root / "store")
    layers = tuple(
        store.add(kind, trees / kind, date=DATE, idmap=idmap) for kind in ("source", "instance")
    )
    needed = (item.name for item in fields(ManifestRow) if item.default is MISSING)
    texts: dict[str, Any] = dict.fromkeys(needed, "")
    row = ManifestRow(
        **texts
        | {
            "schema": 1,
            "instance_id": "good",
            "status": "ok",
            "patch": FIX,
            "FAIL_TO_PASS": ("t::a",),
            "PASS_TO_PASS": (),
            "layers": layers,
            "head_tree": head_tree,
            "base": Base(),
            "packages": (),
            "test_command": f'[ "$TAG" = 1.2 ] && [ "$MODE" = x ] && {{ {RUN}; }}',
            "test_env": '{"MODE": "x"}',
            "env": '{"TAG": "1.2"}',
            "test_timeout": 60,
            "log_parser": "pytest",
            "grader": "log",
            "build_seconds": BuildSeconds(),
            "gold_resolved": None,
            "empty_resolved": None,
            "gold_seconds": None,
            "empty_seconds": None,
            "validate_runs": 0,
            "flaky_tests": (),
            "failing_tests": (),
            "logs": Logs(),
            "extra": "{}",
            "limits": "{}",
            "nested": False,
            "blackhole": False,
        }
    )
    rows = [
        row,
        replace(row, instance_id="slow", test_command=f"{RUN}; sleep 60", test_timeout=2),
        replace(row, instance_id="killed", test_command=f"{RUN}; kill -9 $$"),
        replace(row, instance_id="unbuildable", rebuild_command="exit 4"),
        replace(row, instance_id="official", grader="swebench-4.1"),
        replace(row, instance_id="newer", grader="swebench-9"),
        replace(row, instance_id="../../else/where", test_env="{}"),
        replace(row, instance_id="bad-env", env="[]"),
        replace(row, instance_id="bad-variable", env='{"MODE": 1}'),
        replace(row, instance_id="bad-test-env", test_env="{"),
        replace(row, instance_id="bad-extra", extra="null"),
        replace(row, instance_id="bad-limits", limits='{"memory": 1}'),
        replace(row, instance_id="confined", test_command=f"unshare -U true || {{ {RUN}; }}"),
        replace(
            row,
            instance_id="nested",
            nested=True,
            limits='{"cpus": 1, "open_files": 99}',
            test_command=f'unshare -U true && [ "$(nproc; ulimit -n)" = "1\n99" ] && {{ {RUN}; }}',
        ),
        replace(row, instance_id="bad-parser", log_parser="nose"),
        replace(
            row,
            instance_id="bad-spec",
            grader="swebench-4.1",
            test_spec=json.dumps({**SPEC, "install": None}),
        ),
        replace(row, instance_id="tox", test_command=f"{RUN}; echo py39: exit -9; exit 1"),
        replace(
            row,
            instance_id="breaking",
            grader="swebench-4.1",
            test_patch=TEST_PATCH,
            test_spec=json.dumps(SPEC),
        ),
    ]
    lines = [json.dumps(codec.encode(item)) for item in rows]
    (root / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("MINISANDBOX_NODE_STORE", str(root / "node"))
        yield root
    remove_tree(root / "node", idmap)
    remove_tree(trees, idmap)


@pytest.fixture
def grade(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The exit code and the JSON answer of a call."""

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        log = str(tmp_path / "log")
        code = main(["grade", "--cache", str(cache), "--json", "--log", log, *words])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else {"error": said.err}

    return call


def test_a_verdict_is_a_success_whatever_it_says(grade, tmp_path: Path) -> None:
    code, gold = grade("good", "--gold", "--strict")
    assert (code, gold["outcome"], gold["resolved"]) == (0, "resolved", True)
    assert gold["fail_to_pass"] == [1, 1]
    assert (tmp_path / "log").read_text().endswith("PASSED t::a\n")
    code, empty = grade("good", "--empty")
    assert (code, empty["outcome"], empty["resolved"]) == (0, "unresolved", False)
    assert empty["failing"] == ["t::a"]
    assert grade("good", "--empty", "--strict")[0] == 3


@pytest.mark.parametrize("instance", ["nested", "confined"])
def test_the_tests_run_under_what_they_were_validated_under(grade, instance: str) -> None:
    code, gold = grade(instance, "--gold")
    assert (code, gold["outcome"]) == (0, "resolved"), gold


def test_a_patch_of_ones_own(grade, tmp_path: Path) -> None:
    patch = tmp_path / "my.patch"
    patch.write_text(FIX)
    assert grade("good", "--patch", str(patch))[1]["resolved"] is True
    patch.write_text(FIX.replace("answer=41", "answer=0"))
    code, answer = grade("good", "--patch", str(patch))
    assert (code, answer["outcome"], answer["verdict"]) == (0, "patch", True)
    assert answer["log"] is None
    assert "code.sh" in answer["reason"]


@pytest.mark.parametrize(
    ("instance", "outcome"),
    [
        ("slow", "timeout"),
        ("killed", "incomplete"),
        ("unbuildable", "install"),
        ("official", "grader"),
        ("bad-spec", "grader"),
    ],
)
def test_what_is_no_verdict_is_a_failure(grade, instance: str, outcome: str) -> None:
    for more in ([], ["--strict"]):
        code, answer = grade(instance, "--gold", *more)
        assert (code, answer.get("outcome")) == (1, outcome), answer
        assert (answer["verdict"], answer["resolved"]) == (False, False)
        assert answer["reason"]


def test_a_run_that_the_machine_failed_is_no_verdict_unless_it_is_resolved(grade) -> None:
    code, answer = grade("tox", "--empty")
    assert (code, answer["outcome"]) == (1, "incomplete")
    assert "py39: exit -9" in answer["reason"]
    code, answer = grade("tox", "--gold")
    assert (code, answer["outcome"]) == (0, "resolved")


def test_a_patch_that_writes_to_git_s_own_files_is_not_applied(grade, tmp_path: Path) -> None:
    patch = tmp_path / "my.patch"
    hook = "--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+#!/bin/sh\n"
    for text, said in (
        (FIX + hook, ".git/hooks"),
        ("@@ -1,9 +1,9 @@ is no hunk\n" + FIX + hook, "does not apply"),
    ):
        patch.write_text(text)
        code, answer = grade("good", "--patch", str(patch))
        assert (code, answer["outcome"]) == (0, "patch")
        assert said in answer["reason"]


@pytest.mark.parametrize(
    ("instance", "column"),
    [
        ("bad-env", "env"),
        ("bad-variable", "env"),
        ("bad-test-env", "test_env"),
        ("bad-extra", "extra"),
        ("bad-limits", "limits"),
        ("bad-parser", "log_parser"),
    ],
)
def test_a_damaged_row_is_said_in_a_sentence(grade, instance: str, column: str) -> None:
    code, answer = grade(instance, "--gold")
    assert code == 2
    assert f"manifest row {instance}: key '{column}'" in answer["error"]
    assert answer["error"].count("\n") == 1


def test_an_id_does_not_lead_the_log_out_of_the_folder(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    assert main(["grade", "--cache", str(cache), "--gold", "--", "../../else/where"]) in (0, 1)
    assert [path.name for path in tmp_path.rglob("*.log")] == ["__..__else__where.gold.log"]
    assert len(list((tmp_path / "a/b").iterdir())) == 1


def test_the_grader_is_the_cache_s_own_and_one_that_breaks_is_said(grade, cache: Path) -> None:
    """A grader that was built with the cache is not installed a second time."""
    place = place_of(PINS["swebench-4.1"], cache / "tools")
    (place / "bin").mkdir(parents=True)
    python = place / "bin/python"
    python.write_text("#!/bin/sh\necho no memory >&2\nexit 3\n")
    python.chmod(0o755)
    code, answer = grade("breaking", "--gold")
    assert code == 1
    assert "ended early: no memory" in answer["error"]
    python.write_text("#!/bin/sh\nkill -9 $$\n")
    code, killed = grade("breaking", "--gold")
    assert code == 75
    assert "killed by SIGKILL; was there memory?; try again" in killed["error"]
    assert f"remove {place}" in answer["error"]
    assert "package index" not in answer["error"]


def test_what_is_wrong_with_the_call(grade) -> None:
    code, answer = grade("newer", "--gold")
    assert code == 2
    assert "swebench-9" in answer["error"]
    code, answer = grade("good", "--patch", "/no/such/patch")
    assert code == 2
    assert "/no/such/patch" in answer["error"]
    code, answer = grade("goood", "--gold")
    assert code == 1
    assert "did you mean good" in answer["error"]
    with pytest.raises(SystemExit, match="2"):
        grade("good", "--gold", "--empty")


def test_what_a_person_sees(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = str(tmp_path / "log")
    assert main(["grade", "good", "--empty", "--cache", str(cache), "--log", log]) == 0
    said = capsys.readouterr().out
    assert said.startswith("good: not resolved, fail to pass 0/1, pass to pass 0/0, by log\n")
    assert "did not pass: t::a" in said
    assert log in said
    assert main(["grade", "slow", "--gold", "--cache", str(cache), "--log", log]) == 1
    assert capsys.readouterr().out.startswith("slow: no verdict [timeout] ")
