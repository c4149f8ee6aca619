"""Which source decides a value of a recipe, and that `recipe show` tells it as it is built."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from minisandbox.build.plan import account_of, ensure_plan
from minisandbox.build.planning import specifications
from minisandbox.build.planning.recipes import read_recipe
from minisandbox.cli.main import main
from minisandbox.errors import InvalidInput
from minisandbox.evaluate.official.tool import Specification
from minisandbox.records import codec
from minisandbox.records.plan import BatchPlan, Recipe

ENTRY = {
    "python": "3.9",
    "packages": "numpy",
    "pip_packages": ["six==1.16.0"],
    "pre_install": ["apt-get update && apt-get install -y graphviz", "sed -i s/a/b/ setup.py"],
    "install": "python -m pip install -e .",
    "test_cmd": "pytest -rA",
}
EXPORT = "dependencies:\n  - python=3.8.20=h1\n  - pip=24.2=py38h1\n"


class Project:
    """Two rows with specifications; the second has a pinned environment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "recipes").mkdir()
        (root / "exports").mkdir()
        (root / "exports/abc.yml").write_text(EXPORT)
        (root / "exports/instances.tsv").write_text("instance_id\tfile\no__r-2\tabc.yml\n")
        rows = [
            {"instance_id": f"o__r-{n}", "repo": "o/r", "version": "1", "base_commit": "a" * 40}
            for n in (1, 2)
        ]
        (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        dataset = {
            "name": "rows",
            "kind": "rows",
            "path": "rows.jsonl",
            "specifications": "swebench-4.1",
            "pinned_environments": "exports",
            "date": "2024-11-30",
        }
        (root / "dataset.yaml").write_text(yaml.safe_dump(dataset))
        self.config: dict[str, Any] = {
            "datasets": [str(root / "dataset.yaml")],
            "recipes": str(root / "recipes"),
            "results": str(root / "results"),
        }
        self.configure()

    def configure(self, **keys: Any) -> None:
        self.config |= keys
        (self.root / "config.yaml").write_text(yaml.safe_dump(self.config))

    def recipe(self, name: str = "mine", **keys: Any) -> Path:
        path = self.root / f"recipes/{name}.yaml"
        path.write_text(yaml.safe_dump({"repo": "o/r", **keys}))
        return path

    def planned(self, instance_id: str) -> BatchPlan:
        """The batch that an instance is really built in."""
        ensure_plan(self.config, ["config.yaml"])
        batches = [
            codec.read(BatchPlan, path) for path in self.root.glob("results/plan/batches/*/*.json")
        ]
        (batch,) = [
            item
            for item in batches
            if instance_id in {instance.instance_id for instance in item.instances}
        ]
        return batch

    def origins(self, instance_id: str) -> dict[str, str]:
        values = account_of(self.config, ["config.yaml"], instance_id).values()
        return {key: said["from"] for key, said in values["recipe"].items()}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    class Tool:
        def __init__(self, name: str, tools: Path) -> None:
            del name, tools

        def specifications(self, pairs: list[tuple[str, str]]) -> dict[Any, Any]:
            return {pair: Specification(ENTRY, "") if pair[1] == "1" else None for pair in pairs}

    monkeypatch.setattr(specifications, "OfficialTool", Tool)
    return Project(tmp_path)


def test_a_pinned_environment_goes_before_the_specification(project: Project) -> None:
    first, second = project.planned("o__r-1").recipe, project.planned("o__r-2").recipe
    assert (first.python, first.packages) == ("3.9", ("numpy",))
    assert (second.python, second.packages) == ("3.8", ("pip==24.2",))
    assert second.test == first.test == "pytest -rA"
    assert project.origins("o__r-1")["python"] == "swebench-4.1: o/r 1: python"
    pinned = project.origins("o__r-2")
    assert pinned["python"] == f"pinned export {project.root}/exports/abc.yml"
    assert pinned["test"] == "swebench-4.1: o/r 1: test_cmd"
    assert pinned["date"] == "dataset file: date"
    assert pinned["timeout"] == "default"


def test_a_whole_recipe_file_goes_before_both(project: Project) -> None:
    path = project.recipe(python="3.11", test="pytest")
    recipe = project.planned("o__r-2").recipe
    assert (recipe.python, recipe.packages, recipe.grader) == ("3.11", (), "log")
    origins = project.origins("o__r-2")
    assert origins["python"] == f"{path}: python"
    assert origins["packages"] == "default"


def test_a_file_that_amends_changes_what_it_says(project: Project) -> None:
    path = project.recipe(amends=True, install="make", system_packages=["ffmpeg"])
    recipe = project.planned("o__r-2").recipe
    assert (recipe.python, recipe.packages) == ("3.8", ("pip==24.2",))
    assert (recipe.install, recipe.system_packages) == ("make", ("ffmpeg",))
    origins = project.origins("o__r-2")
    assert origins["install"] == f"{path}: install"
    assert origins["packages"] == f"pinned export {project.root}/exports/abc.yml"


def test_packages_that_amend_are_all_of_them(project: Project) -> None:
    project.recipe(amends=True, packages=["six"])
    recipe = project.planned("o__r-2").recipe
    assert (recipe.packages, recipe.complete, recipe.dropped) == (("six",), False, ())
    assert project.planned("o__r-1").recipe.pip_packages == ()


def test_a_file_is_for_the_versions_that_it_names(project: Project) -> None:
    project.recipe("old", amends=True, versions=["0.9"], install="old")
    project.recipe("new", amends=True, versions=["1", "2"], install="new")
    assert project.planned("o__r-1").recipe.install == "new"
    project.recipe("newer", amends=True, install="newer")
    with pytest.raises(InvalidInput, match="recipes new and newer are both for o/r"):
        project.planned("o__r-1")


def test_a_file_that_amends_nothing_builds_nothing(project: Project) -> None:
    rows = [{"instance_id": "o__r-1", "repo": "o/r", "version": "9", "base_commit": "a" * 40}]
    (project.root / "rows.jsonl").write_text(json.dumps(rows[0]) + "\n")
    project.recipe(amends=True, install="make")
    with pytest.raises(InvalidInput, match=r"mine\.yaml amends a recipe, and nothing else has one"):
        account_of(project.config, ["config.yaml"], "o__r-1")


@pytest.mark.parametrize("instance_id", ["o__r-1", "o__r-2"])
def test_what_is_shown_is_what_is_built(project: Project, instance_id: str) -> None:
    project.recipe(amends=True, env={"A": "b"}, limits={"cpus": 2})
    batch = project.planned(instance_id)
    account = account_of(project.config, ["config.yaml"], instance_id)
    assert account.sourced.recipe == batch.recipe
    assert account.environment == batch.environment
    assert {
        name: limit["value"] for name, limit in account.values()["limits"].items()
    } == batch.limits


@pytest.mark.parametrize("instance_id", ["o__r-1", "o__r-2"])
def test_what_is_shown_is_a_recipe_file(project: Project, instance_id: str, tmp_path: Path) -> None:
    project.recipe(amends=True, env={"A": "b # c"}, limits={"cpus": 2}, test="a\nb '\"\n")
    built = project.planned(instance_id).recipe
    (tmp_path / "shown").mkdir()
    path = tmp_path / "shown" / f"{built.name}.yaml"
    path.write_text(account_of(project.config, ["config.yaml"], instance_id).text())
    assert read_recipe(path).sourced.recipe == built


def test_what_the_planner_makes_is_shown_with_its_source(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENTRY, "packages", "requirements.txt")
    built = project.planned("o__r-1").recipe
    text = account_of(project.config, ["config.yaml"], "o__r-1").text()
    listed = built.requirement_file
    assert listed is not None
    shown = yaml.safe_load(text)
    assert shown["requirement_file"] == codec.encode(listed)
    assert shown["dropped"] == list(built.dropped)
    source = "# swebench-4.1: o/r 1: packages; dataset row: environment_setup_commit\n"
    assert f"{source}requirement_file:\n" in text
    path = tmp_path / f"{built.name}.yaml"
    path.write_text(text)
    assert read_recipe(path).sourced.recipe == built


def test_every_value_has_an_origin(project: Project) -> None:
    assert list(project.origins("o__r-1")) == [item.name for item in fields(Recipe)]


def test_limits_are_the_recipes_or_the_configurations(project: Project) -> None:
    path = project.recipe(amends=True, limits={"cpus": 2})
    project.configure(limits={"memory": 2**30})
    values = account_of(project.config, ["config.yaml"], "o__r-1").values()
    limits = values["limits"]
    assert limits["cpus"] == {"value": 2, "from": f"{path}: limits"}
    assert limits["memory"] == {"value": 2**30, "from": "config.yaml: limits"}
    assert limits["disk"]["from"] == "default"
    assert values["config"]["timeout"]["from"] == "default"


def test_an_unknown_id_names_the_nearest(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(project.root / "config.yaml")
    assert main(["recipe", "show", "o__r-3", "--config", config]) == 1
    assert capsys.readouterr().err == (
        f"minisandbox: no instance 'o__r-3' in the datasets of {config}; "
        "did you mean o__r-2, o__r-1?\n"
    )


def test_the_command_prints_either(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(project.root / "config.yaml")
    assert main(["recipe", "show", "o__r-1", "--config", config]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["python"] == "3.9"
    assert main(["recipe", "show", "o__r-1", "--config", config, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"]["python"]["value"] == "3.9"
    assert not (project.root / "results").exists()  # looking writes nothing
