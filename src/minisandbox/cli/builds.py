"""``plan`` and ``build STAGE``: what the workflow's rules call, and anyone may run by hand
again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from minisandbox.cli.subparsers import Subparsers
from minisandbox.errors import EXIT_OK, InvalidInput, MiniSandboxError

if TYPE_CHECKING:
    from minisandbox.build.stage import Ended
    from minisandbox.records.plan import PlanIndex


def add_commands(commands: Subparsers) -> None:
    """Register the commands of this module."""
    plan = commands.add_parser(
        "plan", help="make the plan of a configuration and print what it holds"
    )
    plan.add_argument("--config", default="config/config.yaml", type=Path)
    plan.add_argument(
        "--summary",
        action="store_true",
        help="also every environment, how many instances share it, and what size is expected",
    )
    plan.add_argument("--json", action="store_true", help="with --summary, as JSON")
    plan.set_defaults(function=make_plan)

    recipe = commands.add_parser("recipe", help="how instances are built, and who says so")
    about = recipe.add_subparsers(dest="about", metavar="COMMAND", required=True)
    show = about.add_parser("show", help="the recipe of one instance, as a recipe file")
    show.add_argument("id")
    show.add_argument("--config", default="config/config.yaml", type=Path)
    show.add_argument("--json", action="store_true", help="each value with its source, as JSON")
    show.set_defaults(function=show_recipe)

    build = commands.add_parser("build", help="run one stage of the pipeline for one job")
    stages = build.add_subparsers(dest="stage", metavar="STAGE", required=True)
    for name, paths in {
        "clone": (),
        "base": (),
        "interpreter": (),
        "environment": ("interpreter",),
        "instances": ("environment",),
        "validate": ("instances",),
    }.items():
        stage = stages.add_parser(name, help=f"the {name} stage")
        stage.add_argument("--plan", required=True, type=Path, help="this job's shard of the plan")
        for path in paths:
            stage.add_argument(
                f"--{path}", required=True, type=Path, help=f"record of the {path} stage"
            )
        if name in ("base", "interpreter", "environment"):
            stage.add_argument(
                "--base", type=Path, help="record of the base below, if it is packed"
            )
        if name in ("environment", "instances", "validate"):
            stage.add_argument(
                "--clone",
                type=Path,
                action="append",
                default=[],
                help="record of a clone stage, for each repository that the job reads",
            )
        if name == "instances":
            stage.add_argument(
                "--commit",
                type=Path,
                action="append",
                default=[],
                help="record of the instances stage, for each healthy commit that bugs are put "
                "into",
            )
        if name in ("environment", "instances"):
            stage.add_argument(
                "--from-lock",
                type=Path,
                help="a record of an earlier build, or its results folder, to use its files of the "
                "package index and no others",
            )
        stage.add_argument(
            "--record", required=True, type=Path, help="where to write this job's record"
        )
        stage.add_argument("--attempt", type=int, default=1, help="which attempt this is, from 1")
        stage.add_argument(
            "--attempts", type=int, help="after how many a failure is final (default: 3)"
        )
        stage.set_defaults(function=build_stage)
    manifest = stages.add_parser("manifest", help="the manifest stage")
    manifest.add_argument("--plan", required=True, type=Path, help="the plan's index.json")
    manifest.add_argument("--results", required=True, type=Path, help="folder of all records")
    manifest.add_argument("--parquet", required=True, type=Path)
    manifest.add_argument("--jsonl", required=True, type=Path)
    manifest.add_argument("--summary", required=True, type=Path)
    manifest.set_defaults(function=build_manifest)


def make_plan(arguments: argparse.Namespace) -> int:
    """``minisandbox plan``."""
    _require_build_extra()
    from minisandbox.build.plan import ensure_plan

    config = _read_config(arguments.config)
    index = ensure_plan(config, [str(arguments.config)])
    if arguments.summary or arguments.json:
        return _print_summary(index, config, as_json=arguments.json)
    batches = sum(len(entry.batches) for entry in index.environments.values())
    print(
        f"{index.instances} instances of {len(index.repos)} repositories "
        f"in {len(index.environments)} environments, "
        f"{batches} batches; Pythons: {', '.join(index.pythons)}"
    )
    print(f"rows: {_counted(index.formats)}")
    if index.unplanned:
        print(
            f"{index.unplanned} rows cannot be built ({_counted(index.reasons)}); "
            "the manifest will say why"
        )
    return EXIT_OK


def _print_summary(index: PlanIndex, config: dict[str, Any], *, as_json: bool) -> int:
    from minisandbox.build.planning.config import parse_config
    from minisandbox.build.planning.summary import summarise
    from minisandbox.records import codec

    parsed = parse_config(config, where="config")
    results = Path(parsed.results)
    earlier = [results, *([Path(parsed.from_lock)] if parsed.from_lock else [])]
    summary = summarise(index, results, earlier)
    if as_json:
        print(json.dumps(codec.encode(summary), indent=1, ensure_ascii=False))
    else:
        print(summary.text(), end="")
    return EXIT_OK


def show_recipe(arguments: argparse.Namespace) -> int:
    """``minisandbox recipe show``."""
    _require_build_extra()
    from minisandbox.build.plan import account_of

    account = account_of(_read_config(arguments.config), [str(arguments.config)], arguments.id)
    if arguments.json:
        print(json.dumps(account.values(), indent=1, ensure_ascii=False))
    else:
        print(account.text(), end="")
    return EXIT_OK


def _read_config(path: Path) -> dict[str, Any]:
    from minisandbox.build.planning.yamlfile import read_yaml

    config = read_yaml(path)
    if not isinstance(config, dict):
        raise InvalidInput(str(path), "is not a mapping")
    return cast("dict[str, Any]", config)


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items())


def build_stage(arguments: argparse.Namespace) -> int:
    """``minisandbox build STAGE`` for all stages that end in a record."""
    _require_build_extra()
    from minisandbox.build.stage import ATTEMPTS, Attempt

    attempt = Attempt(arguments.attempt, arguments.attempts or ATTEMPTS)
    plan, record = arguments.plan, arguments.record
    # Each stage imports what only it needs; together they would cost every job a second.
    match arguments.stage:
        case "clone":
            from minisandbox.build import clone

            ended = clone.run(plan, record, attempt)
        case "base":
            from minisandbox.build import base

            ended = base.run(plan, record, attempt, above_path=arguments.base)
        case "interpreter":
            from minisandbox.build import interpreter

            ended = interpreter.run(plan, record, attempt, base_path=arguments.base)
        case "environment":
            from minisandbox.build import environment

            ended = environment.run(
                plan,
                arguments.interpreter,
                arguments.clone,
                record,
                attempt,
                base_path=arguments.base,
                lock_path=arguments.from_lock,
            )
        case "instances":
            from minisandbox.build import instances

            ended = instances.run(
                plan,
                arguments.environment,
                arguments.clone,
                record,
                attempt,
                commit_paths=arguments.commit,
                lock_path=arguments.from_lock,
            )
        case _:
            from minisandbox.build import validate

            ended = validate.run(plan, arguments.instances, arguments.clone, record, attempt)
    return _finish(ended)


def build_manifest(arguments: argparse.Namespace) -> int:
    """``minisandbox build manifest``."""
    _require_build_extra()
    from minisandbox.build import manifest

    ended = manifest.run(
        arguments.plan,
        arguments.results,
        parquet_path=arguments.parquet,
        jsonl_path=arguments.jsonl,
        summary_path=arguments.summary,
    )
    return _finish(ended)


def _finish(ended: Ended) -> int:
    print(ended.line, flush=True)
    return ended.exit_code


def _require_build_extra() -> None:
    """The pipeline is an extra; say so instead of showing an import error."""
    for name in ("git", "pandas", "uv", "virtualenv", "yaml"):
        if importlib.util.find_spec(name) is None:
            raise MiniSandboxError(
                f"the pipeline needs {name}, which is not installed; run "
                f"`{sys.executable} -m pip install 'swe-minisandbox[build]'`"
            )
