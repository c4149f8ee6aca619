"""Recipe files (``envs/recipes/*.yaml``): how the instances of a repository are installed and
tested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from minisandbox.build.planning import debian
from minisandbox.build.planning.config import Config, check_date
from minisandbox.build.planning.yamlfile import read_yaml
from minisandbox.errors import InvalidInput
from minisandbox.evaluate.logs import PARSERS
from minisandbox.evaluate.official.pins import PINS
from minisandbox.records import codec
from minisandbox.records.plan import InstancePlan, Recipe
from minisandbox.runtime.profiles import limits_from
from minisandbox.sandbox import Limits

#: Fields of a recipe that no file can have: the planner makes them of a dataset's specifications.
PLANNED = ("dropped", "requirement_file")


def read_recipes(folder: Path) -> dict[str, Recipe]:
    """All recipes by name (the file's name without ending); raises ``InvalidInput``."""
    if not folder.is_dir():
        raise InvalidInput(
            str(folder), "is not a folder", "set 'recipes' to the folder of the recipe files"
        )
    recipes: dict[str, Recipe] = {}
    for path in recipe_files(folder):
        if path.stem in recipes:
            raise InvalidInput(str(path), f"is a second recipe called {path.stem!r}")
        recipes[path.stem] = read_recipe(path)
    return recipes


def recipe_files(folder: Path) -> list[Path]:
    """The recipe files of a folder, in order."""
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


def read_recipe(path: Path) -> Recipe:
    """One recipe file, checked; raises ``InvalidInput`` that names the file and the key."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise InvalidInput(str(path), "is not a mapping", "see docs/how-to/own-dataset.md")
    for key in PLANNED:
        if key in data:
            raise InvalidInput(
                f"{path}: key {key!r}",
                "is made from a dataset's 'specifications' or 'pinned_environments'",
                "remove it, and list requirements in 'packages'",
            )
    recipe = codec.decode(Recipe, {"name": path.stem, **data}, where=str(path))
    _check(recipe, str(path))
    return recipe


def find_recipe(recipes: Mapping[str, Recipe], instance: InstancePlan, named: str) -> Recipe | None:
    """The recipe the dataset names, else the one for the row's repository; raises ``InvalidInput``
    if there are several.
    """
    if named:
        return recipes.get(named)
    fitting = [recipe for recipe in recipes.values() if recipe.repo == instance.repo]
    if len(fitting) > 1:
        names = " and ".join(recipe.name for recipe in fitting)
        raise InvalidInput(
            f"{instance.dataset}: {instance.instance_id}",
            f"recipes {names} are both for {instance.repo}",
            "name one with 'recipe' in the dataset file",
        )
    return fitting[0] if fitting else None


def limits_of(recipe: Recipe, config: Config) -> Limits:
    """What holds the sandboxes of a recipe: its own limits, else those of the run."""
    limits = {**config.limits.identity(), **recipe.limits}
    return limits_from(limits, where=f"recipe {recipe.name}")


def _check(recipe: Recipe, where: str) -> None:
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", recipe.python):
        try:
            SpecifierSet(recipe.python)
        except InvalidSpecifier:
            raise InvalidInput(
                f"{where}: key 'python'",
                f"is {recipe.python!r}",
                "expected a version like '3.11' or '>=3.11'",
            ) from None
    if recipe.date:
        check_date(recipe.date, where=f"{where}: key 'date'")
    if recipe.grader not in ("log", *PINS):
        raise InvalidInput(
            f"{where}: key 'grader'",
            f"is {recipe.grader!r}",
            f"expected one of {', '.join(('log', *PINS))}",
        )
    if recipe.parser not in PARSERS:
        raise InvalidInput(
            f"{where}: key 'parser'",
            f"is {recipe.parser!r}",
            f"expected one of {', '.join(sorted(PARSERS))}",
        )
    if recipe.timeout < 1:
        raise InvalidInput(
            f"{where}: key 'timeout'", f"is {recipe.timeout}", "expected seconds, 1 or more"
        )
    limits_from(recipe.limits, where=where)
    for package in recipe.system_packages:
        if not debian.PACKAGE.fullmatch(package):
            raise InvalidInput(
                f"{where}: key 'system_packages'",
                f"has {package!r}",
                "list names of Debian packages, such as libfreetype-dev",
            )
    for package in (*recipe.packages, *recipe.pip_packages):
        if package.startswith("-"):
            raise InvalidInput(
                f"{where}: key 'packages'", f"has the option {package!r}", "list requirements only"
            )
