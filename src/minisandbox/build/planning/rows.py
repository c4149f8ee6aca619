"""One row of a dataset as an ``InstancePlan``, whatever its format and however its values are
written down. A value that cannot be meant is refused with the row and the key.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from minisandbox import keys
from minisandbox.build.planning.formats import Format, Refusal, recognise
from minisandbox.build.planning.formats.languages import foreign_language
from minisandbox.errors import InvalidInput
from minisandbox.records.plan import InstancePlan

_INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
#: A commit hash, full or shortened. A branch or tag could move, and its instance with it.
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_LONGEST_NAME = 200
#: Lists and mappings in each other; what writes them as JSON later goes no deeper than Python does.
_DEEPEST = 100

_TEXT_KEYS = ("version", "patch", "test_patch", "problem_statement", "hints_text")
_KNOWN = {"instance_id", "repo", "base_commit", "FAIL_TO_PASS", "PASS_TO_PASS", *_TEXT_KEYS}


@dataclass(frozen=True)
class Row:
    """One row as it was understood. ``place`` is where in its dataset it is, for people;
    ``refusal`` is why it is not built, if it is not.
    """

    place: str
    instance: InstancePlan
    format: Format
    refusal: Refusal | None = None


def understand(
    values: Mapping[str, Any], *, place: str, dataset: str, columns: Mapping[str, str], source: str
) -> Row:
    """One row in the normal form; ``columns`` maps our names to the dataset's where they differ.

    Raises ``InvalidInput`` for a row that no instance can be made of.
    """
    data = dict(_unwrapped(values))
    for ours, theirs in columns.items():
        if theirs in data:
            data[ours] = data.pop(theirs)
    # In a table each row has the columns of all: those without a value say nothing of its format.
    known = recognise({key: value for key, value in data.items() if not _missing(value)})
    instance = known.mean(_instance(known.adapt(data), dataset, where=f"{source}: {place}"))
    refusal = known.refuse(instance)
    foreign = foreign_language(instance)
    if foreign is not None and refusal is not None:
        # Of the two reasons the language is the one that stays.
        refusal = replace(foreign, final=refusal.final)
    return Row(place, instance, known, refusal or foreign)


def _unwrapped(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row that lies under ``instance`` among what a trainer keeps beside it."""
    inner = row.get("instance")
    if "instance_id" in row or not isinstance(inner, Mapping | str):
        return row
    if isinstance(inner, str):
        try:
            inner = json.loads(inner)
        except (ValueError, RecursionError):
            return row
        if not isinstance(inner, dict):
            return row
    beside = {key: value for key, value in row.items() if key != "instance"}
    return {**beside, **cast("Mapping[str, Any]", inner)}


def _instance(data: Mapping[str, Any], dataset: str, *, where: str) -> InstancePlan:
    values: dict[str, Any] = {"dataset": dataset}
    values["instance_id"] = _required(data, "instance_id", _INSTANCE_ID, where)
    values["repo"] = _required(data, "repo", _REPO, where)
    values["base_commit"] = _required(data, "base_commit", _COMMIT, where)
    for key in _TEXT_KEYS:
        values[key] = _text(data.get(key), f"{where}: key {key!r}")
    values["fail_to_pass"] = _test_list(data, "FAIL_TO_PASS", where)
    values["pass_to_pass"] = _test_list(data, "PASS_TO_PASS", where)
    if not values["fail_to_pass"]:
        values["fail_to_pass"] = None
    values["extra"] = {
        _encodable(key, where): _jsonable(data[key], f"{where}: key {key!r}")
        for key in data
        if key not in _KNOWN
    }
    return InstancePlan(**values)


def _missing(value: Any) -> bool:
    """pandas writes NaN where a row has no value."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value)


def _required(data: Mapping[str, Any], key: str, pattern: re.Pattern[str], where: str) -> str:
    value = data.get(key)
    if _missing(value):
        raise InvalidInput(f"{where}: key {key!r}", "is missing")
    if (
        not isinstance(value, str)
        or len(keys.slug(value)) > _LONGEST_NAME
        or not pattern.fullmatch(value)
        or ".." in value
    ):
        shown = repr(value)[:80]
        raise InvalidInput(
            f"{where}: key {key!r}", f"is {shown}", f"expected text like {_example(key)}"
        )
    return value


def _example(key: str) -> str:
    return {"instance_id": "owner__name-123", "repo": "owner/name"}.get(key, "a commit hash")


def _text(value: Any, where: str) -> str:
    if _missing(value):
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InvalidInput(where, f"is {type(value).__name__}", "expected text")
    return _encodable(value, where)


def _encodable(text: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(
            where, f"holds half a surrogate pair at character {error.start}, which is no text"
        ) from None
    return text


def _test_list(data: Mapping[str, Any], key: str, where: str) -> tuple[str, ...] | None:
    """Lists come as lists, arrays, or JSON text of a list; absent is ``None``."""
    value = data.get(key)
    if hasattr(value, "tolist"):
        value = cast("Any", value).tolist()
    if _missing(value):
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            # Not Python's notation either: arrays print as ['a' 'b'], which reads as one name.
            raise InvalidInput(
                f"{where}: key {key!r}", "is text that is not a JSON list", 'write ["a", "b"]'
            ) from None
        if value is None:
            return None
    if not isinstance(value, list | tuple):
        raise InvalidInput(
            f"{where}: key {key!r}", f"is {type(value).__name__}", "expected a list of tests"
        )
    items = list(cast("list[Any]", value))
    if not all(isinstance(item, str) for item in items):
        raise InvalidInput(f"{where}: key {key!r}", "has an entry that is not text")
    return tuple(_encodable(item, f"{where}: key {key!r}") for item in items)


def _jsonable(value: Any, where: str, depth: int = 0) -> Any:
    """A further column as JSON: arrays as lists, dates as text, bytes as base64, NaN as null."""
    if depth > _DEEPEST:
        raise InvalidInput(where, "is nested too deeply")
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str):
        return _encodable(value, where)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {
            _encodable(str(key), where): _jsonable(item, where, depth + 1)
            for key, item in mapping.items()
        }
    if isinstance(value, list | tuple):
        return [_jsonable(item, where, depth + 1) for item in cast("list[Any]", value)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
