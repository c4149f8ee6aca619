"""A working directory of the workflow's own, with the real Snakefile and the real planner.

Tests of the pipeline's shape put a `minisandbox` on PATH that only writes records: what they show
is which jobs run, in which order, and again after what.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from local_projects import CLONE, Project, build_together

RECIPE = """\
repo: {repo}
python: ">=3.11"
packages: [pytest==8.4.2]
pre_install: ["echo {repo}"]
test: python -m pytest
"""

#: Writes what the rule promises, appends one line to calls.txt, and does what BEHAVIOUR says.
STUB = """\
#!/bin/bash
echo "$2 $*" >> calls.txt
stage=$2
outputs=()
while (($#)); do
    case $1 in
        --record | --parquet | --jsonl | --summary) outputs+=("$2"); shift ;;
        --attempt) attempt=$2; shift ;;
    esac
    shift
done
eval "$BEHAVIOUR"
for output in "${outputs[@]}"; do echo '{}' > "$output"; done
"""


@dataclass(frozen=True)
class Workflow:
    """The workflow in a directory of its own."""

    folder: Path

    def configure(self, *, environments: int, instances: int, batch_size: int = 20) -> None:
        """Plan input: `instances` rows dealt over as many repositories, each an environment."""
        (self.folder / "recipes").mkdir()
        for number in range(environments):
            recipe = RECIPE.format(repo=f"owner/project{number}")
            (self.folder / "recipes" / f"project{number}.yaml").write_text(recipe)
        with (self.folder / "rows.jsonl").open("w") as rows:
            for number in range(instances):
                row = {
                    "instance_id": f"row-{number}",
                    "repo": f"owner/project{number % environments}",
                    "base_commit": f"{number:040x}",
                    "patch": "",
                    "test_patch": "",
                    "problem_statement": "Something is wrong.",
                }
                print(json.dumps(row), file=rows)
        (self.folder / "rows.yaml").write_text("name: rows\nkind: rows\npath: rows.jsonl\n")
        (self.folder / "config").mkdir()
        (self.folder / "config" / "config.yaml").write_text(
            f"datasets: [rows.yaml]\nrecipes: recipes\nbatch_size: {batch_size}\n"
        )

    def command(self, *arguments: str) -> list[str]:
        snakefile = str(CLONE / "Snakefile")
        return [sys.executable, "-m", "snakemake", "--snakefile", snakefile, *arguments]

    def environment(self, behaviour: str = "") -> dict[str, str]:
        stub = self.folder / "bin" / "minisandbox"
        if not stub.exists():
            stub.parent.mkdir()
            stub.write_text(STUB)
            stub.chmod(0o755)
        path = os.pathsep.join([str(stub.parent), os.environ["PATH"]])
        return {**os.environ, "PATH": path, "BEHAVIOUR": behaviour}

    def run(self, *arguments: str, behaviour: str = "") -> subprocess.CompletedProcess[str]:
        """Run snakemake to its end; the output of both streams is in `stdout` and `stderr`."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(behaviour),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def take_calls(self) -> list[str]:
        """The stages called since the last time, in order; the list starts anew."""
        calls = self.folder / "calls.txt"
        if not calls.exists():
            return []
        lines = calls.read_text().splitlines()
        calls.unlink()
        return [line.split()[0] for line in lines]


@pytest.fixture
def workflow(tmp_path: Path) -> Workflow:
    return Workflow(tmp_path)


@pytest.fixture(scope="session")
def build_all() -> Callable[..., None]:
    """How to build several projects in one run."""
    return build_together


@pytest.fixture(scope="session")
def make_project() -> type[Project]:
    """How to make a project in a folder of its own."""
    return Project
