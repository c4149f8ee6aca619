"""Asks ``swesmith``, inside its environment: ``bridge`` runs this.

Items name a profile by ``owner__name.commit8``.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

Item = Mapping[str, Any]
Answer = dict[str, Any]


def prepare(request: Mapping[str, Any]) -> None:
    """Nothing: its profiles are in the package."""
    del request


def _profile(name: str) -> Any:
    return importlib.import_module("swesmith.profiles").registry.get(name)


def _row(item: Item) -> dict[str, Any]:
    """A row as the harness has it; it reads the profile off the id."""
    lists = {name: list(item[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    return {"instance_id": f"{item['profile']}.bug", **lists}


def specification(item: Item) -> Answer:
    """How a project is installed and tested, as an entry of SWE-bench's table; null if there is no
    profile of it. An entry of another language than Python names no ``python``.
    """
    name = f"{item['repo'].replace('/', '__')}.{item['version']}"
    try:
        profile = _profile(name)
    except KeyError:
        return {"specification": None, "install_first": ""}
    entry: dict[str, Any] = {"test_cmd": profile.test_cmd}
    if hasattr(profile, "python_version"):
        # Environments that were exported have a test runner; a profile leaves it to who makes one.
        entry |= {"python": profile.python_version, "packages": "pytest"}
        entry["pre_install"] = list(profile.install_cmds)
    return {"specification": entry, "install_first": ""}


def test_files(item: Item) -> Answer:
    """The files of the tests of both lists."""
    fail_to_pass, pass_to_pass = _profile(item["profile"]).get_test_files(_row(item))
    return {"FAIL_TO_PASS": list(fail_to_pass), "PASS_TO_PASS": list(pass_to_pass)}


def test_spec(item: Item) -> Answer:
    """The command by which the tests of a row are run."""
    command, _ = _profile(item["profile"]).get_test_cmd(_row(item))
    return {"test_command": command}


def grade(item: Item) -> Answer:
    """The harness's report on what the tests printed, and how many of all that it names passed and
    failed.
    """
    grading = importlib.import_module("swesmith.harness.grading")
    row, prediction = _row(item), {"model_patch": ""}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", suffix=".log") as log:
        marks = [f"+ : '{mark}'\n" for mark in (grading.TEST_OUTPUT_START, grading.TEST_OUTPUT_END)]
        log.write(f"{marks[0]}{item['log']}\n{marks[1]}")
        log.flush()
        report = grading.get_eval_report(prediction, row, log.name)
    statuses = _profile(item["profile"]).log_parser(item["log"])
    return {
        "report": report,
        "passed": sum(status in ("PASSED", "XFAIL") for status in statuses.values()),
        "failed": sum(status in ("FAILED", "ERROR") for status in statuses.values()),
    }


OPERATIONS: Mapping[str, Callable[[Item], Answer]] = {
    "specifications": specification,
    "test_files": test_files,
    "test_specs": test_spec,
    "grade": grade,
}
