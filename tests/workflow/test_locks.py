"""Builds as of a date, and again from their lock without one.

Each project here cannot be built from today's index any more: its requirement's ``setup.py`` uses
what setuptools dropped, its build backend refuses its ``pyproject.toml``, its Python is an old one.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minisandbox.records import codec
from minisandbox.records.stages import EnvironmentRecord

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(1800)]

#: An interpreter of the past, where there is one.
OLD_PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.6.*/bin/python3.6"))

FLIT = (
    '[build-system]\nrequires = ["flit_core"]\nbuild-backend = "flit_core.buildapi"\n'
    '[tool.flit.metadata]\nmodule = "project"\nauthor = "A"\nauthor-email = "a@example.org"\n'
)
SETUP = "from setuptools import setup\nsetup(name='project', version='1', py_modules=['project'])\n"
ISOLATED = (
    '[build-system]\nrequires = ["setuptools", "wheel"]\nbuild-backend = "setuptools.build_meta"\n'
)
#: Editable installs of isolated builds (PEP 660) came to setuptools in 2022.
NOT_EDITABLE = "python -m pip install ."


class Case(NamedTuple):
    """What a project has beside its module, its recipe, and what today's index makes of it."""

    files: dict[str, str]
    recipe: dict[str, Any]
    today: str


CASES = {
    # anyjson has no wheel; setuptools dropped use_2to3 in version 58, of September 2021.
    "dropped-feature": Case(
        {"setup.py": SETUP},
        {"date": "2021-06-01", "packages": ["anyjson==0.3.3"], "install": NOT_EDITABLE},
        "use_2to3 is invalid",
    ),
    # flit_core dropped [tool.flit.metadata] in version 4, of August 2026.
    "refusing-backend": Case(
        {"pyproject.toml": FLIT}, {"date": "2024-01-01"}, "no longer supported"
    ),
    # Without bounds: the newest of the day that says it is for this Python.
    "python-3.6": Case(
        {"setup.py": SETUP, "pyproject.toml": ISOLATED},
        {
            "python": "3.6",
            "date": "2020-06-01",
            # pywatchman is compiled: it has no wheel, and needs the headers.
            "packages": ["click", "pywatchman==1.4.1"],
            "installer": "pip",
            "install": NOT_EDITABLE,
        },
        "",
    ),
}


@pytest.fixture(scope="module")
def built(make_project, build_all, tmp_path_factory) -> dict[str, Any]:
    """Everything in two runs: as of their dates and as of today, then again from the lock."""
    folder = tmp_path_factory.mktemp("locks")
    cases = {name: case for name, case in CASES.items() if name != "python-3.6" or OLD_PYTHONS}
    made: dict[str, Any] = {}
    for name, case in cases.items():
        made[name] = make_project(folder, case.files, case.recipe, name=name)
        if case.today:
            undated = {**case.recipe, "date": ""}
            made[f"{name}-today"] = make_project(folder, case.files, undated, name=f"{name}-today")
    build_all(list(made.values()), "results")
    for name in cases:
        made[name].change_recipe(date=None)
        made[f"{name}-again"] = copy.copy(made[name])
    shutil.rmtree(folder / "results/downloads")  # what the first build kept must not help
    build_all([made[f"{name}-again"] for name in cases], "again", from_lock="results")
    return made


@pytest.mark.parametrize("name", sorted(CASES))
def test_as_of_its_date_and_again_from_its_lock(built: dict[str, Any], name: str) -> None:
    if name == "python-3.6" and not OLD_PYTHONS:
        pytest.skip("needs Python 3.6 from pyenv")
    case, first, second = CASES[name], built[name], built[f"{name}-again"]
    environment = codec.read(EnvironmentRecord, first.environment / "environment.json")
    instance = first.instance(first.batch / "instances.json")
    assert environment.status == instance.status == "ok", environment.failure or instance.failure
    assert first.row.status == "ok", first.row.reason
    files = [*environment.network.files, *instance.network.files]
    assert files
    assert all("" < file.uploaded[:10] <= case.recipe["date"] for file in files)

    again = codec.read(EnvironmentRecord, second.environment / "environment.json")
    rebuilt = second.instance(second.batch / "instances.json")
    assert again.failure is None
    assert rebuilt.failure is None
    assert second.row.status == "ok", second.row.reason
    assert again.packages == environment.packages
    assert again.network.files == environment.network.files
    assert rebuilt.network.files == instance.network.files
    kinds = [layer.kind for layer in rebuilt.layers]
    assert kinds == ["interpreter", "environment", "source", "wheelhouse", "instance"]
    assert rebuilt.layers[3].digest == instance.layers[3].digest


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.today])
def test_today_it_could_not_be_built(built: dict[str, Any], name: str) -> None:
    project = built[f"{name}-today"]
    failure = project.instance(project.batch / "instances.json").failure
    assert failure is not None
    logs = [*project.environment.glob("*.log"), *project.batch.glob("logs/*.build.log")]
    assert CASES[name].today in "".join(log.read_text() for log in logs)
