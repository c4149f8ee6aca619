"""``doctor``: what this host lets the sandbox do, found out by doing it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from minisandbox.cli.subparsers import Subparsers
from minisandbox.errors import EXIT_FAILED, EXIT_OK, MiniSandboxError

if TYPE_CHECKING:
    from pathlib import Path

    from minisandbox.sandbox.probe import Check


def add_commands(commands: Subparsers) -> None:
    """Register the commands of this module."""
    doctor = commands.add_parser("doctor", help="check what this host offers the sandbox")
    doctor.set_defaults(function=check_host)


def check_host(_: argparse.Namespace) -> int:
    """``minisandbox doctor``: 1 if something the sandbox cannot do without is refused."""
    from minisandbox import idmap
    from minisandbox.store import default_node_root

    scratch, checks = _checks()
    width = max(len(check.name) for check in checks)
    for check in checks:
        word = "ok" if check.ok else "FAIL" if check.required else "warn"
        print(f"{word:4}  {check.name:{width}}  {check.detail}")
        if not check.ok and check.remedy:
            print(f"      {'':{width}}  -> {check.remedy}")
    ids = idmap.current()
    print(f"\nids inside: {ids.count} from host uid {ids.uid_base} ({ids.kind})")
    print(f"node store: {default_node_root()}")
    if scratch is not None:
        print(f"what sandboxes write: {scratch}")
    return EXIT_OK if all(check.ok for check in checks if check.required) else EXIT_FAILED


def _checks() -> tuple[Path | None, list[Check]]:
    """What holds where sandboxes really keep their files, as another file system may do less."""
    from minisandbox.sandbox.probe import Check, probe
    from minisandbox.store import NodeStore, default_node_root

    try:
        scratch = NodeStore(default_node_root()).scratch
        return scratch, probe(scratch)
    except (MiniSandboxError, OSError) as error:
        remedy = "set MINISANDBOX_NODE_STORE to a directory of yours on a local file system"
        return None, [Check("node store", False, str(error), remedy), *probe()]
