"""SWE-bench rows (full, Lite, Verified, dev), and all that are of no other format: rows of one's
own have the same columns, as many of them as there is something to say.
"""

from __future__ import annotations

from minisandbox.build.planning.formats.format import Format, Values


def _fits(row: Values) -> bool:
    del row
    return True


FORMAT = Format("swe-bench", _fits)
