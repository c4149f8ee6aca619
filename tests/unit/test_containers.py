"""The same rows out of every container, and a bad one told by where it lies."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from minisandbox.build.planning import task_repository
from minisandbox.build.planning.config import DatasetConfig
from minisandbox.build.planning.containers import read_local
from minisandbox.build.planning.dataset import read_rows
from minisandbox.errors import InvalidInput

ROWS: list[dict[str, Any]] = [
    {
        "instance_id": f"owner__name-{number}",
        "repo": "owner/name",
        "base_commit": str(number) * 40,
        "problem_statement": "one\r\ntwo\u2028three",
        "FAIL_TO_PASS": '["t::a"]',
    }
    for number in (1, 2)
]
TASK = """\
instance_id: {name}
repo: owner/name
version: '1.10'
base_commit: '0123456789012345678901234567890123456789'
split: {split}
image: registry/{name}:latest
log_parser: parse_log_pytest
eval_type: pass_and_fail
datasets: [owner/dataset]
"""


def read(path: Path, split: str = "test") -> list[Any]:
    config = DatasetConfig("d", "rows", path=str(path), split=split)
    return read_rows(config, path.parent / "d.yaml")


def refusal(path: Path, split: str = "test") -> str:
    with pytest.raises(InvalidInput) as caught:
        read(path, split)
    message = str(caught.value)
    assert "\n" not in message
    return message


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_csv(path: Path, encoding: str) -> None:
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)


def write(path: Path, kind: str) -> Path:
    """The rows in one kind of container."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(ROWS)
    saved = datasets.Dataset.from_list(ROWS)
    path = path / f"rows.{kind.partition(' ')[0]}"
    match kind:
        case "jsonl":
            path.write_text(lines(*ROWS))
        case "jsonl of Windows":
            path.write_bytes(b"\xef\xbb\xbf" + lines(*ROWS).replace("\n", "\r\n\r\n").encode())
        case "json":
            path.write_text(json.dumps(ROWS, indent=2))
        case "json lines":
            path.write_text(lines(*ROWS))
        case "csv":
            write_csv(path, "utf-8")
        case "csv of Excel":
            write_csv(path, "utf-8-sig")
        case "parquet":
            pq.write_table(table, path)
        case "arrow":
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
                out.write_table(table)
        case "saved":
            saved.save_to_disk(path)
        case "splits":
            other = datasets.Dataset.from_list(ROWS[:1])
            datasets.DatasetDict({"train": other, "test": saved}).save_to_disk(path)
        case "download":
            (path / "data").mkdir(parents=True)
            pq.write_table(table[:1], path / "data/test-00000-of-00002.parquet")
            pq.write_table(table[1:], path / "data/test-00001-of-00002.parquet")
            pq.write_table(table, path / "data/train-00000-of-00001.parquet")
        case _:
            path.mkdir()
            pq.write_table(table, path / "mine.parquet")
    return path


@pytest.mark.parametrize(
    "kind",
    [
        "jsonl",
        "jsonl of Windows",
        "json",
        "json lines",
        "csv",
        "csv of Excel",
        "parquet",
        "arrow",
        "saved",
        "splits",
        "download",
        "folder",
    ],
)
def test_every_container_holds_the_same_rows(tmp_path: Path, kind: str) -> None:
    rows = read(write(tmp_path, kind))
    assert [row.instance.instance_id for row in rows] == ["owner__name-1", "owner__name-2"]
    assert {row.instance.problem_statement for row in rows} == {"one\r\ntwo\u2028three"}
    assert {row.instance.fail_to_pass for row in rows} == {("t::a",)}
    assert {tuple(row.instance.extra) for row in rows} == {()}


@pytest.mark.parametrize("kind", ["splits", "download"])
def test_a_split_that_is_not_there_is_named_with_those_that_are(tmp_path: Path, kind: str) -> None:
    message = refusal(write(tmp_path, kind), "dev")
    assert "no split 'dev'" in message
    assert "test, train" in message or "train, test" in message


def test_rows_of_several_files_are_told_with_their_file(tmp_path: Path) -> None:
    rows = read(write(tmp_path, "download"))
    assert [row.place for row in rows] == [
        "data/test-00000-of-00002.parquet row 1",
        "data/test-00001-of-00002.parquet row 1",
    ]


def test_one_object_is_one_row(tmp_path: Path) -> None:
    (tmp_path / "row.json").write_text(json.dumps(ROWS[0]))
    assert [row.place for row in read(tmp_path / "row.json")] == ["row 1"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.json", '{"rows": []}', "holds dict"),
        ("rows.json", "[\n{", "line 2"),
        ("rows.json", "", "not JSON"),
        ("rows.jsonl", lines([]), "row 1: is list"),
        ("rows.csv", "instance_id,repo\nx-1,a/b,c\n", "row 1: has more cells"),
        ("rows.csv", 'instance_id\n"x', "not CSV"),
        ("rows.csv", b"instance_id\n\xff", "not UTF-8"),
        ("rows.arrow", b"ARROW", "not an Arrow stream"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path, name: str, content: str | bytes, said: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert said in refusal(path)


def test_all_bad_rows_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    bad = {**ROWS[0], "base_commit": "main"}
    path.write_text(lines(ROWS[0], bad, ROWS[1], bad, bad) + "{\n\n" + lines(1, ROWS[0]) + "[")
    message = refusal(path)
    assert f"{path}: row 2: key 'base_commit': is 'main'" in message
    assert message.endswith("5 more cannot be used: row 4-6, row 8, row 10")


def test_of_very_many_bad_rows_some_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines(*([ROWS[0], {}] * 50)))
    message = refusal(path)
    assert "row 2: key 'instance_id': is missing; 49 more" in message
    assert message.endswith("row 42, ...")


class Repository:
    """A task repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "sweb.yaml").write_text("datasets: [owner/dataset]\nsplits: [dev, test]\n")

    def task(self, name: str, *, split: str = "test", **files: str) -> Path:
        task = self.folder / "tasks" / name
        task.mkdir(parents=True)
        content = {
            "task.yaml": TASK.format(name=name, split=split),
            "tests.json": '{"FAIL_TO_PASS": ["t::a"], "PASS_TO_PASS": []}',
            "problem_statement.md": "one\r\ntwo\n",
            "gold.patch": "-a\r\n+b\r\n",
            "test.patch": "x\n",
            "eval.sh": "#!/bin/bash\npytest\n",
            **files,
        }
        for file, text in content.items():
            (task / file).write_bytes(text.encode())
        return task


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "tasks-of-mine")


class TestTaskRepository:
    def test_its_tasks_are_rows(self, repository: Repository) -> None:
        repository.task("owner__name-2")
        repository.task("owner__name-1", **{"hints.md": "Look.", "Dockerfile": "FROM x\n"})
        repository.task("owner__name-3", split="dev")
        first, second = read(repository.folder)
        assert [first.place, second.place] == ["tasks/owner__name-1", "tasks/owner__name-2"]
        assert first.format.name == "swe-bench-5"
        instance = first.instance
        assert (instance.version, instance.hints_text) == ("1.10", "Look.")
        assert (instance.patch, instance.problem_statement) == ("-a\r\n+b\r\n", "one\r\ntwo\n")
        assert (instance.fail_to_pass, instance.pass_to_pass) == (("t::a",), ())
        assert instance.extra["eval_script"] == "#!/bin/bash\npytest\n"
        assert instance.extra["dockerfile"] == "FROM x\n"
        assert [row.instance.instance_id for row in read(repository.folder, "dev")] == [
            "owner__name-3"
        ]

    def test_files_for_the_tests_and_a_pinned_environment(self, repository: Repository) -> None:
        task = repository.task("owner__name-1", **{"environment.yml": "dependencies: []\n"})
        (task / "test_assets/sub").mkdir(parents=True)
        (task / "test_assets/sub/a.png").write_bytes(b"\x89PNG\r\n")
        (row,) = read(repository.folder)
        assert row.instance.extra["test_assets"] == {"sub/a.png": "iVBORw0K"}
        assert row.instance.extra["environment_export"] == "dependencies: []\n"

    def test_a_link_among_the_files_for_the_tests_is_named(self, repository: Repository) -> None:
        task = repository.task("owner__name-1")
        (task / "test_assets").mkdir()
        (task / "test_assets/key").symlink_to("/etc/passwd")
        assert "test_assets/key: is no regular file" in refusal(repository.folder)

    @pytest.mark.parametrize("name", ["", "hints.md", "gold.patch", "tests.json", "test_assets"])
    def test_a_link_out_of_the_repository_is_not_read(
        self, repository: Repository, tmp_path: Path, name: str
    ) -> None:
        task = repository.task("owner__name-1")
        place = task / name if name else task
        secret = tmp_path / "secret"
        if name == "test_assets":
            secret.mkdir()
            (secret / "key").write_text("secret")
        elif name:
            place.unlink(missing_ok=True)
            secret.write_text("{}")
        else:
            task.rename(secret)
        place.symlink_to(secret)
        assert f"{name or 'the folder'}: is a link" in refusal(repository.folder)

    def test_files_for_the_tests_have_a_limit(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(task_repository, "_MAX_ASSETS", 2**20)
        task = repository.task("owner__name-1")
        (task / "test_assets").mkdir()
        (task / "test_assets/big").write_bytes(bytes(2**20 + 1))
        assert "test_assets: holds more than 1 MiB" in refusal(repository.folder)

    def test_test_lists_may_be_in_the_task(self, repository: Repository) -> None:
        task = repository.task("owner__name-1")
        (task / "tests.json").unlink()
        with (task / "task.yaml").open("a") as file:
            file.write("FAIL_TO_PASS: ['t::b']\n")
        (row,) = read(repository.folder)
        assert row.instance.fail_to_pass == ("t::b",)

    @pytest.mark.parametrize(
        ("files", "said"),
        [
            ({"tests.json": "{"}, "tests.json: is not JSON"),
            ({"tests.json": "[]"}, "tests.json: is no object"),
            ({"task.yaml": "- x\n"}, "task.yaml: is not a mapping"),
            ({"task.yaml": "x: [\n"}, "is not YAML"),
            ({"task.yaml": "version: 1.10\n"}, "quote it"),
            ({"task.yaml": "repo: a/b\n"}, "'instance_id': is missing"),
        ],
    )
    def test_a_bad_task_is_named(
        self, repository: Repository, files: Mapping[str, str], said: str
    ) -> None:
        repository.task("a-1")
        repository.task("b-2", **files)
        repository.task("c-3", **files)
        message = refusal(repository.folder)
        assert "tasks/b-2" in message
        assert said in message
        assert message.endswith("1 more cannot be used: tasks/c-3")

    def test_a_file_that_is_lacking_is_named(self, repository: Repository) -> None:
        (repository.task("a-1") / "gold.patch").unlink()
        assert "tasks/a-1: has no gold.patch" in refusal(repository.folder)

    def test_a_split_without_tasks_is_named(self, repository: Repository) -> None:
        repository.task("a-1", split="dev")
        assert "no task of split 'test'; name one of dev" in refusal(repository.folder)


#: A folder of dataset files to be read as a whole; where it is not set, no test is collected.
DATA = os.environ.get("MINISANDBOX_TEST_DATA")
ENDINGS = (".json", ".jsonl", ".csv", ".parquet")
FILES = [path for path in sorted(Path(DATA).rglob("*")) if path.suffix in ENDINGS] if DATA else []

if FILES:

    @pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DATA)))
    def test_a_real_file_is_read_or_its_bad_rows_are_numbered(path: Path) -> None:
        held = sum(1 for _ in read_local(path, "test"))
        try:
            rows = read(path)
        except InvalidInput as error:
            said = str(error)
        else:
            said = f"{path}: row "
            assert len(rows) == held
        assert said.startswith(f"{path}: row ")
