"""What an evaluation script that a row brings says, read without running it.

Text in, facts out: where its tests stand, what it installs before them, which patches it applies.
Nothing else of the project is imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Between these the harness looks for test results.
START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
#: What release 5 writes after them, with the code that the test command ended with.
EXIT_CODE = ">>>>> Test Exit Code"

_MARKER = re.compile(rf"\s*(?::|echo) +(?P<quote>['\"]?)(?P<word>{START}|{END})(?P=quote)\s*")
_HEREDOC = re.compile(r"<<-?\s*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")
_ACTIVATE = re.compile(r"conda activate \S+")
_INSTALL = re.compile(r"\bpip3? (?:\S+ )*install\b|\bsetup\.py (?:\S+ )*(?:install|develop)\b")
#: `git apply` of what it is handed, as written and as the shell traces it.
APPLY = r"git apply(?: +\S+)* +-"
_APPLY = re.compile(rf"{APPLY}\s*<<")
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\$")


@dataclass(frozen=True)
class EvalScript:
    """A script that can be run and read.

    ``text`` has its markers as no-ops, which the shell traces and does not print. ``tests`` are the
    commands between them, ``before`` those between the last activation of the environment and the
    first marker, ``patches`` what it hands to ``git apply``.
    """

    text: str
    before: tuple[str, ...]
    tests: tuple[str, ...]
    patches: tuple[str, ...]

    @property
    def installs(self) -> tuple[str, ...]:
        """The commands before the tests that install something."""
        return tuple(command for command in self.before if _INSTALL.search(command))


class NotUnderstood(ValueError):
    """Why a script is none that can be run; the text is a clause that follows its name."""


def read_eval_script(text: str) -> EvalScript:
    """The parts of a script; raises ``NotUnderstood``."""
    if not text.strip():
        raise NotUnderstood("is empty")
    lines: list[str] = []
    parts: dict[str, list[str]] = {"": [], START: [], END: []}
    patches: list[str] = []
    current = ""
    heredoc: tuple[str, list[str], bool] | None = None
    begun = ""  # a command that goes on in the next line
    for line in text.split("\n"):
        if heredoc is not None:
            lines.append(line)
            end, content, is_patch = heredoc
            if line.rstrip("\r") != end:
                content.append(line)
                continue
            if is_patch:
                patches.append("\n".join(content) + "\n")
            heredoc = None
            continue
        if line.endswith("\r"):
            # Bash takes it for a part of the last word. Lines of a patch end as the file's do.
            raise NotUnderstood("has CRLF line ends; convert it, but for patches in it, to LF")
        if not begun and (marker := _MARKER.fullmatch(line)) is not None:
            current = _next(current, marker["word"])
            lines.append(f": '{current}'")
            continue
        lines.append(line)
        if _CONTINUED.search(line) and not (begun or line).lstrip().startswith("#"):
            begun += line[:-1]
            continue
        if begun:
            line, begun = re.sub(r"[ \t]+", " ", begun + line), ""
        if (opened := _HEREDOC.search(line)) is not None and "<<<" not in line:
            heredoc = (opened["end"], [], _APPLY.match(line.strip()) is not None)
        if line.strip() and not line.lstrip().startswith("#"):
            parts[current].append(line.strip())
    if current != END:
        missing = END if current else START
        raise NotUnderstood(f"has no line `: '{missing}'`, so nothing says where its tests are")
    if heredoc is not None:
        raise NotUnderstood(f"has text up to {heredoc[0]!r} that does not end")
    before = parts[""]
    starts = [i for i, command in enumerate(before) if _ACTIVATE.fullmatch(command)]
    before = before[starts[-1] + 1 :] if starts else before
    return EvalScript("\n".join(lines), tuple(before), tuple(parts[START]), tuple(patches))


def with_files(text: str, commands: list[str]) -> str:
    """``text`` with commands right before its tests, after it applied its patches."""
    lines = text.split("\n")
    place = lines.index(f": '{START}'")
    return "\n".join([*lines[:place], *commands, *lines[place:]])


def _next(current: str, word: str) -> str:
    if {"": START, START: END}.get(current) != word:
        raise NotUnderstood(f"has the marker `{word}` a second time, or before the other")
    return word
