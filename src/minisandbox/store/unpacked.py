"""The node store: layers unpacked once per machine and per id map, ready to be mounted.

Invariant: a directory under its final name came whole out of a layer whose content was checked: by
the digest of its tar, or, where a pack tells what differs from another source, by the checksums of
the pack. Files in it belong to the ids of one map, hence one subdirectory a map.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from minisandbox import archive, atomic, keys
from minisandbox.archive.reading import Reader
from minisandbox.idmap import IdMap, current, remove_tree
from minisandbox.sizes import size_limit
from minisandbox.store.budget import granted, io_budget
from minisandbox.store.directories import make_passable, pool_at, sync_file_system
from minisandbox.store.faults import StoreUnusable, call_carrying, explained, reachable
from minisandbox.store.leases import Lease
from minisandbox.store.listing import Recording
from minisandbox.store.locks import open_lock, tried
from minisandbox.store.packed import Store
from minisandbox.store.pool import Pool
from minisandbox.store.references import lies
from minisandbox.store.scratch import scratch_directory
from minisandbox.store.source_unpacking import Make, SourceUnpacker
from minisandbox.store.streams import StoredLayer

#: How often a source is made that is gone, or whose reference is, before it can be used.
_TRIES = 5


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
    """Unpacked layers of this machine, in ``<root>/<idmap.key>``.

    ``layers`` and ``sources`` are named by digest, ``derived`` by what they are computed from;
    ``pool`` holds what they share, ``locks`` and ``uses`` what keeps processes apart.
    """

    def __init__(self, root: Path, idmap: IdMap | None = None) -> None:
        self.idmap = current() if idmap is None else idmap
        self.root = root
        self.base = root / self.idmap.key
        self._scratch: Path | None = None
        self._sources = SourceUnpacker(self.base, self.idmap)

    @property
    def scratch(self) -> Path:
        """A directory for what sandboxes write; made if missing. Raises ``StoreUnusable``.

        Beside the layers unless ``$MINISANDBOX_SCRATCH`` or their file system say otherwise.
        """
        if self._scratch is None or not self._scratch.is_dir():
            self._scratch = scratch_directory(self.base, self.idmap.key, make_passable)
        return self._scratch

    def path(self, digest: str) -> Path:
        """Where the unpacked layer is or would be; raises ``ValueError`` for what is no digest."""
        return self.base / "layers" / keys.hex_of(digest)

    def lease(self) -> Lease:
        """Holds nothing yet: hand it to what makes or finds directories that shall stay."""
        return Lease(self.base / "uses")

    def source(self, digest: str) -> tuple[Path, ...]:
        """The directories of an unpacked source layer, bottom first; empty if it is not there."""
        return self._sources.directories(digest)

    def ensure(
        self,
        store: Store,
        digest: str,
        *,
        pool: str = "",
        size: int = 0,
        lease: Lease | None = None,
    ) -> Path:
        """The unpacked layer, made now unless it is there; any number of processes may ask at once.

        Its files are shared with those of other layers of the same ``pool``, of which no two may
        lie in one stack; of none unless it has a name. ``size`` is its bytes unpacked, as far as
        they are known. It is not collected before ``lease`` is closed.

        Raises ``LayerMissing``, ``LayerDamaged``, ``UnsafeArchive``, ``HostUnsupported`` and
        ``StoreUnusable``; whatever happens, no part of a layer is ever returned or left behind. A
        store that holds the layer may be read-only.
        """
        target = self.path(digest)

        def begin(layer: StoredLayer) -> tuple[int, Make]:
            return size, functools.partial(self._unpack_layer, layer, pool=pool)

        with self._held(lease) as held:
            return self._ensure(_Wanted(store, digest, begin), target, held)

    def ensure_source(
        self,
        store: Store,
        digest: str,
        *,
        group: str = "",
        size: int = 0,
        lease: Lease | None = None,
    ) -> tuple[Path, ...]:
        """Like ``ensure`` of a source layer: its directories, bottom first.

        Where sources were unpacked that it is like, it is told against one of them, and lies on it;
        of those of one ``group`` that come at once, one is made first. Without a group it is whole.
        Git's objects that the layer left out are made.
        """
        target = self._sources.path(digest)
        with self._held(lease) as held:
            with explained("unpack a layer into the node store", self.base):
                held.add(target.name)
            for _ in range(_TRIES):  # what was made just now may be found damaged, and moved
                found = self.source(digest)
                if found and self._lies(target):
                    break
                if found:
                    self._set_aside(target)
                with ExitStack() as until:
                    begin = functools.partial(
                        self._sources.begin, size=size, group=group, lease=held, until=until
                    )
                    self._ensure(_Wanted(store, digest, begin), target, held)
            else:
                error = OSError(errno.EAGAIN, f"what {target.name[:12]} lies on is always gone")
                raise StoreUnusable("unpack a layer into the node store", self.base, error)
            with explained("use the node store", self.base):
                # Until now they stayed because a source lies on them that is held: see
                # ``collecting``.
                for tree in found[:-1]:
                    held.add(tree.parent.name)
            return found

    def objects(self, store: Store, digest: str, *, lease: Lease | None = None) -> Path | None:
        """A layer of the git objects that an unpacked source layer left out, for whoever cannot
        make them; None where it left none out. Raises what ``ensure`` does.
        """
        with store.stored(digest) as layer:
            fill = self._sources.objects_of(layer)
        if fill is None:
            return None
        return self.derive(f"objects-{keys.short(digest, 32)}", fill, lease=lease)

    def _lies(self, source: Path) -> bool:
        with explained("use the node store", self.base):
            return lies(source)

    def _set_aside(self, source: Path) -> None:
        from minisandbox.store import collecting

        with explained("use the node store", self.base):
            self.prepare()
            with atomic.locked(self._lock(source.name)):
                if source.is_dir() and not lies(source):
                    collecting.move(self, source, "damaged")

    def _ensure(self, wanted: _Wanted, target: Path, lease: Lease) -> Path:
        with explained("unpack a layer into the node store", self.base):
            lease.add(target.name)
            if not target.is_dir():
                self.prepare()
                make_passable(target.parent)
                fill = functools.partial(self._fill, wanted)
                atomic.ensure_directory(target, self._lock(target.name), fill)
        return target

    def derive(
        self, name: str, fill: Callable[[Path], None], *, lease: Lease | None = None
    ) -> Path:
        """A directory computed from unpacked layers, made once for this machine and id map.

        ``name`` is one path component and says what it is computed from: that of ``derived_name``
        has it collected with its layer. ``fill`` receives a path that does not exist and must make
        it whole or raise. It can be used as a layer.
        """
        target = self.base / "derived" / name
        with explained("use the node store", self.base), self._held(lease) as held:
            held.add(name)
            if not target.is_dir():
                self.prepare()
                make_passable(target.parent)
                limit = size_limit()

                def guarded(work: Path) -> None:
                    self._make_room(limit, name, 0)
                    try:
                        fill(work)
                        sync_file_system(work.parent)
                        self._note_digest(work, name)
                        if limit:
                            self._account(name, self._measured(work))
                    except BaseException:
                        remove_tree(work, self.idmap)
                        raise

                atomic.ensure_directory(target, self._lock(name), guarded)
        return target

    def prepare(self) -> None:
        """Make what is needed to write here, and to collect when the disk is full; raises
        ``OSError``.
        """
        for name in ("locks", "uses", "trash", "damaged"):
            make_passable(self.base / name)
        for name in ("collect", "account"):
            if not self._lock(name).exists():
                os.close(open_lock(self._lock(name)))
        make_passable(self.root / "budget")

    def remove_abandoned(self) -> None:
        """Remove what killed processes were making."""
        for name in ("layers", "sources", "derived", "sums"):
            self._remove_abandoned(self.base / name, "")

    @contextmanager
    def _held(self, lease: Lease | None) -> Generator[Lease]:
        """What keeps a directory at least until it is returned."""
        if lease is not None:
            yield lease
            return
        with self.lease() as own:
            yield own

    @property
    def _locks(self) -> Path:
        return self.base / "locks"

    def _lock(self, value: str) -> Path:
        return self._locks / f"{value}.lock"

    def _fill(self, wanted: _Wanted, work: Path) -> None:
        """Unpack into ``work``, under the lock of the digest."""
        name = keys.hex_of(wanted.digest)
        self._remove_abandoned(work.parent, name)
        with wanted.store.stored(wanted.digest) as layer:
            size, make = wanted.begin(layer)
            limit = size_limit()
            self._make_room(limit, name, size)
            with granted(self.root / "budget", io_budget(self.root), size):
                try:
                    make(work)
                    if limit:
                        self._account(name, self._measured(work))
                except BaseException:
                    remove_tree(work, self.idmap)
                    raise

    def _make_room(self, limit: int | None, name: str, size: int) -> None:
        if limit:
            from minisandbox.store import collecting  # what is needed for a limit only

            collecting.make_room(self, limit, name, size)

    def _account(self, name: str, size: int) -> None:
        from minisandbox.store.account import Account

        Account(self.base).add(name, size)

    def _measured(self, work: Path) -> int:
        """Bytes that ``work`` added to the store."""
        from minisandbox.store import usage

        return usage.added_by(work, self.idmap)

    def _note_digest(self, work: Path, name: str) -> None:
        """Keep what a derived directory holds, for ``store verify``: no packed layer tells it."""
        from minisandbox.store import checking

        make_passable(self.base / "sums")
        atomic.write_text(self.base / "sums" / name, checking.digest_of(work, self.idmap) + "\n")

    def _unpack_layer(self, layer: StoredLayer, work: Path, *, pool: str) -> None:
        pools = pool_at(self.base, pool) if pool else None

        def unpack(parent: Path, shared: Path | None) -> None:
            tree = parent / work.name
            with layer.tar() as stream:
                recording = Recording(Reader(stream))
                made = None if shared is None else Pool(shared, recording.last)
                archive.lay_out(
                    recording, tree, idmap=self.idmap, archive=str(layer.path), files=made
                )
            sync_file_system(tree)
            if made is not None:
                made.share(tree)

        with ExitStack() as stack:
            parent = stack.enter_context(reachable(work.parent))
            shared = stack.enter_context(reachable(pools)) if pools else None
            call_carrying(self.idmap, functools.partial(unpack, parent, shared))

    def _remove_abandoned(self, parent: Path, held: str) -> None:
        """Remove what killed processes left: what was to become something whose lock nobody holds.

        ``held`` is the digest whose lock this process has, so every work directory of it is
        abandoned.
        """
        for path in parent.glob(".*.tmp"):
            prefix = path.name.split(".")[1]
            if held.startswith(prefix):
                remove_tree(path, self.idmap)
                continue
            with self._tried_all(prefix) as free:
                if free:
                    remove_tree(path, self.idmap)

    @contextmanager
    def _tried_all(self, prefix: str) -> Generator[bool]:
        """Hold the locks that begin so, as far as they are free; yields whether all were."""
        with ExitStack() as stack:
            locks = self._locks.glob(f"{prefix}*.lock")
            yield all(stack.enter_context(tried(lock)) for lock in locks)


@dataclass(frozen=True)
class _Wanted:
    """A layer that is asked for. ``begin`` gives of the stored one how many bytes are written for
    it, and what makes it.
    """

    store: Store
    digest: str
    begin: Callable[[StoredLayer], tuple[int, Make]]


def derived_name(kind: str, of: str, by: str) -> str:
    """The name of what is computed of the layer ``of`` by something in the layer ``by``."""
    return f"{kind}-{keys.short(of, 32)}-{keys.short(by, 16)}"
