"""Planning: shards change only when their content does; bad input is one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minisandbox.build import plan
from minisandbox.build.bases.selection import HostBase
from minisandbox.build.planning.config import parse_config
from minisandbox.errors import InvalidInput
from minisandbox.sandbox import Limits

RECIPE = 'repo: owner/name\npython: "3.11"\npackages: [pytest==8.4.2]\ntest: python -m pytest -rA\n'
ROW = {"instance_id": "owner__name-1", "repo": "owner/name", "base_commit": "a" * 40, "patch": "x"}


class Project:
    """A folder with a config, a dataset and a recipe, as a user would have."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "recipes").mkdir()
        (root / "recipes/name.yaml").write_text(RECIPE)
        self.dataset("name: mine\nkind: rows\npath: rows.jsonl\n")
        self.rows(ROW)
        self.config: dict[str, Any] = {
            "datasets": [str(root / "dataset.yaml")],
            "recipes": str(root / "recipes"),
            "results": str(root / "results"),
        }

    def dataset(self, text: str) -> None:
        (self.root / "dataset.yaml").write_text(text)

    def rows(self, *rows: Any) -> None:
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (self.root / "rows.jsonl").write_text("".join(line + "\n" for line in lines))

    def plan(self) -> Any:
        return plan.ensure_plan(self.config, ["config.yaml"])

    def shards(self) -> dict[str, tuple[bytes, int]]:
        folder = self.root / "results/plan"
        return {
            str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in folder.rglob("*.json")
        }


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_plan_has_a_shard_for_every_job(project: Project) -> None:
    index = project.plan()
    (environment,) = index.environments
    assert environment.startswith("owner__name-py3.11-")
    assert set(project.shards()) == {
        "index.json",
        "unplanned.json",
        "repos/owner__name.json",
        "interpreters/3.11.json",
        f"environments/{environment}.json",
        f"batches/{environment}/name-0000.json",
    }


def test_an_unchanged_configuration_is_only_read(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = project.plan()

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(plan, "make_plan", never)
    assert project.plan() == first


def test_a_new_row_changes_only_its_batch_and_its_repository(project: Project) -> None:
    other = {**ROW, "instance_id": "else-1", "repo": "some/else"}
    (project.root / "recipes/else.yaml").write_text(RECIPE.replace("owner/name", "some/else"))
    project.rows(ROW, other)
    project.plan()
    before = project.shards()
    project.rows(ROW, other, {**ROW, "instance_id": "owner__name-2", "base_commit": "b" * 40})
    project.plan()
    after = project.shards()
    changed = {name for name in after if after[name] != before.get(name)}
    (batch,) = (name for name in after if name.endswith("name-0000.json"))
    assert changed == {"index.json", batch, "repos/owner__name.json"}


def test_equal_recipes_share_an_environment(project: Project) -> None:
    (project.root / "recipes/twin.yaml").write_text(RECIPE.replace("owner/name", "owner/twin"))
    project.rows(ROW, {**ROW, "instance_id": "twin-1", "repo": "owner/twin"})
    index = project.plan()
    assert len(index.environments) == 1
    assert {len(entry.batches) for entry in index.environments.values()} == {2}


def test_batches_are_cut_at_their_size(project: Project) -> None:
    project.rows(*({**ROW, "instance_id": f"n-{i}"} for i in range(45)))
    (entry,) = project.plan().environments.values()
    assert [batch.instances for batch in entry.batches.values()] == [20, 20, 5]


def test_a_row_without_recipe_is_kept_with_its_reason(project: Project) -> None:
    project.rows(ROW, {**ROW, "instance_id": "x-1", "repo": "nobody/knows"})
    index = project.plan()
    assert (index.instances, index.unplanned) == (1, 1)
    unplanned = json.loads((project.root / "results/plan/unplanned.json").read_text())
    assert "nobody/knows" in unplanned[0]["message"]


def test_instances_are_selected_by_pattern(project: Project) -> None:
    project.rows(ROW, {**ROW, "instance_id": "other-1"})
    project.config["instances"] = "owner__*"
    assert project.plan().instances == 1


def test_test_lists_come_in_many_shapes(project: Project) -> None:
    project.rows(
        {**ROW, "FAIL_TO_PASS": '["t::a"]', "PASS_TO_PASS": []},
        {**ROW, "instance_id": "n-2", "FAIL_TO_PASS": ["t::a"], "PASS_TO_PASS": "[]"},
        {**ROW, "instance_id": "n-3"},
    )
    project.plan()
    (batch,) = (project.root / "results/plan/batches").rglob("*.json")
    instances = json.loads(batch.read_text())["instances"]
    assert [item["fail_to_pass"] for item in instances] == [["t::a"], ["t::a"], None]
    assert [item["pass_to_pass"] for item in instances] == [[], [], None]


def test_a_narrower_selection_leaves_every_name_as_it_was(project: Project) -> None:
    (project.root / "recipes/aaa.yaml").write_text(RECIPE.replace("owner/name", "owner/twin"))
    twin = {**ROW, "repo": "owner/twin", "instance_id": "twin-1"}
    project.rows(twin, *({**ROW, "instance_id": f"n-{i}"} for i in range(45)))
    everything = project.plan()
    project.config["instances"] = ["n-30", "n-44"]
    narrow = project.plan()
    assert narrow.instances == 2
    (environment,) = narrow.environments
    assert environment in everything.environments
    batches = narrow.environments[environment].batches
    assert {name: batch.instances for name, batch in batches.items()} == {
        "name-0001": 1,
        "name-0002": 1,
    }


def shards_of(project: Project, kind: str) -> dict[str, Any]:
    """The shards of a kind by name, as JSON."""
    found = project.shards().items()
    return {name: json.loads(data) for name, (data, _) in found if name.startswith(kind)}


def test_limits_reach_builds_and_validations_and_name_no_environment(project: Project) -> None:
    before = project.plan()
    assert [shard["limits"] for shard in shards_of(project, "environments/").values()] == [
        Limits().identity()
    ]
    project.config["limits"] = {"memory": 1 << 34, "time": 60}
    (project.root / "recipes/name.yaml").write_text(RECIPE + "limits: {memory: null, cpus: 2}\n")
    after = project.plan()
    assert after.environments == before.environments
    wanted = Limits(memory=None, cpus=2, time=60.0).identity()
    for kind in ("environments/", "batches/"):
        assert [shard["limits"] for shard in shards_of(project, kind).values()] == [wanted]


def test_limits_of_the_command_line_are_text(project: Project) -> None:
    project.config["limits"] = {"memory": "17179869184", "time": "1.5", "disk": "null"}
    project.plan()
    (environment,) = shards_of(project, "environments/").values()
    assert environment["limits"] == Limits(memory=1 << 34, time=1.5, disk=None).identity()


@pytest.mark.parametrize("instances", [(), ("owner__*",)])
def test_a_shared_environment_has_room_for_each_recipe(
    project: Project, instances: tuple[str, ...]
) -> None:
    twin = RECIPE.replace("owner/name", "owner/twin") + "limits: {memory: 17179869184, cpus: 1}\n"
    (project.root / "recipes/twin.yaml").write_text(twin)
    project.rows(ROW, {**ROW, "instance_id": "twin-1", "repo": "owner/twin"})
    project.config["instances"] = list(instances)
    project.plan()
    (environment,) = shards_of(project, "environments/").values()
    assert environment["limits"] == Limits(memory=1 << 34).identity()
    batches = {name[-13:]: one["limits"] for name, one in shards_of(project, "batches/").items()}
    assert batches.pop("twin-0000.json"[-13:], None) == (
        None if instances else Limits(memory=1 << 34, cpus=1).identity()
    )
    assert list(batches.values()) == [Limits().identity()]


def test_a_job_of_the_run_takes_the_plan_as_it_is(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = project.plan()
    other = HostBase({"kind": "host", "libc": "another"})
    monkeypatch.setattr(plan, "selected_base", lambda _: other)
    assert plan.ensure_plan(project.config, ["config.yaml"], read_only=True) == index
    assert project.plan().environments.keys() != index.environments.keys()


def test_further_columns_become_json(project: Project) -> None:
    pandas = pytest.importorskip("pandas")
    when = pandas.Timestamp("2024-01-02")
    pandas.DataFrame([{**ROW, "b": b"\0\1", "when": when, "nan": float("nan")}]).to_parquet(
        project.root / "rows.parquet"
    )
    project.dataset("name: m\nkind: rows\npath: rows.parquet\n")
    project.plan()
    (batch,) = (project.root / "results/plan/batches").rglob("*.json")
    (instance,) = json.loads(batch.read_text())["instances"]
    assert instance["extra"] == {"b": "AAE=", "when": "2024-01-02T00:00:00", "nan": None}


def change(**values: Any) -> Callable[[Project], None]:
    return lambda project: project.config.update(values)


def rows(*values: Any) -> Callable[[Project], None]:
    return lambda project: project.rows(*values)


def dataset(text: str) -> Callable[[Project], None]:
    return lambda project: project.dataset(text)


def recipe(text: str) -> Callable[[Project], None]:
    return lambda project: (project.root / "recipes/name.yaml").write_text(text) and None


def recipe_beside(text: str) -> Callable[[Project], None]:
    return lambda project: (project.root / "recipes/a.yaml").write_text(text) and None


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ROW.items() if name != key}


BAD_INPUT: list[tuple[str, Callable[[Project], None], tuple[str, ...]]] = [
    ("unknown config key", change(datsets=[]), ("config.yaml", "'datsets'", "unknown")),
    ("wrong type", change(timeout="long"), ("config.yaml", "timeout", "int")),
    ("wrong type in a list", change(datasets=[1]), ("config.yaml", "datasets[0]", "str")),
    ("bool for a number", change(batch_size=True), ("config.yaml", "batch_size")),
    ("no run at all", change(validate_runs=0), ("config.yaml", "'validate_runs'", "1 or more")),
    ("zero", change(batch_size=0), ("config.yaml", "'batch_size'", "1 or more")),
    ("unknown base", change(base="arch"), ("base 'arch'", "envs/bases", "there are host")),
    ("unknown limit", change(limits={"memry": 1}), ("config.yaml", "'limits.memry'", "memory")),
    ("limit of a wrong type", change(limits={"memory": "8G"}), ("config.yaml", "limits.memory")),
    ("limit of zero", change(limits={"cpus": 0}), ("config.yaml: key 'limits'", "cpus is 0")),
    ("negative limit", change(limits={"time": -1}), ("config.yaml: key 'limits'", "time is -1")),
    ("limits that are none", change(limits=None), ("config.yaml", "'limits'")),
    ("limit without a name", change(limits={1: 2}), ("config.yaml", "'limits.1'")),
    ("unknown network", change(network="some"), ("network", "'none'")),
    ("unknown history", change(history="some"), ("'history'", "full")),
    ("url with a wrong field", change(git_url="x/{name}"), ("'git_url'", "{repo}")),
    ("url that runs a program", change(git_url="ext::sh -c {repo}"), ("'git_url'",)),
    ("no dataset", change(datasets=[]), ("'datasets'", "empty")),
    ("missing dataset config", change(datasets=["no.yaml"]), ("no.yaml", "does not exist")),
    ("pattern that matches nothing", change(instances="zzz*"), ("'instances'", "zzz*")),
    ("recipes that are no folder", change(recipes="nowhere"), ("nowhere", "folder")),
    ("dataset file missing", dataset("name: m\nkind: rows\npath: no.jsonl\n"), ("no.jsonl",)),
    ("unknown kind", dataset("name: m\nkind: row\n"), ("dataset.yaml", "'kind'")),
    ("unknown dataset key", dataset("name: m\nkind: rows\nfile: x\n"), ("dataset.yaml", "'file'")),
    ("neither path nor hub", dataset("name: m\nkind: rows\n"), ("'path' or 'hub'",)),
    (
        "unknown specifications",
        dataset("name: m\nkind: rows\npath: rows.jsonl\nspecifications: swebench\n"),
        ("dataset.yaml", "'specifications'", "swebench-4.1"),
    ),
    (
        "a date that is none",
        dataset("name: m\nkind: rows\npath: rows.jsonl\ndate: yesterday\n"),
        ("dataset.yaml", "'date'", "created_at"),
    ),
    (
        "no pinned environments",
        dataset("name: m\nkind: rows\npath: rows.jsonl\npinned_environments: nowhere\n"),
        ("'pinned_environments'", "instances.tsv"),
    ),
    ("unknown ending", dataset("name: m\nkind: rows\npath: dataset.yaml\n"), ("'.yaml'",)),
    ("not YAML", dataset("name: [\n"), ("dataset.yaml line 2",)),
    ("no pairs", dataset("name: m\nkind: release-pairs\n"), ("'pairs'",)),
    ("not JSON", rows(ROW, "{"), ("rows.jsonl: row 2", "not JSON")),
    ("not an object", rows("[]"), ("rows.jsonl: row 1", "list")),
    ("empty dataset", rows(), ("rows.jsonl", "no rows")),
    ("no id", rows(without("instance_id")), ("row 1", "'instance_id'", "missing")),
    ("no repository", rows(ROW, without("repo")), ("row 2", "'repo'", "missing")),
    ("no commit", rows(without("base_commit")), ("row 1", "'base_commit'", "missing")),
    ("null commit", rows({**ROW, "base_commit": None}), ("row 1", "'base_commit'")),
    ("commit like an option", rows({**ROW, "base_commit": "--x"}), ("row 1", "'base_commit'")),
    ("a branch as commit", rows({**ROW, "base_commit": "main"}), ("row 1", "'base_commit'")),
    ("half a character", rows({**ROW, "patch": "\ud800"}), ("row 1", "'patch'", "surrogate")),
    ("half a character in a further column", rows({**ROW, "x": ["\ud800"]}), ("row 1", "'x'")),
    ("nested without end", rows("[" * 100_000), ("row 1", "not JSON")),
    ("a name without end", rows({**ROW, "repo": "a/" + "b" * 400}), ("row 1", "'repo'")),
    ("repository that climbs", rows({**ROW, "repo": "../x"}), ("row 1", "'repo'")),
    ("id with a slash", rows({**ROW, "instance_id": "a/b"}), ("row 1", "'instance_id'")),
    ("number for text", rows({**ROW, "patch": []}), ("row 1", "'patch'", "list")),
    ("list that is none", rows({**ROW, "FAIL_TO_PASS": "x"}), ("row 1", "'FAIL_TO_PASS'")),
    ("duplicate ids", rows(ROW, ROW), ("row 2", "'owner__name-1'", "row 1")),
    ("recipe without test", recipe('repo: a/b\npython: "3.11"\n'), ("name.yaml", "'test'")),
    ("unquoted python", recipe("repo: a/b\npython: 3.10\ntest: x\n"), ("name.yaml", "python")),
    ("impossible python", recipe("repo: a/b\npython: three\ntest: x\n"), ("'python'", "'three'")),
    ("unknown parser", recipe(RECIPE + "parser: nose\n"), ("'parser'", "'nose'")),
    ("two recipes", recipe_beside(RECIPE), ("a and name", "owner/name", "'recipe'")),
    ("unknown limit of a recipe", recipe(RECIPE + "limits: {mem: 1}\n"), ("'limits.mem'",)),
    (
        "limit of zero in a recipe",
        recipe(RECIPE + "limits: {disk: 0}\n"),
        ("name.yaml: key 'limits'", "disk is 0"),
    ),
    ("text for a limit", recipe(RECIPE + "limits: {cpus: two}\n"), ("name.yaml", "limits.cpus")),
    ("limits as a list", recipe(RECIPE + "limits: [1]\n"), ("name.yaml", "'limits'", "mapping")),
    ("nested that is none", recipe(RECIPE + "nested: maybe\n"), ("name.yaml", "'nested'")),
    ("bad date", recipe(RECIPE + "date: yesterday\n"), ("'date'", "YYYY-MM-DD")),
    ("option as package", recipe(RECIPE.replace("pytest==8.4.2", "--pre")), ("'packages'",)),
]


@pytest.mark.parametrize(
    ("spoil", "said"), [case[1:] for case in BAD_INPUT], ids=[case[0] for case in BAD_INPUT]
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    project: Project, spoil: Callable[[Project], None], said: tuple[str, ...]
) -> None:
    spoil(project)
    with pytest.raises(InvalidInput) as caught:
        project.plan()
    message = str(caught.value)
    assert "\n" not in message
    for part in said:
        assert part in message
    assert caught.value.exit_code == 2
    assert not (project.root / "results").exists()


def test_every_config_key_is_explained() -> None:
    readme = Path(__file__).parents[2] / "config/README.md"
    config = parse_config({"datasets": ["x"]}, where="config")
    text = readme.read_text(encoding="utf-8")
    missing = [name for name in vars(config) if f"`{name}`" not in text]
    assert not missing


def test_every_repeated_id_is_named(project: Project) -> None:
    project.rows(ROW, {**ROW, "instance_id": "n-2"}, ROW, {**ROW, "instance_id": "n-2"}, ROW)
    with pytest.raises(InvalidInput) as caught:
        project.plan()
    message = str(caught.value)
    assert "row 3): key 'instance_id': 'owner__name-1' was used before" in message
    assert "2 more cannot be used" in message
    assert "row 4)" in message
    assert "row 5)" in message


def test_a_folder_of_rows_is_read_again_when_a_file_of_it_changed(project: Project) -> None:
    task = project.root / "repository/tasks/a-1"
    (task / ".cache").mkdir(parents=True)
    (task.parents[1] / "sweb.yaml").write_text("splits: [test]\n")
    (task / "task.yaml").write_text(
        f"instance_id: a-1\nrepo: owner/name\nbase_commit: {'a' * 40}\n"
    )
    for name in ("gold.patch", "test.patch", "problem_statement.md", "eval.sh"):
        (task / name).write_text(f"{name}\n")
    project.dataset("name: m\nkind: rows\npath: repository\n")
    first = project.plan()
    (task / ".cache/x").write_text("what a tool keeps for itself")
    assert project.plan().digest == first.digest
    (task / "gold.patch").write_text("another\n")
    assert project.plan().digest != first.digest
    (batch,) = shards_of(project, "batches/").values()
    assert [item["patch"] for item in batch["instances"]] == ["another\n"]


@pytest.mark.parametrize("ending", ["json", "csv", "parquet"])
def test_other_formats_hold_the_same_rows(project: Project, ending: str) -> None:
    row = {**ROW, "problem_statement": "one\r\ntwo", "FAIL_TO_PASS": '["t::a"]'}
    path = project.root / f"rows.{ending}"
    if ending == "json":
        path.write_text(json.dumps([row]))
    else:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame([row])
        frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    project.dataset(f"name: m\nkind: rows\npath: {path.name}\n")
    project.plan()
    (batch,) = (project.root / "results/plan/batches").rglob("*.json")
    (instance,) = json.loads(batch.read_text())["instances"]
    assert instance["problem_statement"] == "one\r\ntwo"
    assert instance["fail_to_pass"] == ["t::a"]


def test_a_damaged_parquet_file_is_named(project: Project) -> None:
    (project.root / "rows.parquet").write_bytes(b"PAR1" + os.urandom(40))
    project.dataset("name: m\nkind: rows\npath: rows.parquet\n")
    with pytest.raises(InvalidInput, match="not a parquet file"):
        project.plan()
