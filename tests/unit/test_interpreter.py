"""Where interpreters are looked for, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisandbox.build import stage
from minisandbox.build.interpreter import run
from minisandbox.records import codec
from minisandbox.records.plan import InterpreterPlan
from minisandbox.records.stages import InterpreterRecord


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
