"""Recipe files: what they can hold, and the sentence for what they cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from minisandbox.build.planning.recipes import read_recipe
from minisandbox.errors import InvalidInput

RECIPE = {"repo": "owner/project", "python": ">=3.11", "test": "python -m pytest"}
FILE = {
    "tool": "swebench-4.1",
    "repo": "owner/project",
    "version": "1",
    "commit": "a" * 40,
    "format": "requirements.txt",
}


def write(folder: Path, **keys: object) -> Path:
    path = folder / "project.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, **keys}))
    return path


def test_a_recipe_is_called_as_its_file(tmp_path: Path) -> None:
    assert read_recipe(write(tmp_path)).sourced.recipe.name == "project"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"repo": "other/one"}, "is of other/one; expected one of owner/project"),
        ({"commit": "main"}, "is at 'main'; expected a full commit hash"),
        ({"tool": "t"}, "is found by 't'; expected one of swebench-4.1, swesmith-0.0.9"),
    ],
)
def test_a_requirement_file_is_one_that_can_be_read(
    tmp_path: Path, keys: dict[str, str], said: str
) -> None:
    path = write(tmp_path, requirement_file={**FILE, **keys})
    with pytest.raises(InvalidInput) as caught:
        read_recipe(path)
    assert str(caught.value) == f"{path}: key 'requirement_file': {said}"
    read_recipe(write(tmp_path, requirement_file=FILE))
    read_recipe(write(tmp_path, requirement_file=None, dropped=["six (no wheel)"]))


def test_a_parser_of_the_official_grader_is_only_for_that(tmp_path: Path) -> None:
    path = write(tmp_path, parser="parse_log_flask", grader="swebench-5")
    assert read_recipe(path).sourced.recipe.parser == "parse_log_flask"
    with pytest.raises(InvalidInput, match="key 'parser': is 'parse_log_flask'"):
        read_recipe(write(tmp_path, parser="parse_log_flask"))
