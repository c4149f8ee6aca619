"""``doctor``: what this host lets the sandbox do, found out by doing it."""

from __future__ import annotations

import argparse

from minisandbox.cli.subparsers import Subparsers
from minisandbox.errors import EXIT_FAILED, EXIT_OK


def add_commands(commands: Subparsers) -> None:
    """Register the commands of this module."""
    doctor = commands.add_parser("doctor", help="check what this host offers the sandbox")
    doctor.set_defaults(function=check_host)


def check_host(_: argparse.Namespace) -> int:
    """``minisandbox doctor``: 1 if something the sandbox cannot do without is refused."""
    from minisandbox import idmap
    from minisandbox.sandbox.probe import probe
    from minisandbox.store import default_node_root

    checks = probe()
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name:{width}}  {check.detail}")
        if not check.ok and check.remedy:
            print(f"      {'':{width}}  -> {check.remedy}")
    ids = idmap.current()
    print(f"\nids inside: {ids.count} from host uid {ids.uid_base} ({ids.kind})")
    print(f"node store: {default_node_root()}")
    return EXIT_OK if all(check.ok for check in checks) else EXIT_FAILED
