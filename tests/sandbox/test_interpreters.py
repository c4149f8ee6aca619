"""An interpreter that cannot run where it is copied to is passed over, and the record says why."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from minisandbox.build import stage
from minisandbox.build.interpreter import run
from minisandbox.records import codec
from minisandbox.records.plan import InterpreterPlan
from minisandbox.records.stages import InterpreterRecord

MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"


def broken(root: Path, name: str) -> Path:
    """An installation that says what is asked for, and leaves nothing that runs."""
    program = root / name / f"bin/python{MINOR}"
    program.parent.mkdir(parents=True)
    answer = json.dumps(["CPython", f"{MINOR}.99", str(root / name), str(program)])
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    for path in (program, program.parent, root / name, root):
        path.chmod(0o755)
    return root / name


def built(folder: Path, *places: Path) -> InterpreterRecord:
    plan = InterpreterPlan("py", MINOR, tuple(map(str, places)), str(folder / "store"))
    codec.write(folder / "plan.json", plan)
    run(folder / "plan.json", folder / "interpreter.json", stage.Attempt())
    return codec.read(InterpreterRecord, folder / "interpreter.json")


def test_the_search_goes_on_after_one_that_does_not_run(tmp_path: Path) -> None:
    bad = broken(tmp_path, "bad")
    record = built(tmp_path, bad, Path(sys.base_prefix))
    assert record.failure is None
    assert record.python == sys.version.split()[0]
    assert record.source.startswith(f"{sys.base_prefix}: ")
    (told,) = (place for place in record.looked_in if f"{bad}/bin/python{MINOR} (" in place)
    assert f"the copied Python {MINOR}.99 of {bad} " in told
    shutil.rmtree(tmp_path / "store")


def test_where_none_runs_each_is_named(tmp_path: Path) -> None:
    one, two = broken(tmp_path, "one"), broken(tmp_path, "two")
    failure = built(tmp_path, one, two).failure
    assert failure is not None
    assert failure.kind == "interpreter"
    assert failure.message.startswith(f"no Python {MINOR} of this machine can be used: ")
    assert f"of {one} " in failure.message
    assert f"of {two} " in failure.message
    assert "ssl" not in failure.message
