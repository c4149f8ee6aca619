"""What an instance is built with, and who says so, for people and for programs.

As text it is a recipe file: what is printed can be put into the folder of the recipes and changed.
"""

# PyYAML says of few things of what type they are.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

import yaml

from minisandbox.build.planning.sourced import DEFAULT, SourcedRecipe
from minisandbox.records import codec
from minisandbox.records.plan import Recipe

#: Keys of the configuration that decide how an instance is built, beside its recipe.
_OF_THE_RUN = ("base", "network", "interpreters", "timeout", "history", "from_lock")


@dataclass(frozen=True)
class Account:
    """``row`` is where the instance's row is, ``environment`` what it is installed in, ``run`` the
    configuration with the keys that its file has (the others have their defaults).
    """

    instance_id: str
    row: str
    environment: str
    sourced: SourcedRecipe
    run: Mapping[str, Any]
    said: frozenset[str]
    config_file: str

    def values(self) -> dict[str, Any]:
        """The account as plain values: of each key what it is and where it comes from."""
        recipe = codec.encode(self.sourced.recipe)
        return {
            "instance_id": self.instance_id,
            "row": self.row,
            "environment": self.environment,
            "recipe": {
                key: {"value": value, "from": self.sourced.origin(key)}
                for key, value in recipe.items()
            },
            "limits": self._limits(),
            "config": {
                key: {"value": self.run[key], "from": self._origin_in_run(key)}
                for key in _OF_THE_RUN
            },
        }

    def text(self) -> str:
        """The account as a recipe file, with comments."""
        lines = [
            f"# {self.instance_id}: {self.row}",
            f"# recipe {self.sourced.recipe.name}, environment {self.environment}",
        ]
        for key in _OF_THE_RUN:
            shown = json.dumps(self.run[key])
            lines.append(f"# config {key}: {shown}  ({self._origin_in_run(key)})")
        recipe: dict[str, Any] = codec.encode(self.sourced.recipe)
        keys = [item.name for item in fields(Recipe) if item.name not in ("name", "limits")]
        said = [key for key in keys if self.sourced.origin(key) != DEFAULT]
        unsaid = [key for key in keys if self.sourced.origin(key) == DEFAULT]
        for origin, group in groupby([*said, *unsaid], key=self.sourced.origin):
            lines += ["", f"# {origin}"]
            for key in group:
                lines += _dumped({key: recipe[key]})
        return "\n".join([*lines, "", *self._limit_lines()]) + "\n"

    def _limit_lines(self) -> list[str]:
        """Those that are not the recipe's as comments: what it does not say is the run's."""
        own = self.sourced.recipe.limits
        lines = ["limits:"] if own else ["# limits:"]
        for name, limit in self._limits().items():
            line = f"  {_dumped({name: limit['value']})[0]}  # {limit['from']}"
            lines.append(line if name in own else f"# {line}")
        return lines

    def _limits(self) -> dict[str, dict[str, Any]]:
        own = self.sourced.recipe.limits
        of_run: Mapping[str, Any] = self.run["limits"]
        found: dict[str, dict[str, Any]] = {}
        for name, value in of_run.items():
            origin = self.sourced.origin("limits")
            if name not in own:
                said = f"limits.{name}" in self.said
                origin = f"{self.config_file}: limits" if said else DEFAULT
            found[name] = {"value": own.get(name, value), "from": origin}
        return found

    def _origin_in_run(self, key: str) -> str:
        return f"{self.config_file}: {key}" if key in self.said else DEFAULT


class _Dumper(yaml.SafeDumper):
    """Text of several lines as it reads, lists indented below their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        return super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _dumped(value: Mapping[str, Any]) -> list[str]:
    plain: dict[str, Any] = json.loads(json.dumps(value))  # YAML writes tuples in a way of its own
    text = yaml.dump(plain, Dumper=_Dumper, width=1000, allow_unicode=True)
    return text.rstrip().splitlines()
