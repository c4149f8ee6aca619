"""The shared store: layers named by the digest of their content, loose or in packs.

Invariant: a file under its final name is complete and never changes. Builders write loose layers,
one file each; ``packs.consolidation`` moves them into packs. A loose file counts before any pack,
a newer pack before an older one: what was built again takes the place of what is damaged.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from minisandbox import archive, atomic, keys
from minisandbox.errors import LayerDamaged, LayerMissing
from minisandbox.idmap import IdMap
from minisandbox.records.layer import LayerKind, LayerRef
from minisandbox.store.faults import (
    PROCESS_ERRORS,
    WRITE_ERRORS,
    StoreUnusable,
    call_carrying,
    explained,
    reachable,
)
from minisandbox.store.incoming import incoming, keep
from minisandbox.store.packs.catalogue import Catalogue, Pack, PackDamaged, open_regular
from minisandbox.store.packs.layout import Index
from minisandbox.store.packs.layout import Layer as PackedLayer
from minisandbox.store.packs.reading import PackReader, check_layers
from minisandbox.store.packs.skeleton import Entry
from minisandbox.store.streams import DEFAULT_LEVEL, LayerOfPack, LooseLayer, StoredLayer, compress

_SUFFIX = ".tar.zst"
_LAYER_NAME = re.compile(r"[0-9a-f]{64}\.tar\.zst")
#: Members of the layers that are checked side by side: each holds 150 bytes meanwhile.
_CHECKED_AT_ONCE = 1_000_000
#: How often a pack may vanish between the look for it and its opening.
_PACKED_ANEW = 5


@dataclass(frozen=True)
class Listing:
    """What a layer in a pack holds, in the order of its tar.

    The names are those of the tar: who makes files of them checks them as ``archive.unpack`` does.
    """

    digest: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Finding:
    """What ``Store.verify`` found of one layer: ``problem`` is None when its content is what its
    name says.

    ``path`` is the file that holds the layer; ``size`` its bytes where it holds no other, else 0.
    """

    digest: str
    path: Path
    size: int
    problem: str | None


class Store:
    """A folder of layers, shared by builders and nodes, also over a network file system."""

    def __init__(self, root: Path, *, level: int = DEFAULT_LEVEL) -> None:
        self.root = root
        self.catalogue = Catalogue(root)
        self._level = level

    def path(self, digest: str) -> Path:
        """Where the loose layer is or would be; raises ``ValueError`` for what is no digest."""
        value = keys.hex_of(digest)
        return self.root / "layers" / "sha256" / value[:2] / (value + _SUFFIX)

    def has(self, digest: str) -> bool:
        """Whether the store names this digest (its content is checked when it is read)."""
        return self.path(digest).is_file() or self.pack_of(digest) is not None

    def digests(self) -> Iterator[str]:
        """Every digest that the store has a layer for, in order."""
        packed = {
            "sha256:" + raw.hex() for pack in self.catalogue.packs() for raw in pack.index.layers
        }
        found = packed | set(self.loose())
        yield from sorted(digest for digest in found if digest not in packed or self.has(digest))

    def loose(self) -> Iterator[str]:
        """Every digest that has a file of its own, in order."""
        for path in sorted((self.root / "layers" / "sha256").glob(f"??/*{_SUFFIX}")):
            if _LAYER_NAME.fullmatch(path.name) and path.name[:2] == path.parent.name:
                yield "sha256:" + path.name.removesuffix(_SUFFIX)

    def add(
        self,
        kind: LayerKind,
        tree: Path,
        *,
        date: int,
        idmap: IdMap,
        exclude: Callable[[str], bool] | None = None,
        newer: frozenset[str] = frozenset(),
    ) -> LayerRef:
        """Pack ``tree`` (see ``archive.pack``) and keep it, unless a whole layer of its digest is
        there.

        Raises ``UnpackableTree``, ``StoreUnusable``, and ``OSError`` where the tree cannot be read.
        """
        options = functools.partial(archive.pack, date=date, idmap=idmap, newer=newer)
        packing = options if exclude is None else functools.partial(options, exclude=exclude)
        with reachable(tree) as source, incoming(self.root) as (written, fd):
            pack = functools.partial(packing, source)
            write = functools.partial(compress, pack, fd, self._level)
            with explained("write to the store", self.root, only=WRITE_ERRORS):
                digest, stats = call_carrying(idmap, write)
            return self._kept(kind, written, fd, digest, stats)

    def add_written(
        self, kind: LayerKind, write: Callable[[BinaryIO], archive.PackStats]
    ) -> LayerRef:
        """Keep the tar that ``write`` writes, unless a whole layer of its digest is there.

        What ``write`` raises is raised, and then nothing is kept. Raises ``StoreUnusable``.
        """
        with incoming(self.root) as (written, fd):
            with explained("write to the store", self.root, only=WRITE_ERRORS):
                digest, stats = compress(write, fd, self._level)
            return self._kept(kind, written, fd, digest, stats)

    def _kept(
        self, kind: LayerKind, written: Path, fd: int, digest: str, stats: archive.PackStats
    ) -> LayerRef:
        with explained("write to the store", self.root):
            size = self._keep(written, fd, digest)
        return LayerRef(kind, digest, size, stats.unpacked_size, stats.files)

    def _keep(self, written: Path, fd: int, digest: str) -> int:
        """Give a written file its final name, unless a whole layer has it; returns the size of a
        file of its own.
        """
        path = self.path(digest)
        if self._problem(digest) is not None:
            keep(written, fd, path)
        elif not path.exists():
            return os.fstat(fd).st_size  # A pack holds it.
        return path.stat().st_size

    @contextmanager
    def open(self, digest: str) -> Generator[BinaryIO]:
        """The layer's tar as a stream; at the end of the block all of it has been read and checked.

        Raises ``LayerMissing``, ``StoreUnusable``, and ``LayerDamaged`` where reading meets the
        damage, or else at the end: nothing made from the stream may be used before the block is
        left.
        """
        with self.stored(digest) as layer, layer.tar() as stream:
            yield stream

    def stored(self, digest: str) -> StoredLayer:
        """The layer with its files open; raises ``LayerMissing``, ``StoreUnusable``, and
        ``LayerDamaged`` where they are no regular files.
        """
        path = self.path(digest)
        with self._damage_named(digest, path):
            try:
                return LooseLayer(digest, path, os.fdopen(open_regular(path), "rb"))
            except FileNotFoundError:
                pass
        # A pack that was packed anew is gone when the new one is there: then that is the one.
        for _ in range(_PACKED_ANEW):
            pack = self.pack_of(digest)
            if pack is None:
                break
            with self._damage_named(digest, pack.path):
                try:
                    return LayerOfPack(digest, pack, PackReader(pack, self.catalogue))
                except FileNotFoundError:
                    self.catalogue.refresh()
        raise LayerMissing(digest, self.root)

    def listing(self, digest: str) -> Listing | None:
        """The members of a layer without reading their contents; None where it is loose.

        Raises ``LayerMissing``, ``LayerDamaged`` and ``StoreUnusable``.
        """
        with self.stored(digest) as layer:
            if not isinstance(layer, LayerOfPack):
                return None
            return Listing(digest, tuple(layer.entries()))

    def contents(self, digest: str, wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Those of the ``wanted`` contents (SHA-256 in hex) that a layer in a pack has, each once,
        in the order in which they are cheapest to read.

        A content over 64 MiB comes in pieces of at most that, one after the other under the same
        name. A content is checked before its last piece is handed on: it may be used once the next
        one, or the end, has come. Raises ``LayerMissing`` (also for loose layers),
        ``LayerDamaged`` and ``StoreUnusable``.
        """
        with self.stored(digest) as layer:
            if not isinstance(layer, LayerOfPack):
                raise LayerMissing(digest, self.root)
            yield from layer.contents(wanted)

    def pack_of(self, digest: str) -> Pack | None:
        """The pack that a layer is read from where it is not loose."""
        return self.catalogue.find(_raw(digest), without=self._given_up(digest))

    @contextmanager
    def _damage_named(self, digest: str, path: Path) -> Generator[None]:
        try:
            yield
        except PackDamaged as error:
            raise LayerDamaged(digest, path, error.about(path)) from error
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreUnusable("read", path, error) from error

    def verify(self, digests: Iterable[str] | None = None) -> Iterator[Finding]:
        """Read layers (all, or ``digests``) to their end and tell of each what is wrong with it.

        Raises ``StoreUnusable`` where this process may not open as many files as it takes.
        """
        in_packs: dict[str, list[str]] = {}
        for digest in self.digests() if digests is None else digests:
            pack = None if self.path(digest).exists() else self.pack_of(digest)
            if pack is not None:
                in_packs.setdefault(pack.index.name, []).append(digest)
                continue
            path = self.path(digest)
            problem = self._problem(digest)
            try:
                size = path.stat().st_size
            except OSError:
                size = 0
            yield Finding(digest, path, size, problem)
        for name, members in in_packs.items():
            yield from self._verify_pack(name, members)

    def _verify_pack(self, name: str, digests: list[str]) -> Iterator[Finding]:
        path = self.catalogue.path(name)
        try:
            with PackReader(self.catalogue.get(name), self.catalogue) as reader:
                for group in groups(reader.pack.index, digests):
                    found = check_layers(reader, group)
                    for raw, problem in found.items():
                        yield Finding("sha256:" + raw.hex(), path, 0, problem)
        except (PackDamaged, OSError) as error:
            if isinstance(error, OSError) and error.errno in PROCESS_ERRORS:
                raise StoreUnusable("read", path, error) from error
            if not path.exists():  # it was packed anew meanwhile
                self.catalogue.refresh()
                yield from self.verify(digests)
                return
            for digest in digests:
                yield Finding(digest, path, 0, str(error))

    def unreadable(self) -> dict[Path, str]:
        """Packs whose index cannot be read, so that nobody knows what they held, with reasons."""
        self.catalogue.refresh()
        return dict(self.catalogue.unreadable)

    def discard(self, digest: str) -> None:
        """Have the store no longer name a layer, in its file or in the packs of now: it is damaged.

        The bytes in packs stay. Raises ``StoreUnusable``.
        """
        with explained("write to the store", self.root):
            self.path(digest).unlink(missing_ok=True)
            raw = _raw(digest)
            names = {p.index.name for p in self.catalogue.packs() if raw in p.index.layers}
            given_up = self._given_up(digest)
            if names - given_up:
                text = "".join(f"{name}\n" for name in sorted(names | given_up))
                atomic.write_text(self._mark(digest), text)

    def set_aside_unreadable(self) -> list[Path]:
        """Rename packs whose index is damaged: none of their layers can be had any more, and
        ``unreadable`` names them no longer. Returns their old names; raises ``StoreUnusable``.
        """
        with explained("write to the store", self.root):
            return self.catalogue.set_aside()

    def _mark(self, digest: str) -> Path:
        """The file that names the packs in which a layer is not to be looked for."""
        return self.path(digest).with_name(f"{keys.hex_of(digest)}.damaged")

    def _given_up(self, digest: str) -> frozenset[str]:
        try:
            return frozenset(self._mark(digest).read_text(encoding="ascii").split())
        except FileNotFoundError:
            return frozenset()
        except (OSError, UnicodeDecodeError) as error:
            problem = error if isinstance(error, OSError) else OSError(errno.EBADMSG, str(error))
            raise StoreUnusable("read", self._mark(digest), problem) from error

    def _problem(self, digest: str) -> str | None:
        try:
            with self.open(digest):
                return None
        except LayerMissing:
            return "it is missing"
        except LayerDamaged as error:
            return error.reason
        except StoreUnusable as error:
            if error.errno in PROCESS_ERRORS:
                raise  # or whoever drops what is damaged drops what is sound
            return str(error)


def groups(index: Index, digests: Iterable[str]) -> Iterator[list[tuple[bytes, PackedLayer]]]:
    """Layers of a pack in groups that can be checked side by side, neighbours together."""
    layers = [(raw, index.layers[raw]) for raw in map(_raw, digests)]
    layers.sort(key=lambda item: (item[1].frame, item[1].offset))
    group: list[tuple[bytes, PackedLayer]] = []
    members = 0
    for raw, layer in layers:
        if group and members + layer.entries > _CHECKED_AT_ONCE:
            yield group
            group, members = [], 0
        group.append((raw, layer))
        members += layer.entries
    if group:
        yield group


def _raw(digest: str) -> bytes:
    return bytes.fromhex(keys.hex_of(digest))
