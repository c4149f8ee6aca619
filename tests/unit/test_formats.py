"""Rows of every format in small: what they are taken for, what becomes of them, and why not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from minisandbox.build.bases.selection import HostBase
from minisandbox.build.plan import make_plan
from minisandbox.build.planning.config import parse_config
from minisandbox.build.planning.rows import Row, understand
from minisandbox.errors import InvalidInput
from minisandbox.records.plan import BatchEntry, PlanIndex, Unplanned

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LISTS: dict[str, Any] = {"FAIL_TO_PASS": ["t.py::a"], "PASS_TO_PASS": ["t.py::b"]}


def changes(path: str) -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-1\n+2\n"


CLASSIC: dict[str, Any] = {
    "repo": "owner/name",
    "instance_id": "owner__name-1",
    "base_commit": COMMIT,
    "patch": changes("name/core.py"),
    "test_patch": changes("tests/test_core.py"),
    "problem_statement": "One.\r\nTwo.",
    "hints_text": "",
    "created_at": "2024-01-02T03:04:05Z",
    "version": "1.10",
    **LISTS,
    "environment_setup_commit": COMMIT,
}
FIVE: dict[str, Any] = {
    **CLASSIC,
    "image": "registry/owner_1776_name-1:latest",
    "eval_script": "#!/bin/bash\npytest -rA\n",
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
}
GYM = {key: value for key, value in CLASSIC.items() if key != "environment_setup_commit"}
REBENCH: dict[str, Any] = {
    **CLASSIC,
    "install_config": {"python": "3.9", "install": "pip install -e .", "test_cmd": "pytest"},
}
SMITH: dict[str, Any] = {
    "instance_id": "owner__name.01234567.func_pm_remove_cond__abcdefgh",
    "repo": "mirrors/owner__name.01234567",
    "patch": changes("name/core.py"),
    **LISTS,
    "image_name": "mirrors.x86_64.owner_1776_name.01234567",
    "problem_statement": "It is broken.",
}
PULL: dict[str, Any] = {
    "number": 7,
    "diff_url": "https://host/owner/name/pull/7.diff",
    "base": {"sha": COMMIT, "repo": {"full_name": "owner/name"}},
    "resolved_issues": [],
}


def without(row: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


def read(row: Mapping[str, Any], **columns: str) -> Row:
    return understand(row, place="row 1", dataset="d", columns=columns, source="rows")


@pytest.mark.parametrize(
    ("row", "known"),
    [
        (CLASSIC, "swe-bench"),
        ({"instance_id": "x-1", "repo": "owner/name", "base_commit": COMMIT}, "swe-bench"),
        (FIVE, "swe-bench-5"),
        (without(FIVE, "image", "environment_setup_commit"), "swe-bench-5"),
        (GYM, "swe-gym"),
        ({**CLASSIC, "dataset_name": "SWE-Gym/SWE-Gym"}, "swe-gym"),
        (REBENCH, "swe-rebench"),
        (SMITH, "swe-smith"),
        ({**SMITH, "repo": "owner/name", "test_patch": ""}, "swe-smith"),
        (PULL, "pull-request"),
        ({"instance": GYM, "mode": "eval"}, "swe-gym"),
    ],
)
def test_columns_tell_formats_apart(row: Mapping[str, Any], known: str) -> None:
    assert read(row).format.name == known


@pytest.mark.parametrize("row", [CLASSIC, FIVE, GYM, REBENCH])
def test_rows_with_classic_columns_can_be_built(row: Mapping[str, Any]) -> None:
    found = read(row)
    assert found.refusal is None
    instance = found.instance
    assert (instance.version, instance.problem_statement) == ("1.10", "One.\r\nTwo.")
    assert (instance.fail_to_pass, instance.pass_to_pass) == (("t.py::a",), ("t.py::b",))
    assert instance.extra.keys() == row.keys() - CLASSIC.keys() | (
        {"created_at", "environment_setup_commit"} & row.keys()
    )


class TestNested:
    def test_the_row_lies_under_instance(self) -> None:
        found = read({"instance": CLASSIC, "mode": "eval", "repo": "somebody/else"})
        assert (found.instance.repo, found.instance.extra["mode"]) == ("owner/name", "eval")
        assert "instance" not in found.instance.extra

    def test_as_text(self) -> None:
        text = f'{{"instance_id": "x-1", "repo": "a/b", "base_commit": "{COMMIT}"}}'
        assert read({"instance": text}).instance.instance_id == "x-1"

    @pytest.mark.parametrize("inner", ["web-01", "[1]", "[" * 100_000])
    def test_a_column_that_is_only_called_so_is_kept(self, inner: str) -> None:
        row = {**without(CLASSIC, "instance_id"), "task": "x-1", "instance": inner}
        assert read(row, instance_id="task").instance.extra["instance"] == inner


class TestSweSmith:
    def test_the_patch_takes_the_bug_out(self) -> None:
        found = read(SMITH)
        assert found.refusal is None
        assert found.instance.bug == SMITH["patch"]
        assert "\n-2\n+1\n" in found.instance.patch
        assert found.instance.fail_to_pass == ("t.py::a",)

    def test_it_is_of_the_project_not_of_a_mirror(self) -> None:
        instance = read(SMITH).instance
        assert (instance.repo, instance.version) == ("owner/name", "01234567")
        assert instance.healthy == "owner__name.01234567"
        many = {**SMITH, "instance_id": "an-owner__a_b__c.d.01234567.x.y__z"}
        assert read(many).instance.repo == "an-owner/a_b__c.d"

    @pytest.mark.parametrize("patch", ["", None, "prose", "--- a/x\n+++ b/x\n@@ -1 +1,3 @@\n-1\n"])
    def test_a_patch_that_cannot_be_taken_back_is_refused(self, patch: str | None) -> None:
        refusal = read({**SMITH, "patch": patch}).refusal
        assert refusal is not None
        assert (refusal.kind, refusal.final) == ("patch", True)

    @pytest.mark.parametrize("commit", [None, "", "main", float("nan")])
    def test_the_commit_is_that_of_its_id(self, commit: Any) -> None:
        assert read({**SMITH, "base_commit": commit}).instance.base_commit == "01234567"
        assert read(SMITH).instance.base_commit == "01234567"

    def test_a_commit_of_the_row_stays(self) -> None:
        assert read({**SMITH, "base_commit": COMMIT}).instance.base_commit == COMMIT
        # Rows made of pull requests name one that is not the healthy commit.
        other = COMMIT[::-1]
        assert read({**SMITH, "base_commit": other}).instance.base_commit == "01234567"

    @pytest.mark.parametrize("empty", [None, "", "[]", [], float("nan")])
    def test_pass_to_fail_is_what_has_to_pass_again(self, empty: Any) -> None:
        row = {**SMITH, "FAIL_TO_PASS": empty, "PASS_TO_FAIL": ["t.py::c"]}
        assert read(row).instance.fail_to_pass == ("t.py::c",)
        assert read(without(row, "FAIL_TO_PASS")).instance.fail_to_pass == ("t.py::c",)
        assert "PASS_TO_FAIL" not in read(row).instance.extra

    def test_fail_to_pass_goes_first(self) -> None:
        row = {**SMITH, "PASS_TO_FAIL": '["t.py::c"]'}
        assert read(row).instance.fail_to_pass == ("t.py::a",)

    def test_a_bug_that_names_no_test_has_them_derived(self) -> None:
        found = read(without(SMITH, "FAIL_TO_PASS"))
        assert found.refusal is None
        assert found.instance.fail_to_pass is None

    def test_another_language_is_the_reason_unless_a_recipe_says_how(self) -> None:
        refusal = read({**SMITH, "patch": changes("lib/core.js")}).refusal
        assert refusal is not None
        assert (refusal.kind, refusal.final) == ("language", False)


class TestPullRequest:
    def test_it_is_named_and_not_built(self) -> None:
        found = read(PULL)
        assert (found.instance.instance_id, found.instance.repo) == ("owner__name-7", "owner/name")
        assert found.instance.base_commit == COMMIT
        assert found.refusal is not None
        assert found.refusal.kind == "format"

    def test_numbers_of_tables_are_whole(self) -> None:
        assert read({**PULL, "number": 7.0}).instance.instance_id == "owner__name-7"

    @pytest.mark.parametrize("base", [{}, {"sha": COMMIT, "repo": None}, "x"])
    def test_without_a_repository_it_is_a_bad_row(self, base: Any) -> None:
        with pytest.raises(InvalidInput, match=r"rows: row 1: key '\w+': is missing"):
            read({**PULL, "base": base})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**REBENCH, "language": "c"}, "it is c (says its 'language')"),
        ({**CLASSIC, "repo_language": "Go"}, "it is Go"),
        ({**FIVE, "log_parser": "parse_log_maven"}, "Java (its log is read by parse_log_maven)"),
        (
            {**CLASSIC, "patch": changes("src/a.rs"), "test_patch": changes("tests/b.rs")},
            "it is Rust (as are the files that it changes)",
        ),
        (
            {
                **CLASSIC,
                "patch": changes("a.c") + changes("a.rb") + changes("b.rb"),
                "test_patch": "",
            },
            "it is Ruby",
        ),
    ],
)
def test_other_languages_are_refused_with_the_reason(row: Mapping[str, Any], said: str) -> None:
    refusal = read(row).refusal
    assert refusal is not None
    assert (refusal.kind, refusal.final) == ("language", False)
    assert said in refusal.message


@pytest.mark.parametrize(
    "row",
    [
        {**CLASSIC, "language": "Python", "patch": changes("a.c")},
        {**FIVE, "log_parser": "parse_log_of_tomorrow"},
        {**FIVE, "log_parser": None},
        {**CLASSIC, "patch": changes("src/fast.c")},  # its tests are in Python
        {**CLASSIC, "patch": changes("README.md"), "test_patch": ""},
        {**CLASSIC, "patch": "x", "test_patch": ""},
    ],
)
def test_what_may_be_python_is_not_refused(row: Mapping[str, Any]) -> None:
    assert read(row).refusal is None


@pytest.mark.parametrize("missing", [None, "", float("nan")])
def test_what_pandas_writes_for_missing_is_missing(missing: Any) -> None:
    optional = ("hints_text", "version", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS")
    instance = read({**CLASSIC, **dict.fromkeys(optional, missing)}).instance
    assert (instance.hints_text, instance.version, instance.test_patch) == ("", "", "")
    assert (instance.fail_to_pass, instance.pass_to_pass) == (None, None)
    with pytest.raises(InvalidInput, match="'repo': is missing"):
        read({**CLASSIC, "repo": missing})


@pytest.mark.parametrize("text", ["['a' 'b']", "['a']", "a", "[" * 100_000])
def test_lists_in_other_notations_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="'FAIL_TO_PASS': is text that is not a JSON list"):
        read({**CLASSIC, "FAIL_TO_PASS": text})


def test_arrays_are_lists() -> None:
    numpy = pytest.importorskip("numpy")
    row = {**SMITH, "FAIL_TO_PASS": numpy.array([]), "PASS_TO_FAIL": numpy.array(["a", "b"])}
    assert read(row).instance.fail_to_pass == ("a", "b")


class Plans:
    """Plans rows beside a folder of recipes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "recipes").mkdir()

    def recipe(self) -> None:
        text = 'repo: owner/name\npython: "3.11"\ntest: pytest -rA\n'
        (self.folder / "recipes/name.yaml").write_text(text)

    def __call__(
        self, *rows: Mapping[str, Any], **settings: Any
    ) -> tuple[PlanIndex, list[Unplanned]]:
        # As tables have them: each row with the columns of all.
        blank = dict.fromkeys(column for row in rows for column in row)
        lines = [json.dumps({**blank, **row}) + "\n" for row in rows]
        (self.folder / "rows.jsonl").write_text("".join(lines))
        (self.folder / "d.yaml").write_text("name: d\nkind: rows\npath: rows.jsonl\n")
        config = parse_config(
            {
                "datasets": [str(self.folder / "d.yaml")],
                "recipes": str(self.folder / "recipes"),
                "results": str(self.folder / "results"),
                **settings,
            },
            where="config",
        )
        self.shards, index = make_plan(
            config, base=HostBase({"kind": "host"}), digest="", where="config"
        )
        return index, self.shards["unplanned.json"]


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    return Plans(tmp_path)


def test_a_refused_row_stops_no_other(plans: Plans) -> None:
    plans.recipe()
    other = {**FIVE, "instance_id": "java-1", "repo": "some/java", "log_parser": "parse_log_ant"}
    index, unplanned = plans(CLASSIC, other, {**SMITH, "patch": "prose"}, PULL)
    assert (index.instances, index.unplanned) == (1, 3)
    assert [(item.instance.instance_id, item.kind) for item in unplanned] == [
        ("java-1", "language"),
        (SMITH["instance_id"], "patch"),
        ("owner__name-7", "format"),
    ]
    assert index.reasons == {"language": 1, "patch": 1, "format": 1}
    assert index.formats == {"swe-bench": 1, "swe-bench-5": 1, "swe-smith": 1, "pull-request": 1}


def test_a_recipe_file_overrules_the_language_but_not_the_format(plans: Plans) -> None:
    plans.recipe()
    index, unplanned = plans({**CLASSIC, "language": "c"}, {**SMITH, "patch": "prose"})
    assert index.instances == 1
    assert [item.kind for item in unplanned] == ["patch"]


def test_bugs_of_a_commit_share_it(plans: Plans) -> None:
    plans.recipe()
    full = {**SMITH, "base_commit": COMMIT}
    bugs = [{**full, "instance_id": f"owner__name.01234567.b{n}"} for n in range(45)]
    index, _ = plans(CLASSIC, *bugs)
    (environment,) = index.environments.values()
    assert [entry.commits for entry in environment.batches.values()] == [("name-at-01234567",)] * 3
    (commit,) = environment.commits.items()
    assert commit == ("name-at-01234567", BatchEntry(("owner__name",), 1))
    assert index.instances == 46


def test_a_healthy_commit_has_no_history(plans: Plans) -> None:
    """Its objects have to be files of their own, to be hidden one by one for each bug."""
    plans.recipe()
    plans({**SMITH, "base_commit": COMMIT}, history="full")
    batches = [plan for path, plan in plans.shards.items() if path.startswith("batches/")]
    assert sorted(plan.history for plan in batches) == ["full", "none"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (FIVE, "an eval_script that has no line"),
        (REBENCH, "its install_config has no 'log_parser'"),
        (GYM, "there is no recipe for owner/name"),
    ],
)
def test_what_a_row_lacks_to_be_built_is_said(
    plans: Plans, row: Mapping[str, Any], said: str
) -> None:
    _, (unplanned,) = plans(row)
    assert said in unplanned.message


def test_a_swe_gym_row_is_built_by_a_recipe_file(plans: Plans) -> None:
    plans.recipe()
    index, unplanned = plans(GYM)
    assert (index.instances, index.formats, unplanned) == (1, {"swe-gym": 1}, [])
