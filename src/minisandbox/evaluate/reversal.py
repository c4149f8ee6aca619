"""A unified diff the other way round: `git apply --reverse` as a patch of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_HUNK = re.compile(r"@@ -(?P<old>\d+(?:,\d+)?) \+(?P<new>\d+(?:,\d+)?) @@(?P<rest>.*)", re.DOTALL)
_INDEX = re.compile(r"index (?P<old>[0-9a-f]+)\.\.(?P<new>[0-9a-f]+)(?P<rest>.*)", re.DOTALL)
#: Words of git's extended headers, and those that say the same of the other side: alone they change
#: places, of two that come together the values do.
_ALONE = {"new file mode ": "deleted file mode ", "deleted file mode ": "new file mode "}
_TOGETHER = {
    "old mode ": "new mode ",
    "new mode ": "old mode ",
    "rename from ": "rename to ",
    "rename to ": "rename from ",
}
_BINARY_PART = re.compile(r"(?:literal|delta) \d+\r?")


def reverse(patch: str) -> str:
    """The patch that takes ``patch`` back.

    Raises ``ValueError`` with the reason for one that has no reverse: a binary change without
    content, a copy, a text that is no diff.
    """
    lines = patch.split("\n")
    if not any(line.startswith(("@@ -", "diff --git ")) for line in lines):
        raise ValueError("it is no unified diff")
    parts: list[list[str]] = [[]]
    for line in _reversed_hunks(lines):
        if line.startswith("diff --git ") and parts[-1]:
            parts.append([])
        parts[-1].append(line)
    return "\n".join(line for part in parts for line in _with_headers(part))


def _reversed_hunks(lines: list[str]) -> Iterator[str]:
    """``lines`` with the content of all hunks reversed. Lines of content bear a mark before them,
    which keeps them from being read as headers.
    """
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if (hunk := _HUNK.fullmatch(line)) is not None:
            end = _end_of_hunk(lines, position, hunk)
            yield f"@@ -{hunk['new']} +{hunk['old']} @@{hunk['rest']}"
            yield from (f"\0{content}" for content in _reversed(lines[position:end]))
            position = end
        elif line.rstrip("\r") == "GIT binary patch":
            there, position = _binary_part(lines, position)
            back, position = _binary_part(lines, position)
            yield line
            yield from (f"\0{content}" for content in (*back, *there))
        elif line.startswith("Binary files ") and line.rstrip("\r").endswith(" differ"):
            raise ValueError("it says that a binary file differs, and not how")
        elif line.startswith(("copy from ", "copy to ")):
            raise ValueError("it copies a file")
        else:
            yield line


def _end_of_hunk(lines: list[str], start: int, hunk: re.Match[str]) -> int:
    old, new = (int(hunk[side].partition(",")[2] or 1) for side in ("old", "new"))
    position = start
    while old > 0 or new > 0:
        sign = lines[position][:1] if position < len(lines) else "?"
        if sign not in ("-", "+", " ", "", "\r", "\\") or position >= len(lines):
            raise ValueError(f"the hunk {hunk[0][:60]!r} is shorter than it says")
        old -= sign not in ("+", "\\")
        new -= sign not in ("-", "\\")
        position += 1
    while position < len(lines) and lines[position].startswith("\\"):
        position += 1
    return position


def _reversed(lines: list[str]) -> Iterator[str]:
    """Lines of a hunk with their signs swapped; of each run of changes what goes comes first."""
    gone: list[str] = []
    come: list[str] = []
    into = None
    for line in lines:
        sign = line[:1]
        if sign == "\\":  # belongs to the line before it
            if into is None:
                yield line
            else:
                into.append(line)
            continue
        if sign in ("-", "+"):
            into = gone if sign == "+" else come
            into.append(("-" if sign == "+" else "+") + line[1:])
            continue
        yield from (*gone, *come)
        gone, come, into = [], [], None
        yield line
    yield from (*gone, *come)


def _binary_part(lines: list[str], start: int) -> tuple[list[str], int]:
    if start >= len(lines) or not _BINARY_PART.fullmatch(lines[start]):
        raise ValueError("a binary change in it cannot be taken back")
    end = start
    while end < len(lines) and lines[end].rstrip("\r"):
        end += 1
    return lines[start : end + 1], end + 1


def _with_headers(part: list[str]) -> Iterator[str]:
    """The lines of one file's change with its headers reversed, and the marks taken away."""
    said = {word: line.removeprefix(word) for line in part if (word := _word(line, _TOGETHER))}
    before = ""
    for line, following in zip(part, [*part[1:], ""], strict=True):
        if line.startswith("\0"):
            yield line[1:]
        elif line.startswith("diff --git ") and "rename from " in said and "rename to " in said:
            old, new = (said[f"rename {way} "].rstrip("\r") for way in ("to", "from"))
            yield f"diff --git {_prefixed('a/', old)} {_prefixed('b/', new)}"
        elif (index := _INDEX.fullmatch(line)) is not None:
            yield f"index {index['new']}..{index['old']}{index['rest']}"
        elif line.startswith("--- ") and following.startswith("+++ "):
            before = line[4:]
            yield f"--- {_side(following[4:], 'b/', 'a/')}"
        elif line.startswith("+++ ") and before:
            yield f"+++ {_side(before, 'a/', 'b/')}"
            before = ""
        elif (word := _word(line, _ALONE)) is not None:
            yield _ALONE[word] + line.removeprefix(word)
        elif (word := _word(line, _TOGETHER)) is not None:
            yield word + said.get(_TOGETHER[word], line.removeprefix(word))
        else:
            yield line


def _word(line: str, words: Mapping[str, str]) -> str | None:
    return next((word for word in words if line.startswith(word)), None)


def _side(name: str, prefix: str, other: str) -> str:
    """A file name of one side as the other side writes it."""
    for quote in ("", '"'):
        if name.startswith(quote + prefix):
            return quote + other + name.removeprefix(quote + prefix)
    return name


def _prefixed(prefix: str, name: str) -> str:
    return f'"{prefix}{name[1:]}' if name.startswith('"') else prefix + name
