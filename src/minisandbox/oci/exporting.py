"""Instances of a cache as an OCI image layout that container engines run.

An image holds the layers of its instance as the store has them, a small one with what a sandbox
adds to a packed base, and as configuration the environment of a sandbox: commands find what they
find there. Invariant: equal layers and rows give equal bytes, whoever exports them and when.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from minisandbox import archive
from minisandbox.archive.reading import Malformed, Reader
from minisandbox.errors import InstanceUnavailable, InvalidInput
from minisandbox.oci import layout, media
from minisandbox.oci.dating import commit_date
from minisandbox.records.layer import LayerKind
from minisandbox.records.manifest import ManifestRow, variables_of
from minisandbox.runtime import Cache
from minisandbox.runtime.instance import TESTBED, environment_variables
from minisandbox.runtime.services import SERVICES, has_services
from minisandbox.runtime.stack import git_objects
from minisandbox.sandbox import skeleton
from minisandbox.sandbox.client import DEFAULT_ENV
from minisandbox.store import Store

Compression = Literal["zstd", "gzip"]

#: Told how many bytes of layers were written since the last call.
Progress = Callable[[int], object]

#: Of gzip, what every tool has as its default.
_GZIP_LEVEL = 6
_CHUNK = 1 << 20

#: Paths of the skeleton that engines mount themselves, or that speak of one sandbox.
_OF_ENGINES = ("etc/hostname", "etc/hosts", "etc/resolv.conf", "sys/")

#: Fields of a row by which its sandboxes differ from others; limits are the engine's.
_UNSAYABLE = ("blackhole", "nested")

#: What SWE-bench has in names of images instead of two underscores, which those may not hold.
_DOUBLE = "_1776_"

_ENTRYPOINT = f"{SERVICES}/start-all"
_START_ALL = f"""\
#!/bin/sh
# What a sandbox does when it starts: have the services answer, then run the command.
set -eu
for start in {SERVICES}/*/start; do
    "$start"
done
exec "$@"
"""


@dataclass(frozen=True)
class Exported:
    """One image of a layout: ``tag`` is its name there, ``digest`` that of its manifest, ``size``
    the bytes of its packed layers. ``missing`` names what its sandboxes have and no image can say.
    """

    instance_id: str
    tag: str
    digest: str
    size: int
    missing: tuple[str, ...]


@dataclass(frozen=True)
class _Packed:
    """A layer that lies packed in a store."""

    kind: str
    digest: str
    store: Store


@dataclass(frozen=True)
class _Written:
    """A layer in the layout; ``date`` is that of its files, in seconds."""

    diff_id: str
    blob: layout.Descriptor
    date: int


def packed_size(cache: Cache, instance_ids: Iterable[str]) -> int:
    """Bytes of the packed layers of instances, each layer counted once."""
    layers = {layer.digest: layer.size for name in instance_ids for layer in cache.row(name).layers}
    return sum(layers.values())


def export_instances(
    cache: Cache,
    instance_ids: Sequence[str],
    target: Path,
    *,
    compression: Compression = "zstd",
    progress: Progress | None = None,
) -> tuple[Exported, ...]:
    """Write instances as the image layout ``target``, which must not exist.

    Layers that instances share are written once. Raises ``InstanceUnknown``,
    ``InstanceUnavailable``, ``InvalidInput`` for what stands on the host's /usr, and what reading
    the store raises.
    """
    layout.refuse_taken(target)
    rows = [cache.row(name) for name in dict.fromkeys(instance_ids)]
    if not rows:
        raise InvalidInput("the export", "selects no instance", "name one, or '*' for all")
    for row in rows:
        _refuse_incomplete(row)
    with layout.writing(target) as writer:
        # Beside the layout: what is packed here is as large as any layer.
        with tempfile.TemporaryDirectory(prefix=f".{target.name[:40]}.", dir=target.parent) as made:
            exporting = _Exporting(writer, cache, Path(made), compression, progress)
            images = [exporting.image(row) for row in rows]
        writer.finish([descriptor for _, descriptor in images])
    return tuple(exported for exported, _ in images)


def _refuse_incomplete(row: ManifestRow) -> None:
    if not row.layers:
        raise InstanceUnavailable(row.instance_id, row.reason)
    if all(layer.kind != "base" for layer in row.layers):
        raise InvalidInput(
            row.instance_id,
            "stands on the /usr of the machine that built it, which no image can bring",
            "build it on a packed base ('base: debian-12' in the config)",
        )


class _Exporting:
    """Writes images to one layout; remembers the layers that are in it."""

    def __init__(
        self,
        writer: layout.LayoutWriter,
        cache: Cache,
        made: Path,
        compression: Compression,
        progress: Progress | None,
    ) -> None:
        self._writer = writer
        self._cache = cache
        self._made = made
        self._own = Store(made / "store")
        self._compression: Compression = compression
        self._progress: Progress = progress or (lambda _: None)
        self._written: dict[str, _Written] = {}
        self._small: dict[str, _Packed] = {}

    def image(self, row: ManifestRow) -> tuple[Exported, dict[str, Any]]:
        """Write one image; returns what it is, and its entry for the index."""
        packed = self._layers(row)
        layers = [self._layer(layer) for layer in packed]
        date = commit_date(row.head_commit, row.layers, self._cache.store)
        if date is None:
            date = self._written[row.layers[-1].digest].date
        created = _timestamp(date)
        platform = {"architecture": media.architecture(row.base.arch), "os": "linux"}
        config = {
            **platform,
            "created": created,
            "config": _configuration(row),
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [
                {"created": created, "created_by": f"minisandbox oci export: {layer.kind}"}
                for layer in packed
            ],
        }
        tag = tag_of(row.instance_id)
        manifest = {
            "schemaVersion": 2,
            "mediaType": media.MANIFEST,
            "config": self._writer.add_json(media.CONFIG, config).as_json(),
            "layers": [layer.blob.as_json() for layer in layers],
        }
        descriptor = self._writer.add_json(media.MANIFEST, manifest)
        size = sum({layer.blob.digest: layer.blob.size for layer in layers}.values())
        missing = tuple(name for name in _UNSAYABLE if getattr(row, name))
        exported = Exported(row.instance_id, tag, descriptor.digest, size, missing)
        return exported, descriptor.as_json(platform=platform, annotations={media.REF_NAME: tag})

    def _layers(self, row: ManifestRow) -> list[_Packed]:
        """The layers of an image, bottom first; a folder joins them by ``_pack``."""
        stored = [_Packed(layer.kind, layer.digest, self._cache.store) for layer in row.layers]
        store, node = self._cache.store, self._cache.node
        with node.lease() as lease:
            if objects := git_objects(row.layers, store=store, node=node, lease=lease):
                place = next(at for at, layer in enumerate(stored) if layer.kind == "source")
                stored.insert(place + 1, self._pack("source", objects, archive.EARLIEST_DATE))
        height = sum(layer.kind == "base" for layer in stored)
        above = self._once("services", _write_start_all) if has_services(row.layers) else None
        layers = [*stored[:height], self._once("skeleton", _write_skeleton), *stored[height:]]
        return [*layers, above] if above is not None else layers

    def _once(self, name: str, fill: Callable[[Path], None]) -> _Packed:
        """A small layer that ``fill`` makes the folder of."""
        if name not in self._small:
            tree = self._made / name
            fill(tree)
            self._small[name] = self._pack("base", tree, archive.EARLIEST_DATE)
        return self._small[name]

    def _pack(self, kind: LayerKind, tree: Path, date: int) -> _Packed:
        layer = self._own.add(kind, tree, date=date, idmap=self._cache.node.idmap)
        return _Packed(kind, layer.digest, self._own)

    def _layer(self, layer: _Packed) -> _Written:
        if layer.digest not in self._written:
            dates: list[int] = []
            blob = self._writer.add(
                media.layer_type(self._compression),
                lambda out: dates.append(self._copy(layer, out)),
            )
            self._written[layer.digest] = _Written(layer.digest, blob, dates[0])
        return self._written[layer.digest]

    def _copy(self, layer: _Packed, out: layout.HashedFile) -> int:
        """Write a layer to the layout, checked; returns the date of its first member."""
        with layer.store.stored(layer.digest) as stored:

            def write(data: bytes) -> None:
                out.write(data)
                self._progress(len(data))

            if self._compression == "zstd":
                # The file of a loose layer is a plain zstd file: it is the blob, byte for byte.
                with stored.tar(write) as stream:
                    return _date(stream)
            with stored.tar() as stream:
                return _gzip(stream, write)


def _date(stream: BinaryIO) -> int:
    """The date of the first member, which is that of all."""
    try:
        for member in Reader(stream):
            return member.mtime // 1_000_000_000
    except Malformed:
        pass  # damage, of which the digest tells
    return archive.EARLIEST_DATE


def _gzip(stream: BinaryIO, write: Callable[[bytes], None]) -> int:
    # Without a date and a name, so that equal layers are equal blobs.
    packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
    first = stream.read(_CHUNK)
    data = first
    while data:
        write(packer.compress(data))
        data = stream.read(_CHUNK)
    write(packer.flush())
    return _date(io.BytesIO(first))


def _configuration(row: ManifestRow) -> dict[str, Any]:
    variables = {
        "HOME": "/root",
        **DEFAULT_ENV,
        **environment_variables("none"),
        **variables_of(row, "env"),
    }
    labels = {
        "org.opencontainers.image.title": row.instance_id,
        "org.opencontainers.image.revision": row.base_commit,
    }
    return {
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "WorkingDir": TESTBED,
        "Cmd": ["/bin/bash"],
        "Labels": labels,
        **({"Entrypoint": [_ENTRYPOINT]} if has_services(row.layers) else {}),
    }


def _timestamp(seconds: int) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def tag_of(instance_id: str) -> str:
    """A name for an instance in a layout: its id, with ``__`` as the official images have it.

    What is left of an id that cannot be one gets a digest.
    """
    text = instance_id.replace("__", _DOUBLE)
    if media.REF.fullmatch(text) and _DOUBLE not in instance_id:
        return text
    kept = re.sub(r"[^A-Za-z0-9]+", "-", instance_id).strip("-")[:100].rstrip("-")
    end = hashlib.sha256(instance_id.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{kept or 'instance'}-{end}"


def _write_skeleton(root: Path) -> None:
    """What a sandbox lays on a packed base, but for what engines mount over it."""
    entries = skeleton.entries("testbed", host_network=False, cpus=1, packed=True)
    kept = [entry for entry in entries if not f"{entry[0]}/".startswith(_OF_ENGINES)]
    skeleton.build(root, kept, {}, lambda _: None)


def _write_start_all(root: Path) -> None:
    program = root / _ENTRYPOINT.lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_text(_START_ALL, encoding="utf-8")
    program.chmod(0o755)
    for folder in program.relative_to(root).parents:
        (root / folder).chmod(0o755)
