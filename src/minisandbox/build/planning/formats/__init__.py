"""The formats of rows, one module each, and the registry that tells them apart.

Columns decide, not file names: people rename files, and mix formats in one.
"""

from __future__ import annotations

from minisandbox.build.planning.formats import (
    pull_request,
    swe_bench,
    swe_bench_5,
    swe_gym,
    swe_rebench,
    swe_smith,
)
from minisandbox.build.planning.formats.format import Format, Refusal, Values

__all__ = ["FORMATS", "Format", "Refusal", "recognise"]

#: The first that fits is it, and SWE-bench fits all.
FORMATS: tuple[Format, ...] = (
    pull_request.FORMAT,
    swe_smith.FORMAT,
    swe_bench_5.FORMAT,
    swe_rebench.FORMAT,
    swe_gym.FORMAT,
    swe_bench.FORMAT,
)


def recognise(row: Values) -> Format:
    """The format of a row."""
    return next(known for known in FORMATS if known.fits(row))
