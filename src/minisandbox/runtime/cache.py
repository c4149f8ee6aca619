"""A finished cache: its manifest, its store, and instances materialized from them.

The manifest is read as JSON lines, by offset, so that opening a cache of 50,000 rows keeps 50,000
numbers in memory and not their patches. The file that was indexed stays open: a rebuild renames
another one over it, in which the offsets would lead to other rows.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from minisandbox.errors import InstanceUnavailable, InstanceUnknown, InvalidInput
from minisandbox.records import codec
from minisandbox.records.layer import LayerRef
from minisandbox.records.manifest import READABLE_SCHEMAS, ManifestRow, variables_of
from minisandbox.runtime.instance import Instance, start_instance
from minisandbox.runtime.profiles import profile_of
from minisandbox.runtime.stack import Report
from minisandbox.sandbox import Profile, arguments
from minisandbox.store import NodeStore, Store, default_node_root

MANIFEST_NAME = "manifest.jsonl"
#: Beside the manifest: where its store is, relative to the folder or absolute.
CACHE_NAME = "cache.json"

# The writer puts these two keys first; anything else is parsed in full.
_HEAD = re.compile(rb'\{"schema": ?(\d+), ?"instance_id": ?"([!#-\[\]-~]+)"')

_CHUNK = 1 << 16


class Cache:
    """What ``open_cache`` returns: instance ids in manifest order, their rows, and
    ``materialize``.
    """

    def __init__(self, folder: Path, store: Store, node: NodeStore | None = None) -> None:
        self.folder = folder
        self.store = store
        self._node = node
        self._manifest = folder / MANIFEST_NAME
        self._fd = os.open(self._manifest, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        self._offsets = _read_offsets(self._fd, self._manifest)

    def __reduce__(self) -> tuple[type[Cache], tuple[Path, Store, NodeStore | None]]:
        return Cache, (self.folder, self.store, self._node)  # opened anew in another process

    @property
    def node(self) -> NodeStore:
        """The node store of this user, made on first use."""
        if self._node is None:
            self._node = NodeStore(default_node_root())
        return self._node

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def __contains__(self, instance_id: object) -> bool:
        return instance_id in self._offsets

    def rows(self) -> Iterator[ManifestRow]:
        """Every row, in manifest order."""
        for instance_id in self._offsets:
            yield self.row(instance_id)

    def row(self, instance_id: str) -> ManifestRow:
        """The row of one instance; raises ``InstanceUnknown`` with the nearest ids there are."""
        offset = self._offsets.get(instance_id)
        if offset is None:
            raise InstanceUnknown(
                instance_id, difflib.get_close_matches(instance_id, self._offsets, n=3)
            )
        where = f"{self._manifest}: {instance_id}"
        row = _decode(_read_line(self._fd, offset), where)
        if row.instance_id != instance_id:
            raise InvalidInput(where, "was edited in place", "open the cache again")
        return row

    def materialize(
        self,
        instance_id: str,
        *,
        profile: Profile | None = None,
        env: Mapping[str, str] | None = None,
        above: Sequence[LayerRef] = (),
        report: Report | None = None,
    ) -> Instance:
        """Start a sandbox on the layers of an instance; a context manager.

        Without a ``profile`` it is the one that the row was validated under (``profile_of``).
        ``above`` are layers to stack on them, such as ``Instance.checkpoint`` made.

        The first time on a machine its layers are unpacked and compiled, of which ``report`` is
        told.

        Raises ``InstanceUnknown``, ``InstanceUnavailable`` (its build failed), ``LayerMissing``,
        ``LayerDamaged`` or ``HostUnsupported``. An instance that was built but not validated as
        ``ok`` can still be materialized: the row's ``status`` says what is known of it.
        """
        variables = arguments.variables("env", env)
        if profile is not None:
            arguments.instance_of("profile", profile, Profile)
        row = self.row(instance_id)
        if not row.layers:
            raise InstanceUnavailable(instance_id, row.reason)
        return start_instance(
            (*row.layers, *above),
            head_tree=row.head_tree,
            store=self.store,
            node=self.node,
            name=instance_id,
            profile=profile or profile_of(row),
            env={**variables_of(row, "env"), **variables},
            report=report,
        )


def open_cache(folder: str | Path = "results", *, store: str | Path | None = None) -> Cache:
    """Open the cache in ``folder``; raises ``InvalidInput`` if it holds no manifest.

    ``store`` overrides where the packed layers are looked for.
    """
    folder = Path(folder)
    if not (folder / MANIFEST_NAME).is_file():
        raise InvalidInput(
            str(folder), f"holds no {MANIFEST_NAME}", "build one with `snakemake --cores all`"
        )
    return Cache(folder, Store(Path(store) if store else store_of(folder)))


def store_of(folder: Path) -> Path:
    """Where the store of a results folder is, wherever that was moved; raises ``InvalidInput``."""
    try:
        data = json.loads((folder / CACHE_NAME).read_text(encoding="utf-8"))
        return folder / str(data["store"])
    except FileNotFoundError:
        return folder / "store"
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(
            str(folder / CACHE_NAME), "does not name a store", "pass `store`"
        ) from None


def _read_line(fd: int, offset: int) -> bytes:
    # pread, because threads share the descriptor and its position.
    line = bytearray()
    while b"\n" not in line[-_CHUNK:]:
        part = os.pread(fd, _CHUNK, offset + len(line))
        if not part:
            break
        line += part
    return bytes(line.partition(b"\n")[0])


def _read_offsets(fd: int, manifest: Path) -> dict[str, int]:
    offsets: dict[str, int] = {}
    position = 0
    with open(fd, "rb", closefd=False) as lines:
        for number, line in enumerate(lines, 1):
            where = f"{manifest}: row {number}"
            head = _HEAD.match(line)
            if head is not None:
                schema, instance_id = int(head[1]), head[2].decode("ascii")
            else:
                data = _parse(line, where)
                schema, instance_id = data.get("schema"), str(data.get("instance_id"))
            if schema not in READABLE_SCHEMAS:
                raise InvalidInput(
                    where,
                    f"has schema {schema}",
                    f"this version reads {', '.join(map(str, READABLE_SCHEMAS))}",
                )
            offsets[instance_id] = position
            position += len(line)
    return offsets


@functools.lru_cache(maxsize=32)
def _decode(line: bytes, where: str) -> ManifestRow:
    # Trainers materialize one instance several times in a row, and a row takes a millisecond.
    return codec.decode(ManifestRow, _parse(line, where), where=where)


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(where, f"is not JSON ({error})", "build the manifest again") from None
    if not isinstance(data, dict):
        raise InvalidInput(where, "is not an object", "build the manifest again")
    return cast("dict[str, Any]", data)
