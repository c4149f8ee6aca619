"""A project that asks git for its version, in a checkout without history and newer tags.

It is installed as what upstream's checkout would say, again and again, with no network, and nothing
of the history that was lent for it stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minisandbox import open_cache
from minisandbox.runtime import Instance

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(600)]

PYPROJECT = """\
[build-system]
requires = ["setuptools>=61", "{requirement}"]
build-backend = "setuptools.build_meta"
[project]
name = "my-project"
dynamic = ["version"]
[tool.setuptools]
py-modules = ["project"]
[tool.setuptools_scm]
"""


REQUIREMENTS = {"old": "setuptools_scm==6.4.2", "new": "setuptools_scm>=8"}


@pytest.fixture(scope="module")
def all_built(make_project, build_all, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tags")
    made: dict[str, Any] = {}
    for name, requirement in REQUIREMENTS.items():
        files = {"pyproject.toml": PYPROJECT.format(requirement=requirement)}
        made[name] = make_project(folder, files, {"date": "2024-01-01"}, name=name)
    build_all(list(made.values()), "results")
    return made


@pytest.fixture(params=REQUIREMENTS)
def built(request: pytest.FixtureRequest, all_built: dict[str, Any]) -> Any:
    return all_built[request.param]


def version(instance: Instance) -> str:
    asking = "import importlib.metadata as m; print(m.version('my-project'))"
    return instance.run(["python", "-c", asking]).text.strip()


def test_its_version_is_upstreams_and_stays_so_when_it_is_installed_again(built) -> None:
    cache, row = open_cache(built.results), built.row
    assert row.status == "ok", (row.reason, row.log_tail)
    with cache.materialize(row.instance_id) as instance:
        first = version(instance)
        assert first.startswith("1.2.1.dev1+g")
        assert row.base_commit.startswith(first.partition("+g")[2][:7])
        again = instance.run("python -m pip install -e .", merge_stderr=True)
        assert "Successfully installed" in again.text, again.text
        assert version(instance) == first


def test_nothing_of_the_lent_history_stays(built) -> None:
    cache, row = open_cache(built.results), built.row
    with cache.materialize(row.instance_id) as instance:
        commits = "git cat-file --batch-all-objects --batch-check | grep -c commit"
        assert instance.run(commits).text.strip() == "2"
        refs = instance.run("git for-each-ref --format='%(refname)'").text.split()
        assert refs == ["refs/heads/main"]
        assert not instance.run("cat .git/objects/info/alternates").stdout
        assert "THE ANSWER" not in instance.run("git log --all --format=%B").text
        assert instance.run("git status --porcelain").stdout == b""
        assert instance.run(["git", "rev-parse", "HEAD~1"]).text.strip() == row.base_commit


def test_the_variable_is_the_projects_own_where_that_can_be(built) -> None:
    instance = built.instance(Path(built.batch) / "instances.json")
    own, for_all = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MY_PROJECT", "SETUPTOOLS_SCM_PRETEND_VERSION"
    assert sorted(instance.env) == ([for_all, own] if built.name == "old" else [own])
