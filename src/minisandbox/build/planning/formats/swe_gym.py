"""SWE-Gym rows: SWE-bench's columns, but for the commit that environments are made at; collections
made of them call themselves so.
"""

from __future__ import annotations

from minisandbox.build.planning.formats.format import Format, Values

_COLUMNS = frozenset({"instance_id", "version", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS"})


def _fits(row: Values) -> bool:
    if "swe-gym" in str(row.get("dataset_name", "")).lower():
        return True
    return row.keys() >= _COLUMNS and "environment_setup_commit" not in row


FORMAT = Format("swe-gym", _fits)
