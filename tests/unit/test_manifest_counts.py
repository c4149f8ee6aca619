"""The counts of a manifest are over all rows that were planned, with those tried beside them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from minisandbox.records.manifest import ManifestRow, Tally
from minisandbox.records.stages import FAILURE_KINDS, INFRASTRUCTURE


class Row:
    """What the counts read of a row."""

    def __init__(self, kind: str = "", stage: str = "", *, gold: bool | None = None) -> None:
        self.status = "failed" if kind else "ok"
        self.reason_kind, self.failed_stage = kind, stage
        self.gold_resolved = self.empty_resolved = gold


def counted(*rows: Row) -> Tally:
    tally = Tally()
    for row in rows:
        tally.add(cast("ManifestRow", cast("Any", row)))
    return tally


ROWS = [
    Row(gold=True),
    Row(gold=True),
    Row("recipe", "plan"),
    Row("language", "plan"),
    Row("environment", "environment"),
    Row("timeout", "validate", gold=False),
    Row("timeout", "environment"),
    Row("flaky", "validate", gold=False),
]


def test_every_planned_row_is_in_the_denominator() -> None:
    counts = counted(*ROWS).counts
    assert (counts.planned, counts.tried, counts.validated, counts.ok) == (8, 6, 4, 2)
    assert (counts.failed, counts.infrastructure) == (6, 2)
    assert counts.reasons == {
        "timeout": 2,
        "recipe": 1,
        "language": 1,
        "environment": 1,
        "flaky": 1,
    }
    assert sum(counts.reasons.values()) == counts.failed


def test_a_person_reads_the_same() -> None:
    assert str(counted(*ROWS).counts) == (
        "2 of 8 rows planned are ok (6 tried, 4 validated); "
        "6 failed: 2 timeout, 1 recipe, 1 language, 1 environment, 1 flaky"
    )
    assert str(counted(ROWS[0]).counts) == "1 of 1 rows planned are ok (1 tried, 1 validated)"


def test_nothing_is_counted_where_there_is_no_row() -> None:
    assert str(counted().counts) == "0 of 0 rows planned are ok (0 tried, 0 validated)"


@pytest.mark.parametrize("kind", sorted(INFRASTRUCTURE))
def test_infrastructure_is_made_of_kinds_of_failure(kind: str) -> None:
    assert kind in FAILURE_KINDS
    assert counted(Row(kind, "validate")).counts.infrastructure == 1
