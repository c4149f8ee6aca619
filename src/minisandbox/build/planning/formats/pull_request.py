"""Pull requests as collected from GitHub, before anyone made a task of them: no patch, no tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from minisandbox.build.planning.formats.format import Format, Refusal, Values
from minisandbox.records.plan import InstancePlan

_COLUMNS = frozenset({"number", "base", "diff_url"})


def _fits(row: Values) -> bool:
    return row.keys() >= _COLUMNS and "instance_id" not in row


def _adapt(row: Values) -> Values:
    adapted = dict(row)
    base = _mapping(row["base"])
    name = _mapping(base.get("repo")).get("full_name")
    if isinstance(name, str):
        adapted["repo"] = name
        number = row["number"]
        if isinstance(number, float) and math.isfinite(
            number
        ):  # as pandas has it, where other rows have none
            number = int(number)
        adapted["instance_id"] = f"{name.replace('/', '__')}-{number}"
    adapted["base_commit"] = base.get("sha")
    return adapted


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _refuse(instance: InstancePlan) -> Refusal:
    del instance
    return Refusal(
        "format",
        "it is a pull request as collected, without patches or tests: make a task of it with "
        "'patch' and 'test_patch'",
        final=True,
    )


FORMAT = Format("pull-request", _fits, _adapt, _refuse)
