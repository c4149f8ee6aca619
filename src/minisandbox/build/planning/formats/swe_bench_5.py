"""SWE-bench 5 rows: classic columns, and how each is evaluated: ``image``, ``eval_script``,
``log_parser``, ``eval_type``.

Nothing runs their scripts yet. Where a recipe says how an instance is built and tested, the row is
as good as a classic one, and what it says of that itself is carried along.
"""

from __future__ import annotations

from minisandbox.build.planning.formats.format import Format, Values


def _fits(row: Values) -> bool:
    return "log_parser" in row and "eval_type" in row


FORMAT = Format(
    "swe-bench-5", _fits, unused="the evaluation that a SWE-bench 5 row brings is not run yet"
)
