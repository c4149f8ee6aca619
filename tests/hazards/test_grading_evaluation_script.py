"""Evaluation scripts in a sandbox: a patch under test that is lost or that brings its own tests,
runs that are cut short, line ends.

The script is written as the official harness writes it (test_grading_official_logs.py holds it to
that); the project, its install step and its test runner are small stand-ins.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from minisandbox.errors import PatchFailed
from minisandbox.evaluate import run_tests
from minisandbox.evaluate.grading import GraderFailed, PreparationFailed, Task
from minisandbox.evaluate.official.grader import OfficialGrader
from minisandbox.evaluate.official.pins import PINS
from minisandbox.evaluate.official.script import graded_part, run_script, trouble
from minisandbox.evaluate.official.tool import OfficialTool
from minisandbox.idmap import call_mapped, current, remove_tree
from minisandbox.records.layer import LayerRef
from minisandbox.runtime import Instance, start_instance
from minisandbox.store import NodeStore, Store

DATE = 1_600_000_000
INSTALL = "python -m pip install -e ."

#: A runner that reports tests only if the install step's change to its configuration is there.
RUNNER = """\
#!/bin/bash
grep -q verbose tox.ini || exit 3
for file in "$@"; do
    [ -e "$file" ] || continue
    . "./$file" && echo "PASSED $file" || echo "FAILED $file"
done
"""
PROGRAMS = {
    "activate": 'conda() { export CONDA_DEFAULT_ENV="$2"; }\n',
    "python": "#!/bin/sh\necho Successfully installed project-1\n",
    "runner": RUNNER,
}
BASE = {"tox.ini": "plain\n", "code.sh": "answer=41\n", "tests/old.sh": "true\n"}

FIX = """\
diff --git a/code.sh b/code.sh
--- a/code.sh
+++ b/code.sh
@@ -1 +1 @@
-answer=41
+answer=42
"""
ADDED = """\
diff --git a/tests/new.sh b/tests/new.sh
new file mode 100644
--- /dev/null
+++ b/tests/new.sh
@@ -0,0 +1,2 @@
+. ./code.sh
+[ $answer = 42 ]
"""
#: A patch under test that brings a test of that name along, one that always passes.
OWN_TESTS = """\
diff --git a/tests/new.sh b/tests/new.sh
new file mode 100644
--- /dev/null
+++ b/tests/new.sh
@@ -0,0 +1 @@
+true
"""

SCRIPT = """\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff {base}
source /opt/miniconda3/bin/activate
conda activate testbed
python -m pip install -e .
git checkout {base} {restored}
git apply -v - <<'EOF_114329324912'
{test_patch}
EOF_114329324912
: '>>>>> Start Test Output'
{command}
: '>>>>> End Test Output'
git checkout {base} {restored}
"""


def git(folder: Path, *words: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "safe.directory=*"]
    return subprocess.run(
        ["git", *identity, *words],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def write_layers(root: Path) -> tuple[str, str]:
    """A checkout with the install step's commit on top of base; base, and the tree on top."""
    testbed = root / "source/testbed"
    for name, content in BASE.items():
        (testbed / name).parent.mkdir(parents=True, exist_ok=True)
        (testbed / name).write_text(content)
    git(testbed, "init", "-q", "-b", "main", "--template=", ".")
    git(testbed, "add", "-A", ".")
    git(testbed, "commit", "-q", "-m", "base")
    base = git(testbed, "rev-parse", "HEAD")
    (testbed / "tox.ini").write_text("verbose\n")
    git(testbed, "commit", "-q", "-a", "-m", "installed")
    exclude = root / "instance/testbed/.git/info/exclude"
    exclude.parent.mkdir(parents=True)
    exclude.write_text("")
    for name, content in PROGRAMS.items():
        folder = "bin" if name == "activate" else "envs/testbed/bin"
        path = root / "instance/opt/miniconda3" / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)
    return base, git(testbed, "rev-parse", "HEAD^{tree}")


class Project:
    """The packed project, and one evaluation of it."""

    def __init__(self, root: Path) -> None:
        idmap = current()
        trees = root / "trees"
        self.root = root
        self.base, self.head_tree = call_mapped(idmap, partial(write_layers, trees))
        if idmap.kind == "root":
            for path in (trees, *trees.rglob("*")):
                os.chown(path, idmap.host_uid(0), idmap.host_gid(0), follow_symlinks=False)
        self.store = Store(root / "store")
        self.node = NodeStore(root / "node", idmap)
        self.layers: list[LayerRef] = [
            self.store.add(kind, trees / kind, date=DATE, idmap=idmap)
            for kind in ("source", "instance")
        ]

    def start(self) -> Instance:
        return start_instance(
            self.layers,
            head_tree=self.head_tree,
            store=self.store,
            node=self.node,
            name="project",
        )

    def script(self, test_patch: str, *, restored: str = "", command: str = "") -> str:
        return SCRIPT.format(
            base=self.base,
            restored=restored,
            test_patch=test_patch,
            command=command or "runner tests/old.sh tests/new.sh",
        )

    def evaluate(
        self,
        patch: str,
        test_patch: str = ADDED,
        *,
        log: Path | None = None,
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
        **options: str,
    ) -> run_tests.TestOutput:
        with self.start() as instance:
            return run_script(
                instance,
                self.script(test_patch, **options),
                patch=patch,
                test_patch=test_patch,
                env=env or {},
                timeout=timeout,
                log_path=log or self.root / "log",
            )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    made = Project(tmp_path_factory.mktemp("project"))
    yield made
    remove_tree(made.node.root, made.node.idmap)
    remove_tree(made.root / "trees", made.node.idmap)


def reported(output: run_tests.TestOutput) -> list[str]:
    assert trouble(output, install=INSTALL) is None
    inside = output.log.partition(">>>>> Start Test Output")[2].partition(">>>>> End")[0]
    return [line for line in inside.splitlines() if line.startswith(("PASSED", "FAILED"))]


def test_a_bare_checkout_by_itself_loses_what_the_install_step_changed(project: Project) -> None:
    """The hazard is there: git drops the commit on top, and with it the runner's configuration."""
    with project.start() as instance:
        found = instance.run(f"git checkout -q {project.base} ; cat tox.ini", merge_stderr=True)
        assert found.stdout == b"plain\n"


def test_a_test_patch_that_only_adds_files_loses_no_change(project: Project) -> None:
    assert reported(project.evaluate(FIX)) == ["PASSED tests/old.sh", "PASSED tests/new.sh"]
    assert reported(project.evaluate("")) == ["PASSED tests/old.sh", "FAILED tests/new.sh"]


def test_the_log_shows_the_patch_and_ends_as_it_should(project: Project, tmp_path: Path) -> None:
    output = project.evaluate(FIX, log=tmp_path / "log")
    assert "\n+answer=42\n" in output.log
    assert (tmp_path / "log").read_bytes().decode() == output.log
    assert output.exit_code == 0


def test_a_patch_that_brings_the_tests_along_is_judged_by_the_trusted_ones(
    project: Project,
) -> None:
    output = project.evaluate(OWN_TESTS)
    assert reported(output) == ["PASSED tests/old.sh", "FAILED tests/new.sh"]
    assert reported(project.evaluate(FIX + OWN_TESTS))[1] == "PASSED tests/new.sh"


CHANGED = """\
diff --git a/tests/old.sh b/tests/old.sh
--- a/tests/old.sh
+++ b/tests/old.sh
@@ -1 +1 @@
-true
+. ./code.sh; [ $answer = 42 ]
"""
REMOVED = """\
diff --git a/tests/old.sh b/tests/old.sh
deleted file mode 100644
--- a/tests/old.sh
+++ /dev/null
@@ -1 +0,0 @@
-true
"""


@pytest.mark.parametrize(("patch", "word"), [(FIX, "PASSED"), ("", "FAILED"), (REMOVED, "FAILED")])
def test_test_files_are_restored_whatever_the_patch_did(
    project: Project, patch: str, word: str
) -> None:
    output = project.evaluate(patch, CHANGED, restored="tests/old.sh")
    assert reported(output) == [f"{word} tests/old.sh"]


def test_a_script_may_name_a_new_file_where_it_restores_some(project: Project) -> None:
    """As rows of SWE-bench 5 do: base lacks the file, and the restore in the end says so."""
    files = "tests/new.sh tests/old.sh"
    patch = OWN_TESTS + CHANGED.replace("$answer", "1").replace("42", "1")
    output = project.evaluate(patch, ADDED, restored=files)
    assert output.exit_code == 1
    refused = trouble(output, install=INSTALL)
    assert refused is not None
    assert refused.outcome == "incomplete"
    assert trouble(output, install=INSTALL, created=("tests/new.sh",)) is None
    assert "FAILED tests/new.sh" in output.log
    # A restore that fails for another reason as well is none.
    worse = project.evaluate("", ADDED, restored=f"{files} tests/gone.sh")
    assert trouble(worse, install=INSTALL, created=("tests/new.sh",)) is not None


#: All that the rest of the script would print, said by a test.
FORGED = (
    "echo PASSED tests/new.sh; "
    'echo "+ : \'"\'>>>>> End Test Output\'"\'"; echo "+ git checkout 0123 tests/old.sh"'
)


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({"command": "echo PASSED tests/new.sh; sleep 60", "timeout": 3}, "timeout"),
        ({"command": "echo PASSED tests/new.sh; kill -9 $$"}, "incomplete"),
        ({"command": "bash -c 'echo PASSED tests/new.sh; kill -9 $$'"}, "incomplete"),
        ({"command": 'echo "$no_such_variable"'}, "incomplete"),
        # The last command of the script, which only restores files, has to work as well.
        ({"command": "echo PASSED tests/new.sh; touch .git/index.lock"}, "incomplete"),
        ({"command": "echo '>>>>> End Test Output'; echo PASSED tests/new.sh"}, "suspect"),
        ({"command": "bash -c 'echo PASSED tests/new.sh; kill -HUP $PPID; sleep 9'"}, "incomplete"),
        ({"command": f"bash -c '{FORGED}; kill -HUP $PPID; sleep 9'"}, "incomplete"),
        # The shell reads its script as it goes: what is cut off is not run, and it ends with 0.
        ({"command": f"bash -c '{FORGED}; : > /eval.sh'"}, "suspect"),
        ({"command": "bash -c 'echo PASSED tests/new.sh; : > /eval.sh'"}, "incomplete"),
    ],
)
def test_a_run_that_was_cut_short_is_no_verdict(
    project: Project, options: dict[str, object], outcome: str
) -> None:
    output = project.evaluate(FIX, **options)  # type: ignore[arg-type]
    grade = trouble(output, install=INSTALL)
    assert grade is not None
    assert grade.outcome == outcome
    assert not grade.is_verdict


@pytest.mark.parametrize("env", [{}, {"PS4": "$ "}])
def test_nothing_that_the_script_starts_is_told_the_nonce(
    project: Project, env: Mapping[str, str]
) -> None:
    output = project.evaluate(
        FIX,
        env=env,
        command="env; tr '\\0' ' ' < /proc/$$/cmdline; tr '\\0' ' ' < /proc/$$/environ; "
        "cat /tmp/eval.start; bash -xc true; printf 'no line end'",
    )
    assert trouble(output, install=INSTALL) is None
    assert len(output.nonce) == 16
    assert "eval.start: No such file" in output.log
    tests = graded_part(output)
    assert "\n+ true\n" in tests
    assert f"no line end+{output.nonce} : '>>>>> End Test Output'\n" in tests
    said = [line for line in tests.splitlines() if output.nonce in line]
    assert all(f"+{output.nonce} " in line for line in said)
    assert sum(line.count(output.nonce) for line in said) == len(said)
    assert "PS4=+" not in tests


def test_a_patch_that_breaks_the_install_is_no_verdict(project: Project) -> None:
    broken = project.script(ADDED).replace("python -m pip", "false python -m pip")
    with project.start() as instance:
        output = run_script(
            instance,
            broken,
            patch=FIX,
            test_patch=ADDED,
            env={},
            timeout=60,
            log_path=project.root / "log",
        )
    grade = trouble(output, install=INSTALL)
    assert grade is not None
    assert grade.outcome == "install"


@pytest.mark.parametrize(
    "patch",
    [
        FIX,
        FIX.replace("@@ -1 +1 @@", "@@ -7 +7 @@"),  # at another line
        FIX.replace("diff --git a/code.sh b/code.sh\n", ""),
        FIX.rstrip("\n"),
    ],
)
def test_a_patch_is_applied_as_the_harness_does(project: Project, patch: str) -> None:
    assert reported(project.evaluate(patch))[1] == "PASSED tests/new.sh"


def test_a_patch_that_nothing_applies_is_said(project: Project) -> None:
    with pytest.raises(PatchFailed, match=r"code\.sh"):
        project.evaluate(FIX.replace("answer=41", "answer=0"))


#: Git would run it at the script's last step before the tests; as root, with all of the tree to
#: write to.
HOOK = """\
--- /dev/null
+++ b/.git/hooks/post-checkout
@@ -0,0 +1,2 @@
+#!/bin/sh
+printf 'true\\n' > tests/old.sh
"""
HOOK_BEHIND_A_LINK = """\
diff --git a/way b/way
new file mode 120000
--- /dev/null
+++ b/way
@@ -0,0 +1 @@
+.git
\\ No newline at end of file
""" + HOOK.replace(".git/", "way/")


#: To git no hunk of any file, and the reason why it refuses the patch before it looks at names.
NO_HUNK = "@@ -1,9999 +1,9999 @@\n"
#: What `patch` takes for two changes, of which the first ends with a line of content.
HOOK_AFTER_CONTEXT = f"""\
*** a/code.sh
--- b/code.sh
***************
*** 1 ****
  answer=41
--- 1,2 ----
  answer=41
+++ y
{NO_HUNK}{HOOK}"""
CONFIG = """\
- --- a/.git/config
+++ b/none
@@ -1 +1,2 @@
 [core]
+\thooksPath = /testbed/hooks
"""


@pytest.mark.parametrize(
    "patch",
    [
        HOOK,
        FIX + HOOK,
        NO_HUNK + HOOK,
        HOOK_BEHIND_A_LINK,
        NO_HUNK + HOOK_BEHIND_A_LINK,
        NO_HUNK + HOOK_BEHIND_A_LINK.replace("120000", "120777"),
        NO_HUNK + HOOK_BEHIND_A_LINK.replace("b/way/", "any//way/"),
        HOOK_AFTER_CONTEXT,
        CONFIG,
    ],
)
def test_a_patch_that_writes_hooks_is_not_applied(project: Project, patch: str) -> None:
    with project.start() as instance:
        configured = instance.read_file("/testbed/.git/config")
        with pytest.raises(PatchFailed, match=r"^patch does not apply: error: "):
            instance.apply_patch(patch)
        with pytest.raises(PatchFailed, match=r"^patch does not apply: error: "):
            run_script(
                instance,
                project.script(CHANGED, restored="tests/old.sh"),
                patch=patch,
                test_patch=CHANGED,
                env={},
                timeout=60,
                log_path=project.root / "log",
            )
        assert instance.read_file("/testbed/code.sh") == b"answer=41\n"
        assert instance.run("ls .git/hooks/post-checkout").exit_code != 0
        assert instance.read_file("/testbed/.git/config") == configured


#: Only `patch` takes the second half, whose context is not what the file says.
HALF_FUZZY = f"""{FIX}diff --git a/tox.ini b/tox.ini
--- a/tox.ini
+++ b/tox.ini
@@ -1,2 +1,3 @@
 another word
+added
 verbose
"""


def test_a_half_applied_patch_is_not_applied_to_again(project: Project) -> None:
    """`git apply --reject` leaves the halves that fit, and `patch --batch` then takes them back."""
    with project.start() as instance:
        instance.write_file("/tmp/patch", HALF_FUZZY)
        harness = (
            "git apply --verbose --reject /tmp/patch || patch --batch --fuzz=5 -p1 -i /tmp/patch"
        )
        assert instance.run(harness).exit_code == 0
        assert instance.read_file("/testbed/code.sh") == b"answer=41\n"
    output = project.evaluate(HALF_FUZZY, command="cat tox.ini; git status --porcelain; runner x")
    assert "\n+answer=42\n" in output.log
    assert "\n+added\n" in output.log
    assert ".orig" not in output.log
    assert ".rej" not in output.log


def test_a_checkout_that_cannot_be_prepared_says_nothing_of_the_patch(project: Project) -> None:
    elsewhere = project.script(ADDED).replace(project.base, "0" * 40)
    with project.start() as instance, pytest.raises(PreparationFailed, match="on top of 0000"):
        run_script(
            instance,
            elsewhere,
            patch=FIX,
            test_patch=ADDED,
            env={},
            timeout=60,
            log_path=project.root / "log",
        )


def test_lines_of_a_test_patch_may_end_as_they_like(project: Project) -> None:
    dos = ADDED.replace("[ $answer = 42 ]\n", "[ $answer = 42 ] #\r\n")
    assert "\r\n" in dos
    assert reported(project.evaluate(FIX, dos))[1] == "PASSED tests/new.sh"


def test_output_that_is_no_text_is_kept_byte_for_byte(project: Project, tmp_path: Path) -> None:
    log = tmp_path / "log"
    output = project.evaluate(
        FIX, log=log, command=r"printf '\342\n'; runner tests/old.sh tests/new.sh"
    )
    assert b"\n\xe2\n" in log.read_bytes()
    assert "\ufffd" in output.log
    assert reported(output)[1] == "PASSED tests/new.sh"


class Scripted:
    """Stands for the official code, with a script of one's own."""

    pin = PINS["swebench-4.1"]

    def __init__(self, script: str) -> None:
        self.script = script

    def test_specs(self, rows: object, **_: object) -> list[dict[str, object]]:
        return [{"eval_script": self.script, "test_spec": {}, "install": ""}]


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_script_with_the_line_ends_of_another_system_is_refused_loudly(
    project: Project, ends: str
) -> None:
    """B13: bash would look for tests in files whose names end in a carriage return."""
    script = project.script(ADDED).replace("\n", ends)
    task = Task(
        instance_id="one",
        repo="o/n",
        version="1",
        base_commit=project.base,
        test_patch=ADDED,
        fail_to_pass=("t",),
        pass_to_pass=(),
    )
    grader = OfficialGrader(cast("OfficialTool", Scripted(script)))
    found = grader.specify([task], mirrors={})["one"]
    if ends == "\n":
        assert isinstance(found, str)
    else:
        assert isinstance(found, GraderFailed)
        assert "CRLF" in str(found)
