"""The node store: layers unpacked once per machine and per id map, ready to be mounted.

Invariant: a directory under its final name came whole out of a layer whose digest was checked.
Files in it belong to the ids of one map, hence one subdirectory a map.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from minisandbox import archive, atomic, keys
from minisandbox.errors import InvalidInput
from minisandbox.idmap import IdMap, current, remove_tree
from minisandbox.store.faults import call_carrying, explained, reachable
from minisandbox.store.locks import slot, tried
from minisandbox.store.packed import Store, verified
from minisandbox.store.scratch import scratch_directory

#: How many layers the processes of a node unpack at once: more only makes disks seek.
DEFAULT_SLOTS = 2

_LIBC = ctypes.CDLL(None, use_errno=True)


def default_node_root() -> Path:
    """``$MINISANDBOX_NODE_STORE``, else for root ``/var/lib/minisandbox``, else the user cache."""
    chosen = os.environ.get("MINISANDBOX_NODE_STORE")
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/minisandbox")
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a relative value is to be ignored.
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "minisandbox"


class NodeStore:
    """Unpacked layers of this machine, in ``<root>/<idmap.key>/{layers,locks,scratch}``."""

    def __init__(self, root: Path, idmap: IdMap | None = None) -> None:
        self.idmap = current() if idmap is None else idmap
        self.root = root
        self._base = root / self.idmap.key
        self._scratch: Path | None = None

    @property
    def scratch(self) -> Path:
        """A directory for what sandboxes write; made if missing. Raises ``StoreUnusable``.

        Beside the layers unless ``$MINISANDBOX_SCRATCH`` or their file system say otherwise.
        """
        if self._scratch is None or not self._scratch.is_dir():
            self._scratch = scratch_directory(self._base, self.idmap.key, _make_passable)
        return self._scratch

    def path(self, digest: str) -> Path:
        """Where the unpacked layer is or would be; raises ``ValueError`` for what is no digest."""
        return self._base / "layers" / keys.hex_of(digest)

    def ensure(self, store: Store, digest: str) -> Path:
        """The unpacked layer, made now unless it is there; any number of processes may ask at once.

        Raises ``LayerMissing``, ``LayerDamaged``, ``UnsafeArchive``, ``HostUnsupported`` and
        ``StoreUnusable``; whatever happens, no part of a layer is ever returned or left behind. A
        store that holds the layer may be read-only.
        """
        target = self.path(digest)
        with explained("unpack a layer into the node store", self._base):
            if not target.is_dir():
                _make_passable(target.parent)
                _make_passable(self._locks)
                fill = functools.partial(self._fill, store, digest)
                atomic.ensure_directory(target, self._lock(target.name), fill)
        return target

    def derive(self, name: str, fill: Callable[[Path], None]) -> Path:
        """A directory computed from unpacked layers, made once for this machine and id map.

        ``name`` is one path component and says what it is computed from. ``fill`` receives a path
        that does not exist and must make it whole or raise. It can be used as a layer.
        """
        target = self._base / "derived" / name
        with explained("use the node store", self._base):
            if not target.is_dir():
                _make_passable(target.parent)
                _make_passable(self._locks)

                def guarded(work: Path) -> None:
                    try:
                        fill(work)
                    except BaseException:
                        remove_tree(work, self.idmap)
                        raise

                atomic.ensure_directory(target, self._lock(name), guarded)
        return target

    @property
    def _locks(self) -> Path:
        return self._base / "locks"

    def _lock(self, value: str) -> Path:
        return self._locks / f"{value}.lock"

    def _fill(self, store: Store, digest: str, work: Path) -> None:
        """Unpack into ``work``, under the lock of the digest."""
        self._remove_abandoned(keys.hex_of(digest))
        with store.open_packed(digest) as file, slot(self._locks, _slots()):
            try:
                with reachable(work.parent) as parent:
                    unpack = functools.partial(
                        _unpack, file, digest, store.path(digest), parent / work.name, self.idmap
                    )
                    call_carrying(self.idmap, unpack)
                # A rename reaches the disk before the content of new files does; after a power cut
                # the final name would stand over empty files.
                _sync_file_system(work)
            except BaseException:
                remove_tree(work, self.idmap)
                raise

    def _remove_abandoned(self, held: str) -> None:
        """Remove what killed processes left: work directories of digests whose lock nobody holds.

        ``held`` is the digest whose lock this process has, so every work directory of it is
        abandoned.
        """
        for path in self.path("sha256:" + held).parent.glob(".*.tmp"):
            prefix = path.name.split(".")[1]
            if held.startswith(prefix):
                remove_tree(path, self.idmap)
                continue
            with self._tried_all(prefix) as free:
                if free:
                    remove_tree(path, self.idmap)

    @contextmanager
    def _tried_all(self, prefix: str) -> Generator[bool]:
        """Hold the lock of the digest that begins so, if it is free; yields whether it was."""
        lock = next(self._locks.glob(f"{prefix}*.lock"), None)
        if lock is None:
            yield True
            return
        with tried(lock) as held:
            yield held


def _unpack(file: BinaryIO, digest: str, packed: Path, target: Path, idmap: IdMap) -> None:
    with verified(file, digest, packed) as stream:
        archive.unpack(stream, target, idmap=idmap, archive=str(packed))


def _slots() -> int:
    text = os.environ.get("MINISANDBOX_UNPACK_SLOTS", str(DEFAULT_SLOTS))
    if not text.isdigit() or int(text) < 1:
        raise InvalidInput("MINISANDBOX_UNPACK_SLOTS", f"is {text!r}", "set a number from 1 on")
    return int(text)


def _make_passable(directory: Path) -> None:
    """Make a directory and its missing parents, open to the ids of sandboxes whatever the umask."""
    if directory.is_dir():
        return
    _make_passable(directory.parent)
    try:
        directory.mkdir()
    except FileExistsError:
        return
    directory.chmod(0o755)


def _sync_file_system(path: Path) -> None:
    """``syncfs(2)``: one call instead of an ``fsync`` for each of 20,000 files."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _LIBC.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))
    finally:
        os.close(fd)
