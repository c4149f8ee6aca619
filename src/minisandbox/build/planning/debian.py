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
_SEPARATOR = re.compile(r"&&|\|\||;|\n")
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
        if not _SYSTEM_COMMAND.match(command):
            kept.append(command)
            continue
        wanted = _installed(command)
        if not wanted:
            dropped.append(f"{command} (the base is not changed)")
        for name in wanted:
            if name in _BROUGHT_ALONG:
                dropped.append(f"{name} ({_BROUGHT_ALONG[name]})")
            else:
                packages.add(name)
    return SystemCommands(tuple(kept), tuple(sorted(packages)), tuple(dropped))


def _installed(command: str) -> list[str]:
    """The packages that ``apt-get install`` is given in a command, which may be several."""
    found: list[str] = []
    for part in _SEPARATOR.split(command):
        try:
            words = shlex.split(part)
        except ValueError:  # quotes over the separator: not what anyone writes for apt
            continue
        while words and (words[0] == "sudo" or _ASSIGNMENT.match(words[0])):
            words.pop(0)
        plain = [word for word in words[1:] if not word.startswith("-")]
        if words and words[0] in _PROGRAMS and plain[:1] == ["install"]:
            found += [name.partition("=")[0] for name in plain[1:]]
    return [name for name in found if PACKAGE.fullmatch(name)]
