"""Which official graders there are: name, version, and the exact list of what each runs on."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: What the python of a grader's environment runs; it is told which bridge to load.
BRIDGE_RUNNER = Path(__file__).parent / "bridge.py"


@dataclass(frozen=True)
class Pin:
    """One official grader. ``requirements`` (every package with version and hashes) and ``bridge``
    (the script that asks its code) are file names beside this module. ``has_specifications``
    says that it knows how repositories are installed and tested, by version, and reads requirement
    files of theirs; without, its rows bring their own evaluation.
    """

    name: str
    distribution: str
    version: str
    requirements: str
    bridge: str
    has_specifications: bool = True

    @property
    def requirements_path(self) -> Path:
        return Path(__file__).parent / self.requirements

    @property
    def bridge_path(self) -> Path:
        return Path(__file__).parent / self.bridge

    @functools.cached_property
    def digest(self) -> str:
        """``sha256:`` of the requirement list: what the grader's environment is made of."""
        return _digest(self.requirements_path)

    @functools.cached_property
    def bridge_digest(self) -> str:
        """``sha256:`` of the scripts that ask the official code."""
        return _digest(BRIDGE_RUNNER, self.bridge_path)


def _digest(*paths: Path) -> str:
    return "sha256:" + hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


_BRIDGE = "swebench_bridge.py"

#: The official graders by the name that recipes use.
PINS: Mapping[str, Pin] = {
    pin.name: pin
    for pin in (
        Pin("swebench-4.1", "swebench", "4.1.0", "swebench-4.1.txt", _BRIDGE),
        Pin("swesmith-0.0.9", "swesmith", "0.0.9", "swesmith-0.0.9.txt", "swesmith_bridge.py"),
        Pin("swebench-5", "swebench", "5.0.2", "swebench-5.txt", _BRIDGE, has_specifications=False),
    )
}

#: Those whose specifications a dataset can be built with.
SPECIFYING = tuple(pin.name for pin in PINS.values() if pin.has_specifications)
