"""Recipes out of specifications and exports: what shares an environment, and as of which day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minisandbox.build.bases.selection import HostBase
from minisandbox.build.plan import make_plan
from minisandbox.build.planning import specifications
from minisandbox.build.planning.config import DatasetConfig, parse_config
from minisandbox.errors import InvalidInput
from minisandbox.evaluate.official.tool import Specification
from minisandbox.records.plan import InstancePlan

LISTED = {
    "python": "3.9",
    "packages": "numpy",
    "pip_packages": ["six==1.16.0"],
    "pre_install": [
        "apt-get update && apt-get install -y locales libfreetype6-dev graphviz",
        "sed -i s/a/b/ setup.py",
    ],
    "install": "python -m pip install -e .",
    "test_cmd": "pytest -rA",
}
IN_A_FILE = {**LISTED, "packages": "requirements.txt"}
OF_GO = {"docker_specs": {"go_version": "1.21"}, "test_cmd": ["go test ./..."]}
EXPORT = "dependencies:\n  - python=3.9.20=h1\n  - pip=24.2=py39h1\n  - pip:\n    - six==1.15.0\n"


@pytest.fixture(autouse=True)
def _tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The official package, which is an installation of its own, answers from here."""

    class Tool:
        def __init__(self, name: str, tools: Path) -> None:
            del name, tools

        def specifications(self, pairs: Sequence[tuple[str, str]]) -> dict[Any, Any]:
            entries = {"1": LISTED, "2": IN_A_FILE, "go": OF_GO}
            return {
                pair: Specification(entries[pair[1]], "") if pair[1] in entries else None
                for pair in pairs
            }

    monkeypatch.setattr(specifications, "OfficialTool", Tool)


def row(number: int, *, version: str = "1", day: str = "2020-01-01", commit: str = "a" * 40) -> Any:
    return InstancePlan(
        instance_id=f"o__r-{number}",
        dataset="rows",
        repo="o/r",
        version=version,
        base_commit=f"{number:040x}",
        extra={"created_at": f"{day}T00:00:00Z", "environment_setup_commit": commit},
    )


def recipes(*rows: InstancePlan, folder: Path = Path(), **dataset: Any) -> dict[str, Any]:
    config = DatasetConfig(name="rows", kind="rows", specifications="swebench-4.1", **dataset)
    found = specifications.specified_recipes(config, folder / "rows.yaml", rows, Path("tools"))
    return {instance_id: sourced.recipe for instance_id, sourced in found.items()}


def test_an_entry_becomes_a_recipe() -> None:
    recipe = recipes(row(1), date="2024-11-30")["o__r-1"]
    assert (recipe.python, recipe.date, recipe.grader) == ("3.9", "2024-11-30", "swebench-4.1")
    assert recipe.packages == ("numpy",)
    assert recipe.pip_packages == ("six==1.16.0",)
    assert recipe.install == "set -eu\nsed -i s/a/b/ setup.py\npython -m pip install -e ."
    assert recipe.dropped == ("locales (locales are part of every environment)",)
    assert recipe.system_packages == ("graphviz", "libfreetype6-dev")


def test_rows_without_an_entry_have_no_recipe() -> None:
    assert recipes(row(1, version="99")) == {}


def test_an_entry_that_names_no_python_is_no_recipe() -> None:
    # The official package has other languages as well.
    assert recipes(row(1, version="go")) == {}


def test_rows_of_one_version_share_the_newest_of_their_days() -> None:
    # Their environment commit differs, but nothing is read there.
    rows = [
        row(number, day=day, commit=f"{number:040x}")
        for number, day in enumerate(("2015-03-01", "2017-02-01", "2016-01-01"))
    ]
    assert {recipe.date for recipe in recipes(*rows, date="created_at").values()} == {"2017-02-01"}


def test_a_requirement_file_is_read_at_the_commit_of_each_environment() -> None:
    found = recipes(
        row(1, version="2", commit="a" * 40),
        row(2, version="2", commit="b" * 40, day="2021-01-01"),
        date="created_at",
    )
    first, second = found["o__r-1"], found["o__r-2"]
    assert first.requirement_file.commit == "a" * 40
    assert second.requirement_file.commit == "b" * 40
    assert (first.date, second.date) == ("2020-01-01", "2021-01-01")
    assert first.name != second.name


def test_an_export_says_what_and_the_entry_how(tmp_path: Path) -> None:
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports/abc.yml").write_text(EXPORT)
    (tmp_path / "exports/instances.tsv").write_text("instance_id\tfile\no__r-1\tabc.yml\n")
    found = recipes(row(1), row(2), folder=tmp_path, pinned_environments="exports")
    pinned, other = found["o__r-1"], found["o__r-2"]
    assert (pinned.packages, pinned.pip_packages) == (("pip==24.2", "six==1.15.0"), ())
    assert pinned.complete
    assert pinned.installer == "pip"
    assert pinned.install == other.install
    assert other.packages == ("numpy",)


@pytest.mark.parametrize("line", ["o__r-1\t../abc.yml", "o__r-1", "o__r-1\tno.yml", "a\tb\tc"])
def test_a_line_that_names_no_export_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "abc.yml").write_text(EXPORT)
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports/instances.tsv").write_text(f"instance_id\tfile\n{line}\n")
    with pytest.raises(InvalidInput, match=r"instances\.tsv: line 2"):
        recipes(row(1), folder=tmp_path, pinned_environments="exports")


@pytest.mark.parametrize("name", ["instances.tsv", "abc.yml"])
def test_a_file_in_another_encoding_is_named(tmp_path: Path, name: str) -> None:
    exports = tmp_path / "exports"
    exports.mkdir()
    (exports / "abc.yml").write_text(EXPORT)
    (exports / "instances.tsv").write_text("instance_id\tfile\no__r-1\tabc.yml\n")
    (exports / name).write_bytes((exports / name).read_bytes() + "# é\n".encode("latin-1"))
    with pytest.raises(InvalidInput, match=rf"{name}: is not UTF-8"):
        recipes(row(1), folder=tmp_path, pinned_environments="exports")


@pytest.mark.parametrize("day", ["2023-99-99", "20230101T0", "2023-02-30"])
def test_a_day_that_is_none_is_named(day: str) -> None:
    with pytest.raises(InvalidInput, match=rf"o__r-1: key 'created_at': is '{day}"):
        recipes(row(1, day=day), date="created_at")


def test_a_row_without_a_day_is_named() -> None:
    rows = [InstancePlan("o__r-1", "rows", "o/r", base_commit="a" * 40, version="1")]
    with pytest.raises(InvalidInput, match=r"o__r-1.* has no 'created_at'"):
        recipes(*rows, date="created_at")


def test_two_datasets_that_want_one_recipe_differently_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    line = '{{"instance_id": "o__r-{0}", "repo": "o/r", "version": "1", "base_commit": "{1}"}}\n'
    names: list[str] = []
    for number, day in enumerate(("2020-01-01", "2021-01-01")):
        (tmp_path / f"{number}.jsonl").write_text(line.format(number, f"{number}" * 40))
        (tmp_path / f"{number}.yaml").write_text(
            f"name: d{number}\nkind: rows\npath: {number}.jsonl\n"
            f'specifications: swebench-4.1\ndate: "{day}"\n'
        )
        names.append(str(tmp_path / f"{number}.yaml"))
    config = parse_config({"datasets": names, "recipes": str(tmp_path / "recipes")}, where="config")
    with pytest.raises(InvalidInput, match="its recipe o__r-1 differs from that of o__r-0"):
        make_plan(config, base=HostBase({}), digest="d", where="config")


class TestBugs:
    """Exports of healthy commits, found by their names."""

    def bug(self, number: int) -> InstancePlan:
        return replace(row(number, version="1"), base_commit="0123456789abcdef", bug="x", patch="y")

    @pytest.mark.parametrize("name", ["o__r.01234567.yml", "sweenv_o__r.01234567.yml"])
    def test_one_is_for_all_bugs_of_its_commit(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "exports").mkdir()
        (tmp_path / "exports" / name).write_text(EXPORT)
        (tmp_path / "exports" / "other__r.01234567.yml").write_text("not read")
        found = recipes(self.bug(1), self.bug(2), folder=tmp_path, pinned_environments="exports")
        assert found["o__r-1"] == found["o__r-2"]
        assert (found["o__r-1"].packages, found["o__r-1"].complete) == (
            ("pip==24.2", "six==1.15.0"),
            True,
        )

    def test_a_folder_of_other_files_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "exports").mkdir()
        (tmp_path / "exports/environment.yml").write_text(EXPORT)
        with pytest.raises(InvalidInput, match="no export is named after a commit"):
            recipes(self.bug(1), folder=tmp_path, pinned_environments="exports")
