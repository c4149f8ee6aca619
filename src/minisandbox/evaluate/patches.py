"""Reading unified diffs as git writes them, as far as the project needs to."""

from __future__ import annotations

import re

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
        elif match := re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line):
            in_hunk = int(match[1] or 1) + int(match[2] or 1)
    return tuple(paths)


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
