"""JSON to dataclass and back, strictly, without a dependency.

Records are read by the runtime, which must import in milliseconds, so no validation library here.
An unknown or missing key is an error that names file and key: a record from a newer version must
not be half understood.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from minisandbox import atomic
from minisandbox.errors import InvalidInput

T = TypeVar("T")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@functools.cache
def _fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls)}


def decode(cls: type[T], data: Any, *, where: str, path: str = "") -> T:
    """Build ``cls`` (a dataclass) from parsed JSON; raises ``InvalidInput`` naming ``where`` and
    the key. ``path`` is the key that ``data`` is the value of, where it is a part of something.
    """
    return typing.cast(T, _decode(cls, data, where, path))


def _at(where: str, path: str) -> str:
    return f"{where}: key {path!r}" if path else where


def _decode(expected: Any, data: Any, where: str, path: str) -> Any:
    if expected is Any or type(data) is expected:
        return data
    if dataclasses.is_dataclass(expected):
        return _decode_dataclass(typing.cast(type, expected), data, where, path)
    origin = typing.get_origin(expected)
    arguments = typing.get_args(expected)
    if origin in (types.UnionType, typing.Union):
        if data is None:
            if type(None) in arguments:
                return None
            raise InvalidInput(_at(where, path), "is null", "a value is required")
        members = [member for member in arguments if member is not type(None)]
        return _decode(members[0], data, where, path)
    if origin is typing.Literal:
        if data not in arguments:
            raise InvalidInput(
                _at(where, path),
                f"is {data!r}",
                f"expected one of {', '.join(map(repr, arguments))}",
            )
        return data
    if origin in (tuple, list):
        if not isinstance(data, list):
            raise InvalidInput(_at(where, path), f"is {type(data).__name__}", "expected a list")
        values = typing.cast("list[Any]", data)
        if set(map(type, values)) - {arguments[0]}:
            values = [
                _decode(arguments[0], item, where, f"{path}[{i}]") for i, item in enumerate(values)
            ]
        # Else nothing is to be decoded: a row lists its tests, often by the thousand, and is read
        # for each start.
        return tuple(values) if origin is tuple else values
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if not isinstance(data, dict):
            raise InvalidInput(_at(where, path), f"is {type(data).__name__}", "expected a mapping")
        mapping = typing.cast("dict[str, Any]", data)
        return {
            key: _decode(arguments[1], item, where, f"{path}.{key}")
            for key, item in mapping.items()
        }
    if expected is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, expected) or (expected is int and isinstance(data, bool)):
        raise InvalidInput(
            _at(where, path), f"is {type(data).__name__}", f"expected {expected.__name__}"
        )
    return data


def _decode_dataclass(cls: type, data: Any, where: str, path: str) -> Any:
    if not isinstance(data, dict):
        raise InvalidInput(
            _at(where, path), f"is {type(data).__name__}", f"expected a mapping ({cls.__name__})"
        )
    mapping = typing.cast("dict[str, Any]", data)
    hints = _hints(cls)
    fields = _fields(cls)
    prefix = f"{path}." if path else ""
    unknown = sorted(str(key) for key in mapping if key not in fields)  # YAML has other keys too
    if unknown:
        raise InvalidInput(
            _at(where, prefix + unknown[0]), "is unknown", f"known keys: {', '.join(fields)}"
        )
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in mapping:
            values[name] = _decode(hints[name], mapping[name], where, prefix + name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InvalidInput(_at(where, prefix + name), "is missing")
    try:
        return cls(**values)
    except InvalidInput as error:  # the class knows what is wrong, and not where it was written
        raise InvalidInput(_at(where, path), error.problem, error.remedy) from None


def encode(value: Any) -> Any:
    """A dataclass instance as plain JSON values (field order kept)."""
    return dataclasses.asdict(value)


def read(cls: type[T], path: Path) -> T:
    """Read one record; raises ``FileNotFoundError`` or ``InvalidInput``."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(str(path), f"is not JSON ({error})") from None
    return decode(cls, data, where=str(path))


def write(path: Path, record: Any) -> None:
    """Write one record atomically, indented, so that a person can read it."""
    atomic.write_text(path, json.dumps(encode(record), indent=1, ensure_ascii=False) + "\n")
