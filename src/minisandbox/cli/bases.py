"""``base lock``: which packages a packed base consists of."""

from __future__ import annotations

import argparse
from pathlib import Path

from minisandbox.cli.subparsers import Subparsers
from minisandbox.errors import EXIT_OK


def add_commands(commands: Subparsers) -> None:
    """Register the commands of this module."""
    base = commands.add_parser("base", help="packed bases of environments")
    actions = base.add_subparsers(dest="action", metavar="ACTION", required=True)
    lock = actions.add_parser(
        "lock", help="ask the distribution's archives which packages a base consists of now"
    )
    lock.add_argument("name", help="a base that is defined in the folder")
    lock.add_argument("--bases", type=Path, default=Path("envs/bases"), help="folder of bases")
    lock.set_defaults(function=lock_base)


def lock_base(arguments: argparse.Namespace) -> int:
    """``minisandbox base lock NAME``."""
    from minisandbox.build.bases import definition
    from minisandbox.build.bases.locking import make_lock

    path = definition.lock_file(arguments.bases, arguments.name)
    asked = definition.read_definition(arguments.bases, arguments.name)
    lock = make_lock(asked, path.name.split(".")[-3])
    definition.write_lock(path, lock)
    megabytes = sum(item.size for item in lock.packages if item.name in lock.base) / 1e6
    print(
        f"{path}: {len(lock.base)} packages ({megabytes:.0f} MB), "
        f"{len(lock.packages) - len(lock.base)} more for {len(lock.extras)} extras"
    )
    return EXIT_OK
