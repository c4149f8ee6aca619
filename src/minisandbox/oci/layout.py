"""Writes an OCI image layout: a folder of blobs by digest, and an index that names images.

Invariant: the folder has its name only when all of it is there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from minisandbox import atomic, keys
from minisandbox.errors import InvalidInput
from minisandbox.oci import media


@dataclass(frozen=True)
class Descriptor:
    """How one blob refers to another."""

    media_type: str
    digest: str
    size: int

    def as_json(self, **more: Any) -> dict[str, Any]:
        """The descriptor as it is written; ``more`` are further keys."""
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
            **more,
        }


class HashedFile:
    """Writes to a file and knows the digest of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> str:
        """Of all that was written so far."""
        return "sha256:" + self._hash.hexdigest()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data``."""
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)


class LayoutWriter:
    """Fills a layout; made by :func:`writing`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)

    def add(self, media_type: str, fill: Callable[[HashedFile], None]) -> Descriptor:
        """Write a blob by ``fill``; one that is there already is kept."""
        incoming = self._folder / "incoming"
        with incoming.open("wb", buffering=1 << 20) as file:
            hashed = HashedFile(file)
            fill(hashed)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(incoming, 0o644)
        os.replace(incoming, self._blobs / keys.hex_of(hashed.digest))
        return Descriptor(media_type, hashed.digest, hashed.size)

    def add_json(self, media_type: str, value: Mapping[str, Any]) -> Descriptor:
        """Write a document: equal values are equal bytes."""
        return self.add(media_type, lambda file: file.write(keys.canonical_json(value)))

    def finish(self, manifests: Sequence[Mapping[str, Any]]) -> str:
        """Write what makes the folder a layout; returns the digest of its index."""
        layout = {"imageLayoutVersion": media.LAYOUT_VERSION}
        index = {"schemaVersion": 2, "mediaType": media.INDEX, "manifests": list(manifests)}
        text = keys.canonical_json(index)
        atomic.write_bytes(self._folder / media.LAYOUT_FILE, keys.canonical_json(layout))
        atomic.write_bytes(self._folder / media.INDEX_FILE, text)
        return "sha256:" + hashlib.sha256(text).hexdigest()


@contextmanager
def writing(target: Path) -> Generator[LayoutWriter]:
    """A writer whose layout becomes ``target`` at the end of the block; after an error nothing is
    left of it. Raises ``InvalidInput`` where something has that name.
    """
    refuse_taken(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.", suffix=".tmp", dir=target.parent))
    try:
        os.chmod(work, 0o755)
        yield LayoutWriter(work)
        for folder in (work / "blobs" / "sha256", work):
            atomic.fsync_directory(folder)
        refuse_taken(target)
        os.rename(work, target)
        atomic.fsync_directory(target.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def refuse_taken(target: Path) -> None:
    """Raise ``InvalidInput`` where something has the name of a layout that is to be written."""
    if os.path.lexists(target):
        raise InvalidInput(str(target), "is there already", "name a folder that is not")
