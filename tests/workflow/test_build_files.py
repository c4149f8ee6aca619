"""Files that a recipe names: there when a project is installed, and afterwards only where they
are part of it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from minisandbox import open_cache

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(300)]

CONTENT = "what no index has\n"
INSTALL = """\
set -eu
cmp /opt/archives/a.txt build/a.txt
stat -c %a-%U /opt/archives/a.txt build/a.txt > build/modes
"""
PLACES = ("/opt/archives/a.txt", "/testbed/build/a.txt", "/root/.cache/x/a.txt")


@pytest.fixture(scope="module")
def built(make_project, build_all, tmp_path_factory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("files")
    (folder / "a.txt").write_text(CONTENT)
    digest = hashlib.sha256(CONTENT.encode()).hexdigest()

    def files(sha256: str) -> list[dict[str, str]]:
        return [{"url": "../a.txt", "sha256": sha256, "path": path} for path in PLACES]

    tree = {".gitignore": "build/\n"}
    recipes = {
        "whole": {"install": INSTALL, "imports": [], "files": files(digest)},
        "other": {"imports": [], "files": files("0" * 64)},
        "nowhere": {"files": [{"url": "../a.txt", "sha256": digest, "path": "/opt/miniconda3"}]},
    }
    made = {name: make_project(folder, tree, recipe, name=name) for name, recipe in recipes.items()}
    build_all(list(made.values()), "results")
    return made


def test_only_those_in_the_repository_stay(built: dict[str, Any]) -> None:
    project = built["whole"]
    row = project.row
    assert row.status == "ok", (row.reason, row.log_tail)
    with open_cache(project.results).materialize(row.instance_id) as instance:
        there = instance.run(["ls", *PLACES]).stdout_text.split()
        modes = instance.read_file("/testbed/build/modes").decode().split()
    assert there == ["/testbed/build/a.txt"]
    assert modes == ["644-root"] * 2
    assert (project.results / "downloads/files").is_dir()


def test_another_file_ends_the_build_in_a_sentence(built: dict[str, Any]) -> None:
    row = built["other"].row
    assert (row.failed_stage, row.reason_kind) == ("instances", "install")
    assert "a.txt serves another file" in row.reason
    assert "see 'files' in the recipe" in row.reason


def test_a_place_that_is_none_ends_the_build_in_a_sentence(built: dict[str, Any]) -> None:
    row = built["nowhere"].row
    assert (row.failed_stage, row.reason_kind) == ("instances", "install")
    assert "Is a directory" in row.reason
