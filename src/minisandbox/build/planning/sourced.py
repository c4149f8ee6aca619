"""A recipe together with where each of its values comes from, so that it can be asked.

Recipes are made of several sources, of which the first that says something wins: a recipe file, the
row of the dataset, a pinned environment, the specification of an official package; then defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from minisandbox.records.plan import Recipe

#: The origin of what no source says.
DEFAULT = "default"

#: What is said of packages belongs together: whoever lists them says all of it.
_OF_PACKAGES = ("packages", "complete", "requirement_file", "pip_packages", "dropped")


@dataclass(frozen=True)
class SourcedRecipe:
    """``origins`` are by the names of the recipe's fields; one that is not there has its
    default.
    """

    recipe: Recipe
    origins: Mapping[str, str]

    @classmethod
    def of(cls, recipe: Recipe, origin: str) -> SourcedRecipe:
        """A recipe of one source: all that is not a default comes from there."""
        blank = Recipe(name="", repo="", python="", test="")
        said = [
            item.name
            for item in fields(recipe)
            if getattr(recipe, item.name) != getattr(blank, item.name)
        ]
        return cls(recipe, dict.fromkeys(said, origin))

    def origin(self, key: str) -> str:
        """Where the value of ``key`` comes from."""
        return self.origins.get(key, DEFAULT)

    def amended(self, by: SourcedRecipe) -> SourcedRecipe:
        """This recipe but for what ``by`` has an origin for."""
        said = set(by.origins) - {"name", "repo"}
        if "packages" in said:
            said |= set(_OF_PACKAGES)
        values = {key: getattr(by.recipe, key) for key in said}
        recipe = replace(self.recipe, **values, name=f"{self.recipe.name}-{by.recipe.name}")
        kept = {key: origin for key, origin in self.origins.items() if key not in said}
        return SourcedRecipe(recipe, {**by.origins, **kept})
