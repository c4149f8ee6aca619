"""Test logs to statuses per test. A parser never raises on odd input: what it cannot read, it does
not report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum


class Status(StrEnum):
    """What a test runner said of one test."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    ERROR = "ERROR"
    XFAIL = "XFAIL"
    XPASS = "XPASS"
    SKIPPED = "SKIPPED"


#: Expected failures count as passes, as they do for the official graders.
PASSING = frozenset({Status.PASSED, Status.XFAIL})
FAILING = frozenset({Status.FAILED, Status.ERROR})

#: When a test is reported twice (setup error after a pass, say) the worse word stands.
_WORSE = (Status.PASSED, Status.XFAIL, Status.SKIPPED, Status.XPASS, Status.FAILED, Status.ERROR)

Statuses = Mapping[str, Status]
Parser = Callable[[str], dict[str, Status]]

_SUMMARY = re.compile(r"^=+ short test summary info =+\s*$")
_PYTEST_LINE = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) (\S.*)$")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_UNITTEST_LINE = re.compile(r"^(?P<name>\S+ \([\w.]+\))(?P<rest>.*)$")
_UNITTEST_STATUS = re.compile(
    r"(?:^|\.\.\. )(ok|FAIL|ERROR|skipped .*|expected failure|unexpected success)\s*$"
)


def _lines(log: str) -> list[str]:
    """Lines as terminals have them; splitlines() would end one at a form feed or U+2028 as well."""
    return log.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def parse_pytest(log: str) -> dict[str, Status]:
    """Statuses from the summary that ``pytest -rA`` prints, by node id.

    Only lines after the last summary header count: with ``-rA`` the captured output of passing
    tests comes before it and may hold anything. Skipped tests are reported there without their id,
    so they are absent.
    """
    lines = [_ANSI.sub("", line) for line in _lines(log)]
    start = max((i for i, line in enumerate(lines) if _SUMMARY.match(line)), default=None)
    statuses: dict[str, Status] = {}
    if start is None:
        return statuses
    for line in lines[start + 1 :]:
        match = _PYTEST_LINE.match(line)
        if match is None:
            continue
        status = Status(match[1])
        name = match[2].rstrip() if status is Status.PASSED else _node_id(match[2])
        _report(statuses, name, status)
    return statuses


def _node_id(text: str) -> str:
    """The id in ``<id> - <message>``: up to the first separator that leaves its brackets
    balanced.
    """
    opened = counted = 0
    position = text.find(" - ")
    while position != -1:
        # On from the separator before: a test may print a line of nothing else.
        opened += text.count("[", counted, position) - text.count("]", counted, position)
        if opened <= 0:
            return text[:position].rstrip()
        counted, position = position, text.find(" - ", position + 1)
    return text.rstrip()


def parse_unittest(log: str) -> dict[str, Status]:
    """Statuses from ``python -m unittest -v``: ``test_name (module.Class)``, whatever stands before
    the word.

    The word may come lines later, after a docstring or what the test printed; it belongs to the
    last test that was announced.
    """
    words = {
        "ok": Status.PASSED,
        "FAIL": Status.FAILED,
        "ERROR": Status.ERROR,
        "expected failure": Status.XFAIL,
        "unexpected success": Status.XPASS,
    }
    statuses: dict[str, Status] = {}
    current: str | None = None
    for line in _lines(log):
        if line.startswith(("====", "----")):
            current = None
            continue
        announced = _UNITTEST_LINE.match(line)
        if announced is not None:
            current = announced["name"]
        status = _UNITTEST_STATUS.search(line)
        if current is not None and status is not None:
            word = status[1]
            _report(
                statuses, current, Status.SKIPPED if word.startswith("skipped") else words[word]
            )
            current = None
    return statuses


def _report(statuses: dict[str, Status], name: str, status: Status) -> None:
    before = statuses.get(name)
    if before is None or _WORSE.index(status) > _WORSE.index(before):
        statuses[name] = status


#: Log parsers by the name that recipes use.
PARSERS: Mapping[str, Parser] = {"pytest": parse_pytest, "unittest": parse_unittest}
