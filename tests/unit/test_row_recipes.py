"""Rows that bring their own evaluation: whose word counts for what is installed, and why there is
no recipe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from minisandbox.build.bases.selection import HostBase
from minisandbox.build.plan import make_plan
from minisandbox.build.planning import specifications
from minisandbox.build.planning.config import parse_config
from minisandbox.evaluate.official.tool import Specification
from minisandbox.records.plan import BatchPlan, Recipe, Unplanned

BASE = "0123456789abcdef0123456789abcdef01234567"
PATCH = """\
diff --git a/tests/test_a.py b/tests/test_a.py
--- a/tests/test_a.py
+++ b/tests/test_a.py
@@ -1 +1 @@
-1
+2
"""
SCRIPT = f"""\
#!/bin/bash
set -uxo pipefail
conda activate testbed
cd /testbed
python -m pip install -e .
git apply -v - <<'EOF_1'
{PATCH}
EOF_1
: '>>>>> Start Test Output'
pytest -rA tests/test_a.py
: '>>>>> End Test Output'
git checkout {BASE} tests/test_a.py
"""
FIVE: dict[str, Any] = {
    "instance_id": "o__r-1",
    "repo": "o/r",
    "version": "1.0",
    "base_commit": BASE,
    "patch": PATCH.replace("tests/test_a", "r/a"),
    "test_patch": PATCH,
    "created_at": "2020-01-01T00:00:00Z",
    "FAIL_TO_PASS": ["tests/test_a.py::test"],
    "PASS_TO_PASS": [],
    "image": "somewhere/one:latest",
    "eval_script": SCRIPT,
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
}
EXPORT = "dependencies:\n  - python=3.{0}.20=h1\n  - pip:\n    - six=={1}\n"
DOCKERFILE = f"""\
FROM python:3.10
RUN pip install six==1.3
RUN git clone https://github.com/o/r /testbed && cd /testbed && git reset --hard {BASE}
RUN pip install --no-deps -e .
"""
ENTRY = {"python": "3.8", "packages": "six=1.4", "pre_install": ["sed x"], "install": "make it"}
REBENCH: dict[str, Any] = {
    **{key: FIVE[key] for key in FIVE if key not in ("eval_script", "log_parser", "eval_type")},
    "install_config": {
        "python": "3.9",
        "packages": "six=1.5",
        "pip_packages": ["pytest"],
        "pre_install": ["apt-get install -y gcc", "touch built"],
        "install": "pip install -e .",
        "test_cmd": "pytest -rA",
        "log_parser": "parse_log_pytest",
        "env_vars": {"MODE": "test"},
    },
}


class Planned:
    """The recipe of the one row, or why it has none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "recipes").mkdir()

    def recipe_file(self) -> None:
        text = 'repo: o/r\npython: "3.12"\ntest: pytest -rA\n'
        (self.folder / "recipes/r.yaml").write_text(text)

    def pin(self, *names: str) -> str:
        """Pinned environments of the dataset for these rows; the line for its file."""
        exports = self.folder / "exports"
        exports.mkdir()
        (exports / "a.yml").write_text(EXPORT.format(11, "1.2"))
        lines = ["instance_id\tfile", *(f"{name}\ta.yml" for name in names)]
        (exports / "instances.tsv").write_text("\n".join(lines) + "\n")
        return "pinned_environments: exports\n"

    def __call__(self, *rows: Mapping[str, Any], dataset: str = "") -> list[Recipe | Unplanned]:
        lines = [json.dumps(row) + "\n" for row in rows]
        (self.folder / "rows.jsonl").write_text("".join(lines))
        text = f"name: d\nkind: rows\npath: rows.jsonl\n{dataset}"
        (self.folder / "d.yaml").write_text(text)
        names = {"datasets": ["d.yaml"], "recipes": "recipes", "results": "results"}
        paths = {
            key: [str(self.folder / item) for item in value]
            if isinstance(value, list)
            else str(self.folder / value)
            for key, value in names.items()
        }
        config = parse_config(paths, where="config")
        shards, _ = make_plan(config, base=HostBase({"kind": "host"}), digest="", where="config")
        found: dict[str, Recipe | Unplanned] = {
            instance.instance_id: shard.recipe
            for shard in shards.values()
            if isinstance(shard, BatchPlan)
            for instance in shard.instances
        }
        found |= {item.instance.instance_id: item for item in shards["unplanned.json"]}
        return [found[row["instance_id"]] for row in rows]


@pytest.fixture
def plan(tmp_path: Path) -> Planned:
    return Planned(tmp_path)


@pytest.fixture(autouse=True)
def _tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The official package, which is an installation of its own, answers from here."""

    class Tool:
        def __init__(self, name: str, tools: Path) -> None:
            del name, tools

        def specifications(self, pairs: Sequence[tuple[str, str]]) -> dict[Any, Any]:
            entry = {**ENTRY, "test_cmd": "pytest"}
            return {pair: Specification(entry, "") if pair[1] == "1.0" else None for pair in pairs}

    monkeypatch.setattr(specifications, "OfficialTool", Tool)


def built(found: Recipe | Unplanned) -> Recipe:
    assert isinstance(found, Recipe), found
    return found


def reason(found: Recipe | Unplanned) -> tuple[str, str]:
    assert isinstance(found, Unplanned), found
    return found.kind, found.message


def test_each_source_goes_before_the_next(plan: Planned) -> None:
    own = {"environment_export": EXPORT.format(7, "1.1")}
    docker = {"dockerfile": DOCKERFILE}
    specified = "specifications: swebench-4.1\n"
    pinned = plan.pin("o__r-1") + specified
    seen = [
        built(plan({**FIVE, **own, **docker}, dataset=pinned)[0]),
        built(plan({**FIVE, **docker}, dataset=pinned)[0]),
        built(plan({**FIVE, **docker}, dataset=specified)[0]),
        built(plan(FIVE, dataset=specified)[0]),
    ]
    assert [recipe.python for recipe in seen] == ["3.7", "3.11", "3.10", "3.8"]
    assert [(*recipe.packages, *recipe.pip_packages) for recipe in seen] == [
        ("six==1.1",),
        ("six==1.2",),
        ("six==1.3",),
        ("six==1.4.*",),
    ]
    assert {recipe.grader for recipe in seen} == {"swebench-5"}
    assert {recipe.parser for recipe in seen} == {"parse_log_pytest"}
    assert {recipe.test for recipe in seen} == {"pytest -rA"}
    assert len({recipe.name for recipe in seen}) == 4
    plan.recipe_file()
    of_file = built(plan({**FIVE, **own, **docker}, dataset=pinned)[0])
    assert (of_file.python, of_file.grader) == ("3.12", "log")


def test_what_the_script_installs_is_installed_when_the_instance_is_built(plan: Planned) -> None:
    pinned = plan.pin("o__r-1", "o__r-2")
    second = "python -m pip install -q 'pytest<7'"
    extra = SCRIPT.replace(": '>>>>> Start", f"{second}\n: '>>>>> Start")
    plain, more = plan(
        FIVE, {**FIVE, "instance_id": "o__r-2", "eval_script": extra}, dataset=pinned
    )
    assert built(plain).install == "set -eu\npython -m pip install -e ."
    assert built(more).install == f"set -eu\npython -m pip install -e .\n{second}"
    # The next source knows what comes before the script's own install.
    (docker,) = plan({**FIVE, "dockerfile": DOCKERFILE}, dataset=pinned)
    assert built(docker).install.split("\n")[1:] == [
        "pip install --no-deps -e .",
        "python -m pip install -e .",
    ]
    assert (built(docker).packages, built(docker).pip_packages) == (("six==1.2",), ())
    (entry,) = plan(FIVE, dataset=pinned + "specifications: swebench-4.1\n")
    assert built(entry).install == "set -eu\nsed x\nmake it\npython -m pip install -e ."
    assert built(entry).packages == ("six==1.2",)


def test_rows_of_one_environment_share_a_recipe_and_its_day(plan: Planned) -> None:
    pinned = plan.pin("o__r-1", "o__r-2") + "date: created_at\n"
    later = {**FIVE, "instance_id": "o__r-2", "created_at": "2021-03-04"}
    first, second = plan(FIVE, later, dataset=pinned)
    assert built(first) == built(second)
    assert built(first).date == "2021-03-04"


def test_classic_rows_beside_them_have_their_own_grader(plan: Planned) -> None:
    classic = {key: FIVE[key] for key in FIVE if key not in ("log_parser", "eval_type")}
    classic |= {"instance_id": "o__r-2", "environment_setup_commit": BASE}
    own, other = plan(FIVE, classic, dataset="specifications: swebench-4.1\n")
    assert (built(own).grader, built(other).grader) == ("swebench-5", "swebench-4.1")


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({}, "recipe", "nothing else says how o/r is installed"),
        (
            {"dockerfile": DOCKERFILE + "COPY x /y\n"},
            "recipe",
            "its Dockerfile is not understood (line 5: `COPY x /y`), and nothing else says",
        ),
        ({"eval_type": "fail_only"}, "format", "the row has the eval_type 'fail_only'"),
        ({"eval_script": "pytest\n"}, "format", "an eval_script that has no line"),
        ({"eval_script": SCRIPT.replace("\n", "\r\n")}, "format", "CRLF line ends"),
        ({"log_parser": "parse_log_mine"}, "format", "swebench-5 does not have"),
        ({"environment_export": "x: 1\n"}, "recipe", "o__r-1: environment.yml"),
    ],
)
def test_a_row_that_cannot_be_built_says_why(
    plan: Planned, changes: Mapping[str, Any], kind: str, said: str
) -> None:
    found = reason(plan({**FIVE, **changes})[0])
    assert found[0] == kind
    assert said in found[1]


def test_a_recipe_file_overrules_a_row_that_says_too_little(plan: Planned) -> None:
    plan.recipe_file()
    assert built(plan({**FIVE, "eval_type": "fail_only"})[0]).python == "3.12"


class TestSweRebench:
    def test_its_install_config_is_a_recipe(self, plan: Planned) -> None:
        recipe = built(plan(REBENCH)[0])
        assert (recipe.python, recipe.packages) == ("3.9", ("six==1.5.*",))
        assert (recipe.pip_packages, recipe.complete) == (("pytest",), False)
        assert recipe.install == "set -eu\ntouch built\npip install -e ."
        assert recipe.env == {"MODE": "test"}
        assert recipe.system_packages == ("gcc",)
        assert (recipe.grader, recipe.parser) == ("swebench-5", "parse_log_pytest")

    def test_it_goes_before_pinned_environments_and_after_recipe_files(self, plan: Planned) -> None:
        pinned = plan.pin("o__r-1") + "specifications: swebench-4.1\n"
        assert built(plan(REBENCH, dataset=pinned)[0]).python == "3.9"
        plan.recipe_file()
        assert built(plan(REBENCH, dataset=pinned)[0]).python == "3.12"

    def test_what_was_installed_then_goes_before_what_was_asked_for(self, plan: Planned) -> None:
        row = {
            **REBENCH,
            "environment": EXPORT.format(9, "1.6") + "    - r==0.1.dev3\n    - own-name==2\n",
            "requirements": f"-e git+https://github.com/o/r.git@{BASE}#egg=Own_Name\nsix==1.7\n",
        }
        recipe = built(plan(row)[0])
        assert (recipe.packages, recipe.complete) == (("six==1.6",), True)
        assert recipe.pip_packages == ()
        assert "r==0.1.dev3 (the project itself)" in recipe.dropped
        assert "own-name==2 (the project itself)" in recipe.dropped

    @pytest.mark.parametrize("environment", ["", "no: export\n", None])
    def test_the_list_of_pip_where_there_is_no_export(
        self, plan: Planned, environment: str | None
    ) -> None:
        row = {**REBENCH, "environment": environment, "requirements": "six==1.7\nr @ file:///x\n"}
        recipe = built(plan(row)[0])
        assert (recipe.packages, recipe.complete, recipe.python) == (("six==1.7",), True, "3.9")

    def test_files_of_the_repository_are_not_guessed(self, plan: Planned) -> None:
        config = {**REBENCH["install_config"], "packages": "requirements.txt"}
        kind, message = reason(plan({**REBENCH, "install_config": config})[0])
        assert kind == "recipe"
        assert "installs requirements.txt of the repository" in message

    def test_one_that_says_too_little_is_named(self, plan: Planned) -> None:
        config = {**REBENCH["install_config"], "test_cmd": None}
        kind, message = reason(plan({**REBENCH, "install_config": config})[0])
        assert (kind, message) == ("recipe", "its install_config has no 'test_cmd'")

    def test_times_in_milliseconds_are_days(self, plan: Planned) -> None:
        row = {**REBENCH, "created_at": 1609298073000}
        assert built(plan(row, dataset="date: created_at\n")[0]).date == "2020-12-30"
