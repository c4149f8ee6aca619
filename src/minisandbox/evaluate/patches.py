"""Reading unified diffs as git writes them, as far as the project needs to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from minisandbox.runtime.patchnames import unquoted

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def _lines_outside_of_hunks(patch: str) -> Iterator[str]:
    """Lines in which `patch` or git looks for headers.

    A hunk is one only below a header or another hunk: `patch` passes over an ``@@`` elsewhere, and
    over all that is no line of a hunk.
    """
    old = new = 0
    follows = False
    for line in patch.split("\n"):
        line = line.removesuffix("\r")
        if old > 0 or new > 0:
            sign = line[:1]
            if sign in ("-", "+", " ", "\t", "", "\\"):
                old -= sign not in ("+", "\\")
                new -= sign not in ("-", "\\")
                continue
            old = new = 0
        if follows and (match := _HUNK.match(line)) is not None:
            old, new = int(match[1] or 1), int(match[2] or 1)
            continue
        follows = line.startswith("+++ ") or (follows and line.startswith("\\"))
        yield line


def patched_paths(patch: str) -> tuple[str, ...]:
    """Every path the patch touches, old and new names alike, in order, without ``a/`` and ``b/``.

    Names come from the ``---``/``+++`` and ``rename`` lines, and from ``diff --git`` for changes
    that have neither (an empty file, a mode, a binary).
    """
    paths: dict[str, None] = {}
    in_hunk = 0
    header: str | None = None
    # Not splitlines(): a line of code may hold a form feed or U+2028.
    for line in patch.split("\n"):
        line = line.removesuffix("\r")
        if in_hunk > 0:
            in_hunk -= 1 if line[:1] in ("-", "+") else 2 if line[:1] in (" ", "") else 0
            continue
        if line.startswith("diff --git "):
            header = line.removeprefix("diff --git ")
            for path in _header_paths(header):
                paths.setdefault(path)
        elif line.startswith(("--- ", "+++ ")):
            name = unquoted(line[4:].split("\t")[0])
            if name != "/dev/null":
                paths.setdefault(_without_prefix(name))
        elif line.startswith(("rename from ", "rename to ", "copy from ", "copy to ")):
            paths.setdefault(unquoted(line.split(" ", 2)[2]))
        elif match := _HUNK.match(line):
            in_hunk = int(match[1] or 1) + int(match[2] or 1)
    return tuple(paths)


def created_paths(patch: str) -> tuple[str, ...]:
    """The paths that the patch makes, in order: those of which there is no old side."""
    made = _sides(patch).made
    return tuple(path for path in patched_paths(patch) if path in made)


def remaining_paths(patch: str) -> tuple[str, ...]:
    """The paths that the patch changes or makes, in order: without those that it takes away, and
    without those that it copies from.
    """
    old = _sides(patch).old
    return tuple(path for path in patched_paths(patch) if path not in old)


@dataclass(frozen=True)
class _Sides:
    """Paths of which there is one side alone: those that are ``made``, and those that are taken
    away or copied from.
    """

    made: set[str] = field(default_factory=set[str])
    old: set[str] = field(default_factory=set[str])


def _sides(patch: str) -> _Sides:
    found = _Sides()
    header, before = "", ""
    for line in _lines_outside_of_hunks(patch):
        after = line[4:].split("\t")[0] if line.startswith("+++ ") else ""
        if line.startswith("diff --git "):
            header = line.removeprefix("diff --git ")
        elif line.startswith("new file mode "):
            found.made.update(_header_paths(header))
        elif line.startswith("deleted file mode "):
            found.old.update(_header_paths(header))
        elif line.startswith(("rename to ", "copy to ")):
            found.made.add(unquoted(line.split(" ", 2)[2]))
        elif line.startswith(("rename from ", "copy from ")):
            found.old.add(unquoted(line.split(" ", 2)[2]))
        elif after.rstrip() == "/dev/null":
            found.old.add(_without_prefix(unquoted(before)))
        elif after and before == "/dev/null":
            found.made.add(_without_prefix(unquoted(after)))
        before = line[4:].split("\t")[0] if line.startswith("--- ") else ""
    return found


def _header_paths(header: str) -> tuple[str, ...]:
    """Both names of ``diff --git``; ambiguous only for renames, whose own lines name them again."""
    if header.startswith('"'):
        end = re.match(r'"(?:[^"\\]|\\.)*"', header)
        return (_without_prefix(unquoted(end[0])),) if end else ()
    middle = len(header) // 2
    first, second = header[:middle], header[middle + 1 :]
    if _without_prefix(first) == _without_prefix(second):
        return (_without_prefix(first),)
    return ()


def _without_prefix(name: str) -> str:
    return name[2:] if name[:2] in ("a/", "b/") else name
