"""The two instances that are measured: one of the demo cache, and one with a large environment.

Both are built by the pipeline on first use and kept. Peers that mount no layers get the same
content as one plain tree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from minisandbox import keys
from minisandbox.records.manifest import ManifestRow
from minisandbox.runtime import Cache, open_cache

ROOT = Path(__file__).resolve().parent.parent
#: The environment of the large instance holds at least this.
LARGE_BYTES = 300 * 10**6

_DATE = "2026-01-15T00:00:00+00:00"
_PACKAGES = (
    "pytest==8.4.2",
    "setuptools==80.9.0",
    "numpy==2.3.5",
    "scipy==1.16.3",
    "pandas==2.3.3",
    "scikit-learn==1.8.0",
    "sympy==1.14.0",
)
_RECIPE = f"""\
repo: benchmark/large
python: ">=3.11"
date: 2026-01-15
packages: [{", ".join(_PACKAGES)}]
install: python -m pip install --no-build-isolation --no-deps -e .
imports: [numpy, scipy, pandas, sklearn, sympy]
test: python -m pytest -rA -p no:cacheprovider -q
parser: pytest
"""
_FILES = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "large"
version = "1"

[tool.setuptools]
py-modules = ["large"]
""",
    "large.py": "def add(a, b):\n    return a - b\n",
    "test_large.py": "import large\n\n\ndef test_zero():\n    assert large.add(0, 0) == 0\n",
}
_PATCH = """\
diff --git a/large.py b/large.py
--- a/large.py
+++ b/large.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
_TEST_PATCH = """\
diff --git a/test_large.py b/test_large.py
--- a/test_large.py
+++ b/test_large.py
@@ -4,2 +4,6 @@ import large
 def test_zero():
     assert large.add(0, 0) == 0
+
+
+def test_two():
+    assert large.add(1, 1) == 2
"""


class Subject:
    """One instance of a cache, and what the peers need of it below ``folder``."""

    def __init__(self, name: str, cache: Cache, instance_id: str, folder: Path) -> None:
        self.name = name
        self.cache = cache
        self.instance_id = instance_id
        self.row = cache.row(instance_id)
        self.key = keys.short(keys.digest_of([layer.digest for layer in self.row.layers]), 16)
        self._folder = folder

    @property
    def environment_bytes(self) -> int:
        """What the files of the virtual environment hold, byte-code not counted."""
        return sum(layer.unpacked_size for layer in self.row.layers if layer.kind == "environment")

    def tree(self) -> Path:
        """The instance as a plain tree: the interpreter, the environment, the repository, and names
        for the host's /usr, which is to be mounted there.
        """
        tree = self._folder / self.key
        if tree.exists():
            return tree
        part = self._folder / f"{self.key}.{os.getpid()}.part"
        for name in ("usr", "dev", "proc", "tmp", "root", "etc"):
            (part / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            (part / name).symlink_to(f"usr/{name}")
        with self.cache.materialize(self.instance_id) as instance:
            for name in ("etc/passwd", "etc/group"):
                instance.download(f"/{name}", part / name)
            # By importing it once nothing changes any more: byte-code is there.
            for name in ("opt", "testbed"):
                instance.download(f"/{name}", part / name)
        part.rename(tree)
        return tree


def small(results: Path, folder: Path) -> Subject:
    """The median instance, by what its layers hold, of the demo cache in ``results``; it is built
    unless it is there.
    """
    if not (results / "manifest.jsonl").is_file():
        _build("--config", f"results={results}")
    cache = open_cache(results)
    rows = sorted((row for row in cache.rows() if row.status == "ok"), key=_unpacked)
    return Subject("small", cache, rows[len(rows) // 2].instance_id, folder)


def large(work: Path, folder: Path) -> Subject:
    """An instance with a large environment, built in ``work`` unless it is there; raises
    ``SystemExit`` if it is too small or was not built.
    """
    results = work / "results"
    if not (results / "manifest.jsonl").is_file():
        _describe(work)
        _build("--configfile", str(work / "config.yaml"))
    cache = open_cache(results)
    (row,) = cache.rows()
    if row.status != "ok":
        raise SystemExit(f"{results}: {row.instance_id} is {row.status}: {row.reason}")
    subject = Subject("large", cache, row.instance_id, folder)
    if subject.environment_bytes < LARGE_BYTES:
        raise SystemExit(f"{results}: its environment holds {subject.environment_bytes:,} bytes")
    return subject


def _unpacked(row: ManifestRow) -> int:
    return sum(layer.unpacked_size for layer in row.layers)


def _build(*options: str) -> None:
    """Run the pipeline; what it says goes to standard error."""
    command = [sys.executable, "-m", "snakemake", "--cores", "all", *options]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, stdout=2, check=True)


def _describe(work: Path) -> None:
    """Write a repository of one commit, a row, a recipe, and a configuration."""
    repository = work / "git/benchmark/large"
    repository.mkdir(parents=True, exist_ok=True)
    for name, content in _FILES.items():
        (repository / name).write_text(content)
    who = {
        f"GIT_{role}_{part}": value
        for role in ("AUTHOR", "COMMITTER")
        for part, value in (
            ("NAME", "benchmark"),
            ("EMAIL", "benchmark@localhost"),
            ("DATE", _DATE),
        )
    }
    git = ["git", "-C", str(repository)]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "A sum"]):
        subprocess.run([*git, *words], env={**os.environ, **who}, check=True)
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    row = {
        "instance_id": "benchmark__large-1",
        "repo": "benchmark/large",
        "base_commit": commit,
        "problem_statement": "One plus one is zero.",
        "patch": _PATCH,
        "test_patch": _TEST_PATCH,
    }
    (work / "rows.jsonl").write_text(json.dumps(row) + "\n")
    recipes = work / "recipes"
    recipes.mkdir(exist_ok=True)
    (recipes / "large.yaml").write_text(_RECIPE)
    dataset = {
        "name": "large",
        "kind": "rows",
        "path": "rows.jsonl",
        "git_url": f"{work}/git/{{repo}}",
        "recipe": "large",
    }
    (work / "dataset.yaml").write_text(json.dumps(dataset))  # JSON is YAML
    config = {
        "datasets": [str(work / "dataset.yaml")],
        "recipes": str(recipes),
        "results": str(work / "results"),
    }
    (work / "config.yaml").write_text(json.dumps(config))
