"""Log parsers: every shape of line that test runners print, and none that raises."""

from __future__ import annotations

import pytest

from minisandbox.evaluate.logs import Status, parse_pytest, parse_unittest

SUMMARY = "=========================== short test summary info ============================\n"


@pytest.mark.parametrize(
    ("line", "name", "status"),
    [
        ("PASSED tests/a.py::test_x", "tests/a.py::test_x", Status.PASSED),
        ("PASSED tests/a.py::test_x[a - b]", "tests/a.py::test_x[a - b]", Status.PASSED),
        ("FAILED tests/a.py::test_x - assert 1 == 2", "tests/a.py::test_x", Status.FAILED),
        ("FAILED tests/a.py::test_x", "tests/a.py::test_x", Status.FAILED),
        ("FAILED tests/a.py::test_x[a - b] - why", "tests/a.py::test_x[a - b]", Status.FAILED),
        ("FAILED tests/a.py::test_x[a b] - why - not", "tests/a.py::test_x[a b]", Status.FAILED),
        ("ERROR tests/a.py - ImportError: no [x", "tests/a.py", Status.ERROR),
        ("XFAIL tests/a.py::test_x - known", "tests/a.py::test_x", Status.XFAIL),
        ("XPASS tests/a.py::test_x", "tests/a.py::test_x", Status.XPASS),
        (
            "\x1b[32mPASSED\x1b[0m tests/a.py::\x1b[1mtest_x\x1b[0m",
            "tests/a.py::test_x",
            Status.PASSED,
        ),
    ],
)
def test_pytest_lines(line: str, name: str, status: Status) -> None:
    assert parse_pytest(SUMMARY + line + "\n") == {name: status}


@pytest.mark.parametrize("line", ["FAILED", "ERROR", "PASSED ", "FAILED\t", "", "PASSEDx y", "…"])
def test_bare_status_words_are_ignored(line: str) -> None:
    assert parse_pytest(SUMMARY + line + "\n") == {}
    assert parse_unittest(line + "\n") == {}


def test_only_the_last_summary_counts() -> None:
    log = (
        "PASSED printed/by.py::a_test\n"
        + SUMMARY
        + "PASSED inner/run.py::of_pytester\n"
        + SUMMARY
        + "FAILED tests/a.py::test_x - no\n"
    )
    assert parse_pytest(log) == {"tests/a.py::test_x": Status.FAILED}


def test_no_summary_is_no_test() -> None:
    assert parse_pytest("PASSED tests/a.py::test_x\n") == {}


def test_the_worse_of_two_words_stands() -> None:
    log = SUMMARY + "PASSED t.py::x\nERROR t.py::x - teardown\nPASSED t.py::x\n"
    assert parse_pytest(log) == {"t.py::x": Status.ERROR}


def test_replaced_bytes_do_not_disturb() -> None:
    log = (SUMMARY + "PASSED t.py::x\n").encode() + b"\xe2 alone\n"
    assert parse_pytest(log.decode("utf-8", "replace")) == {"t.py::x": Status.PASSED}


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1e", "\x85", "\u2028"])
def test_unusual_separators_end_no_line(character: str) -> None:
    name = f"t.py::x[a{character}PASSED t.py::y]"
    assert parse_pytest(f"{SUMMARY}PASSED {name}\n") == {name: Status.PASSED}
    log = f"test_a (pkg.Case) ... printed{character}ok{character}FAIL by the test\nok\n"
    assert parse_unittest(log) == {"test_a (pkg.Case)": Status.PASSED}


def test_unittest_words_come_lines_later() -> None:
    log = (
        "test_a (pkg.tests.Case) ... ok\n"
        "test_b (pkg.tests.Case)\n"
        "A docstring instead of the name. ... FAIL\n"
        "test_c (pkg.tests.Case) ... System check identified no issues (0 silenced).\n"
        "ok\n"
        "test_d (pkg.tests.Case) ... skipped 'no database'\n"
        "test_e (pkg.tests.Case) ... expected failure\n"
        "======================================================================\n"
        "FAIL: test_b (pkg.tests.Case)\n"
        "----------------------------------------------------------------------\n"
        "ok\n"
    )
    assert parse_unittest(log) == {
        "test_a (pkg.tests.Case)": Status.PASSED,
        "test_b (pkg.tests.Case)": Status.FAILED,
        "test_c (pkg.tests.Case)": Status.PASSED,
        "test_d (pkg.tests.Case)": Status.SKIPPED,
        "test_e (pkg.tests.Case)": Status.XFAIL,
    }
