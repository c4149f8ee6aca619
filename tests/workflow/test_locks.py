"""Builds as of a date, and again from their lock without one.

Each project here cannot be built from today's index any more: its requirement's ``setup.py`` uses
what setuptools dropped, its build backend refuses its ``pyproject.toml``, its Python is an old one.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minisandbox.records import codec
from minisandbox.records.plan import BatchPlan, EnvironmentPlan
from minisandbox.records.stages import EnvironmentRecord

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(900)]

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


@pytest.fixture(scope="module", params=sorted(CASES))
def built(request: pytest.FixtureRequest, make_project, tmp_path_factory) -> Any:
    name: str = request.param
    if name == "python-3.6" and not OLD_PYTHONS:
        pytest.skip("needs Python 3.6 from pyenv")
    project = make_project(tmp_path_factory.mktemp(name), CASES[name].files, CASES[name].recipe)
    project.build()
    return project


def undated_plans(built, folder: Path) -> tuple[Path, Path]:
    """The plans of the environment and of its batch with the date taken out."""
    environment = codec.read(
        EnvironmentPlan, built.results / f"plan/environments/{built.environment.name}.json"
    )
    batch = codec.read(BatchPlan, batch_plan_of(built))
    assert environment.date
    undated = dataclasses.replace(batch.recipe, date="")
    codec.write(folder / "environment.json", dataclasses.replace(environment, date=""))
    codec.write(folder / "batch.json", dataclasses.replace(batch, recipe=undated))
    return folder / "environment.json", folder / "batch.json"


def batch_plan_of(built) -> Path:
    path: Path = built.results / "plan/batches" / built.environment.name
    return path / f"{built.batch.name}.json"


def test_as_of_its_date_and_again_from_its_lock(built, tmp_path: Path) -> None:
    environment = codec.read(EnvironmentRecord, built.environment / "environment.json")
    instance = built.instance(built.batch / "instances.json")
    assert environment.status == instance.status == "ok", environment.failure or instance.failure
    assert '"ok": 1' in (built.results / "manifest.summary.json").read_text()
    files = [*environment.network.files, *instance.network.files]
    assert files
    date = codec.read(BatchPlan, batch_plan_of(built)).recipe.date
    assert all("" < file.uploaded[:10] <= date for file in files)

    plan, batch_plan = undated_plans(built, tmp_path)
    shutil.rmtree(built.results / "downloads")  # what the first build kept must not help
    record = tmp_path / "again/environment.json"
    lock = str(built.environment / "environment.json")
    built.run_stage("environment", plan, record, "--from-lock", lock)
    again = codec.read(EnvironmentRecord, record)
    assert again.failure is None
    assert again.lock == environment.lock
    assert again.network.files == environment.network.files

    instances = tmp_path / "again/batches/a/instances.json"
    lock = str(built.batch / "instances.json")
    built.run_stage("instances", batch_plan, instances, "--from-lock", lock)
    rebuilt = built.instance(instances)
    assert rebuilt.failure is None
    assert rebuilt.network.files == instance.network.files
    kinds = [layer.kind for layer in rebuilt.layers]
    assert kinds == ["interpreter", "environment", "source", "wheelhouse", "instance"]
    assert rebuilt.layers[3].digest == instance.layers[3].digest


def test_today_it_could_not_be_built(built, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    case = CASES[request.node.callspec.params["built"]]
    if not case.today:
        return  # this one is about its Python, and can be built any day
    plan, batch_plan = undated_plans(built, tmp_path)
    record = tmp_path / "today/environment.json"
    built.run_stage("environment", plan, record)
    failure = codec.read(EnvironmentRecord, record).failure
    if failure is None:
        record = tmp_path / "today/batches/a/instances.json"
        built.run_stage("instances", batch_plan, record)
        failure = built.instance(record).failure
    assert failure is not None
    assert case.today in failure.message + failure.log_tail


def test_a_lock_that_is_none_is_refused_in_a_sentence(built, tmp_path: Path) -> None:
    plan, _ = undated_plans(built, tmp_path)
    record = tmp_path / "again/environment.json"
    built.run_stage("environment", plan, record, "--from-lock", str(tmp_path / "nowhere.json"))
    failure = codec.read(EnvironmentRecord, record).failure
    assert failure is not None
    assert failure.kind == "lock"
    assert "nowhere.json" in failure.message
