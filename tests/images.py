"""Images for tests, as container engines write them or as nobody should."""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minisandbox.oci import media
from tars import file, tar

ARCHITECTURE = media.architecture(platform.machine())
PLATFORM = {"os": "linux", "architecture": ARCHITECTURE}


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Layout:
    """An image layout in memory, to be spoilt before it is written: documents are objects until
    then, and refer to each other by digest and size.
    """

    def __init__(
        self,
        layers: Sequence[bytes],
        *,
        pack: Callable[[bytes], bytes] = lambda data: gzip.compress(data, mtime=0),
        kind: str = f"{media.LAYER}+gzip",
        config: Mapping[str, Any] | None = None,
        reference: str = "made:1",
    ) -> None:
        self.blobs: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
        self.config: dict[str, Any] = {
            **PLATFORM,
            "config": {"Env": ["PATH=/bin"], **(config or {})},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
            # As engines write it: what made no layer is listed, too.
            "history": [{"created_by": "nothing", "empty_layer": True}],
        }
        self.manifest: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": media.MANIFEST,
            "layers": [self.add(kind, pack(layer)) for layer in layers],
        }
        self.entry: dict[str, Any] = {"annotations": {media.REF_NAME: reference}}
        self.index: dict[str, Any] = {"schemaVersion": 2}

    def add(self, kind: str, data: bytes, **more: Any) -> dict[str, Any]:
        """Keep a blob; returns its descriptor."""
        self.blobs[digest(data)] = data
        return {"mediaType": kind, "digest": digest(data), "size": len(data), **more}

    def add_json(self, kind: str, value: Any, **more: Any) -> dict[str, Any]:
        return self.add(kind, json.dumps(value).encode(), **more)

    def finish(self) -> None:
        """Make documents blobs, from the configuration up; what is there already stays."""
        if "config" not in self.manifest:
            self.manifest["config"] = self.add_json(media.CONFIG, self.config)
        if "digest" not in self.entry:
            self.entry = {**self.add_json(media.MANIFEST, self.manifest), **self.entry}
        self.index.setdefault("manifests", [self.entry])
        self.files.setdefault("index.json", json.dumps(self.index).encode())

    def members(self) -> dict[str, bytes]:
        self.finish()
        blobs = {
            f"blobs/sha256/{name.partition(':')[2]}": data for name, data in self.blobs.items()
        }
        return self.files | blobs

    def write(self, folder: Path) -> Path:
        """As a folder."""
        for name, data in self.members().items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder

    def write_tar(self, path: Path) -> Path:
        """As a tar of it."""
        path.write_bytes(archive_of(self.members()))
        return path


def archive_of(members: Mapping[str, bytes]) -> bytes:
    """A tar with these files."""
    return tar(*(file(name, data) for name, data in members.items()))


def docker_archive(
    layers: Sequence[bytes],
    *,
    config: Mapping[str, Any] | None = None,
    tags: Sequence[str] = ("made:1",),
    paths: Sequence[str] | None = None,
) -> dict[str, bytes]:
    """The members of what `docker save` writes; ``paths`` are names of the layers."""
    document = {
        **PLATFORM,
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]},
    }
    text = json.dumps(document).encode()
    name = digest(text).partition(":")[2] + ".json"
    names = paths or [f"{number:064x}/layer.tar" for number in range(len(layers))]
    entry = {"Config": name, "RepoTags": list(tags), "Layers": list(names)}
    return {
        name: text,
        **dict(zip(names, layers, strict=True)),
        "manifest.json": json.dumps([entry]).encode(),
    }
