"""A6 A7 A8, B1 B7 B9 B10 B11 B12 B14 B15 B16: what an agent leaves behind, and what its patch does
to the tests, the runner or the grader, changes no verdict but by solving the task.

By the recipe's own test command; test_grading_evaluation_script.py has the same of official
scripts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox.evaluate.grading import Grade, GraderFailed, LogGrader
from minisandbox.evaluate.judging import Judgement, judge
from minisandbox.runtime import Cache, profile_of
from small_projects import SmallProject, difference, unittest_name
from waiting import eventually

pytestmark = pytest.mark.timeout(120)

WRONG, RIGHT = "def answer():\n    return 41\n", "def answer():\n    return 42\n"
OLD = "import unittest\n\nimport code41\n\n\nclass Old(unittest.TestCase):\n{}"
KEPT = "    def test_kept(self):\n        self.assertTrue(code41.answer())\n"
WANTED = "    def test_wanted(self):\n        self.assertEqual(code41.answer(), 42)\n"
FIX = difference("code41.py", WRONG, RIGHT)
BASE = OLD.format(KEPT)

KEPT_NAME = unittest_name("test_old.Old", "test_kept")
WANTED_NAME = unittest_name("test_old.Old", "test_wanted")
NEW_NAME = unittest_name("test_new.Old", "test_wanted")


class Bench:
    """The project with a hidden test in a file that is there, or in one that is not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = SmallProject(folder, {"code41.py": WRONG, "test_old.py": BASE})
        self.log = folder / "tests.log"
        self.only_new = False
        self.changes: dict[str, object] = {}

    @property
    def cache(self) -> Cache:
        if self.only_new:
            patch, wanted = difference("test_new.py", None, OLD.format(WANTED)), NEW_NAME
        else:
            patch, wanted = difference("test_old.py", BASE, OLD.format(KEPT + WANTED)), WANTED_NAME
        return self.project.cache(
            test_patch=patch,
            FAIL_TO_PASS=(wanted,),
            PASS_TO_PASS=(KEPT_NAME,),
            **self.changes,
        )

    def judge(self, patch: str) -> Judgement:
        cache = self.cache
        return judge(cache, cache.row("small-1"), patch=patch, log_path=self.log)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "node"))
    made = Bench(tmp_path)
    yield made
    made.project.close()


def outcome(judgement: Judgement) -> str:
    return judgement.grade.outcome


EASY = OLD.format(
    "    def test_wanted(self):\n        pass\n\n    def test_kept(self):\n        pass\n"
)


@pytest.mark.parametrize(
    "cheat",
    [
        difference("test_old.py", BASE, EASY),
        difference("test_old.py", BASE, None),
        difference("test_old.py", BASE, "raise SystemExit(0)\n"),
    ],
    ids=["edits", "deletes", "replaces"],
)
def test_edited_tests_are_the_trusted_ones_again(bench: Bench, cheat: str) -> None:
    assert outcome(bench.judge(cheat)) == "unresolved"
    assert outcome(bench.judge(FIX + cheat)) == "resolved"


@pytest.mark.parametrize("only_new", [False, True])
def test_an_empty_patch_solves_nothing_and_the_fix_does(bench: Bench, only_new: bool) -> None:
    bench.only_new = only_new
    assert outcome(bench.judge("")) == "unresolved"
    assert outcome(bench.judge(FIX)) == "resolved"


def test_a_file_where_the_test_patch_makes_one_gives_way(bench: Bench) -> None:
    bench.only_new = True
    own = difference("test_new.py", None, EASY)
    assert outcome(bench.judge(own)) == "unresolved"
    assert outcome(bench.judge(FIX + own)) == "resolved"


def test_a_test_patch_that_only_adds_files_leaves_all_changes(bench: Bench) -> None:
    bench.only_new = True
    more = difference("notes.txt", None, "mine\n")
    bench.changes = {"test_command": "cat notes.txt; python3 -m unittest -v"}
    judgement = bench.judge(FIX + more)
    assert outcome(judgement) == "resolved"
    assert judgement.output is not None
    assert judgement.output.log.startswith("mine\n")


def test_tests_that_are_not_reported_did_not_pass(bench: Bench) -> None:
    judgement = bench.judge(difference("code41.py", WRONG, "def answer(:\n"))
    assert outcome(judgement) == "unresolved"
    assert judgement.grade.failing == (WANTED_NAME, KEPT_NAME)
    assert (judgement.grade.fail_to_pass, judgement.grade.pass_to_pass) == ((0, 1), (0, 1))


def test_a_log_is_of_no_terminal_and_not_cut_at_columns(bench: Bench) -> None:
    name = "test_" + "long" * 60
    looks = (
        "import os, sys; assert not any(os.isatty(n) for n in range(3)); "
        f"print('{name} (m.T) ... ok')"
    )
    bench.changes = {
        "test_command": f'COLUMNS=80 python3 -c "{looks}"; COLUMNS=80 python3 -m unittest -v 2>&1'
    }
    judgement = bench.judge(FIX)
    assert outcome(judgement) == "resolved"
    assert judgement.output is not None
    assert f"{name} (m.T) ... ok" in judgement.output.log.splitlines()


def test_a_byte_that_is_no_text_ends_no_grading(bench: Bench) -> None:
    noise = "head -c 420000 /dev/zero | tr '\\0' x; printf '\\342\\n'"
    bench.changes = {"test_command": f"{noise}; python3 -m unittest -v"}
    judgement = bench.judge(FIX)
    assert outcome(judgement) == "resolved"
    assert judgement.output is not None
    assert "\ufffd" in judgement.output.log
    assert bench.log.read_bytes()[420000:420001] == b"\xe2"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", "incomplete"),
        ("import time; time.sleep(600)", "timeout"),
    ],
)
def test_a_suite_that_ran_in_part_is_no_verdict(bench: Bench, line: str, said: str) -> None:
    bench.changes = {"test_timeout": 4}
    cut = RIGHT.replace("return", f"{line}\n    return")
    judgement = bench.judge(difference("code41.py", WRONG, cut))
    assert outcome(judgement) == said
    assert not judgement.grade.is_verdict


def test_what_isolates_the_tests_is_a_part_of_what_they_were_validated_in(bench: Bench) -> None:
    row = bench.cache.row("small-1")
    nested = replace(row, nested=True)
    assert profile_of(row).digest() != profile_of(nested).digest()
    bench.changes = {"test_command": "unshare -U true && echo may; python3 -m unittest -v"}
    for allowed in (False, True):
        bench.changes |= {"nested": allowed}
        judgement = bench.judge(FIX)
        assert outcome(judgement) == "resolved"
        assert judgement.output is not None
        assert judgement.output.log.startswith("may\n") == allowed


def test_a_grader_that_crashes_is_no_reward_of_zero(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> tuple[Grade, ...]:
        raise GraderFailed("log", "small-1", "it raised IndexError on line 3")

    monkeypatch.setattr(LogGrader, "grade", crash)
    judgement = bench.judge(FIX)
    assert outcome(judgement) == "grader"
    assert not judgement.grade.is_verdict
    assert "IndexError" in judgement.grade.reason


#: An agent that is not to be stopped: edits the tree at every moment, in sessions of its own.
STUBBORN = """\
trap '' TERM INT HUP
edit() { trap '' TERM INT HUP; while :; do echo "def answer(): return $RANDOM" > code41.py; \
date +%N > /tmp/heartbeat; sleep 0.02; done; }
printf 'def answer():\\n    return 42\\n' > code41.py
touch started
edit & (setsid bash -c "$(declare -f edit); edit" &) ; python3 -c "
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            open('/testbed/late.txt', 'a').write('x')
            time.sleep(0.02)
"
wait
"""


def test_an_agent_that_ran_out_of_time_is_dead_before_its_tree_is_taken(bench: Bench) -> None:
    with bench.cache.materialize("small-1") as instance:
        mark = f"mark-{secrets.token_hex(8)}"
        result = instance.run(["/bin/bash", "-c", STUBBORN, mark], timeout=2)
        assert result.timed_out
        assert not running(mark)
        look = "cat code41.py /tmp/heartbeat; wc -c late.txt; ls started"
        first = instance.run(look)
        assert first.exit_code == 0, "it did start"
        time.sleep(0.5)
        assert instance.run(look).stdout == first.stdout
        assert instance.run("ls -d /proc/[0-9]*").stdout_text.count("/proc/") <= 4
        # What is on disk is graded as if the agent had said that it was done.
        instance.write_file("code41.py", RIGHT)
        patch = instance.diff().decode()
    assert outcome(bench.judge(patch)) == "resolved"


def test_what_an_agent_left_running_does_not_reach_the_grading(bench: Bench) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    with bench.cache.materialize("small-1") as instance:
        agent = instance.popen(["/bin/bash", "-c", STUBBORN, mark])
        assert eventually(lambda: running(mark))
        assert eventually(lambda: instance.run("test -e late.txt").exit_code == 0)
        # It works on while the verdict on another tree is found: that one is not its own.
        assert outcome(bench.judge(FIX)) == "resolved"
        assert outcome(bench.judge("")) == "unresolved"
        assert agent.poll() is None
    assert not running(mark)


def running(mark: str) -> bool:
    """Whether any process of this machine has ``mark`` in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                return True
        except OSError:
            continue  # it has ended
    return False


def test_what_the_tests_leave_running_does_not_change_the_log(bench: Bench) -> None:
    """The log lies outside, and is complete when the verdict is told."""
    noisy = RIGHT.replace(
        "return",
        "import os, subprocess\n"
        "    subprocess.Popen(['setsid', 'bash', '-c', "
        f"'while :; do echo \"{WANTED_NAME} ... FAIL\"; sleep 0.05; done'], stdin=-3)\n"
        "    return",
    )
    bench.changes = {
        "test_command": f"test ! -e {bench.log} && test ! -e {bench.folder} && "
        "python3 -m unittest -v"
    }
    judgement = bench.judge(difference("code41.py", WRONG, noisy))
    kept = bench.log.read_bytes()
    assert judgement.output is not None
    assert len(kept) > 0
    time.sleep(0.5)
    assert bench.log.read_bytes() == kept
    assert kept.decode("utf-8", "replace") == judgement.output.log
