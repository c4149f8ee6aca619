"""From a row of the manifest to a verdict on a patch, with the grader that the cache was validated
with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minisandbox.errors import InvalidInput, PatchFailed, RebuildFailed
from minisandbox.evaluate.grading import (
    Grade,
    Grader,
    GraderFailed,
    LogGrader,
    Task,
)
from minisandbox.evaluate.logs import PARSERS
from minisandbox.evaluate.official.grader import OfficialGrader
from minisandbox.evaluate.official.pins import PINS
from minisandbox.evaluate.official.row_grader import COLUMNS, RowGrader
from minisandbox.evaluate.official.smith_grader import SmithGrader
from minisandbox.evaluate.official.tool import OfficialTool
from minisandbox.evaluate.official.venv import Report, place_of
from minisandbox.evaluate.run_tests import PreparationFailed, TestOutput
from minisandbox.records.manifest import ManifestRow, extra_of, variables_of
from minisandbox.records.plan import InstancePlan, Recipe
from minisandbox.runtime import Cache

#: What a recipe's ``grader`` can be.
GRADERS: Sequence[str] = ("log", *PINS)


@dataclass(frozen=True)
class Judgement:
    """A grade, and the run it comes from; ``output`` is ``None`` if no test was started."""

    grade: Grade
    output: TestOutput | None


def judge(
    cache: Cache,
    row: ManifestRow,
    *,
    patch: str,
    log_path: Path,
    tools: Path | None = None,
    report: Report | None = None,
) -> Judgement:
    """Run the tests of a row with ``patch`` applied (empty: none) in a fresh instance, and grade.

    Without a network. ``tools`` is where official graders are kept: by default the cache's own
    folder where it has the row's grader, else one of this machine. Raises what
    ``Cache.materialize`` does, and ``GraderUnavailable``.
    """
    grader = grader_of(row, tools=tools or _tools_of(cache, row), report=report)
    task = task_of(row)
    output: TestOutput | None = None
    try:
        # Under the profile that it was validated under, which has no network.
        with cache.materialize(row.instance_id, report=report) as instance:
            output = grader.run(instance, task, patch=patch, log_path=log_path)
        grade = grader.grade(task, [output])[0]
    except PatchFailed as error:
        # That the tests do not apply says nothing of the patch.
        grade = Grade("patch" if error.name == "patch" else "incomplete", reason=str(error))
    except RebuildFailed as error:
        grade = Grade("install", reason=str(error))
    except PreparationFailed as error:
        grade = Grade("incomplete", reason=str(error))
    except GraderFailed as error:
        grade = Grade("grader", reason=str(error))
    return Judgement(grade, output)


def _tools_of(cache: Cache, row: ManifestRow) -> Path | None:
    """The folder in which the pipeline keeps graders beside the manifest, if the row's is there."""
    own = cache.folder / "tools"
    pin = PINS.get(row.grader)
    return own if pin is not None and place_of(pin, own).is_dir() else None


def grader_of(
    row: ManifestRow, *, tools: Path | None = None, report: Report | None = None
) -> Grader:
    """The grader that the row was validated with; raises ``InvalidInput`` for an unknown one,
    and for a row that does not say how its tests run or are read.
    """
    if row.grader == "log" and row.log_parser not in PARSERS:
        raise InvalidInput(
            f"manifest row {row.instance_id}: key 'log_parser'",
            f"is {row.log_parser!r}",
            f"known: {', '.join(PARSERS)}",
        )
    commands = LogGrader(
        row.log_parser,
        row.test_command,
        row.rebuild_command,
        env=variables_of(row, "test_env"),
        timeout=row.test_timeout,
    )
    return grader_named(row.grader, row.instance_id, commands, tools=tools, report=report)


def grader_of_recipe(recipe: Recipe, *, tools: Path, report: Report | None = None) -> Grader:
    """The grader that a recipe names; raises ``InvalidInput`` for an unknown one."""
    commands = LogGrader(recipe.parser, recipe.test, recipe.rebuild, recipe.env, recipe.timeout)
    where = f"recipe {recipe.name}"
    return grader_named(recipe.grader, where, commands, tools=tools, report=report)


def grader_named(
    name: str,
    where: str,
    commands: LogGrader,
    *,
    tools: Path | None = None,
    report: Report | None = None,
) -> Grader:
    """``commands`` themselves, or the official grader of that name with their variables and time
    limit; raises ``InvalidInput`` naming ``where`` for an unknown one.
    """
    if name == commands.name:
        return commands
    if name not in PINS:
        known = ", ".join(GRADERS)
        raise InvalidInput(where, f"is graded by {name!r}, which is unknown", f"known: {known}")
    tool = OfficialTool(name, tools, report=report)
    kind = OfficialGrader if tool.pin.has_specifications else RowGrader
    if tool.pin.distribution == "swesmith":
        kind = SmithGrader
    return kind(tool, env=commands.env, timeout=commands.timeout)


def task_of(row: ManifestRow) -> Task:
    """What a grader has to know of a row."""
    return Task(
        instance_id=row.instance_id,
        repo=row.repo,
        version=row.version,
        base_commit=row.base_commit,
        test_patch=row.test_patch,
        fail_to_pass=row.FAIL_TO_PASS,
        pass_to_pass=row.PASS_TO_PASS,
        environment_commit=environment_commit(extra_of(row)),
        trusted_files=row.trusted_files,
        test_spec=row.test_spec,
    )


def task_of_plan(row: InstancePlan) -> Task:
    """What a grader has to know of a planned row; lists that it does not have are empty."""
    return Task(
        instance_id=row.instance_id,
        repo=row.repo,
        version=row.version,
        base_commit=row.base_commit,
        test_patch=row.test_patch,
        fail_to_pass=row.fail_to_pass or (),
        pass_to_pass=row.pass_to_pass or (),
        environment_commit=environment_commit(row.extra),
        evaluation=evaluation_of(row.extra),
        trusted_files=row.trusted_files,
    )


def environment_commit(extra: Mapping[str, object]) -> str:
    """Where a row's requirement files are read, by its columns that only some datasets have."""
    return str(extra.get("environment_setup_commit") or "")


def evaluation_of(extra: Mapping[str, object]) -> dict[str, object]:
    """What a row says of its own evaluation, by its columns that only some datasets have."""
    return {column: extra[column] for column in COLUMNS if extra.get(column)}
