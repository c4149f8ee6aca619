"""C1 C2 C3 C5, B7 B8 B12: what a validation says of an instance that must not be published, with
real runs of tests that want a network, a program, another date, or nothing at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from minisandbox.build.validation import clock, trials
from minisandbox.records.stages import (
    FAILURE_KINDS,
    INFRASTRUCTURE,
    Failure,
    FlakyTest,
    ValidationRecord,
)
from minisandbox.runtime import Instance, start_instance
from small_projects import SmallProject, difference, unittest_name

pytestmark = pytest.mark.timeout(180)

CODE = "ANSWER = {}\n"
FIX = difference("code41.py", CODE.format(41), CODE.format(42))
#: Needs the fix, and by itself nothing else.
TEST = (
    "import datetime, os, socket, subprocess, unittest\n\nimport code41\n\n\n"
    "class Test(unittest.TestCase):\n"
    "    def test_kept(self):\n        self.assertTrue(code41.ANSWER)\n\n"
    "    def test_fixed(self):\n        self.assertEqual(code41.ANSWER, 42)\n{}"
)
NAMES = ("test_fixed", "test_kept")
FIXED, KEPT = (unittest_name("test_code.Test", name) for name in NAMES)
LISTS = ((FIXED,), (KEPT,))


class Case:
    """The project, with further lines in the test that needs the fix."""

    def __init__(self, folder: Path) -> None:
        before = TEST.format("").replace("42", "code41.ANSWER")
        self.project = SmallProject(folder, {"code41.py": CODE.format(41), "test_code.py": before})
        self.before = before

    def validate(
        self, line: str = "", *, after: str | None = None, **options: Any
    ) -> ValidationRecord:
        text = after or TEST.format(f"        {line}\n" if line else "")
        return self.project.validate(
            patch=options.pop("patch", FIX),
            test_patch=difference("test_code.py", self.before, text),
            **options,
        )


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "node"))
    made = Case(tmp_path)
    yield made
    made.project.close()


def test_a_good_instance_is_ok(case: Case) -> None:
    record = case.validate()
    assert record.status == "ok", record.failure
    assert (record.fail_to_pass, record.pass_to_pass) == ((FIXED,), (KEPT,))


@pytest.mark.parametrize(
    ("line", "kind", "named"),
    [
        ("subprocess.run(['no-such-sendmail', '-t'])", "program", "no-such-sendmail"),
        ("subprocess.run('no-such-sendmail', shell=True, check=True)", "program", "sendmail"),
        ("socket.create_connection(('httpbin.org', 80), 9)", "network", "for want of a network"),
        ("socket.create_connection(('192.0.2.1', 80), 9)", "network", "for want of a network"),
        # Shown to be something else: by a look into the sandbox, by an assertion.
        ("print('sh: 1: git: not found'); self.fail()", "gold-unresolved", FIXED),
        ("self.fail('Network is unreachable')", "gold-unresolved", FIXED),
        ("raise OSError('certificate has expired')", "gold-unresolved", "the date is suspected"),
    ],
)
def test_what_the_failing_tests_want_is_the_reason(
    case: Case, line: str, kind: str, named: str
) -> None:
    failure = failed(case.validate(line, lists=LISTS))
    assert failure.kind == kind
    assert named in f"{failure.message}; {failure.hint}"
    assert FIXED in failure.message
    assert failure.log_tail


def test_it_is_the_reason_only_if_it_is_that_of_every_failing_test(case: Case) -> None:
    line = "subprocess.run(['no-such-sendmail'])"
    text = TEST.format(f"        {line}\n").replace("self.assertTrue(code41.ANSWER)", "self.fail()")
    failure = failed(case.validate(after=text, lists=LISTS))
    assert failure.kind == "gold-unresolved"
    assert "2 tests" in failure.message
    assert "1 of them for want of a program" in failure.hint


def test_a_row_without_lists_has_the_same_reason(case: Case) -> None:
    failure = failed(case.validate("subprocess.run(['no-such-sendmail', '-t'])"))
    assert (failure.kind, "no-such-sendmail" in failure.message) == ("program", True)


@pytest.mark.parametrize("lists", [None, LISTS])
def test_tests_that_cannot_be_collected_did_not_pass(case: Case, lists: Any) -> None:
    failure = failed(case.validate(after="import no_such_module\n", lists=lists))
    assert failure.kind in ("collection", "derive")
    assert "no_such_module" in failure.log_tail
    assert lists is None or (failure.kind, FIXED in failure.message) == ("collection", True)


def test_an_instance_that_asks_for_nothing_is_refused(case: Case) -> None:
    record = case.validate(lists=((KEPT,), ()))
    assert failed(record).kind == "empty-resolved"
    assert record.empty is not None
    assert record.empty.resolved


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("os.kill(os.getpid(), 9)", "incomplete"),
        ("os.system('kill -9 $PPID')", "incomplete"),
        ("__import__('time').sleep(600)", "timeout"),
    ],
)
def test_a_run_that_was_cut_short_says_nothing_of_the_instance(
    case: Case, line: str, kind: str
) -> None:
    record = case.validate(line, lists=LISTS, timeout=5, runs=1 if kind == "incomplete" else 2)
    failure = failed(record)
    assert failure.kind == kind
    assert record.runs == 1  # nothing is run again after one that took too long
    assert kind in INFRASTRUCTURE


YEAR = "self.assertLess(datetime.date.today().year, 2020)"


def test_a_date_is_the_reason_where_a_run_at_that_date_shows_it(case: Case) -> None:
    record = case.validate(YEAR, lists=LISTS, created_at="2019-05-05T10:00:00Z")
    failure = failed(record)
    assert (failure.kind, record.dated_at) == ("time", "2019-05-05")
    assert "2019-05-05" in failure.message
    assert record.dated is not None
    assert record.dated.resolved
    assert record.again is not None
    assert record.again.failing == (FIXED,)


def test_the_date_of_a_recipe_serves_as_well(case: Case) -> None:
    record = case.validate(YEAR, lists=LISTS, date="2018-01-01")
    assert (failed(record).kind, record.dated_at) == ("time", "2018-01-01")


@pytest.mark.parametrize(
    ("line", "created_at", "said"),
    [
        (YEAR, "", "see "),
        (YEAR, "yesterday, I think", "see "),
        (YEAR, "2021-05-05T10:00:00", "no better with the clock at 2021-05-05"),
        ("self.fail()", "2019-05-05", "no better with the clock at 2019-05-05"),
    ],
)
def test_no_date_is_guessed(case: Case, line: str, created_at: str, said: str) -> None:
    record = case.validate(line, lists=LISTS, created_at=created_at)
    failure = failed(record)
    assert failure.kind == "gold-unresolved"
    assert said in failure.hint
    assert record.again is None


def test_a_base_without_a_compiler_is_said(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_COMPILER", "no-such-compiler")
    failure = failed(case.validate(YEAR, lists=LISTS, created_at="2019-05-05T10:00:00Z"))
    assert failure.kind == "gold-unresolved"
    assert "another date could not be tried: the base has no C compiler" in failure.hint


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sandbox is told by RUN which it is, from 1: chance that a test can count on."""
    numbers = itertools.count(1)

    def start(*arguments: Any, env: Mapping[str, str], **options: Any) -> Instance:
        return start_instance(*arguments, env={**env, "RUN": str(next(numbers))}, **options)

    monkeypatch.setattr(trials, "start_instance", start)


def in_run(*numbers: int) -> str:
    return f"self.assertNotIn(os.environ['RUN'], {[str(number) for number in numbers]})"


@pytest.mark.usefixtures("numbered")
def test_tests_that_come_out_the_same_are_not_flaky(case: Case) -> None:
    record = case.validate(lists=LISTS, runs=3)
    assert record.status == "ok", record.failure
    assert (record.runs, record.flaky, len(record.repeats)) == (3, (), 4)
    assert len({run.log for run in record.repeats}) == 4


@pytest.mark.usefixtures("numbered")
def test_an_instance_whose_runs_contradict_each_other_is_not_ok(case: Case) -> None:
    record = case.validate(in_run(4), lists=LISTS, runs=3)  # the second with the gold patch
    failure = failed(record)
    assert failure.kind == "flaky"
    assert FIXED in failure.message
    assert "2 of 3 runs are resolved" in failure.message
    assert record.flaky == (FlakyTest(FIXED, gold=(2, 3), empty=(0, 3)),)
    assert record.gold is not None
    assert (record.gold.resolved, record.gold.log) == (False, failure.hint.removeprefix("see "))


@pytest.mark.usefixtures("numbered")
def test_a_flaky_test_that_decides_no_run_is_named_all_the_same(case: Case) -> None:
    text = TEST.format("").replace("self.assertTrue(code41.ANSWER)", in_run(3))
    record = case.validate(after=text, lists=LISTS, runs=3)  # the second without a patch
    assert record.status == "ok", record.failure
    assert record.flaky == (FlakyTest(KEPT, gold=(3, 3), empty=(2, 3)),)


@pytest.mark.usefixtures("numbered")
def test_a_run_that_the_lists_came_from_is_one_more(case: Case) -> None:
    record = case.validate(in_run(4))  # passes in the second, from which the lists are
    assert failed(record).kind == "flaky"
    assert record.flaky == (FlakyTest(FIXED, gold=(1, 2), empty=(0, 1)),)


@pytest.mark.usefixtures("numbered")
def test_what_passes_by_chance_at_another_date_is_not_a_matter_of_dates(case: Case) -> None:
    record = case.validate(in_run(2), lists=LISTS, created_at="2019-05-05T10:00:00Z")
    failure = failed(record)
    assert failure.kind == "flaky"
    assert "run again, all of them pass" in failure.message


def failed(record: ValidationRecord) -> Failure:
    assert record.failure is not None
    assert record.failure.kind in FAILURE_KINDS
    return record.failure
