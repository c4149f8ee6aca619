"""Local projects that the whole pipeline builds, by the real Snakefile; what they require comes
from the package index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from minisandbox import open_cache
from minisandbox.records import codec
from minisandbox.records.manifest import ManifestRow
from minisandbox.records.stages import InstanceRecord, InstancesRecord

CLONE = Path(__file__).parent.parent

PROJECT = {
    "project.py": '"""A project."""\n__version__ = "1"\n\n\ndef answer():\n    return 41\n',
    "tests/__init__.py": "",
    "tests/test_answer.py": (
        "import unittest\n\nimport project\n\n\n"
        "class Test(unittest.TestCase):\n    def test_answer(self):\n        project.answer()\n"
    ),
}
PROJECT_RECIPE = {
    "repo": "local/project",
    "python": ">=3.11",
    "install": "python -m pip install -e .",
    "imports": ["project"],
    "test": "python -m unittest -v tests.test_answer",
    "parser": "unittest",
    "timeout": 120,
}
PROJECT_PATCH = """\
--- a/project.py
+++ b/project.py
@@ -3,4 +3,4 @@


 def answer():
-    return 41
+    return 42
"""
PROJECT_TEST_PATCH = """\
--- a/tests/test_answer.py
+++ b/tests/test_answer.py
@@ -5,4 +5,4 @@

 class Test(unittest.TestCase):
     def test_answer(self):
-        project.answer()
+        self.assertEqual(project.answer(), 42)
"""


class Project:
    """A local project of one module with a bug, its row, its recipe, and what was built of it.

    ``answer()`` is 41 and has to be 42; the test patch says so. The commit before base has the tag
    v1.2.0, the one after it v9.0.0. Several in one folder are built together.
    """

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, str],
        recipe: Mapping[str, Any],
        *,
        name: str = "project",
    ) -> None:
        self.folder = folder
        self.name = name
        self.results = folder / "results"
        base = self._commit(folder / f"git/local/{name}.git", {**PROJECT, **files})
        (folder / "recipes").mkdir(exist_ok=True)
        whole = {**PROJECT_RECIPE, "repo": f"local/{name}", **recipe}
        (folder / f"recipes/{name}.yaml").write_text(yaml.safe_dump(whole))
        row = {
            "instance_id": f"{name}-1",
            "repo": f"local/{name}",
            "base_commit": base,
            "patch": PROJECT_PATCH,
            "test_patch": PROJECT_TEST_PATCH,
        }
        (folder / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        (folder / f"{name}.yaml").write_text(f"name: {name}\nkind: rows\npath: {name}.jsonl\n")

    def change_recipe(self, **changes: Any) -> None:
        """Set keys of the recipe; ``None`` takes one out."""
        path = self.folder / f"recipes/{self.name}.yaml"
        recipe = {**yaml.safe_load(path.read_text()), **changes}
        kept = {key: value for key, value in recipe.items() if value is not None}
        path.write_text(yaml.safe_dump(kept))

    @property
    def row(self) -> ManifestRow:
        """What the manifest says of its instance."""
        return open_cache(self.results).row(f"{self.name}-1")

    @property
    def environment(self) -> Path:
        """The folder of the environment's records."""
        return self.results / "environments" / self.row.environment

    @property
    def batch(self) -> Path:
        """The folder of the records of its batch; projects of equal recipes share environments."""
        folders = (self.environment / "batches").iterdir()
        return next(folder for folder in folders if self._in(folder / "instances.json"))

    def instance(self, record: Path) -> InstanceRecord:
        """What the record of a batch says of its instance."""
        (found,) = self._in(record)
        return found

    def _in(self, record: Path) -> list[InstanceRecord]:
        instances = codec.read(InstancesRecord, record).instances
        return [found for found in instances if found.key == f"{self.name}-1"]

    @staticmethod
    def _commit(repository: Path, files: Mapping[str, str]) -> str:
        def git(*words: str) -> str:
            identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
            env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
            done = subprocess.run(
                ["git", *identity, *words], cwd=repository, env=env, capture_output=True, check=True
            )
            return done.stdout.decode().strip()

        repository.mkdir(parents=True)
        git("init", "-q", "-b", "main", ".")
        git("commit", "-q", "--allow-empty", "-m", "Begin")
        git("tag", "v1.2.0")
        for name, text in files.items():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            (repository / name).write_text(text)
        git("add", "-A")
        git("commit", "-qm", "Add")
        base = git("rev-parse", "HEAD")
        git("commit", "-q", "--allow-empty", "-m", "Later: THE ANSWER")
        git("tag", "v9.0.0")
        return base


def build_together(projects: Sequence[Project], results: str, *, from_lock: str = "") -> None:
    """Build projects of one folder in one run of Snakemake, into ``results``, which is then the
    folder that is looked into; what cannot be built is in the records.
    """
    folder = projects[0].folder
    (folder / "config").mkdir(exist_ok=True)
    datasets = ", ".join(f"{project.name}.yaml" for project in projects)
    (folder / "config/config.yaml").write_text(
        f"datasets: [{datasets}]\nrecipes: recipes\npack: false\n"
        f"git_url: {folder}/git/{{repo}}.git\n"
    )
    argv = [sys.executable, "-m", "snakemake", "--snakefile", str(CLONE / "Snakefile")]
    argv += ["--profile", str(CLONE / "profiles/default"), "--cores", "2"]
    lock = [f"from_lock={from_lock}"] if from_lock else []
    done = subprocess.run(
        [*argv, "--config", f"results={results}", *lock],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for project in projects:
        project.results = folder / results
