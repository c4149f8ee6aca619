"""Every test that tests/hazards/README.md names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]
INDEX = (CLONE / "tests/hazards/README.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([A-DH]\d+(?:, [A-DH]\d+)*) \|.*\| (.*) \|$", INDEX, re.MULTILINE)


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_bytes())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("hazard", "cell"), ROWS)
def test_a_hazard_names_tests_that_are_there(hazard: str, cell: str) -> None:
    named = re.findall(r"`([^`]+)`", cell)
    assert named, hazard
    for name in named:
        path, _, test = name.partition("::")
        assert test in functions_of(CLONE / path), name


def test_the_index_has_every_hazard_once() -> None:
    numbers = [number for hazards, _ in ROWS for number in hazards.split(", ")]
    assert len(numbers) == len(set(numbers)) >= 34
