"""A small project that is packed by hand: a git checkout on the base, tested by the base's python3,
validated and graded by the shipped code in real sandboxes. Needs no index and no interpreter layer.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

from minisandbox.build import stage, validate
from minisandbox.errors import EXIT_OK
from minisandbox.idmap import call_mapped, current, remove_tree
from minisandbox.records import codec
from minisandbox.records.layer import LayerRef
from minisandbox.records.manifest import MANIFEST_SCHEMA, Base, BuildSeconds, Logs, ManifestRow
from minisandbox.records.plan import BatchPlan, InstancePlan, Recipe
from minisandbox.records.stages import (
    RECORD_SCHEMA,
    InstanceRecord,
    InstancesRecord,
    ValidationRecord,
    ValidationsRecord,
)
from minisandbox.runtime import Cache, Instance, open_cache, start_instance
from minisandbox.store import NodeStore, Store

DATE = 1_600_000_000


def git(folder: Path, *words: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "safe.directory=*"]
    return subprocess.run(
        ["git", *identity, *words],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def difference(name: str, before: str | None, after: str | None) -> str:
    """A patch that makes one file of another, as `git diff` writes it."""
    old, new = (text.splitlines() if text is not None else [] for text in (before, after))
    head = f"diff --git a/{name} b/{name}\n"
    if before is None:
        head += f"new file mode 100644\n--- /dev/null\n+++ b/{name}\n"
    elif after is None:
        head += f"deleted file mode 100644\n--- a/{name}\n+++ /dev/null\n"
    else:
        head += f"--- a/{name}\n+++ b/{name}\n"
    first = [f"{1 if lines else 0},{len(lines)}" for lines in (old, new)]
    lines = [*(f"-{line}\n" for line in old), *(f"+{line}\n" for line in new)]
    return head + f"@@ -{first[0]} +{first[1]} @@\n" + "".join(lines)


def unittest_name(case: str, test: str) -> str:
    """A test as the base's unittest prints it: since Python 3.11 its name stands there twice."""
    said = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(sys.version_info >= (3, 11))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return f"{test} ({case}{f'.{test}' if said.strip() == 'True' else ''})"


def _write_layers(root: Path, files: Mapping[str, str]) -> tuple[str, str]:
    testbed = root / "source/testbed"
    for name, text in files.items():
        (testbed / name).parent.mkdir(parents=True, exist_ok=True)
        (testbed / name).write_text(text)
    git(testbed, "init", "-q", "-b", "main", "--template=", ".")
    git(testbed, "add", "-A", ".")
    git(testbed, "commit", "-q", "-m", "base")
    exclude = root / "instance/testbed/.git/info/exclude"
    exclude.parent.mkdir(parents=True)
    exclude.write_text("__pycache__/\n*.pyc\n")
    return git(testbed, "rev-parse", "HEAD"), git(testbed, "rev-parse", "HEAD^{tree}")


def write_manifest(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A manifest of rows that are ok, for a cache whose store is beside it."""
    needed = (item.name for item in fields(ManifestRow) if item.default is MISSING)
    usual: dict[str, Any] = dict.fromkeys(needed, "") | {
        "schema": MANIFEST_SCHEMA,
        "status": "ok",
        "FAIL_TO_PASS": (),
        "PASS_TO_PASS": (),
        "base": Base(),
        "packages": (),
        "test_env": "{}",
        "test_timeout": 60,
        "build_seconds": BuildSeconds(),
        "gold_resolved": True,
        "empty_resolved": False,
        "gold_seconds": None,
        "empty_seconds": None,
        "logs": Logs(),
        "extra": "{}",
    }
    lines = [json.dumps(codec.encode(ManifestRow(**usual | row))) + "\n" for row in rows]
    (folder / "manifest.jsonl").write_text("".join(lines))
    (folder / "cache.json").write_text(json.dumps({"schema": 1, "store": "store"}))


class SmallProject:
    """A packed project, its row and its recipe; remove it with ``close``."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        idmap = current()
        trees = folder / "trees"
        self.folder = folder
        self.base, self.head_tree = call_mapped(idmap, partial(_write_layers, trees, files))
        if idmap.kind == "root":
            for path in (trees, *trees.rglob("*")):
                os.chown(path, idmap.host_uid(0), idmap.host_gid(0), follow_symlinks=False)
        self.store = Store(folder / "store")
        self.node = NodeStore(folder / "node", idmap)
        self.layers: tuple[LayerRef, ...] = tuple(
            self.store.add(kind, trees / kind, date=DATE, idmap=idmap)
            for kind in ("source", "instance")
        )

    def close(self) -> None:
        remove_tree(self.node.root, self.node.idmap)
        remove_tree(self.folder / "trees", self.node.idmap)

    def start(self, **options: Any) -> Instance:
        """A fresh instance."""
        return start_instance(
            self.layers,
            head_tree=self.head_tree,
            store=self.store,
            node=self.node,
            name="small",
            **options,
        )

    def cache(self, instance_id: str = "small-1", **changes: Any) -> Cache:
        """A cache with one row, that of the project, as the manifest has it."""
        row = {
            "instance_id": instance_id,
            "base_commit": self.base,
            "head_tree": self.head_tree,
            "layers": self.layers,
            "test_command": "python3 -m unittest -v",
            "log_parser": "unittest",
        }
        write_manifest(self.folder, [row | changes])
        return open_cache(self.folder)

    def validate(
        self,
        *,
        patch: str,
        test_patch: str = "",
        lists: tuple[tuple[str, ...], tuple[str, ...]] | None = None,
        runs: int = 1,
        created_at: str = "",
        **recipe: Any,
    ) -> ValidationRecord:
        """The record that the validate stage makes of it."""
        recipe = {"test": "python3 -m unittest -v", "parser": "unittest", "timeout": 60, **recipe}
        row = InstancePlan(
            instance_id="small-1",
            dataset="rows",
            repo="local/small",
            base_commit=self.base,
            patch=patch,
            test_patch=test_patch,
            fail_to_pass=lists[0] if lists else None,
            pass_to_pass=lists[1] if lists else None,
            extra={"created_at": created_at} if created_at else {},
        )
        plan = BatchPlan(
            slug="b",
            environment="env",
            recipe=Recipe("r", row.repo, "3.11", **recipe),
            instances=(row,),
            history="none",
            network="none",
            timeout=60,
            store=str(self.store.root),
            tools=str(self.folder / "tools"),
            index_cache=str(self.folder / "index"),
            files_cache=str(self.folder / "files"),
            validate_runs=runs,
        )
        common: dict[str, Any] = {
            "schema": RECORD_SCHEMA,
            "stage": "instances",
            "status": "ok",
            "inputs": "",
            "started": "",
            "seconds": 0,
            "log": "",
        }
        built = InstanceRecord(
            key=row.instance_id,
            base_commit=self.base,
            head_commit=self.base,
            head_tree=self.head_tree,
            layers=self.layers,
            **common,
        )
        codec.write(self.folder / "plan.json", plan)
        codec.write(
            self.folder / "instances.json", InstancesRecord(key="b", instances=(built,), **common)
        )
        record = self.folder / "batch/validation.json"
        ended = validate.run(
            self.folder / "plan.json",
            self.folder / "instances.json",
            [],
            record,
            stage.Attempt(stage.ATTEMPTS),
        )
        assert ended.exit_code == EXIT_OK
        (found,) = codec.read(ValidationsRecord, record).instances
        return found
