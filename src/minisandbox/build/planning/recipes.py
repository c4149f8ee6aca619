"""Recipe files (``envs/recipes/*.yaml``): how the instances of a repository are installed and
tested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from minisandbox.build.planning import debian
from minisandbox.build.planning.build_files import checked_files
from minisandbox.build.planning.config import Config, check_date
from minisandbox.build.planning.sourced import SourcedRecipe
from minisandbox.build.planning.yamlfile import read_yaml
from minisandbox.build.services import service_names
from minisandbox.errors import InvalidInput
from minisandbox.evaluate.logs import PARSERS
from minisandbox.evaluate.official.pins import PINS, SPECIFYING
from minisandbox.evaluate.official.row_grader import LOG_PARSERS
from minisandbox.records import codec
from minisandbox.records.plan import InstancePlan, Recipe, RequirementFile
from minisandbox.runtime.profiles import limits_from
from minisandbox.sandbox import Limits

#: What ``submodules: true`` says.
ALL_SUBMODULES = "*"


@dataclass(frozen=True)
class Scope:
    """Keys of a recipe file that say what it is for.

    With ``amends`` the file is not a whole recipe: what it says goes over what the dataset has for
    the row. ``versions`` are those of the rows that it is for, none meaning all.
    """

    amends: bool = False
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecipeFile:
    """One file, checked. Where it amends, only what has an origin counts of its recipe."""

    path: Path
    scope: Scope
    sourced: SourcedRecipe

    @property
    def name(self) -> str:
        """The file's name without ending."""
        return self.path.stem

    @property
    def amends(self) -> bool:
        """Whether it goes over a recipe that it is not."""
        return self.scope.amends

    def fits(self, instance: InstancePlan) -> bool:
        """Whether it is for this row."""
        versions = self.scope.versions
        of_version = not versions or instance.version in versions
        return self.sourced.recipe.repo == instance.repo and of_version


def read_recipes(folder: Path) -> dict[str, RecipeFile]:
    """All recipes by name (the file's name without ending); raises ``InvalidInput``."""
    if not folder.is_dir():
        raise InvalidInput(
            str(folder), "is not a folder", "set 'recipes' to the folder of the recipe files"
        )
    recipes: dict[str, RecipeFile] = {}
    for path in recipe_files(folder):
        if path.stem in recipes:
            raise InvalidInput(str(path), f"is a second recipe called {path.stem!r}")
        recipes[path.stem] = read_recipe(path)
    return recipes


def recipe_files(folder: Path) -> list[Path]:
    """The recipe files of a folder, in order."""
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


def read_recipe(path: Path) -> RecipeFile:
    """One recipe file, checked; raises ``InvalidInput`` that names the file and the key."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise InvalidInput(str(path), "is not a mapping", "see docs/how-to/own-dataset.md")
    said = dict(cast("dict[str, Any]", data))
    about = {item.name: said.pop(item.name) for item in fields(Scope) if item.name in said}
    scope = codec.decode(Scope, about, where=str(path))
    if isinstance(said.get("submodules"), bool):
        said["submodules"] = [ALL_SUBMODULES] if said["submodules"] else []
    # What a file that amends does not say is never looked at.
    unsaid = {"python": "3.0", "test": "true"} if scope.amends else {}
    recipe = codec.decode(Recipe, {"name": path.stem, **unsaid, **said}, where=str(path))
    _check(recipe, str(path))
    recipe = replace(recipe, files=checked_files(recipe.files, path))
    origins = {key: f"{path}: {key}" for key in ("name", *said)}
    return RecipeFile(path, scope, SourcedRecipe(recipe, origins))


def find_recipe(
    recipes: Mapping[str, RecipeFile], instance: InstancePlan, named: str
) -> RecipeFile | None:
    """The recipe the dataset names, else the one for the row's repository; raises ``InvalidInput``
    if there are several.
    """
    if named:
        return recipes.get(named)
    fitting = [recipe for recipe in recipes.values() if recipe.fits(instance)]
    if len(fitting) > 1:
        names = " and ".join(recipe.name for recipe in fitting)
        raise InvalidInput(
            f"{instance.dataset}: {instance.instance_id}",
            f"recipes {names} are both for {instance.repo}",
            "name one with 'recipe' in the dataset file, or give them 'versions'",
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
    # An official grader reads logs with parsers of its own.
    known = PARSERS if recipe.grader == "log" else {*PARSERS, *LOG_PARSERS}
    if recipe.parser not in known:
        raise InvalidInput(
            f"{where}: key 'parser'",
            f"is {recipe.parser!r}",
            f"expected one of {', '.join(sorted(known))}",
        )
    if recipe.timeout < 1:
        raise InvalidInput(
            f"{where}: key 'timeout'", f"is {recipe.timeout}", "expected seconds, 1 or more"
        )
    limits_from(recipe.limits, where=where)
    if (listed := recipe.requirement_file) is not None:
        _check_requirement_file(listed, recipe.repo, where)
    if unknown := sorted(set(recipe.services) - set(service_names())):
        raise InvalidInput(
            f"{where}: key 'services'",
            f"has {unknown[0]!r}",
            f"expected some of {', '.join(service_names())}",
        )
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


def _check_requirement_file(listed: RequirementFile, repo: str, where: str) -> None:
    if listed.repo != repo:  # an environment is made with the clone of its own repository
        problem, remedy = f"is of {listed.repo}", f"expected one of {repo}"
    elif not re.fullmatch(r"[0-9a-f]{40}", listed.commit):
        problem, remedy = f"is at {listed.commit!r}", "expected a full commit hash"
    elif listed.tool not in SPECIFYING:
        problem = f"is found by {listed.tool!r}"
        remedy = f"expected one of {', '.join(SPECIFYING)}"
    else:
        return
    raise InvalidInput(f"{where}: key 'requirement_file'", problem, remedy)
