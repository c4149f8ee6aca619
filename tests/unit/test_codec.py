"""Records survive the way to disk, and what does not fit is named with file and key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput
from minisandbox.records import codec
from minisandbox.records.layer import LayerRef
from minisandbox.records.stages import EnvironmentRecord, Failure

LAYER = LayerRef("environment", "sha256:" + "a" * 64, 10, 100, 3)
RECORD = EnvironmentRecord(
    schema=1,
    stage="environment",
    key="x",
    status="failed",
    inputs="sha256:" + "b" * 64,
    started="2026-01-01T00:00:00+00:00",
    seconds=1.5,
    log="x.log",
    failure=Failure("environment", "no such package"),
    base={"kind": "host"},
    layers=(LAYER,),
    packages=("pytest==8.4.2",),
)


def test_a_record_survives_the_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.json"
    codec.write(path, RECORD)
    assert codec.read(EnvironmentRecord, path) == RECORD
    assert [item.name for item in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stagee": 1}, "key 'stagee'"),
        ({"seconds": "1"}, "'seconds'"),
        ({"seconds": None}, "'seconds'"),
        ({"status": "good"}, "'ok', 'failed'"),
        ({"schema": True}, "'schema'"),
        ({"layers": {}}, "'layers'"),
        ({"layers": [{"kind": "environment"}]}, "'layers[0].digest'"),
        ({"failure": []}, "'failure'"),
        ({"packages": [1]}, "'packages[0]'"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], said: str) -> None:
    data = {**codec.encode(RECORD), **change}
    with pytest.raises(InvalidInput) as caught:
        codec.decode(EnvironmentRecord, json.loads(json.dumps(data)), where="r.json")
    assert said in str(caught.value)
    assert "r.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_key_and_broken_json_are_named(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"schema": 1')
    with pytest.raises(InvalidInput, match="not JSON"):
        codec.read(EnvironmentRecord, path)
    path.write_text('{"schema": 1}')
    with pytest.raises(InvalidInput, match="key 'stage'"):
        codec.read(EnvironmentRecord, path)


def test_whole_numbers_are_seconds_too() -> None:
    data = json.loads(json.dumps({**codec.encode(RECORD), "seconds": 2}))
    assert codec.decode(EnvironmentRecord, data, where="r").seconds == 2.0


@dataclass(frozen=True)
class Narrow:
    """Refuses some of what its types allow."""

    number: int = 1

    def __post_init__(self) -> None:
        if self.number > 9:
            raise InvalidInput("narrow", f"number is {self.number}", "use 9 at most")


@dataclass(frozen=True)
class Around:
    inner: Narrow = Narrow()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"inner": {"number": 10}}, "r.json: key 'inner': number is 10; use 9 at most"),
        ({"inner": {"size": 1}}, "r.json: key 'inner.size': is unknown; known keys: number"),
    ],
)
def test_what_a_class_refuses_is_named_with_its_place(data: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        codec.decode(Around, data, where="r.json")
    assert str(caught.value) == said
    with pytest.raises(InvalidInput) as part:
        codec.decode(Narrow, data["inner"], where="r.json", path="inner")
    assert str(part.value) == said
