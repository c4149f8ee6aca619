"""What the programs that apply a patch may take for names in it.

Git refuses a path in a ``.git``, and one behind a symbolic link. `patch`, which is asked where git
finds no place for a hunk, does not: a hook of git written so would run later on, when whoever
applied the patch puts trusted files in their places. Invariant: what is said here does not depend
on which lines are hunks. The two programs do not agree on that, and a patch can be written so that
neither agrees with us.
"""

from __future__ import annotations

import re

#: Before a header `patch` passes over blanks, the letter X, and the dashes of a digest of mails.
_BEFORE = r"[-\sX]*"
_NAMING = re.compile(
    rf"{_BEFORE}(?:(?:---|\+\+\+|\*\*\*|diff --git|(?:rename|copy) (?:from|to))\s|Index:)(.*)"
)
#: One that does not end is taken to the end of its line, once, and is no name.
_QUOTED_NAME = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|$)')
_IN_GIT = re.compile(r"""(?:^|[/\s"])\.git(?:$|[/\s"\0])""", re.IGNORECASE)
#: By the bits of a mode that say what a file is; `patch` reads any number of octal digits.
_LINK_MODE = re.compile(
    rf"{_BEFORE}(?:(?:new|deleted) file mode|(?:old|new) mode|index\s+\S+)"
    r"\s+[0-7]*[1357]2[0-7]{4}\s*"
)

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


def is_for_git_alone(patch: str) -> bool:
    """Whether no other program than git may be asked to apply ``patch``: a line of it, be it of a
    file's content, reads as the name of something in a ``.git``, or as the making of a link.
    """
    for line in patch.split("\n"):
        if (naming := _NAMING.match(line)) is not None:
            if _IN_GIT.search(_QUOTED_NAME.sub(lambda name: unquoted(name[0]), naming[1])):
                return True
        elif _LINK_MODE.fullmatch(line):
            return True
    return False


def unquoted(name: str) -> str:
    """A name without git's C-style quoting of unusual ones."""
    if not (name.startswith('"') and name.endswith('"') and len(name) > 1):
        return name
    raw = name[1:-1].encode("utf-8", "surrogateescape")

    def replace(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8)]) if len(code) == 3 else _ESCAPES.get(code, code)

    return _QUOTED.sub(replace, raw).decode("utf-8", "surrogateescape")
