"""A ``requirements.txt`` as lines that can be handed to pip or uv as arguments.

The format is that of pip's documentation ("Requirements File Format"): comments, lines that go on
after a backslash, options of their own and options behind a requirement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement

from minisandbox.build.planning.conda.matchspec import LONGEST
from minisandbox.errors import InvalidInput

_COMMENT = re.compile(r"(^|\s+)#.*$")
_OPTIONS_BEHIND = re.compile(r"\s+--?[A-Za-z].*$")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+(\s*;.*)?")
_PATH = re.compile(
    r"\.{0,2}/.*|\.\.?(\[.*\])?|file:.*|[^\s@]*\.(whl|zip|tar\.gz|tar\.bz2)", re.ASCII
)

_PATH_REASON = "a path: the environment is built before the repository is there"
_EDITABLE = "editable: the install command of the recipe installs the repository"
_FILE = "another file: put its lines in here"
_INDEX = "the pipeline says where packages come from"
_OPTION_REASONS: Mapping[str, str] = {
    "-e": _EDITABLE,
    "--editable": _EDITABLE,
    "-r": _FILE,
    "--requirement": _FILE,
    "-c": _FILE,
    "--constraint": _FILE,
    "-i": _INDEX,
    "--index-url": _INDEX,
    "--extra-index-url": _INDEX,
    "-f": _INDEX,
    "--find-links": _INDEX,
    "--no-index": _INDEX,
}


def from_requirements(text: str, *, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The requirement lines as they are written, in order, and what was dropped with its reason.

    A line that is a bare URL (``git+https://...``) is kept: pip and uv take it, though PEP 508 does
    not. Raises ``InvalidInput`` with the number of the line that is neither.
    """
    kept: dict[str, None] = {}
    dropped: list[str] = []
    for number, line in _logical_lines(text):
        requirement, lost = split_line(line, where=f"{where} line {number}")
        if requirement:
            kept[requirement] = None
        dropped += lost
    return tuple(kept), tuple(dropped)


def split_line(line: str, *, where: str) -> tuple[str, tuple[str, ...]]:
    """The requirement of one line ("" if it has none) and what was dropped of it.

    Raises ``InvalidInput``.
    """
    if line.startswith("-"):
        return "", (f"{line} ({_option_reason(line)})",)
    options = _OPTIONS_BEHIND.search(line)
    if options is not None:
        line, behind = line[: options.start()], options[0].strip()
        requirement, lost = split_line(line, where=where)
        return requirement, (*lost, f"{behind} behind {line} (an option for this line only)")
    # First: the address of an archive ends like a path.
    if _URL.fullmatch(line) and not line.startswith("file:"):
        return line, ()
    if _PATH.fullmatch(line):
        return "", (f"{line} ({_PATH_REASON})",)
    try:
        requirement = Requirement(line if len(line) <= LONGEST else "")
    except (InvalidRequirement, RecursionError):  # for a marker in hundreds of brackets
        raise InvalidInput(
            where,
            f"{line[:LONGEST]!r} is not a requirement (PEP 508)",
            "write it like 'numpy>=1.19,<2'",
        ) from None
    if requirement.url is not None and requirement.url.startswith("file:"):
        return "", (f"{line} ({_PATH_REASON})",)
    return line, ()


def _option_reason(line: str) -> str:
    # "-rdev.txt" and "--requirement=dev.txt" are allowed too.
    option = re.split(r"[\s=]", line, maxsplit=1)[0] if line.startswith("--") else line[:2]
    return _OPTION_REASONS.get(option, "an option of pip")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, joined where a backslash ends them, with the number of the first."""
    pending, first = "", 0
    # The empty line ends a last one that wants to go on.
    for number, line in enumerate([*text.removeprefix("\ufeff").splitlines(), ""], 1):
        first = first or number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            pending += line[:-1].strip() + " "
            continue
        whole, pending = _COMMENT.sub("", pending + line.strip()).strip(), ""
        if whole:
            yield first, whole
        first = 0
