"""Why tests fail, read from logs of real runners."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minisandbox.evaluate.causes import MAX_LINES, Cause, FailureLog, missing_program, tail_of
from minisandbox.evaluate.logs import PARSERS

PYTEST = """
import os, socket, ssl, subprocess

import pytest


def test_bare():
    subprocess.run(["no-such-sendmail", "-t"])


def test_shell():
    subprocess.run("no-such-sendmail -t", shell=True, check=True)


def test_status():
    raise subprocess.CalledProcessError(127, ["no-such-sendmail", "-t"])


@pytest.fixture
def mailer():
    subprocess.run(["/usr/sbin/no-such-sendmail"])


def test_setup(mailer):
    pass


def test_local_program():
    subprocess.run(["./build/tool"])


def test_file():
    open("no-such-file")


class TestHosts:
    @pytest.mark.parametrize("host", ["nowhere.invalid", "a b"])
    def test_lookup(self, host):
        raise socket.gaierror(-3, "Temporary failure in name resolution")


def test_url():
    raise OSError("HTTPConnectionPool(host='httpbin.org', port=80): Network is unreachable")


def test_curl():
    print("curl: (6) Could not resolve host: example.org")
    assert False


def test_about_networks():
    message = "Network is unreachable"
    assert message == "no route"


def test_certificate():
    raise ssl.SSLError("certificate verify failed: certificate has expired")


def test_fine():
    print("sh: 1: no-such-sendmail: not found")
"""
UNITTEST = '''
import socket, subprocess, unittest


class Test(unittest.TestCase):
    def test_program(self):
        subprocess.run(["no-such-sendmail"])

    def test_described(self):
        """Sends a mail."""
        subprocess.run(["no-such-sendmail"])

    def test_network(self):
        raise socket.gaierror(-2, "Name or service not known")

    def test_value(self):
        self.assertEqual(1, 2)
'''


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def run_pytest(folder: Path, *words: str) -> str:
    return run(folder, "pytest", "-rA", "-p", "no:cacheprovider", "-p", "no:randomly", *words)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("project")
    (folder / "test_a.py").write_text(PYTEST)
    (folder / "test_b.py").write_text("import no_such_module\n")
    return run_pytest(folder, "--continue-on-collection-errors", "test_a.py", "test_b.py")


@pytest.mark.parametrize(
    ("test", "kind", "what"),
    [
        ("test_bare", "program", "no-such-sendmail"),
        ("test_shell", "program", "no-such-sendmail"),
        ("test_status", "program", "no-such-sendmail"),
        ("test_setup", "program", "/usr/sbin/no-such-sendmail"),
        ("TestHosts::test_lookup[nowhere.invalid]", "network", ""),
        ("TestHosts::test_lookup[a b]", "network", ""),
        ("test_url", "network", "httpbin.org"),
        ("test_curl", "network", "example.org"),
    ],
)
def test_what_a_failing_test_wants_is_seen(log: str, test: str, kind: str, what: str) -> None:
    found = FailureLog(log).cause(f"test_a.py::{test}")
    assert found is not None
    assert (found.kind, found.what) == (kind, what)
    assert found.line in log


@pytest.mark.parametrize(
    "test",
    [
        "test_local_program",  # of the project: not one that a system could have
        "test_file",
        "test_about_networks",
        "test_certificate",
        "test_fine",
        "test_that_is_not_there",
    ],
)
def test_what_only_sounds_like_it_is_not(log: str, test: str) -> None:
    assert FailureLog(log).cause(f"test_a.py::{test}") is None


def test_a_module_that_cannot_be_imported(log: str, tmp_path: Path) -> None:
    line = "E   ModuleNotFoundError: No module named 'no_such_module'"
    assert FailureLog(log).cause("test_b.py::test_x") == Cause("collection", "test_b.py", line)
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    (tmp_path / "test_b.py").write_text("import no_such_module\n")
    interrupted = FailureLog(run_pytest(tmp_path, "test_a.py", "test_b.py"))
    assert interrupted.cause("test_b.py::test_x") == Cause("collection", "test_b.py", line)
    other = interrupted.cause("test_a.py::test_a")
    assert other is not None
    assert (other.kind, "Interrupted: 1 error" in other.line) == ("collection", True)
    assert interrupted.whole() == Cause("collection", "test_b.py", line)


def test_a_module_that_cannot_be_imported_for_want_of_something(tmp_path: Path) -> None:
    (tmp_path / "test_b.py").write_text("import subprocess\nsubprocess.run(['no-such-tool'])\n")
    found = FailureLog(run_pytest(tmp_path, "test_b.py")).cause("test_b.py::test_x")
    assert found is not None
    assert (found.kind, found.what) == ("program", "no-such-tool")


@pytest.mark.parametrize("target", ["no_such_file.py", "test_a.py::test_none"])
def test_tests_that_are_not_there_are_not_collected(tmp_path: Path, target: str) -> None:
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    found = FailureLog(run_pytest(tmp_path, target)).whole()
    assert found is not None
    assert found.kind == "collection"


def test_unittest(tmp_path: Path) -> None:
    (tmp_path / "test_u.py").write_text(UNITTEST)
    (tmp_path / "test_b.py").write_text("import no_such_module\n")
    text = run(tmp_path, "unittest", "-v", "test_u", "test_b")
    log = FailureLog(text)
    reported = {name.split()[0]: name for name in PARSERS["unittest"](text)}
    kinds = {name: log.cause(reported[name]) for name in reported if name != "test_b"}
    assert {name: cause and (cause.kind, cause.what) for name, cause in kinds.items()} == {
        "test_program": ("program", "no-such-sendmail"),
        "test_described": ("program", "no-such-sendmail"),
        "test_network": ("network", ""),
        "test_value": None,
    }
    # By the name that Python before 3.11 gives it, too.
    assert log.cause("test_network (test_u.Test)") == kinds["test_network"]
    found = log.cause("test_x (test_b.Test)")
    line = "ModuleNotFoundError: No module named 'no_such_module'"
    assert found == Cause("collection", "test_b", line)


def test_a_title_with_the_file_before_the_name() -> None:
    """As sympy's runner writes it; its tests are known by name alone."""
    text = (
        "____ sympy/core/tests/test_x.py:test_mail ____\nTraceback (most recent call last):\n"
        '  File "subprocess.py", line 1, in _execute_child\n'
        "FileNotFoundError: [Errno 2] No such file or directory: 'maxima'\n"
    )
    found = FailureLog(text).cause("test_mail")
    assert found is not None
    assert (found.kind, found.what) == ("program", "maxima")


@pytest.mark.parametrize(
    "said",
    [
        "/bin/sh: 1: maxima: not found",
        "bash: line 3: maxima: command not found",
        "./run.sh: line 3: maxima: command not found",
        "/usr/bin/env: ‘maxima’: No such file or directory",
        "env: maxima: No such file or directory",
        "error: command 'maxima' failed: No such file or directory",
        "unable to execute 'maxima': No such file or directory",
    ],
)
def test_a_program_that_is_not_there(said: str) -> None:
    found = missing_program(f"before\n{said}\nafter\n")
    assert found is not None
    assert (found.what, found.line) == ("maxima", said)


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: module: not found",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data'",
        "cat: maxima: No such file or directory",
        "assert 'sh: 1: maxima: not found' in output",
    ],
)
def test_what_is_no_program_that_is_not_there(said: str) -> None:
    assert missing_program(f"before\n{said}\nafter\n") is None


def test_the_lines_that_decide_are_few_and_short(log: str) -> None:
    names = [f"test_a.py::test_{name}" for name in ("file", "about_networks", "shell")]
    lines = FailureLog(log).decisive(names).split("\n")
    assert len(lines) == 3
    assert (
        lines[0] == "E       FileNotFoundError: [Errno 2] No such file or directory: 'no-such-file'"
    )
    assert lines[1].startswith("E ")
    assert lines[2].endswith("no-such-sendmail: not found")
    assert FailureLog("a\n" * 50).decisive(["gone"]).count("\n") == MAX_LINES - 1
    assert max(map(len, tail_of("x" * 5000).split("\n"))) <= 300


def test_an_expired_certificate_is_only_suspected(log: str) -> None:
    assert FailureLog(log).cause("test_a.py::test_certificate") is None
    assert "has expired" in FailureLog(log).expired(["test_a.py::test_certificate"])
    assert FailureLog(log).expired(["test_a.py::test_file"]) == ""
