"""Two hundred attacks on this project's sandbox, and on other recipes for the same purpose.

    python benchmarks/isolation.py [--save FILE] [--with FILE]

Prints one Markdown table. As root it attacks four: this sandbox, the published system's recipe (a
mount namespace, the host's directories bound, chroot), bubblewrap and podman; as an ordinary user
the two that need no root. A run with ``--save`` keeps what it found, for a run of another user to
print beside its own (``--with``). Where cgroup v1 and v2 are mounted together podman does not
start; there run this as
`unshare -m sh -c 'umount /sys/fs/cgroup/unified; exec python benchmarks/isolation.py'`.

The attacks are those of ``tests/attacks``: harmless where they succeed. Each was first tried where
no sandbox was in the way; those that fail even there prove nothing and are listed below the table.
Peers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from attacks import contenders, every, harness
from attacks.harness import Host, Outcome

#: Name of a contender, and for each attack how it ended.
Columns = dict[str, dict[str, str]]

#: Brings up a contender for the attacks of one run.
Start = Callable[[Host, Path], AbstractContextManager[contenders.Run]]

_HELD, _THROUGH, _NOT_APPLICABLE = "held", "**through**", "-"


def available() -> dict[str, Start]:
    """The contenders that can run here, by the name of their column."""
    root = os.getuid() == 0
    found: dict[str, Start] = {f"minisandbox, {_caller()}": contenders.minisandbox}
    if root:
        found["published recipe"] = contenders.published_recipe
    if shutil.which("bwrap"):
        found[f"bubblewrap, {_caller()}"] = contenders.bubblewrap
    if root and shutil.which("podman"):
        found["podman, root"] = contenders.podman
    return found


def _caller() -> str:
    return "root" if os.getuid() == 0 else "user"


def word(name: str, outcome: Outcome, column: str) -> str:
    """What the table says of an outcome. Raises ``RuntimeError`` where the attack is broken."""
    if outcome.kind == "broken":
        raise RuntimeError(f"{name} against {column}: {outcome.detail}")
    if outcome.kind == "through":
        return _THROUGH
    # What keeps a container in is outside of it altogether: nobody is there to be attacked.
    guardian = "guardian" in name and column.startswith("podman")
    return _NOT_APPLICABLE if guardian else _HELD


def measure() -> tuple[Columns, dict[str, str]]:
    """Attack everything; returns the columns, and why some attacks prove nothing here."""
    names = list(every.TABLE)
    columns: Columns = {}
    with harness.host() as host:
        controls = host.controls(names)
        for column, start in available().items():
            with tempfile.TemporaryDirectory(prefix="isolation-") as folder:
                with start(host, Path(folder)) as run:
                    outcomes = run(names)
            columns[column] = {name: word(name, outcomes[name], column) for name in names}
    unproven = {
        name: f"{every.TABLE[name].lack or 'this caller may not'}: {controls[name].detail}"
        for name in names
        if controls[name].kind != "through"
    }
    return columns, unproven


def table(columns: Columns, unproven: Mapping[str, str]) -> str:
    """The attacks by group, those that ended alike everywhere in one row."""
    lines = [
        "| attacks on | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for group, title in every.GROUPS.items():
        rows: dict[tuple[str, ...], list[str]] = {}
        for name, attack in every.TABLE.items():
            if attack.group == group and name not in unproven:
                words = tuple(column[name] for column in columns.values())
                rows.setdefault(words, []).append(name.replace("_", " "))
        lines.append(f"| **{title}** |" + " |" * len(columns))
        for words, names in sorted(rows.items(), key=lambda row: row[0].count(_THROUGH)):
            lines.append(f"| {', '.join(names)} | " + " | ".join(words) + " |")
    proven = [name for name in every.TABLE if name not in unproven]
    counts = [sum(column[name] == _THROUGH for name in proven) for column in columns.values()]
    lines.append(f"| **through, of {len(proven)}** | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(lines)


def versions() -> str:
    """What was measured with."""
    found = [f"Linux {platform.release().split('-')[0]}"]
    for program in ("bwrap", "podman"):
        if shutil.which(program):
            said = subprocess.run([program, "--version"], capture_output=True, text=True)
            found.append(said.stdout.strip())
    return ", ".join(found)


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, help="write what was found to this file as well")
    parser.add_argument("--with", type=Path, dest="other", help="columns of another user's run")
    options = parser.parse_args()
    columns, unproven = measure()
    if options.save:
        options.save.write_text(json.dumps(columns))
    if options.other:
        columns.update(json.loads(options.other.read_text()))
    print(table(dict(sorted(columns.items(), key=_order)), unproven))
    print(f"\n{versions()}. Not provable here:\n")
    for name, reason in unproven.items():
        print(f"- {name.replace('_', ' ')} ({reason})")


def _order(column: tuple[str, dict[str, str]]) -> int:
    names = ("minisandbox, root", "minisandbox, user", "published recipe")
    return names.index(column[0]) if column[0] in names else len(names)


if __name__ == "__main__":
    main()
