"""Whether the host, where it is the base, has the system packages that a recipe asks for.

Only Debian and what is made of it can be asked by Debian's names. A package that is missing stops
nothing by itself, as most tests of a repository do without: it is named where something fails.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from minisandbox import process
from minisandbox.errors import MiniSandboxError, ProcessFailed, keep_facts

_FORMAT = "${binary:Package}\t${db:Status-Status}\t${Provides}\n"


def missing_packages(base: Mapping[str, Any], wanted: Sequence[str]) -> tuple[str, ...]:
    """Which of ``wanted`` the base lacks; all of them where the host cannot be asked. A base that
    is packed was made with what recipes ask for.
    """
    if not wanted or base.get("kind") != "host":
        return ()
    installed = _installed()
    return tuple(name for name in wanted if name.partition(":")[0] not in installed)


def missing_hint(missing: Sequence[str]) -> str:
    """What to say where something failed and packages are missing; empty where none is."""
    if not missing:
        return ""
    names = " ".join(missing)
    if shutil.which("dpkg-query") is None:
        return f"the recipe asks for the Debian packages {names}, and this host is no Debian"
    return f"this machine lacks what the recipe asks for: `apt-get install {names}`"


@contextmanager
def named_in_failures(missing: Sequence[str]) -> Generator[None]:
    """While it lasts, whatever fails says which packages were missing."""
    try:
        yield
    except MiniSandboxError as error:
        keep_facts(error, missing_packages=tuple(missing))
        raise


def _installed() -> frozenset[str]:
    """Installed packages and what they provide (``libfreetype-dev`` is also ``libfreetype6-dev``).

    Not cached: what somebody installs between two jobs counts.
    """
    if shutil.which("dpkg-query") is None:
        return frozenset()
    try:
        done = process.run(["dpkg-query", "-W", "-f", _FORMAT], timeout=60)
    except (OSError, ProcessFailed):
        return frozenset()
    found: set[str] = set()
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        name, status, provides = line.split("\t")
        if status == "installed":
            found.add(name.partition(":")[0])
            found |= {item.split()[0] for item in provides.split(",") if item.strip()}
    return frozenset(found)
