"""Reading unified diffs as git writes them, as far as the project needs to."""

from __future__ import annotations

import re
from collections.abc import Iterator

_QUOTED = re.compile(rb'\\([0-7]{3}|[abfnrtv"\\])')
_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
}

#: How git and `patch` are told of a file: of headers, also those of other kinds of diffs, indented
#: as in a mail.
_NAMING = re.compile(
    r"\s*(?:---|\+\+\+|\*\*\*|Index:|diff --git|(?:rename|copy) (?:from|to))\s+(.*)"
)
_QUOTED_NAME = re.compile(r'"(?:[^"\\]|\\.)*"')
_IN_GIT = re.compile(r"""(?:^|[/\s])\.git(?:$|[/\s])""", re.IGNORECASE)
_LINK_MODE = re.compile(r"\s*(?:new file mode|new mode) 120000\b")
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def outside_of_tree(patch: str) -> str | None:
    """Why no program may be asked to apply ``patch``: a path of it lies in a ``.git``, or behind a
    link that the patch makes; ``None`` if there is none.

    Git itself refuses such paths. `patch`, which is asked after it, does not: a hook of git written
    so would run in the evaluation, after the trusted test files are in place.
    """
    links: set[str] = set()
    header = ""
    for line in _lines_outside_of_hunks(patch):
        if (naming := _NAMING.match(line)) is not None:
            named = _QUOTED_NAME.sub(lambda name: _unquote(name[0]), naming[1])
            if _IN_GIT.search(named):
                return f"it names a path in a .git: {named[:200]!r}"
            if line.lstrip().startswith("diff --git "):
                header = line.lstrip().removeprefix("diff --git ")
        elif _LINK_MODE.match(line):
            links.update(_header_paths(header))
    for path in patched_paths(patch) if links else ():
        if any(path.startswith(f"{link}/") for link in links):
            return f"it makes a symbolic link and writes behind it: {path!r}"
    return None


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
            name = _unquote(line[4:].split("\t")[0])
            if name != "/dev/null":
                paths.setdefault(_without_prefix(name))
        elif line.startswith(("rename from ", "rename to ", "copy from ", "copy to ")):
            paths.setdefault(_unquote(line.split(" ", 2)[2]))
        elif match := _HUNK.match(line):
            in_hunk = int(match[1] or 1) + int(match[2] or 1)
    return tuple(paths)


def created_paths(patch: str) -> tuple[str, ...]:
    """The paths that the patch makes, in order: those of which there is no old side."""
    return tuple(path for path in patched_paths(patch) if path in _new_sides(patch))


def remaining_paths(patch: str) -> tuple[str, ...]:
    """The paths that the patch changes or makes, in order: without those that it takes away, and
    without those that it copies from.
    """
    old: set[str] = set()
    header, before = "", ""
    for line in _lines_outside_of_hunks(patch):
        if line.startswith("diff --git "):
            header = line.removeprefix("diff --git ")
        elif line.startswith("deleted file mode "):
            old.update(_header_paths(header))
        elif line.startswith(("rename from ", "copy from ")):
            old.add(_unquote(line.split(" ", 2)[2]))
        elif line.rstrip() == "+++ /dev/null":
            old.add(_without_prefix(_unquote(before)))
        before = line[4:].split("\t")[0] if line.startswith("--- ") else ""
    return tuple(path for path in patched_paths(patch) if path not in old)


def _new_sides(patch: str) -> frozenset[str]:
    made: set[str] = set()
    header, before = "", ""
    for line in _lines_outside_of_hunks(patch):
        if line.startswith("diff --git "):
            header = line.removeprefix("diff --git ")
        elif line.startswith("new file mode "):
            made.update(_header_paths(header))
        elif line.startswith(("rename to ", "copy to ")):
            made.add(_unquote(line.split(" ", 2)[2]))
        elif line.startswith("+++ ") and before == "/dev/null":
            made.add(_without_prefix(_unquote(line[4:].split("\t")[0])))
        before = line[4:].split("\t")[0] if line.startswith("--- ") else ""
    return frozenset(made)


def _header_paths(header: str) -> tuple[str, ...]:
    """Both names of ``diff --git``; ambiguous only for renames, whose own lines name them again."""
    if header.startswith('"'):
        end = re.match(r'"(?:[^"\\]|\\.)*"', header)
        return (_without_prefix(_unquote(end[0])),) if end else ()
    middle = len(header) // 2
    first, second = header[:middle], header[middle + 1 :]
    if _without_prefix(first) == _without_prefix(second):
        return (_without_prefix(first),)
    return ()


def _without_prefix(name: str) -> str:
    return name[2:] if name[:2] in ("a/", "b/") else name


def _unquote(name: str) -> str:
    """Undo git's C-style quoting of unusual names."""
    if not (name.startswith('"') and name.endswith('"') and len(name) > 1):
        return name
    raw = name[1:-1].encode("utf-8", "surrogateescape")

    def replace(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8)]) if len(code) == 3 else _ESCAPES.get(code, code)

    return _QUOTED.sub(replace, raw).decode("utf-8", "surrogateescape")
