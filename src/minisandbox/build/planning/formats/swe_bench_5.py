"""SWE-bench 5 rows: classic columns, and how each is evaluated: ``eval_script``, ``log_parser``,
``eval_type``, and the ``image`` that it was made for.
"""

from __future__ import annotations

from minisandbox.build.planning.formats.format import Format, Values


def _fits(row: Values) -> bool:
    return "log_parser" in row and "eval_type" in row


FORMAT = Format("swe-bench-5", _fits, evaluated=True)
