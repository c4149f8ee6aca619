"""Shell text cut into commands, as far as files of this field need it: no expansion, no running.

Text in, text out; nothing of the project is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEREDOC = re.compile(r"<<-?\s*(?P<quote>['\"]?)(?P<end>\w+)(?P=quote)")


@dataclass(frozen=True)
class Line:
    """One line, those that go on joined, and its number; ``parts`` are its commands, which stand
    apart by ``&&`` or ``;``; ``stdin`` is the text of its heredoc.
    """

    text: str
    number: int
    parts: tuple[str, ...]
    stdin: str | None = None


def lines_of(text: str, *, first: int = 1) -> Iterator[Line]:
    """The lines of a script without comments and blank ones."""
    lines = iter(enumerate(text.replace("\r\n", "\n").split("\n"), first))
    for number, line in lines:
        while line.endswith("\\"):
            line = line[:-1].rstrip() + " " + next(lines, (0, ""))[1].strip()
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        stdin: str | None = None
        if (opened := _HEREDOC.search(line)) is not None and "<<<" not in line:
            content: list[str] = []
            for _, inner in lines:
                if inner.strip() == opened["end"]:
                    break
                content.append(inner)
            stdin = "\n".join(content) + "\n"
            line = (line[: opened.start()] + line[opened.end() :]).strip()
        yield Line(line, number, tuple(_apart(line)), stdin)


def _apart(line: str) -> list[str]:
    """``line`` cut at ``&&`` and ``;`` outside of quotes and brackets; a loop or a condition is
    left whole.
    """
    if re.match(r"(?:while|for|if|case|until)\b", line) or re.search(r"\|\s*while\b", line):
        return [line]
    parts, start, quote, depth, index = [""], 0, "", 0, 0
    while index < len(line):
        sign = line[index]
        if sign == "\\" and quote != "'":
            index += 2
            continue
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "({":
            depth += 1
        elif sign in ")}":
            depth -= 1
        elif depth == 0 and (sign == ";" or line.startswith("&&", index)):
            parts[-1] = line[start:index].strip()
            start = index = index + (1 if sign == ";" else 2)
            parts.append("")
            continue
        index += 1
    parts[-1] = line[start:].strip()
    return [part for part in parts if part]
