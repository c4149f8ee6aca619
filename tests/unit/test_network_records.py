"""What a record says of the network: bounded lists that say so, and nothing that was not seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisandbox.build import stage
from minisandbox.build.index.egress import listed
from minisandbox.errors import StageFailed, facts_of, keep_facts
from minisandbox.records.stages import CloneRecord, EnvironmentRecord, NetworkUse, Record
from minisandbox.sandbox import Attempt
from minisandbox.sandbox.watching import MOST_ADDRESSES
from minisandbox.sandbox.watching import Record as Tries


def tries(number: int) -> tuple[Attempt, ...]:
    record = Tries()
    for address in ("127.0.0.1:3141", "unix:/var/run/nscd/socket", "family 0"):
        record.add(address)  # what each build does
    for port in range(number):
        record.add(f"192.0.2.7:{port}")
    return record.attempts()


@pytest.mark.parametrize(
    ("number", "last"),
    [
        (0, ()),
        (100, ()),
        (101, ("and 1 more",)),
        (MOST_ADDRESSES - 3, ("and 897 more",)),
        (MOST_ADDRESSES, ("and at least 898 more",)),
        (5000, ("and at least 898 more",)),
    ],
)
def test_a_cut_list_says_how_many_more(number: int, last: tuple[str, ...]) -> None:
    addresses = tuple(f"192.0.2.7:{port}" for port in range(min(number, 100)))
    assert listed(tries(number)) == addresses + last


def failed(cls: type[Record], error: Exception, log: Path) -> Record:
    def work() -> Record:
        raise error

    return stage.make(
        cls,
        stage="s",
        key="k",
        inputs="i",
        log=log,
        work=work,
        attempt=stage.Attempt(stage.ATTEMPTS),
    )


@pytest.mark.parametrize("error", [StageFailed("environment", "no"), OSError(28, "full")])
def test_a_failed_record_has_what_the_error_brought(tmp_path: Path, error: Exception) -> None:
    use = NetworkUse(refused=("GET /simple/foo/ 404",), tried=("192.0.2.7:80",))
    keep_facts(error, network=use)
    record = failed(EnvironmentRecord, error, tmp_path / "log")
    assert isinstance(record, EnvironmentRecord)
    assert (record.status, record.network) == ("failed", use)
    assert failed(CloneRecord, error, tmp_path / "log").status == "failed"  # has no such field


def test_a_build_that_did_not_begin_was_not_watched(tmp_path: Path) -> None:
    record = failed(EnvironmentRecord, StageFailed("interpreter", "none"), tmp_path / "log")
    assert isinstance(record, EnvironmentRecord)
    assert record.network == NetworkUse(unwatched="the stage failed outside of its build")


def test_the_place_nearest_to_the_error_is_believed() -> None:
    error = ZeroDivisionError()
    keep_facts(error, network="inner")
    keep_facts(error, network="outer", reach="none")
    assert facts_of(error) == {"network": "inner", "reach": "none"}
    assert facts_of(ZeroDivisionError()) == {}
