"""What shows that the machine failed the tests: how runners, shells and system programs write it,
where they write it, and what only sounds like it.
"""

from __future__ import annotations

from typing import cast

import pytest

from minisandbox.evaluate import run_tests
from minisandbox.evaluate.grading import LogGrader, Task
from minisandbox.evaluate.outages import outage
from minisandbox.evaluate.run_tests import full_folder
from minisandbox.runtime import Instance
from minisandbox.sandbox import Result

SUMMARY = "=== short test summary info ===\n"


@pytest.mark.parametrize(
    "line",
    [
        "py39: exit -9",
        "py39: exit -9 (3.21 seconds) /testbed> pytest -rA tests pid=71",
        "py39: exit 137 (3.21 seconds) /testbed> sh -c pytest pid=71",
        "  py39: FAIL code -9 (3.62=setup[0.41]+cmd[3.21] seconds)",
        "ERROR: InvocationError for command .tox/py39/bin/pytest (exited with code -9 (SIGKILL))",
        "ERROR: InvocationError for command pytest -rA (exited with code -15)",
        "make: *** [Makefile:3: test] Error 137",
        "make[1]: *** [test] Killed",
        "Killed",
        "run.sh: line 3:    71 Killed                  pytest -rA",
        "\x1b[31mpy39: exit -9\x1b[0m",
        "py39: exit -9\r",
        "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 28] No space left on device: '/testbed/x'",
        "E       OSError: [Errno 28] No space left on device",
        "cp: error writing '/testbed/y': No space left on device",
        "/bin/sh: 1: echo: I/O error: No space left on device",
        "fatal: sha1 file '/testbed/.git/index.lock' write error: No space left on device",
    ],
)
def test_what_the_machine_did_is_seen(line: str) -> None:
    found = outage(f"collected 2 items\n{line}\n1 failed\n")
    assert found is not None
    assert found in line.replace("\x1b[31m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "py39: exit 1 (3.21 seconds) /testbed> pytest -rA tests pid=71",
        "py39: exit -11 (3.21 seconds) /testbed> pytest -rA tests pid=71",  # its own fault
        "ERROR: InvocationError for command pytest -rA (exited with code 1)",
        "make: *** [Makefile:3: test] Error 2",
        "make: *** [Makefile:3: test] Error 139",
        "PASSED tests/test_x.py::test_killed",
        "FAILED tests/test_x.py::test_exit - assert 'py39: exit -9' == 'py39: exit 0'",
        "E   AssertionError: assert 'Killed' in 'OSError: [Errno 28] No space left on device'",
        "E   assert [] == ['OSError: [Errno 28] No space left on device']",
        "FAILED t.py::test_full - OSError: [Errno 28] No space left on device!",
        "Killed by the test",
        "test_no_space_left_on_device (tests.Full) ... FAIL",
    ],
)
def test_what_only_sounds_like_it_is_not(line: str) -> None:
    assert outage(f"collected 2 items\n{line}\n1 failed\n") is None


def test_what_tests_say_of_processes_of_their_own_is_not_a_runners_summary() -> None:
    assert outage("py39: exit -9\n" + "FAILED t::a\n" * 12) is None


TASK = Task(
    instance_id="one",
    repo="owner/name",
    version="1",
    base_commit="0" * 40,
    test_patch="",
    fail_to_pass=("t::a",),
    pass_to_pass=(),
)


@pytest.mark.parametrize(
    ("said", "full", "outcome"),
    [
        ("PASSED t::a\npy39: exit -9\n", "", "resolved"),
        ("PASSED t::a\n", "/tmp", "resolved"),
        ("FAILED t::a\n", "", "unresolved"),
        ("FAILED t::a\npy39: exit -9\n", "", "incomplete"),
        ("FAILED t::a\n", "/tmp", "incomplete"),
        ("", "/", "incomplete"),
    ],
)
def test_only_an_unresolved_run_is_taken_back(said: str, full: str, outcome: str) -> None:
    run = run_tests.TestOutput(SUMMARY + said, 1, False, False, seconds=1.0, full=full)
    (found,) = LogGrader("pytest", "tox").grade(TASK, [run])
    assert found.outcome == outcome
    assert bool(found.reason) == (outcome == "incomplete")
    assert full in found.reason or outcome == "resolved"


class Answering:
    """An instance in which every command prints the same."""

    def __init__(self, said: str) -> None:
        self.said = said

    def run(self, command: object, **options: object) -> Result:
        return Result(self.said.encode(), b"0 0 9 0\n", 0, 0.1)


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ("99999 4096 500 400\n99999 4096 500 400\n", ""),
        ("255 4096 500 400\n99999 4096 500 400\n", "/"),
        ("99999 4096 500 400\n0 4096 500 400\n", "/tmp"),
        ("99999 4096 500 0\n99999 4096 500 400\n", "/"),
        ("99999 4096 0 0\n99999 4096 500 400\n", ""),  # inodes are not counted there
        ("", ""),
        ("what?\n1 2\n-1 x y z\n", ""),
    ],
)
def test_a_full_file_system_is_told_from_one_that_does_not_say(said: str, full: str) -> None:
    assert full_folder(cast("Instance", Answering(said))) == full
