"""Commands that prepare a container's operating system, as the packages of Debian that they want.

Nothing installs into a running base here: what a recipe asks of it is a list of packages, which a
base either has or is made with.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import NamedTuple

#: Commands of which nothing is run.
_SYSTEM_COMMAND = re.compile(r"apt(-get)? |locale-gen\b|echo '?en_US|yum |dnf |apk ")
#: Quoted text, an escaped character, what stands between two commands, or any other character.
_TOKEN = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|&&|\|\||;|\n|.""", re.DOTALL)
_SEPARATORS = ("&&", "||", ";", "\n")
#: Of commands that hold others, none can be taken out.
_COMPOUND = {"if", "then", "else", "elif", "for", "while", "until", "do", "case", "{", "("}
#: Options of apt whose value is a word of its own.
_WITH_VALUE = {
    *("-t", "--target-release", "--default-release"),
    *("-o", "--option", "-c", "--config-file"),
}
_PROGRAMS = ("apt", "apt-get")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
#: A name as Debian has them (Policy 5.6.1), maybe for an architecture.
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?")
#: What every environment brings along, so that no base has to.
_BROUGHT_ALONG = {"locales": "locales are part of every environment"}


class SystemCommands(NamedTuple):
    """A list of commands, taken apart: ``kept`` are run, ``packages`` are what the base has to
    have, ``dropped`` is left out, with the reason.
    """

    kept: tuple[str, ...]
    packages: tuple[str, ...]
    dropped: tuple[str, ...]


def take_apart(commands: Iterable[str]) -> SystemCommands:
    """What of ``commands`` is for the repository, and what for the operating system below it."""
    kept: list[str] = []
    packages: set[str] = set()
    dropped: list[str] = []
    for command in commands:
        system, others = _told_apart(command)
        if not system:
            kept.append(command)
            continue
        if others:
            kept.append(others)
        wanted = [name for part in system for name in _installed(part)]
        if not wanted:
            dropped.append(f"{'; '.join(system)} (the base is not changed)")
        for name in wanted:
            if name in _BROUGHT_ALONG:
                dropped.append(f"{name} ({_BROUGHT_ALONG[name]})")
            else:
                packages.add(name)
    return SystemCommands(tuple(kept), tuple(sorted(packages)), tuple(dropped))


def _told_apart(command: str) -> tuple[list[str], str]:
    """The parts of a command that are for the operating system, and what remains without them."""
    parts = _parts(command)
    if any(_words(part)[:1] and _words(part)[0] in _COMPOUND for _, part in parts):
        return [], command
    system: list[str] = []
    others = ""
    #: Whether a part before is kept on whose success this one depends.
    depends = False
    for separator, part in parts:
        if separator in (";", "\n"):
            depends = False
        if _SYSTEM_COMMAND.match(" ".join(_words(part)) + " "):
            system.append(part)
        elif separator == "||" and system and not depends:
            continue  # for the case that a part fails which is not run
        elif part:
            # After a part that is taken out, as if that had worked.
            link = separator if depends or separator in (";", "\n") else ";"
            others += f"{' ' if link in ('&&', '||') else ''}{link} {part}" if others else part
            depends = True
    return system, others


def _parts(command: str) -> list[tuple[str, str]]:
    """The single commands, each with what stands before it."""
    parts: list[tuple[str, str]] = []
    separator, text = "", ""
    for token in _TOKEN.findall(command):
        if token in _SEPARATORS:
            parts.append((separator, text.strip()))
            separator, text = token, ""
        else:
            text += token
    return [*parts, (separator, text.strip())]


def _words(part: str) -> list[str]:
    """The words of a single command, from its program on; none where quotes do not end."""
    try:
        words = shlex.split(part)
    except ValueError:
        return []
    sudo = False
    while words and (
        words[0] in ("sudo", "env")
        or _ASSIGNMENT.match(words[0])
        or (sudo and words[0].startswith("-"))
    ):
        sudo = words.pop(0) == "sudo" or sudo
    return words


def _installed(part: str) -> list[str]:
    """The packages that a single command gives to ``apt-get install``."""
    plain: list[str] = []
    words = iter(_words(part))
    for word in words:
        if word in ("|", "&"):
            break
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            plain.append(word)
    if not plain or plain[0] not in _PROGRAMS or plain[1:2] != ["install"]:
        return []
    names = [name.partition("=")[0] for name in plain[2:]]
    return [name for name in names if PACKAGE.fullmatch(name)]
