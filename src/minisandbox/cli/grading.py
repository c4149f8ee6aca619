"""``grade``: what a patch is worth, by the grader that the cache was validated with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from minisandbox import keys
from minisandbox.cli.subparsers import Subparsers
from minisandbox.cli.waiting import waiting_line
from minisandbox.errors import EXIT_FAILED, EXIT_OK, InvalidInput
from minisandbox.records.manifest import ManifestRow

if TYPE_CHECKING:
    from minisandbox.evaluate.judging import Judgement

#: With ``--strict``: a verdict, but not "resolved". Not 1, which is for what went wrong here.
EXIT_UNRESOLVED = 3

_SHOWN = 10


def add_commands(commands: Subparsers) -> None:
    """Register the command of this module."""
    grade = commands.add_parser(
        "grade",
        help="run the tests of an instance with a patch, and grade them",
        description="Exit codes: 0 there is a verdict, resolved or not (with --strict, 3 if not "
        "resolved); 1 there is none (the run was cut short, installing failed, the grader failed); "
        "75 try again.",
    )
    grade.add_argument("id")
    grade.add_argument(
        "--cache", default="results", type=Path, help="folder of the manifest (default: results)"
    )
    which = grade.add_mutually_exclusive_group(required=True)
    which.add_argument("--patch", type=Path, help="the patch under test")
    which.add_argument("--gold", action="store_true", help="the instance's gold patch")
    which.add_argument("--empty", action="store_true", help="no patch")
    grade.add_argument("--json", action="store_true", help="one JSON object")
    grade.add_argument("--strict", action="store_true", help="exit with 3 unless it is resolved")
    grade.add_argument(
        "--log", type=Path, help="where the output of the tests goes (default: ID.WHICH.log here)"
    )
    grade.add_argument(
        "--tools",
        type=Path,
        help="where official graders are kept (default: the cache's own, else by the node store)",
    )
    grade.set_defaults(function=grade_patch)


def grade_patch(arguments: argparse.Namespace) -> int:
    """``minisandbox grade``."""
    from minisandbox.evaluate.judging import judge
    from minisandbox.runtime import open_cache

    cache = open_cache(arguments.cache)
    row = cache.row(arguments.id)
    which = "gold" if arguments.gold else "empty" if arguments.empty else "patch"
    # The id is a dataset's: its slashes and dots must not lead the log out of this folder.
    log: Path = arguments.log or Path(f"{keys.slug(row.instance_id)}.{which}.log")
    patch = _patch(arguments, row)
    with waiting_line() as report:
        judgement = judge(
            cache, row, patch=patch, log_path=log, tools=arguments.tools, report=report
        )
    if arguments.json:
        print(json.dumps(_as_json(row, which, judgement, log), ensure_ascii=False))
    else:
        _print(row, judgement, log)
    if not judgement.grade.is_verdict:
        return EXIT_FAILED
    return EXIT_UNRESOLVED if arguments.strict and not judgement.grade.resolved else EXIT_OK


def _patch(arguments: argparse.Namespace, row: ManifestRow) -> str:
    if arguments.empty:
        return ""
    if arguments.gold:
        return row.patch
    path: Path = arguments.patch
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read ({error.strerror})") from None


def _as_json(row: ManifestRow, which: str, judgement: Judgement, log: Path) -> dict[str, object]:
    grade, output = judgement.grade, judgement.output
    return {
        "instance_id": row.instance_id,
        "patch": which,
        "grader": row.grader,
        "outcome": grade.outcome,
        "verdict": grade.is_verdict,
        "resolved": grade.resolved,
        "reason": grade.reason,
        "fail_to_pass": grade.fail_to_pass,
        "pass_to_pass": grade.pass_to_pass,
        "failing": grade.failing,
        "exit_code": output.exit_code if output else None,
        "seconds": round(output.seconds, 3) if output else None,
        "log": str(log) if output else None,
    }


def _print(row: ManifestRow, judgement: Judgement, log: Path) -> None:
    grade, output = judgement.grade, judgement.output
    if grade.reason:
        said = "no verdict" if not grade.is_verdict else "not resolved"
        print(f"{row.instance_id}: {said} [{grade.outcome}] {grade.reason}")
    else:
        (f2p, f2p_all), (p2p, p2p_all) = grade.fail_to_pass, grade.pass_to_pass
        print(
            f"{row.instance_id}: {'resolved' if grade.resolved else 'not resolved'}, "
            f"fail to pass {f2p}/{f2p_all}, pass to pass {p2p}/{p2p_all}, by {row.grader}"
        )
    for name in grade.failing[:_SHOWN]:
        print(f"  did not pass: {name}")
    if len(grade.failing) > _SHOWN:
        print(f"  and {len(grade.failing) - _SHOWN} more")
    if output:
        print(f"  tests: {output.seconds:.1f} s, log in {log}")
