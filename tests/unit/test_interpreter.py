"""Where interpreters are looked for, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox.build import environment, instances, stage, validate
from minisandbox.build.interpreter import run
from minisandbox.build.plan import ensure_plan
from minisandbox.records import codec
from minisandbox.records.plan import InterpreterPlan
from minisandbox.records.stages import (
    CloneRecord,
    EnvironmentRecord,
    InstancesRecord,
    InterpreterRecord,
    ValidationsRecord,
)


@pytest.mark.user
@pytest.mark.parametrize("closed", ["root", "root/versions"])
def test_a_place_that_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    (tmp_path / "root/versions").mkdir(parents=True)
    (tmp_path / closed).chmod(0)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "root"))
    (tmp_path / "empty").mkdir()
    plan = InterpreterPlan(
        slug="py",
        python="3.99",
        places=("pyenv", str(tmp_path / "empty")),
        store=str(tmp_path / "store"),
    )
    codec.write(tmp_path / "plan.json", plan)
    run(tmp_path / "plan.json", tmp_path / "interpreter.json", stage.Attempt())
    failure = codec.read(InterpreterRecord, tmp_path / "interpreter.json").failure
    (tmp_path / closed).chmod(0o700)
    assert failure is not None
    assert failure.kind == "interpreter"
    assert f"{tmp_path}/root/versions/*/bin/python3.* (cannot be read); " in failure.message
    assert f"{tmp_path}/empty/bin/python3*; " in failure.message


def test_where_there_is_no_python_3_5_its_rows_say_so(tmp_path: Path) -> None:
    """django__django-7530 passes under 3.6 even without its fix: nothing else may stand in."""
    other = tmp_path / "pythons/3.6/bin/python3.6"
    other.parent.mkdir(parents=True)
    answer = json.dumps(["CPython", "3.6.15", str(tmp_path), str(other)])
    other.write_text(f"#!/bin/sh\necho '{answer}'\n")
    other.chmod(0o755)
    project = _Django(tmp_path)
    (shard,) = (project.plan / "interpreters").iterdir()
    assert shard.name == "3.5.json"
    interpreter = tmp_path / "interpreter.json"
    run(shard, interpreter, stage.Attempt())
    failure = codec.read(InterpreterRecord, interpreter).failure
    assert failure is not None
    assert failure.kind == "interpreter"
    assert failure.message.startswith("there is no Python 3.5 on this machine (looked in ")
    assert f"{tmp_path}/pythons/*/bin/python3*" in failure.message
    clone = tmp_path / "clone.json"
    codec.write(clone, replace(stage.new(CloneRecord), key="django__django"))
    (shard,) = (project.plan / "environments").iterdir()
    environment.run(shard, interpreter, [clone], tmp_path / "environment.json", stage.Attempt())
    (shard,) = (project.plan / "batches").glob("*/*.json")
    built, validated = tmp_path / "b/instances.json", tmp_path / "b/validation.json"
    instances.run(shard, tmp_path / "environment.json", [clone], built, stage.Attempt())
    validate.run(shard, built, [clone], validated, stage.Attempt())
    for record in (
        codec.read(EnvironmentRecord, tmp_path / "environment.json"),
        *codec.read(InstancesRecord, built).instances,
        *codec.read(ValidationsRecord, validated).instances,
    ):
        assert record.status == "failed"
        assert record.failure == replace(failure, log_tail="")


class _Django:
    """The row as it is planned, with a place for interpreters that has only a newer one."""

    def __init__(self, root: Path) -> None:
        row = {"instance_id": "django__django-7530", "repo": "django/django", "version": "1.11"}
        (root / "rows.jsonl").write_text(json.dumps({**row, "base_commit": "a" * 40}) + "\n")
        (root / "dataset.yaml").write_text("name: rows\nkind: rows\npath: rows.jsonl\n")
        (root / "recipes").mkdir()
        (root / "recipes/django.yaml").write_text(
            'repo: django/django\npython: "3.5"\ntest: python -m pytest\n'
        )
        config = {
            "datasets": [str(root / "dataset.yaml")],
            "recipes": str(root / "recipes"),
            "results": str(root / "results"),
            "interpreters": [str(root / "pythons")],
        }
        ensure_plan(config, ["config.yaml"])
        self.plan = root / "results/plan"
