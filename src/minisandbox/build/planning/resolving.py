"""Which recipe builds a row, or why none does.

One precedence: a recipe file, what the row itself says, a pinned environment, the specification of
an official package. The last two are one recipe already when they come here: what is installed is
the environment's, how it is done the specification's. So are all but the first for a row that
brings its own evaluation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from minisandbox.build.planning.config import Config, DatasetConfig
from minisandbox.build.planning.formats import Refusal
from minisandbox.build.planning.recipes import RecipeFile, find_recipe
from minisandbox.build.planning.row_recipes import row_recipes
from minisandbox.build.planning.rows import Row
from minisandbox.build.planning.sourced import SourcedRecipe
from minisandbox.build.planning.specifications import specified_recipes
from minisandbox.records.plan import InstancePlan, Unplanned


def resolve_recipes(
    dataset: DatasetConfig,
    path: Path,
    rows: Sequence[Row],
    files: Mapping[str, RecipeFile],
    config: Config,
) -> Iterator[tuple[Row, SourcedRecipe | Unplanned]]:
    """Each row of a dataset, whose own file is ``path``, with its recipe.

    Rows with equal recipes get the same object. Raises ``InvalidInput``.
    """
    specified: dict[str, SourcedRecipe] = {}
    buildable = [row for row in rows if row.refusal is None]
    if dataset.specifications:
        instances = [row.instance for row in buildable]
        specified = specified_recipes(dataset, path, instances, Path(config.tools_path))
    evaluated = [row for row in buildable if row.format.evaluated]
    brought = row_recipes(dataset, path, evaluated, specified)
    amended: dict[str, dict[int, SourcedRecipe]] = defaultdict(dict)
    for row in rows:
        instance, refusal = row.instance, row.refusal
        named = _pair_recipe(dataset, instance) or dataset.recipe
        file = None
        if refusal is None or not refusal.final:
            file = find_recipe(files, instance, named)
        if file is not None and not file.amends:
            yield row, file.sourced
            continue
        if refusal is not None:
            yield row, Unplanned(instance, refusal.kind, refusal.message)
            continue
        below = brought.get(instance.instance_id) or specified.get(instance.instance_id)
        if isinstance(below, Refusal):
            yield row, Unplanned(instance, below.kind, below.message)
        elif below is None:
            yield row, _without_recipe(row, named, dataset, config.recipes, file)
        elif file is None:
            yield row, below
        else:
            known = amended[file.name]
            if id(below) not in known:
                known[id(below)] = below.amended(file.sourced)
            yield row, known[id(below)]


def _pair_recipe(dataset: DatasetConfig, instance: InstancePlan) -> str:
    release = instance.release
    if release is None:
        return ""
    named = [
        pair.recipe
        for pair in dataset.pairs
        if (pair.project, pair.after) == (release.project, release.after)
    ]
    return named[0] or release.project


def _without_recipe(
    row: Row, named: str, dataset: DatasetConfig, folder: str, file: RecipeFile | None
) -> Unplanned:
    instance = row.instance
    wanted = (
        f"{folder}/{named}.yaml" if named else f"a file in {folder} with 'repo: {instance.repo}'"
    )
    message = f"there is no recipe for {instance.repo}: add {wanted}"
    if dataset.specifications and not named:
        message = (
            f"{dataset.specifications} specifies no {instance.repo} "
            f"{instance.version or '(the row has no version)'}: add {wanted}"
        )
    if file is not None:
        message = (
            f"{file.path} amends a recipe, and nothing else has one for {instance.repo} "
            f"{instance.version}: remove 'amends' and say there how it is built"
        )
    return Unplanned(instance, "recipe", message)
