"""virtualenv and what it needs as a folder of plain files, which a build sandbox can run by any
Python.

The pipeline's own site-packages are not shown to builds; these few pure-Python distributions are.
"""

from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from minisandbox import atomic


def virtualenv_folder(root: Path) -> Path:
    """The folder below ``root``, made on first use; put it on ``PYTHONPATH`` and run ``-m
    virtualenv``.
    """
    version = importlib.metadata.version("virtualenv")
    target = root / f"virtualenv-{version}"

    def fill(work: Path) -> None:
        work.mkdir(parents=True)
        work.chmod(0o755)
        for name in sorted(_with_requirements("virtualenv")):
            _copy(importlib.metadata.distribution(name), work)

    atomic.ensure_directory(target, root / f".virtualenv-{version}.lock", fill)
    return target


def supports(python: str) -> bool:
    """Whether this virtualenv, with what it needs, runs under an interpreter of that version."""
    asked = (
        str(importlib.metadata.metadata(name).json.get("requires_python", ""))
        for name in _with_requirements("virtualenv")
    )
    return all(SpecifierSet(text).contains(python) for text in asked)


def _with_requirements(name: str) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        for text in importlib.metadata.requires(current) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def _copy(distribution: importlib.metadata.Distribution, target: Path) -> None:
    for file in distribution.files or []:
        if ".." in file.parts or "__pycache__" in file.parts or file.is_absolute():
            continue  # scripts outside site-packages, byte-code
        copy = target / Path(*file.parts)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(str(file.locate())), copy)
        copy.chmod(0o644)
