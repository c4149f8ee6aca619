"""Which installer serves which interpreter, and which failures are the network's."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from minisandbox.build.virtualenv_tool import supports, virtualenv_folder
from minisandbox.build.workshop import UNREACHABLE


def test_virtualenv_runs_under_what_it_says() -> None:
    assert supports(platform.python_version())
    assert not supports("3.6.15")


def test_virtualenv_comes_without_the_rest_of_the_pipeline(tmp_path: Path) -> None:
    folder = virtualenv_folder(tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert {"virtualenv", "distlib", "filelock", "platformdirs"} <= names
    assert "snakemake" not in names
    assert not [path for path in folder.rglob("*") if path.suffix == ".pyc"]
    assert virtualenv_folder(tmp_path) == folder


@pytest.mark.parametrize(
    ("said", "unreachable"),
    [
        ("error: Failed to fetch: ... error sending request for url", True),
        ("NewConnectionError: Failed to establish a new connection: [Errno 111]", True),
        ("ReadTimeoutError: HTTPSConnectionPool: Read timed out.", True),
        ("HTTP status server error (503 Service Unavailable)", True),
        ("Temporary failure in name resolution", True),
        ("No solution found: there is no version of x==503", False),
        ("TypeError: __init__() got an unexpected argument 'timeout'", False),
        ("error: command 'gcc' failed with exit code 1", False),
    ],
)
def test_an_unreachable_index_is_told_from_a_wrong_request(said: str, unreachable: bool) -> None:
    assert bool(UNREACHABLE.search(said)) is unreachable
