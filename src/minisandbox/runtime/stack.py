"""Layers to the directories a sandbox is stacked on, byte-code included.

Byte-code is never shipped: it is compiled once on each node, by the interpreter that will run it,
inside a sandbox, and lies as a layer of its own above the one it belongs to. It is checked against
the modification time of its source, so an edited file never runs stale byte-code.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from minisandbox import keys
from minisandbox.closing import Closing
from minisandbox.errors import MiniSandboxError
from minisandbox.idmap import IdMap, call_mapped
from minisandbox.records.layer import LayerRef
from minisandbox.sandbox import Profile, Sandbox
from minisandbox.store import Lease, NodeStore, Store, derived_name

#: Below it, one directory a version holds the interpreter.
PYTHONS = "opt/python"

#: What is compiled of each kind of layer, relative to the root.
_COMPILED = {"interpreter": PYTHONS, "environment": "opt/miniconda3/envs/testbed/lib"}

#: Parts of the standard library that tests of other projects hardly ever import.
_LEFT_OUT = r"/(lib2to3|idlelib|tkinter|ensurepip|turtledemo|distutils/tests|test)/"

_TIMEOUT = 1800.0

#: Told in a clause what takes long, when it begins.
Report = Callable[[str], None]


class CompilingFailed(MiniSandboxError):
    """The interpreter of a stack does not run, or not to its end, when it makes byte-code."""

    def __init__(self, layer: LayerRef, exit_code: int, said: str) -> None:
        self.layer = layer
        self.exit_code = exit_code
        self.said = said
        super().__init__(
            f"compiling byte-code for layer {layer.digest} ended with {exit_code}: {said}"
        )


class Stack(Closing):
    """Directories of layers, bottom first: those of a packed base, without which the host is the
    base, and those above it. They stay in the node store until it is closed, and longer where a
    sandbox was started with its ``lease``.
    """

    def __init__(
        self, base: tuple[Path, ...] | None, layers: tuple[Path, ...], lease: Lease
    ) -> None:
        self.base = base
        self.layers = layers
        self.lease = lease

    def close(self) -> None:
        """Need them no longer."""
        self.lease.close()


def stack(
    layers: Sequence[LayerRef], *, store: Store, node: NodeStore, report: Report | None = None
) -> Stack:
    """The directories of ``layers``, each followed by its byte-code; unpacks what is missing.

    ``report`` is called before a layer is unpacked or compiled, not for what is there.
    Raises what ``NodeStore.ensure`` and ``Sandbox.start`` raise.
    """
    lease = node.lease()
    try:
        return _stack(layers, store, node, report, lease)
    except BaseException:
        lease.close()
        raise


def _stack(
    layers: Sequence[LayerRef], store: Store, node: NodeStore, report: Report | None, lease: Lease
) -> Stack:
    base: list[Path] = []
    folders: list[Path] = []
    interpreter: LayerRef | None = None
    group = _group(layers)
    seen: Counter[str] = Counter()
    for layer in layers:
        size = layer.unpacked_size
        if report is not None and not unpacked(layer, node):
            report(f"unpacking the {layer.kind} layer, {size / 1e6:,.0f} MB")
        if layer.kind == "source":
            folders.extend(
                node.ensure_source(store, layer.digest, group=group, size=size, lease=lease)
            )
        else:
            # No two layers of a stack may share files, and some kinds come more than once. Services
            # come in any selection, so which of them a service is says nothing.
            pool = "" if layer.kind == "service" else f"{layer.kind}-{seen[layer.kind]}"
            folder = node.ensure(store, layer.digest, pool=pool, size=size, lease=lease)
            (base if layer.kind == "base" else folders).append(folder)
        seen[layer.kind] += 1
        if layer.kind == "interpreter":
            interpreter = layer
        if interpreter is not None and layer.kind in _COMPILED:
            below = Stack(tuple(base) or None, tuple(folders), lease)
            folders.append(_byte_code(layer, interpreter, below, node, report or (lambda _: None)))
    return Stack(tuple(base) or None, tuple(folders), lease)


def git_objects(
    layers: Sequence[LayerRef], *, store: Store, node: NodeStore, lease: Lease
) -> Path | None:
    """The objects that the source layer among ``layers`` leaves for nodes to make, as the directory
    of a layer above it; None where there are none. It stays until ``lease`` is closed. Raises what
    ``NodeStore.ensure`` raises.
    """
    source = next((layer for layer in layers if layer.kind == "source"), None)
    if source is None:
        return None
    node.ensure_source(
        store, source.digest, group=_group(layers), size=source.unpacked_size, lease=lease
    )
    return node.objects(store, source.digest, lease=lease)


def _group(layers: Sequence[LayerRef]) -> str:
    """Which sources wait for each other: those of one environment are of one project."""
    return next((keys.hex_of(item.digest) for item in layers if item.kind == "environment"), "")


def unpacked(layer: LayerRef, node: NodeStore) -> tuple[Path, ...]:
    """The directories of a layer, bottom first; none if it is not on this node."""
    if layer.kind == "source":
        return node.source(layer.digest)
    path = node.path(layer.digest)
    return (path,) if path.is_dir() else ()


def _byte_code(
    layer: LayerRef, interpreter: LayerRef, below: Stack, node: NodeStore, report: Report
) -> Path:
    """The byte-code of one layer, made by an interpreter from a layer below it."""
    name = derived_name("bytecode", layer.digest, interpreter.digest)

    def fill(work: Path) -> None:
        report(f"compiling byte-code of the {layer.kind} layer, once on this machine")
        profile = Profile(redirect_dir=False)
        with Sandbox.start(
            below.layers,
            base=below.base,
            scratch=node.scratch,
            idmap=node.idmap,
            profile=profile,
            name=name,
            lease=below.lease,
        ) as sandbox:
            # Exits with 1 if a single file does not compile; packages ship templates and bad
            # examples.
            result = sandbox.run(
                f"set -- /{PYTHONS}/*/bin/python3; "
                f"exec \"$1\" -I -m compileall -q -x '{_LEFT_OUT}' /{_COMPILED[layer.kind]}",
                timeout=_TIMEOUT,
                merge_stderr=True,
            )
            if result.exit_code not in (0, 1):
                raise CompilingFailed(layer, result.exit_code, result.text.strip()[-200:])
            _take(sandbox.seal(), work, node.idmap)

    return node.derive(name, fill, lease=below.lease)


def _take(upper: Path, work: Path, idmap: IdMap) -> None:
    """Make what a sandbox wrote the directory ``work``, with the owners that it has."""
    try:
        upper.rename(work)
    except OSError as error:
        if error.errno != errno.EXDEV:  # sandboxes write on another file system than layers lie on
            raise
        call_mapped(idmap, partial(_copy, upper, work))


def _copy(upper: Path, work: Path) -> None:
    shutil.copytree(upper, work, symlinks=True)
    for path in (upper, *upper.rglob("*")):
        status = path.lstat()
        os.chown(
            work / path.relative_to(upper), status.st_uid, status.st_gid, follow_symlinks=False
        )
