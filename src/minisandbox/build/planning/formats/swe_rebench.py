"""SWE-rebench rows: SWE-bench's columns, and ``install_config``: how the row is built and tested.

Of its test command and the test patch an evaluation is made, in the columns of SWE-bench 5; a row
whose ``install_config`` does not say enough for that has none, and whoever makes its recipe says
why.
"""

from __future__ import annotations

import datetime
from typing import Any

from minisandbox.build.planning.formats.format import Format, Values
from minisandbox.build.planning.install_config import (
    NotUnderstood,
    evaluation_script,
    read_install_config,
)


def _fits(row: Values) -> bool:
    return "install_config" in row


def _adapt(row: Values) -> Values:
    adapted = dict(row)
    if "created_at" in row:
        adapted["created_at"] = _day(row["created_at"])
    try:
        config = read_install_config(row["install_config"])
    except NotUnderstood:
        return adapted
    base, test_patch = row.get("base_commit"), row.get("test_patch")
    if isinstance(base, str) and isinstance(test_patch, str):
        adapted["eval_script"] = evaluation_script(config, base=base, test_patch=test_patch)
        adapted["log_parser"] = config.log_parser
        adapted["eval_type"] = "pass_and_fail"
    return adapted


def _day(moment: Any) -> Any:
    """Times as the second release has them, in milliseconds since 1970, as text."""
    if not isinstance(moment, int) or isinstance(moment, bool):
        return moment
    try:
        return datetime.datetime.fromtimestamp(moment / 1000, datetime.UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return moment


FORMAT = Format("swe-rebench", _fits, _adapt, evaluated=True)
