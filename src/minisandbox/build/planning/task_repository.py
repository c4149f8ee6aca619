"""SWE-bench 5 task repositories: a folder with ``sweb.yaml``, and in ``tasks/`` one folder a task.

``task.yaml`` holds the short columns, each long one is a file of its own. Files are read with the
line ends that they have: patches of files with CRLF apply only so.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from minisandbox.build.planning.yamlfile import read_yaml
from minisandbox.errors import InvalidInput

#: Columns that are files, and whether a task can do without.
_FILES = {
    "problem_statement": ("problem_statement.md", False),
    "patch": ("gold.patch", False),
    "test_patch": ("test.patch", False),
    "eval_script": ("eval.sh", False),
    "hints_text": ("hints.md", True),
    "dockerfile": ("Dockerfile", True),
    "environment_export": ("environment.yml", True),
}
_TESTS = "tests.json"
#: Files for the tests that a text patch cannot carry, by their paths in the repository.
_ASSETS = "test_assets"
#: Bytes of them in one task: they travel in the plan and in the manifest.
_MAX_ASSETS = 32 * 2**20


def is_one(folder: Path) -> bool:
    """Whether a folder is a task repository."""
    return (folder / "sweb.yaml").is_file()


def read_tasks(folder: Path, split: str) -> Iterator[tuple[str, Mapping[str, Any] | InvalidInput]]:
    """The tasks of a split by name, each with its place in the repository; or what is wrong with
    it. A task that names no split is in all.
    """
    found: set[str] = set()
    for task in sorted((folder / "tasks").glob("*/task.yaml")):
        place = f"tasks/{task.parent.name}"
        try:
            row = _read_task(task.parent, where=f"{folder}: {place}")
        except InvalidInput as error:
            yield place, error
            continue
        found.add(str(row.get("split", split)))
        if row.get("split", split) == split:
            yield place, row
    if found and split not in found:
        raise InvalidInput(
            str(folder),
            f"has no task of split {split!r}",
            f"name one of {', '.join(sorted(found))} in 'split'",
        )


def _read_task(task: Path, *, where: str) -> Mapping[str, Any]:
    # The repository is somebody's: what its links lead to on this machine is not of it.
    for name in ("", "task.yaml", _TESTS, _ASSETS, *(name for name, _ in _FILES.values())):
        if (task / name).is_symlink():
            raise InvalidInput(f"{where}: {name or 'the folder'}", "is a link")
    data = read_yaml(task / "task.yaml")
    if not isinstance(data, dict):
        raise InvalidInput(f"{where}: task.yaml", "is not a mapping")
    row = cast("dict[str, Any]", data)
    if isinstance(row.get("version"), float):
        raise InvalidInput(
            f"{where}: key 'version'", "is a number", "quote it: to YAML 1.10 is 1.1"
        )
    tests = task / _TESTS
    if tests.is_file():
        row |= _read_tests(tests, where=where)
    for column, (name, optional) in _FILES.items():
        if (task / name).is_file():
            row[column] = _text(task / name, where=where)
        elif not optional:
            raise InvalidInput(where, f"has no {name}")
    if assets := _read_assets(task / _ASSETS, where=where):
        row["test_assets"] = assets
    return row


def _read_assets(folder: Path, *, where: str) -> Mapping[str, str]:
    """Every file of the folder as base64, by its path there."""
    assets: dict[str, str] = {}
    size = 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise InvalidInput(f"{where}: {_ASSETS}/{name}", "is no regular file")
        if path.is_dir():
            continue
        size += path.stat().st_size
        if size > _MAX_ASSETS:
            raise InvalidInput(f"{where}: {_ASSETS}", f"holds more than {_MAX_ASSETS // 2**20} MiB")
        assets[name] = base64.b64encode(path.read_bytes()).decode("ascii")
    return assets


def _read_tests(path: Path, *, where: str) -> Mapping[str, Any]:
    try:
        tests = json.loads(_text(path, where=where))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: {path.name}", f"is not JSON ({error})") from None
    if not isinstance(tests, dict):
        raise InvalidInput(
            f"{where}: {path.name}", "is no object", "expected FAIL_TO_PASS and PASS_TO_PASS"
        )
    return cast("dict[str, Any]", tests)


def _text(path: Path, *, where: str) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where}: {path.name}", f"is not UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise InvalidInput(f"{where}: {path.name}", f"cannot be read ({error.strerror})") from None
