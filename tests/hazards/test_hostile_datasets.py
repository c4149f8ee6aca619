"""Rows, recipes and files of a dataset that nobody wrote in good faith: one sentence, and soon."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minisandbox.build.planning import conda
from minisandbox.build.planning.dockerfile import NotUnderstood, read_dockerfile
from minisandbox.build.planning.rows import Row, understand
from minisandbox.build.planning.yamlfile import read_yaml
from minisandbox.errors import InvalidInput
from minisandbox.evaluate.logs import parse_pytest
from minisandbox.records import codec

ROW: dict[str, Any] = {"instance_id": "a__b-1", "repo": "a/b", "base_commit": "a" * 40}


@pytest.fixture(autouse=True)
def soon() -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < 20


def row(**values: Any) -> Row:
    return understand({**ROW, **values}, place="row 1", dataset="d", columns={}, source="rows")


def aliases(levels: int) -> str:
    doubled = (f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, levels))
    return "a0: &a0 [x]\n" + "".join(doubled)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("date: 2026-02-30\n", "cannot be meant"),
        ("date: !!timestamp 1\n", "cannot be meant"),
        (f"version: {'1' * 5000}\n", "cannot be meant"),
        (f"version: 0x{'f' * 5000}\n", "a number is too long"),
        (aliases(12), "more than 1000000 values"),
        ("a: &a [*a]\n", "nested too deeply"),
        ("[" * 1500, "nested too deeply"),
    ],
    ids=["date", "timestamp", "number", "hexadecimal", "aliases", "itself", "depth"],
)
def test_yaml_that_is_no_data(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=said) as told:
        read_yaml(path)
    assert str(told.value).startswith(str(path))


def test_a_column_in_hundreds_of_brackets(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="row 1: key 'further': is nested too deeply"):
        row(further=json.loads("[" * 900 + "]" * 900))
    kept = row(further=json.loads("[" * 90 + "]" * 90))
    codec.write(tmp_path / "row.json", kept.instance)


def test_a_key_that_is_no_text() -> None:
    with pytest.raises(InvalidInput, match="half a surrogate pair"):
        row(further=[{"\udcff": 1}])


def test_a_repository_with_a_name_that_makes_no_file_name() -> None:
    with pytest.raises(InvalidInput, match="key 'repo'"):
        row(repo="/".join("a" * 100))


@pytest.mark.parametrize("number", [math.inf, -math.inf])
def test_a_pull_request_without_a_number(number: float) -> None:
    base = {"sha": "a" * 40, "repo": {"full_name": "a/b"}}
    values = {"number": number, "diff_url": "d", "base": base}
    try:
        found = understand(values, place="row 1", dataset="d", columns={}, source="rows")
    except InvalidInput:
        return
    assert found.refusal is not None


@pytest.mark.parametrize(
    "line",
    [
        f"ipython={'9' * 5000}=py39_0",
        f"{{pip: ['a==1.{'9' * 5000}']}}",
    ],
)
def test_a_pin_of_no_version(line: str) -> None:
    text = f"dependencies:\n- python=3.9.1=h1_0\n- {line}\n"
    with pytest.raises(InvalidInput, match="line 3"):
        conda.from_export(text, where="export")


def test_requirements_that_no_parser_reads() -> None:
    long = f"numpy==1.{'9' * 5000}"
    with pytest.raises(InvalidInput, match="is not a conda specification"):
        conda.from_packages(f"{long} numpy==1", python="3.9", where="packages")
    marker = "(" * 2000 + "python_version > '3'" + ")" * 2000
    for line in (long, f"numpy; {marker}"):
        with pytest.raises(InvalidInput, match=r"line 1: .* is not a requirement"):
            conda.from_requirements(line, where="requirements.txt")


@pytest.mark.parametrize(
    "lines",
    [
        ["ENV A0=xxxxxxxx", *(f"ENV A{n}=$A{n - 1}$A{n - 1}" for n in range(1, 40))],
        ["RUN " + "[" * 3000],
        ["RUN " + "pip " * 20000],
    ],
    ids=["variables", "brackets", "words"],
)
def test_a_dockerfile_that_is_none(lines: list[str]) -> None:
    with pytest.raises(NotUnderstood):
        read_dockerfile("\n".join(["FROM python:3.9", *lines]), row().instance)


def test_a_line_of_a_log_with_many_ends_of_a_name() -> None:
    log = "= short test summary info =\nFAILED x" + "[ - " * 100_000 + "\nFAILED a[ - ] - why\n"
    assert "a[ - ]" in parse_pytest(log)
