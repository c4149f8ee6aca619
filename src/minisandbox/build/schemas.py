"""Schemas generated from the dataclasses: Arrow for the manifest, JSON Schema for people and
editors.
"""

# pyarrow and datasets come without types; what crosses the border is checked by the codec.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from minisandbox.build.planning.config import Config, DatasetConfig
from minisandbox.build.planning.recipes import Scope
from minisandbox.records.manifest import ManifestRow
from minisandbox.records.plan import Recipe
from minisandbox.records.stages import (
    BaseRecord,
    CloneRecord,
    EnvironmentRecord,
    InstancesRecord,
    InterpreterRecord,
    ValidationsRecord,
)
from minisandbox.sandbox import Limits

#: File name below ``workflow/schemas`` for each published type.
PUBLISHED: Mapping[str, type] = {
    "config": Config,
    "dataset": DatasetConfig,
    "recipe": Recipe,
    "clone": CloneRecord,
    "base": BaseRecord,
    "interpreter": InterpreterRecord,
    "environment": EnvironmentRecord,
    "instances": InstancesRecord,
    "validation": ValidationsRecord,
    "manifest-row": ManifestRow,
}

_ARROW: Mapping[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
}


def manifest_schema() -> pa.Schema:
    """The Arrow schema of ``ManifestRow``: no type is guessed from values, so that every file has
    the same.
    """
    return pa.schema(_arrow_fields(ManifestRow))


def _arrow_fields(cls: type) -> list[pa.Field[Any]]:
    hints = typing.get_type_hints(cls)
    return [pa.field(item.name, _arrow_type(hints[item.name])) for item in dataclasses.fields(cls)]


def _arrow_type(hint: Any) -> pa.DataType:
    if dataclasses.is_dataclass(hint):
        return pa.struct(_arrow_fields(typing.cast(type, hint)))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return pa.list_(_arrow_type(arguments[0]))
    if origin is typing.Literal:
        return pa.string()
    if origin in (types.UnionType, typing.Union):
        return _arrow_type(next(member for member in arguments if member is not type(None)))
    return _ARROW[hint]


def json_schema(cls: type) -> dict[str, Any]:
    """The JSON Schema of one dataclass; unknown keys are errors, as they are to the readers. Needs
    pydantic.
    """
    from pydantic import TypeAdapter

    schema = TypeAdapter(cls).json_schema()
    if cls is Recipe:
        _as_in_files(schema)
    for part in (schema, *schema.get("$defs", {}).values()):
        if part.get("type") == "object" and "properties" in part:
            part["additionalProperties"] = False
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _as_in_files(recipe: dict[str, Any]) -> None:
    """Recipes are called as their file."""
    recipe["required"] = ["repo"]
    recipe["if"] = {"properties": {"amends": {"const": True}}, "required": ["amends"]}
    recipe["else"] = {"required": ["python", "test"]}
    listed = recipe["properties"]["submodules"]
    recipe["properties"]["submodules"] = {
        "anyOf": [{"type": "boolean"}, {"type": "array", "items": listed["items"]}],
        "default": False,
    }
    recipe["properties"] |= json_schema(Scope)["properties"]
    # Records know no limits by name; what a recipe leaves out is the configuration's.
    limits = json_schema(Limits)["properties"]
    for limit in limits.values():
        del limit["default"]
    recipe["properties"]["limits"] |= {"properties": limits, "additionalProperties": False}
