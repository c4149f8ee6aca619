"""A planned instance with what only the mirror knows, such as the patches of a release pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from minisandbox.build.checkouts.releases import split_pair
from minisandbox.errors import StageFailed
from minisandbox.records.plan import InstancePlan, Recipe
from minisandbox.records.stages import CloneRecord, FoundRow


def release_row(instance: InstancePlan, recipe: Recipe, clone: CloneRecord) -> FoundRow | None:
    """The row of a release pair, ``None`` for an instance that brought its own; raises
    ``StageFailed``.
    """
    pair = instance.release
    if pair is None:
        return None
    missing = [version for version in (pair.before, pair.after) if version not in clone.commits]
    if missing:
        reason = clone.missing.get(
            missing[0], f"version {missing[0]} of {pair.project} is not in its mirror"
        )
        raise StageFailed("commit", reason)
    base, target = clone.commits[pair.before], clone.commits[pair.after]
    patches = split_pair(Path(clone.mirror), base, target, test_paths=recipe.test_paths)
    for name, text in (("code", patches.patch), ("tests", patches.test_patch)):
        if not text.strip():
            raise StageFailed(
                "patch", f"{pair.project} changes no {name} from {pair.before} to {pair.after}"
            )
    return FoundRow(base, patches.patch, patches.test_patch, patches.problem_statement)


def complete(instance: InstancePlan, row: FoundRow | None) -> InstancePlan:
    """``instance`` with the fields that were found filled in; a bug's row has its patch and problem
    statement from the plan, and none is found.
    """
    if row is None:
        return instance
    return replace(
        instance,
        base_commit=row.base_commit,
        patch=row.patch or instance.patch,
        test_patch=row.test_patch,
        problem_statement=row.problem_statement or instance.problem_statement,
        trusted_files=row.trusted_files,
    )
