"""Recipe files: what they can hold, and the sentence for what they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from minisandbox.build.planning.recipes import read_recipe
from minisandbox.errors import InvalidInput

RECIPE = {"repo": "owner/project", "python": ">=3.11", "test": "python -m pytest"}
FILE = {"tool": "t", "repo": "other/one", "version": "1", "commit": "main"}


def write(folder: Path, **keys: object) -> Path:
    path = folder / "project.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, **keys}))
    return path


def test_a_recipe_is_called_as_its_file(tmp_path: Path) -> None:
    assert read_recipe(write(tmp_path)).sourced.recipe.name == "project"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("requirement_file", {**FILE, "format": "requirements.txt"}),
        ("requirement_file", None),
        ("dropped", ["six"]),
        ("dropped", []),
    ],
)
def test_what_the_planner_makes_is_no_key_of_a_file(
    tmp_path: Path, key: str, value: object
) -> None:
    path = write(tmp_path, **{key: value})
    with pytest.raises(InvalidInput) as caught:
        read_recipe(path)
    assert str(caught.value) == (
        f"{path}: key {key!r}: is made from a dataset's 'specifications' or 'pinned_environments'; "
        "remove it, and list requirements in 'packages'"
    )


def test_a_parser_of_the_official_grader_is_only_for_that(tmp_path: Path) -> None:
    path = write(tmp_path, parser="parse_log_flask", grader="swebench-5")
    assert read_recipe(path).sourced.recipe.parser == "parse_log_flask"
    with pytest.raises(InvalidInput, match="key 'parser': is 'parse_log_flask'"):
        read_recipe(write(tmp_path, parser="parse_log_flask"))
