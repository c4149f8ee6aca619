"""SWE-rebench rows: SWE-bench's columns, and ``install_config``: how the row is built."""

from __future__ import annotations

from minisandbox.build.planning.formats.format import Format, Values


def _fits(row: Values) -> bool:
    return "install_config" in row


FORMAT = Format(
    "swe-rebench", _fits, unused="the install_config of a SWE-rebench row is not read yet"
)
