"""`minisandbox plan --summary`: who shares what, and sizes that are called what they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from minisandbox.build import stage
from minisandbox.build.plan import ensure_plan
from minisandbox.build.planning.summary import Summary, summarise
from minisandbox.cli.main import main
from minisandbox.records import codec
from minisandbox.records.layer import LayerRef
from minisandbox.records.plan import EnvironmentPlan
from minisandbox.records.stages import EnvironmentRecord, InstanceRecord, InstancesRecord

REPOS = {"psf/requests": 2, "owner/name": 1}


class Project:
    """Two instances of a project that the table knows, one of another, and a row of no recipe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "recipes").mkdir()
        rows: list[dict[str, Any]] = []
        for repo, count in REPOS.items():
            name = repo.partition("/")[2]
            recipe = {"repo": repo, "python": "3.11", "test": "pytest", "packages": [name]}
            (root / f"recipes/{name}.yaml").write_text(yaml.safe_dump(recipe))
            rows += [
                {"instance_id": f"{name}-{n}", "repo": repo, "base_commit": "a" * 40}
                for n in range(count)
            ]
        rows.append({"instance_id": "none-1", "repo": "no/recipe", "base_commit": "a" * 40})
        (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (root / "dataset.yaml").write_text("name: rows\nkind: rows\npath: rows.jsonl\n")
        self.results = root / "results"
        self.config = {
            "datasets": [str(root / "dataset.yaml")],
            "recipes": str(root / "recipes"),
            "results": str(self.results),
        }
        (root / "config.yaml").write_text(yaml.safe_dump(self.config))

    def summary(self) -> Summary:
        return summarise(ensure_plan(self.config, ["c"]), self.results, [self.results])

    def build(self, slug: str, size: int, bugs: Sequence[Sequence[LayerRef]] = ((),)) -> None:
        """Records of an environment and of its first instances: one for each of ``bugs``, which is
        more layers.
        """
        plan = codec.read(EnvironmentPlan, self.results / f"plan/environments/{slug}.json")
        interpreter = layer("interpreter", 10**9)
        environment = stage.new(
            EnvironmentRecord,
            lock_key=plan.lock_key,
            layers=(interpreter, layer("environment", size)),
        )
        folder = self.results / "environments" / slug
        codec.write(folder / "environment.json", environment)
        (batch,) = (self.results / f"plan/batches/{slug}").iterdir()
        planned = json.loads(batch.read_text())["instances"]
        layers = (interpreter, layer("source", 3 * 10**6), layer("instance", 10**6))
        members = [
            codec.decode(
                InstanceRecord,
                {
                    **plain(stage.new(InstanceRecord, layers=(*layers, *bug))),
                    "key": item["instance_id"],
                },
                where="",
            )
            for item, bug in zip(planned, bugs, strict=False)
        ]
        instances = stage.new(InstancesRecord, environment=slug, instances=tuple(members))
        codec.write(folder / f"batches/{batch.stem}/instances.json", instances)


def plain(record: Any) -> dict[str, Any]:
    return json.loads(json.dumps(codec.encode(record)))


def layer(kind: Any, unpacked: int) -> LayerRef:
    return LayerRef(kind, "sha256:" + kind[0].encode().hex() * 32, 1, unpacked, 1)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_sizes_are_the_tables_or_unknown_before_anything_is_built(project: Project) -> None:
    summary = project.summary()
    requests, other = summary.environments
    assert (requests.instances, requests.batches) == (2, 1)
    assert (requests.expected.least, requests.expected.most) == (21 * 10**6, 28 * 10**6)
    assert (requests.expected.source, other.expected.source) == ("table", "unknown")
    assert summary.expected == (21 * 10**6, 28 * 10**6)
    assert summary.known_checkouts == 0


def test_sizes_are_those_of_records_where_there_are_some(project: Project) -> None:
    slug = project.summary().environments[0].slug
    project.build(slug, 50 * 10**6)
    summary = project.summary()
    # Without the interpreter, which others stand on too.
    assert summary.environments[0].expected.source == "record"
    assert summary.expected == (50 * 10**6, 50 * 10**6)
    assert (summary.checkouts, summary.known_checkouts) == (4 * 10**6, 1)


def test_what_bugs_share_is_counted_once(project: Project) -> None:
    slug = project.summary().environments[0].slug
    project.build(slug, 50 * 10**6, bugs=([layer("bug", 1000)], []))
    summary = project.summary()
    assert (summary.checkouts, summary.known_checkouts) == (4 * 10**6 + 1000, 2)


def test_records_of_another_version_are_passed_over(project: Project) -> None:
    slug = project.summary().environments[0].slug
    folder = project.results / "environments" / slug
    folder.mkdir(parents=True)
    (folder / "environment.json").write_text('{"from": "the future"}')
    assert project.summary().environments[0].expected.source == "table"


def test_the_command_prints_it(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(project.root / "config.yaml")
    assert main(["plan", "--summary", "--config", config]) == 0
    said = capsys.readouterr().out.splitlines()
    assert (
        "3 instances of 2 repositories in 2 environments: 2 share 1, 1 have one of their own"
        in (said)
    )
    assert "1 rows cannot be built (1 recipe); the manifest will say why" in said
    assert any(line.startswith("psf__requests-py3.11-") and "21-28 MB" in line for line in said)
    assert any(line.startswith("owner__name-py3.11-") and "unknown" in line for line in said)
    assert main(["plan", "--summary", "--json", "--config", config]) == 0
    assert json.loads(capsys.readouterr().out)["unplanned"] == {"recipe": 1}
