"""What the log of an official evaluation script shows besides tests: installing, markers, the end,
and who wrote that; and graders that cannot be installed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from minisandbox.errors import EXIT_FAILED, EXIT_TRANSIENT, ProcessFailed
from minisandbox.evaluate import run_tests
from minisandbox.evaluate.grading import GraderFailed, GraderUnavailable, Task
from minisandbox.evaluate.official import venv
from minisandbox.evaluate.official.grader import OfficialGrader
from minisandbox.evaluate.official.pins import PINS, Pin
from minisandbox.evaluate.official.script import trouble
from minisandbox.evaluate.official.tool import OfficialTool
from minisandbox.pipconfig import pip_settings

PIP = "python -m pip install -e ."
SETUP = "python setup.py build; python setup.py install"
WORKED = (
    "+ python -m pip install -e .\nObtaining file:///testbed\nSuccessfully installed flask-2.3.0\n"
)

#: What the shell's traces bear that the tests do not know.
NONCE = "n0nce"


def traced(said: str) -> str:
    """``said`` with the traces in it as the script's own shell writes them."""
    return re.sub(r"^\+ ", f"+{NONCE} ", said, flags=re.MULTILINE)


LOG = """\
+{nonce} source /opt/miniconda3/bin/activate
+{nonce} conda activate testbed
+{nonce} git -c core.fileMode=false diff 0123
{diff}
+{nonce} source /opt/miniconda3/bin/activate
+{nonce} conda activate testbed
{install}+{nonce} git checkout 0123 tests/test_a.py
Updated 0 paths from 0123
+{nonce} git apply -v -
{applied}
+{nonce} : '>>>>> Start Test Output'
+{nonce} pytest -rA tests/test_a.py
{tests}
+{nonce} : '>>>>> End Test Output'
+{nonce} git checkout 0123 tests/test_a.py
"""
PARTS = {
    "nonce": NONCE,
    "diff": "",
    "install": traced(WORKED),
    "applied": "Checking patch tests/test_a.py...\nApplied patch tests/test_a.py cleanly.",
    "tests": "PASSED tests/test_a.py::test_a",
}
UP_TO_INSTALL = LOG.partition("+{nonce} git checkout")[0]


def output(**parts: str) -> run_tests.TestOutput:
    log = LOG.format(**PARTS | parts)
    return run_tests.TestOutput(log, 0, False, False, seconds=2.0, nonce=NONCE)


@pytest.mark.parametrize(
    ("install", "said"),
    [
        (PIP, WORKED),
        (PIP, WORKED.replace("\nSuccess", "\n  Success")),
        (
            "python -m pip install -e .[test] --verbose",
            (
                "+ python -m pip install -e '.[test]' --verbose\n  + running egg_info\n"
                "Successfully installed astropy-5.0\n"
            ),
        ),
        (
            SETUP,
            (
                "+ python setup.py build\nrunning build\n+ python setup.py install\n"
                "running install\nFinished processing dependencies for matplotlib==3.0\n"
            ),
        ),
        (
            "pip install -e .\npip install pytest",
            (
                "+ pip install -e .\nObtaining file:///testbed\nSuccessfully installed x-1\n"
                "+ pip install pytest\nRequirement already satisfied: pytest in /opt (8.0)\n"
                "Requirement already satisfied: iniconfig in /opt (from pytest) (2.0)\n"
                "WARNING: Running pip as the 'root' user can break permissions\n"
            ),
        ),
        ("true", "+ true\n"),
        ("", ""),
    ],
)
def test_an_install_that_worked_is_no_trouble(install: str, said: str) -> None:
    assert trouble(output(install=traced(said)), install=install) is None


@pytest.mark.parametrize(
    ("install", "said", "reason"),
    [
        (PIP, "+ python -m pip install -e .\nERROR: No matching distribution\n", "No matching"),
        (PIP, "+ python -m pip install -e .\n", "does not say that it worked"),
        (PIP, "/eval.sh: line 12: python: command not found\n", "no trace of"),
        (
            "pip install a b",
            "+ pip install a b\nRequirement already satisfied: a in /opt (1)\nCollecting b\n",
            "Collecting b",
        ),
        (
            "pip install a b",
            "+ pip install a b\nRequirement already satisfied: a in /opt (1)\nERROR: no b\n",
            "ERROR: no b",
        ),
        (
            "pip install a b",
            (
                "+ pip install a b\nRequirement already satisfied: a in /opt (1)\n"
                "/eval.sh: line 9: 12 Killed                  pip install a b\n"
            ),
            "12 Killed",
        ),
        (
            PIP,
            (
                "+ python -m pip install -e .\n  File setup.py\nSyntaxError: invalid syntax\n"
                "note: see above\n"
            ),
            "SyntaxError: invalid syntax",
        ),
        (
            SETUP,
            (
                "+ python setup.py build\nrunning build\n+ python setup.py install\n"
                "error: can't find rustc\n"
            ),
            "can't find rustc",
        ),
        (
            "pip install a && pip install -e .",
            "+ pip install a\nSuccessfully installed a-1\n+ pip install -e .\nERROR: no\n",
            "ERROR: no",
        ),
        # What another command says does not count for it.
        (
            PIP,
            "+ python -m pip install -e .\nERROR: x\n+ cat notes\nSuccessfully installed y\n",
            "x",
        ),
    ],
)
def test_a_failed_install_is_no_verdict(install: str, said: str, reason: str) -> None:
    grade = trouble(output(install=traced(said)), install=install)
    assert grade is not None
    assert grade.outcome == "install"
    assert reason in grade.reason
    assert not grade.is_verdict


def test_what_installing_says_of_a_later_install_does_not_count() -> None:
    failed = traced("+ python -m pip install -e .\n") + "+ conda activate testbed\n" + WORKED
    grade = trouble(output(install=failed.replace("Successfully", "successfully")), install=PIP)
    assert grade is not None
    assert grade.outcome == "install"


def test_what_the_patch_or_the_tests_say_of_installing_does_not_count() -> None:
    failed = "+ python -m pip install -e .\nERROR: no\n"
    said = output(
        diff=WORKED, install=traced(failed), tests=WORKED + "PASSED tests/test_a.py::test_a"
    )
    grade = trouble(said, install=PIP)
    assert grade is not None
    assert grade.outcome == "install"


BEFORE_END, _, _REST = output().log.partition(f"\n+{NONCE} : '>>>>> End")
TO_THE_END = f"+{NONCE} : '>>>>> End{_REST}"
FORGED_START = "+ : '>>>>> Start Test Output'\n"
FORGED_END = TO_THE_END.replace(NONCE, "")
#: Both markers once, the last first.
AROUND = output().log.replace("Start", "x").replace(">> End", ">> Start").replace(">> x", ">> End")


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (output(), None),
        (replace(output(), exit_code=1), "incomplete"),
        (replace(output(), timed_out=True, exit_code=124), "timeout"),
        (replace(output(), truncated=True), "incomplete"),
        (replace(output(), exit_code=137), "incomplete"),
        (replace(output(), log=UP_TO_INSTALL.format(**PARTS)), "incomplete"),
        (replace(output(), exit_code=129), "incomplete"),
        (replace(output(), exit_code=139), "incomplete"),
        (replace(output(), exit_code=128), "incomplete"),
        (replace(output(), log=BEFORE_END), "incomplete"),
        (replace(output(), log=f"{BEFORE_END}\n{TO_THE_END}"), None),
        (replace(output(), log=BEFORE_END + TO_THE_END), None),  # no line end after the tests
        (replace(output(), log=f"{BEFORE_END}\n{TO_THE_END}".rpartition("\n+")[0]), "incomplete"),
        (replace(output(), log=f"{BEFORE_END}\n>>>>> End Test Output\n"), "suspect"),
        (replace(output(), log=f"{BEFORE_END}\n{FORGED_END}"), "suspect"),
        (replace(output(), log=AROUND), "suspect"),
        (output(install=traced(WORKED) + FORGED_START), "suspect"),
        (output(tests="/eval.sh: line 31:    12 Killed                  pytest -rA"), "incomplete"),
        (output(tests="it says /eval.sh: line 31: 12 Killed\nPASSED a"), None),
        (output(tests="x\n>>>>> End Test Output\nPASSED a"), "suspect"),
        (output(install=traced(WORKED) + ">>>>> Start Test Output\nPASSED a\n"), "suspect"),
        (output(applied="error: patch failed: tests/test_a.py:1"), "incomplete"),
        (output(diff="error: in a context line"), None),
    ],
)
def test_a_run_that_shows_a_broken_step_is_not_graded(
    run: run_tests.TestOutput, outcome: str | None
) -> None:
    grade = trouble(run, install=PIP)
    assert (grade and grade.outcome) == outcome
    assert grade is None or grade.reason


TASK = Task(
    instance_id="one",
    repo="pallets/flask",
    version="2.3",
    base_commit="0" * 40,
    test_patch="",
    fail_to_pass=("a",),
    pass_to_pass=(),
)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "no test spec"),
        ("[]", "no test spec"),
        (json.dumps({"grader": "swebench-5", "version": "5.0.0"}), "swebench-5 5.0.0"),
        (json.dumps({"grader": "swebench-4.1", "version": "4.1.1"}), "swebench-4.1 4.1.1"),
    ],
)
def test_a_spec_of_another_grader_is_refused(spec: str, said: str) -> None:
    grader = OfficialGrader(OfficialTool("swebench-4.1"))
    with pytest.raises(GraderFailed, match=said):
        grader.grade(replace(TASK, test_spec=spec), [output()])


@pytest.mark.parametrize("damage", [{"install": None}, {"test_spec": []}, {"eval_script": 1}])
def test_a_damaged_spec_is_refused(damage: dict[str, object]) -> None:
    saved = {"test_spec": {}, "eval_script": "", "install": ""} | damage
    spec = json.dumps({"grader": "swebench-4.1", "version": "4.1.0", **saved})
    with pytest.raises(GraderFailed, match=rf"damaged \({next(iter(damage))}\)"):
        OfficialGrader(OfficialTool("swebench-4.1")).grade(
            replace(TASK, test_spec=spec), [output()]
        )


NO_SPACE = "OSError: [Errno 28] No space left on device"


class Answering(OfficialTool):
    """A harness in which the tests that the log names passed."""

    def grade(self, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        def answer(log: str) -> Mapping[str, Any]:
            passed = ["a"] if "PASSED a" in log else []
            lists = {"FAIL_TO_PASS": {"success": passed}, "PASS_TO_PASS": {"success": []}}
            report = {"resolved": bool(passed), "tests_status": lists}
            return {"report": report, "passed": len(passed), "failed": 0}

        return [answer(item["log"]) for item in items]


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (output(tests="PASSED a\npy39: exit -9"), "resolved"),
        (output(tests="FAILED a\npy39: exit -9"), "incomplete"),
        (output(tests="FAILED a\npy39: exit 1"), "unresolved"),
        (replace(output(tests="FAILED a"), full="/"), "incomplete"),
        (replace(output(tests="PASSED a"), full="/"), "resolved"),
        # What the patch holds, and what installing printed, is not the tests'.
        (
            output(tests="FAILED a", diff=NO_SPACE),
            "unresolved",
        ),
        (replace(output(tests="PASSED a"), exit_code=128), "incomplete"),
    ],
)
def test_an_unresolved_run_that_the_machine_failed_is_no_verdict(
    run: run_tests.TestOutput, outcome: str
) -> None:
    saved = {"test_spec": {}, "eval_script": "", "install": PIP}
    spec = json.dumps({"grader": "swebench-4.1", "version": "4.1.0", **saved})
    grader = OfficialGrader(Answering("swebench-4.1"))
    other = output(tests="PASSED a")
    grades = grader.grade(replace(TASK, test_spec=spec), [other, run, other])
    assert [grade.outcome for grade in grades] == ["resolved", outcome, "resolved"]


def test_all_that_decides_verdicts_is_in_the_identity(tmp_path: Path) -> None:
    tool = OfficialTool("swebench-4.1")
    before = OfficialGrader(tool).identity
    assert set(before) == {"swebench", "requirements", "bridge", "method"}
    for file, part in (("requirements", "requirements"), ("bridge", "bridge")):
        changed = tmp_path / file
        changed.write_bytes(b"changed")
        tool.pin = replace(PINS["swebench-4.1"], **{file: str(changed)})
        after = OfficialGrader(tool).identity
        assert {name for name in before if before[name] != after[name]} == {part}


def test_every_pinned_package_has_hashes() -> None:
    for pin in PINS.values():
        text = pin.requirements_path.read_text(encoding="utf-8")
        entries = text.replace("\\\n", " ").splitlines()
        packages = [line for line in entries if line and not line.startswith("#")]
        assert f"{pin.distribution}=={pin.version} " in text
        assert all("==" in line and "--hash=sha256:" in line for line in packages)
        assert pin.bridge_path.is_file()


class Index(BaseHTTPRequestHandler):
    """Answers every request with one code, and nothing else."""

    code = 404

    def do_GET(self) -> None:
        self.send_response(self.code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_request(self, *arguments: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A package index that has nothing, as the one that pip is configured for."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
        monkeypatch.setenv("UV_NO_CACHE", "1")
        pip_settings.cache_clear()
        yield server
        pip_settings.cache_clear()
        server.shutdown()
        thread.join()


@pytest.fixture
def pin(tmp_path: Path) -> Pin:
    """A grader of one package, which no index has."""
    (tmp_path / "list.txt").write_text(f"no-such-grader==1 --hash=sha256:{'0' * 64}\n")
    return replace(PINS["swebench-4.1"], requirements=str(tmp_path / "list.txt"))


def test_an_index_without_the_packages_is_said_once_and_leaves_nothing(
    index: ThreadingHTTPServer, pin: Pin, tmp_path: Path
) -> None:
    said: list[str] = []
    with pytest.raises(GraderUnavailable, match="no-such-grader") as caught:
        venv.tool_python(pin, tmp_path, report=said.append)
    assert caught.value.exit_code == EXIT_FAILED
    assert len(said) == 1
    assert "\n" not in str(caught.value)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_an_index_that_is_not_there_may_be_there_later(
    index: ThreadingHTTPServer, pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.server_close()
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(GraderUnavailable) as caught:
        venv.tool_python(pin, tmp_path)
    assert caught.value.transient
    assert caught.value.exit_code == EXIT_TRANSIENT


def test_an_install_that_was_killed_may_work_later(
    pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(argv: Sequence[object], **_: object) -> None:
        raise ProcessFailed([str(word) for word in argv], -9, "")

    monkeypatch.setattr(venv.process, "run", killed)
    with pytest.raises(GraderUnavailable, match=r"killed by SIGKILL; was there memory\?") as caught:
        venv.tool_python(pin, tmp_path)
    assert caught.value.exit_code == EXIT_TRANSIENT


def test_an_install_into_a_full_disk_is_not_blamed_on_the_index(
    pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(argv: Sequence[object], **_: object) -> None:
        said = "error: failed to write `x`\n  Caused by: No space left on device (os error 28)"
        raise ProcessFailed([str(word) for word in argv], 2, said)

    monkeypatch.setattr(venv.process, "run", refused)
    with pytest.raises(GraderUnavailable, match="free some space") as caught:
        venv.tool_python(pin, tmp_path)
    assert "index" not in str(caught.value)
    assert not caught.value.transient


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EROFS, "can be written"), (errno.EACCES, "can be written"), (errno.ENOSPC, "space")],
)
def test_a_folder_that_cannot_be_used_is_said(
    pin: Pin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refused(*_: object) -> bool:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(venv.atomic, "ensure_directory", refused)
    with pytest.raises(GraderUnavailable, match=remedy) as caught:
        venv.tool_python(pin, tmp_path)
    assert os.strerror(number) in str(caught.value)
    assert not caught.value.transient
