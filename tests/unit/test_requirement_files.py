"""Requirement files of a repository against what a build can reach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minisandbox.build import stage
from minisandbox.build.planning import requirement_files
from minisandbox.build.planning.requirement_files import requirements_of
from minisandbox.errors import StageFailed
from minisandbox.records.plan import EnvironmentPlan, Network, RequirementFile
from minisandbox.records.stages import CloneRecord

CLONE = stage.new(CloneRecord, repo="o/r", mirror="mirror")


def listed(text: str, network: Network, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    class Tool:
        def __init__(self, name: str, folder: Path) -> None:
            """Without an environment of its own."""

        def requirements(self, asked: Any, *, mirrors: Any) -> list[Any]:
            return [SimpleNamespace(text=text, error="")]

    monkeypatch.setattr(requirement_files, "OfficialTool", Tool)
    plan = EnvironmentPlan(
        slug="e",
        key="k",
        lock_key="l",
        python="3.11",
        date="",
        installer="uv",
        packages=(),
        complete=False,
        dropped=(),
        requirement_file=RequirementFile("tool", "o/r", "1", "a" * 40, "requirements.txt"),
        pip_packages=(),
        pre_install=(),
        env={},
        base={},
        network=network,
        timeout=1,
        store="store",
        tools="tools",
        index_cache="cache",
    )
    return requirements_of(plan, [replace(CLONE, key="o__r")]).packages


@pytest.mark.parametrize(
    "line",
    [
        "a @ https://example.org/a-1-py3-none-any.whl",
        "a @ git+ssh://git@example.org/a.git",
        "git+https://example.org/a.git@main#egg=a",
        "https://example.org/a.tar.gz",
    ],
)
def test_an_address_is_said_before_an_installer_tries_it(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"numpy\n{line}\n"
    with pytest.raises(StageFailed, match="builds reach only the package index") as e:
        listed(text, "index", monkeypatch)
    assert e.value.kind == "environment"
    assert repr(line) in e.value.message
    assert listed(text, "host", monkeypatch) == ("numpy", line)


@pytest.mark.parametrize(
    "line",
    [
        "a @ https://example.org/a.whl ; python_version < '3'",
        "https://example.org/a.tar.gz ; python_version < '3.9'",
    ],
)
def test_an_address_that_may_not_be_meant_is_left_to_the_installer(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert listed(line, "index", monkeypatch) == (line,)
