"""Opening a cache: what is read of the manifest, and what of one that changes or cannot be read."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from pathlib import Path

import pytest

from minisandbox.cli.main import main
from minisandbox.errors import InstanceUnavailable, InstanceUnknown, InvalidInput
from minisandbox.records import codec
from minisandbox.records.manifest import Base, BuildSeconds, Logs, ManifestRow
from minisandbox.runtime import open_cache, profile_of
from minisandbox.sandbox import Limits, Profile

#: Fields of a row that manifests of before do not have.
NEWER = ("grader", "test_spec", "env", "limits", "nested")


def row(instance_id: str, **fields: object) -> ManifestRow:
    """A row with nothing in it but what is given."""
    values: dict[str, object] = {"base": Base(), "build_seconds": BuildSeconds(), "logs": Logs()}
    for field in dataclasses.fields(ManifestRow):
        kind = str(field.type)
        empty = () if "tuple" in kind else 0 if kind == "int" else None if "None" in kind else ""
        values.setdefault(field.name, False if kind == "bool" else empty)
    values |= {"schema": 1, "instance_id": instance_id, "status": "ok", **fields}
    return ManifestRow(**values)  # type: ignore[arg-type]


def write(folder: Path, *rows: ManifestRow, **changes: object) -> None:
    """Put a manifest in place as the pipeline does: a new file, renamed over the old."""
    lines = [json.dumps(codec.encode(one) | changes) + "\n" for one in rows]
    folder.mkdir(exist_ok=True)
    (folder / "new").write_text("".join(lines), encoding="utf-8")
    os.replace(folder / "new", folder / "manifest.jsonl")


def test_rows_come_in_order_and_by_id(tmp_path: Path) -> None:
    write(tmp_path, row("b-1", patch="ü\u2028"), row('a"\\-2'), row("c-3"))
    cache = open_cache(tmp_path)
    assert list(cache) == ["b-1", 'a"\\-2', "c-3"]
    assert [one.instance_id for one in cache.rows()] == list(cache)
    assert len(cache) == 3
    assert "c-3" in cache
    assert cache.row("b-1").patch == "ü\u2028"


def test_an_open_cache_outlives_a_rebuild_of_its_manifest(tmp_path: Path) -> None:
    write(tmp_path, row("a-1", patch="old"), row("b-2", patch="old"))
    cache = open_cache(tmp_path)
    write(tmp_path, row("b-2", patch="new"), row("a-1", patch="new"))
    assert [(one.instance_id, one.patch) for one in cache.rows()] == [
        ("a-1", "old"),
        ("b-2", "old"),
    ]
    assert open_cache(tmp_path).row("a-1").patch == "new"
    (tmp_path / "manifest.jsonl").unlink()
    assert cache.row("b-2").patch == "old"


def test_a_manifest_edited_in_place_gives_no_other_row(tmp_path: Path) -> None:
    write(tmp_path, row("a-1"), row("b-2"))
    cache = open_cache(tmp_path)
    manifest = tmp_path / "manifest.jsonl"
    first, second = manifest.read_bytes().splitlines(keepends=True)
    assert len(first) == len(second)
    manifest.write_bytes(second + first)
    with pytest.raises(InvalidInput, match="open the cache again"):
        cache.row("a-1")
    manifest.write_bytes(b"")
    with pytest.raises(InvalidInput, match="not JSON"):
        cache.row("a-1")


def test_a_row_longer_than_one_read(tmp_path: Path) -> None:
    write(tmp_path, row("a-1", patch="x" * 5_000_000), row("b-2"))
    cache = open_cache(tmp_path)
    assert len(cache.row("a-1").patch) == 5_000_000
    assert cache.row("b-2").instance_id == "b-2"


@pytest.mark.parametrize("schema", [0, 2, 99, None, "1"])
def test_other_schema_versions_are_refused(tmp_path: Path, schema: object) -> None:
    write(tmp_path, row("a-1"), schema=schema)
    with pytest.raises(InvalidInput, match=f"row 1: has schema {schema}.*this version reads 1"):
        open_cache(tmp_path)


@pytest.mark.parametrize("line", ["no json\n", "[]\n", "\n"])
def test_lines_that_are_no_rows_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "manifest.jsonl").write_text(line)
    with pytest.raises(InvalidInput, match=r"row 1: .*build the manifest again"):
        open_cache(tmp_path)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds no manifest\.jsonl"):
        open_cache(tmp_path)
    write(tmp_path, row("flask-1"), row("failed-2", status="failed", reason="no wheel"))
    cache = open_cache(tmp_path)
    with pytest.raises(InstanceUnknown, match="did you mean flask-1"):
        cache.row("flask-2")
    with pytest.raises(InstanceUnavailable, match="no wheel"):
        cache.materialize("failed-2")


def test_where_the_store_is(tmp_path: Path) -> None:
    write(tmp_path, row("a-1"))
    assert open_cache(tmp_path).store.root == tmp_path / "store"
    assert open_cache(tmp_path, store="/elsewhere").store.root == Path("/elsewhere")
    (tmp_path / "cache.json").write_text('{"store": "../other"}')
    assert open_cache(tmp_path).store.root == tmp_path / "../other"
    (tmp_path / "cache.json").write_text("[]")
    with pytest.raises(InvalidInput, match="pass `store`"):
        open_cache(tmp_path)


def test_a_row_says_what_it_was_validated_under(tmp_path: Path) -> None:
    write(tmp_path, row("a-1", limits='{"memory": null, "cpus": 2, "time": 60}', nested=True))
    profile = profile_of(open_cache(tmp_path).row("a-1"))
    assert profile == Profile(nested=True, limits=Limits(memory=None, cpus=2, time=60))
    older = {name: value for name, value in codec.encode(row("a-1")).items() if name not in NEWER}
    (tmp_path / "manifest.jsonl").write_text(json.dumps(older) + "\n")
    assert profile_of(open_cache(tmp_path).row("a-1")) == Profile()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "key 'limits': is not a JSON object"),
        ("{", "key 'limits': is not JSON"),
        ('{"gpus": 1}', "key 'limits.gpus': is unknown"),
        ('{"cpus": "2"}', "key 'limits.cpus': is str"),
        ('{"cpus": 0}', "key 'limits': cpus is 0"),
    ],
)
def test_a_row_with_damaged_limits_starts_nothing(tmp_path: Path, text: str, said: str) -> None:
    digest = "sha256:" + "0" * 64
    layers = [{"kind": "source", "digest": digest, "size": 1, "unpacked_size": 1, "files": 1}]
    write(tmp_path, row("a-1", limits=text, env="{}"), layers=layers)
    with pytest.raises(InvalidInput) as caught:
        open_cache(tmp_path).materialize("a-1")
    assert str(caught.value).startswith(f"manifest row a-1: {said}")


def test_a_cache_can_be_sent_to_another_process(tmp_path: Path) -> None:
    write(tmp_path, row("a-1"))
    sent = pickle.loads(pickle.dumps(open_cache(tmp_path)))
    assert sent.row("a-1").instance_id == "a-1"


@pytest.mark.parametrize("line", [b'{"schema": 1, "instance_id": "a\xff"}', b"[" * 100_000])
def test_bytes_that_are_no_row_are_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "manifest.jsonl").write_bytes(line + b"\n")
    with pytest.raises(InvalidInput, match="row 1: is not JSON"):
        open_cache(tmp_path)


def test_an_option_behind_the_instance_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "some-1", "--timeout", "2", "--", "true"]) == 2
    assert "--timeout has to stand before the instance" in capsys.readouterr().err
