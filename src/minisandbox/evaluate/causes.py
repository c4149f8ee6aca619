"""Why tests fail that should not, as far as their log shows: a system program that is not there, a
network that is not there, a module that cannot be collected.

A log may hold any word, and a test may be about such failures. So only the part of the log that is
about a failing test counts, and in it only lines of the form in which programs at fault end: the
last line of a traceback, or the complaint of a shell. What no line shows has no cause here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

CauseKind = Literal["program", "network", "collection"]

#: Lines of a log that a record quotes, and how much of each.
MAX_LINES = 12
_MAX_LINE = 300

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PROGRAM = r"(?P<program>[\w./+-]*[\w+])"
#: How shells, make, `env`, and what runs compilers say that a program is not there; the margin of
#: pytest may stand before it.
_NOT_FOUND = (
    re.compile(rf"^(?:E +)?\S+: (?:line \d+: )?{_PROGRAM}: command not found$", re.MULTILINE),
    re.compile(rf"^(?:E +)?(?:\S+: \d+|\S*sh): {_PROGRAM}: not found$", re.MULTILINE),
    re.compile(rf"^(?:E +)?make(?:\[\d+\])?: {_PROGRAM}: No such file or directory$", re.MULTILINE),
    re.compile(
        rf"^(?:E +)?\S*env: [‘'\"]?{_PROGRAM}[’'\"]?: No such file or directory$", re.MULTILINE
    ),
    re.compile(
        rf"^.*\b(?:command '{_PROGRAM}' failed: No such file or directory"
        rf"|unable to execute '(?P<compiler>[\w./+-]+)': No such file or directory).*$",
        re.MULTILINE,
    ),
    re.compile(
        rf"^(?:E +)?\S*CalledProcessError: Command '(?:\[')?{_PROGRAM}\b.* "
        r"returned non-zero exit status 127\.$",
        re.MULTILINE,
    ),
)
#: Python's word for it, which is also that for a file: only where a process was to be started.
_NO_FILE = re.compile(
    rf"^(?:E +)?FileNotFoundError: \[Errno 2\] No such file or directory: '{_PROGRAM}'$",
    re.MULTILINE,
)
_STARTS_PROCESS = re.compile(r"\bsubprocess\.py\b|\b_execute_child\b|\bos\.(?:exec|posix_spawn)")
#: Where programs of the system are; elsewhere it is a file that the project should have made.
_SYSTEM = ("/bin/", "/sbin/", "/usr/")

_UNREACHED = (
    r"(?:Temporary failure in name resolution|Name or service not known"
    r"|No address associated with hostname|[Cc]ould not resolve host(?:name)?\b"
    r"|unable to resolve host|Failed to resolve '|Network is unreachable|No route to host)"
)
_NETWORK = re.compile(
    r"^(?:E +)?(?!AssertionError)"
    r"(?:[\w.]*(?:Error|gaierror|Exception|Timeout|herror)|curl|wget|fatal|ssh|git|pip|ERROR)"
    rf"\b.*{_UNREACHED}.*$",
    re.MULTILINE,
)
_HOST = re.compile(
    r"host='(?P<a>[^']+)'|resolve '(?P<b>[^']+)'|resolve host(?:name)?:? '?(?P<c>[\w.-]+\w)"
    r"|://(?P<d>[\w.-]+)"
)
_EXPIRED = re.compile(
    r"^.*(?:certificate has expired|certificate is not yet valid|certificate expired).*$",
    re.MULTILINE | re.IGNORECASE,
)

#: A title in a line of underscores (pytest, sympy); a line of them with spaces between is none.
_TITLE = re.compile(r"^_+ (?P<title>[^_ \n].*?|_?[A-Za-z].*?) _+$")
_AT = re.compile(r"^ERROR at (?:setup|teardown) of ")
_COLLECTING = re.compile(r"^ERROR collecting (\S+)")
_CHAPTER = re.compile(r"^=+ .* =+$|^-{70}$|^={70}$")
_UNITTEST = re.compile(r"^(?:ERROR|FAIL): (?P<title>.+)$")
_REPORTED = re.compile(r"^(?:FAILED|ERROR) (?P<name>\S.*?) - (?P<said>.+)$", re.MULTILINE)
_UNCOLLECTED = re.compile(r"^ERROR (?P<path>[^\s:]+\.py)(?: - .*)?$", re.MULTILINE)
_NO_COLLECTION = re.compile(
    r"^.*(?:Interrupted: \d+ errors? during collection|ImportError while loading conftest ).*$"
    r"|^ERROR: (?:not found|file or directory not found): .*$",
    re.MULTILINE,
)
_FAILED_IMPORT = re.compile(r"(?P<module>[\w.]+) \(unittest\.loader\._FailedTest")
_RAISED = re.compile(r"^(?:E +)?[A-Za-z_][\w.]*(?:Error|Exception|Exit|Failed|Warning)\b.*$")


@dataclass(frozen=True)
class Cause:
    """What ``line`` of a log shows; ``what`` is the program, the host (if it is told), or the
    module.
    """

    kind: CauseKind
    what: str
    line: str


class FailureLog:
    """What a test command printed, taken apart into what is about each test."""

    def __init__(self, tests: str) -> None:
        self._text = _ANSI.sub("", tests).replace("\r\n", "\n")
        self._parts: dict[str, list[str]] = defaultdict(list)
        for title, text in _parts(self._text):
            self._parts[title].append(text)
            path, _, name = title.rpartition(":")
            if path.endswith(".py"):  # sympy's runner, whose tests go by their names alone
                self._parts[name].append(text)
        self._said = {found["name"]: found["said"] for found in _REPORTED.finditer(self._text)}

    def cause(self, test: str) -> Cause | None:
        """Why ``test`` failed; ``None`` if the log does not show it."""
        own = self._about(test)
        if own:
            return _shown("\n".join(own))
        return self._uncollected(test)

    def causes(self, failing: Sequence[str]) -> Mapping[str, Cause]:
        """The cause of each of ``failing`` for which there is one."""
        found = ((test, self.cause(test)) for test in failing)
        return {test: cause for test, cause in found if cause is not None}

    def whole(self) -> Cause | None:
        """Why the command reported no test at all."""
        if self._not_collected:
            return self._collecting(self._not_collected[0])
        if self._cut:
            return Cause("collection", "", self._cut)
        last = "\n".join(self._text.rstrip().split("\n")[-MAX_LINES:])
        return missing_program(last)

    def expired(self, failing: Sequence[str]) -> str:
        """A line about a failing test that makes the date suspect, or nothing."""
        for test in failing:
            if (found := _EXPIRED.search("\n".join(self._about(test)))) is not None:
                return _line(found[0])
        return ""

    def decisive(self, failing: Sequence[str]) -> str:
        """The lines that say most of why ``failing`` fail, else the last ones."""
        lines: dict[str, None] = {}
        for test in failing:
            if len(lines) >= MAX_LINES:
                break
            cause = self.cause(test)
            shown = cause.line if cause else self._raised(test)
            if shown:
                lines[shown] = None
        return "\n".join(lines) or tail_of(self._text)

    def _raised(self, test: str) -> str:
        for part in self._about(test):
            said = [line for line in part.split("\n") if line.strip()]
            raised = [line for line in said if _RAISED.match(line) or line.startswith("E  ")]
            if said:
                return _line((raised or said)[-1])
        return ""

    def _about(self, test: str) -> list[str]:
        """The parts of the log under the test's name, and what the summary says of it."""
        names = _titles_of(test)
        own = [text for name in names for text in self._parts.get(name, ())]
        path = test.partition("::")[0]
        # Tests of one name in two files: what names the file is meant, if anything does.
        own = [text for text in own if "::" in test and path in text] or own
        return [*own, *([self._said[test]] if test in self._said else [])]

    def _uncollected(self, test: str) -> Cause | None:
        path = test.partition("::")[0]
        if path in self._not_collected:
            return self._collecting(path)
        for module, text in self._not_imported.items():
            if _is_of(test, module):
                return _shown(text) or Cause("collection", module, _last_raised(text))
        if self._cut:
            # Nothing ran, for the sake of modules that are not this test's.
            return Cause("collection", "", self._cut)
        return None

    @cached_property
    def _cut(self) -> str:
        """The line that tells that no test was run at all."""
        found = _NO_COLLECTION.search(self._text)
        return _line(found[0]) if found is not None else ""

    @cached_property
    def _not_collected(self) -> Sequence[str]:
        """Files of tests that pytest could not collect."""
        found = [match[1] for title in self._parts if (match := _COLLECTING.match(title))]
        return [*found, *(match["path"] for match in _UNCOLLECTED.finditer(self._text))]

    @cached_property
    def _not_imported(self) -> Mapping[str, str]:
        """Modules that unittest could not import, and what it says of each."""
        return {
            found["module"]: "\n".join(texts)
            for title, texts in self._parts.items()
            if (found := _FAILED_IMPORT.match(title))
        }

    def _collecting(self, path: str) -> Cause:
        parts = self._parts.get(f"ERROR collecting {path}", [])
        text = "\n".join(parts)
        said = _UNCOLLECTED.search(self._text) if not parts else None
        line = _last_raised(text) or (_line(said[0]) if said else "")
        return _shown(text) or Cause("collection", path, line)


def missing_program(said: str) -> Cause | None:
    """The program that ``said`` (what a failing command or test printed) shows to be missing."""
    for form in _NOT_FOUND:
        if (found := form.search(said)) is not None:
            program = next(filter(None, found.groupdict().values()))
            return Cause("program", program, _line(found[0]))
    found = _NO_FILE.search(said)
    if found is None or not _STARTS_PROCESS.search(said):
        return None
    program = found["program"]
    if "/" in program and not program.startswith(_SYSTEM):
        return None
    return Cause("program", program, _line(found[0]))


def tail_of(text: str, lines: int = MAX_LINES) -> str:
    """The last lines of a log, each cut to a length that a table can hold."""
    return "\n".join(_line(line) for line in text.strip().split("\n")[-lines:])


def _shown(said: str) -> Cause | None:
    if (program := missing_program(said)) is not None:
        return program
    if (found := _NETWORK.search(said)) is not None:
        host = _HOST.search(found[0])
        what = next(filter(None, host.groups()), "") if host else ""
        return Cause("network", what, _line(found[0]))
    return None


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Every part of a log that is about one thing, with its title."""
    title, lines = "", list[str]()
    underlined = passed = False
    for line in text.split("\n"):
        if line.startswith("=") and (chapter := re.fullmatch(r"=+ (.*) =+", line)) is not None:
            passed = chapter[1] == "PASSES"  # pytest shows what these printed, too
        found = None if passed else _TITLE.match(line)
        unittest = _UNITTEST.match(line) if underlined else None
        if underlined or found is not None or (_CHAPTER.match(line) and not _opens(title, lines)):
            if title:
                yield title, "\n".join(lines)
            title, lines = "", []
        if found is not None:
            title = _AT.sub("", found["title"])
        elif unittest is not None:
            title = unittest["title"]
        elif title:
            lines.append(line)
        underlined = line == "=" * 70
    if title:
        yield title, "\n".join(lines)


def _opens(title: str, lines: Sequence[str]) -> bool:
    """Whether the heading of a unittest failure is not over: its line of dashes, after the name and
    perhaps a docstring.
    """
    return bool(title) and len(lines) <= 1


def _titles_of(test: str) -> frozenset[str]:
    """What runners write above the failure of a test."""
    _, separator, inside = test.partition("::")
    names = {test}
    if separator:
        base, bracket, parameters = inside.partition("[")
        names.add(base.replace("::", ".") + bracket + parameters)
    elif (found := re.fullmatch(r"(\w+) \(([\w.]+)\)", test)) is not None:
        names.add(f"{found[1]} ({found[2]}.{found[1]})")  # from Python 3.11 on
        if found[2].endswith(f".{found[1]}"):
            names.add(f"{found[1]} ({found[2].removesuffix('.' + found[1])})")
    return frozenset(names)


def _is_of(test: str, module: str) -> bool:
    """Whether a unittest's name is of ``module``, which the loader names as it was asked for."""
    found = re.search(r"\(([\w.]+)\)$", test)
    return found is not None and f".{module}." in f".{found[1]}."


def _last_raised(text: str) -> str:
    raised = [line for line in text.split("\n") if _RAISED.match(line)]
    return _line(raised[-1]) if raised else ""


def _line(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _MAX_LINE else text[: _MAX_LINE - 1] + "…"
