"""Images that others made, into a store: every blob checked, every layer sifted, one record kept.

Importing reads and writes files; nothing of the image runs, and nothing of it is unpacked. What it
unfolds to is bounded before it is anywhere.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from minisandbox import archive, keys
from minisandbox.archive.reading import Malformed
from minisandbox.errors import ImageRefused, InvalidInput
from minisandbox.oci import media
from minisandbox.oci.documents import Blob, Description, describe
from minisandbox.oci.sifting import Budget, Sifted, readable, rewrite, sift
from minisandbox.oci.sources import Source, open_source
from minisandbox.oci.unfolding import BadBlob, unfolded
from minisandbox.records import codec
from minisandbox.records.image import IMAGE_SCHEMA, ImageLayer, ImageRecord
from minisandbox.runtime.image import image_path, images_in
from minisandbox.store import Store

T = TypeVar("T")

#: What an image may unfold to. Large ones of this field have 300,000 files and 20 GB.
DEFAULT_LIMITS = archive.Limits(max_bytes=64 << 30, max_files=1_000_000)

#: What the name of a file says of its form.
_SUFFIX = re.compile(r"(\.(tar|tgz|gz|zst|oci))+\Z")

#: Headers and padding of a tar, above its content.
_OVERHEAD = 4 << 30

#: Told how many bytes of blobs were read since the last call; each blob is read twice.
Progress = Callable[[int], object]


def import_image(
    path: Path,
    folder: Path,
    store: Store,
    *,
    name: str = "",
    reference: str = "",
    limits: archive.Limits = DEFAULT_LIMITS,
    progress: Progress | None = None,
) -> ImageRecord:
    """Import the image at ``path``, an OCI layout (a folder, or a tar of one) or a docker archive.

    ``reference`` says which, where it holds several. It becomes the image ``name`` of the results
    folder ``folder``, by default what its reference ends with; one of that name is replaced. Layers
    that an image there has already are not read again. Raises ``ImageRefused`` for what is broken
    or hostile, ``InvalidInput`` and ``StoreUnusable``.
    """
    try:
        source = open_source(path, limit=limits.max_bytes + _OVERHEAD, work=store.root)
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read ({error.strerror})") from None
    with source:
        machine = media.architecture(platform.machine())
        described = describe(source, reference=reference, architecture=machine)
        called = name or _name_of(described.reference, path)
        target = image_path(folder, called)
        # What occurs twice is one layer.
        blobs = dict(zip(described.diff_ids, described.layers, strict=True))
        known = _known(folder, store)
        importing = _Importing(source, store, limits, known, progress or (lambda _: None))
        for diff_id, blob in blobs.items():
            importing.judge(diff_id, blob)
        for diff_id, blob in blobs.items():
            importing.keep(diff_id, blob)
    layers: list[ImageLayer] = []
    for diff_id in described.diff_ids:
        layer = importing.layers[diff_id]
        layers = [layer] if layer.hides_below else [*layers, layer]
    record = _record(called, described, layers)
    codec.write(target, record)
    return record


class _Importing:
    """Brings the layers of one image into a store, once all of them are judged.

    ``layers`` are what is there, by diff_id: at first those of other images.
    """

    def __init__(
        self,
        source: Source,
        store: Store,
        limits: archive.Limits,
        known: dict[str, ImageLayer],
        progress: Progress,
    ) -> None:
        self._source = source
        self._store = store
        self._budget = Budget(limits)
        self._limit = limits.max_bytes + _OVERHEAD
        self._progress = progress
        self._sifted: dict[str, Sifted] = {}
        self.layers = known

    def judge(self, diff_id: str, blob: Blob) -> None:
        """Read a layer and decide about it; raises ``ImageRefused``."""
        known = self.layers.get(diff_id)
        if known is None:
            sifted = self._read(blob, diff_id, lambda stream: sift(stream, self._budget))
            self._sifted[diff_id] = sifted
            return
        self._budget.bytes += known.layer.unpacked_size
        self._budget.entries += known.layer.files

    def keep(self, diff_id: str, blob: Blob) -> None:
        """Pack a layer that was judged into the store, unless it is there."""
        if diff_id in self.layers:
            return
        sifted = self._sifted.pop(diff_id)
        self.layers[diff_id] = ImageLayer(
            diff_id=diff_id,
            layer=self._store.add_written("image", partial(self._rewrite, blob, diff_id, sifted)),
            owned=sifted.owned,
            hides_below=sifted.hides_below,
            notes=sifted.notes,
        )

    def _rewrite(
        self, blob: Blob, diff_id: str, sifted: Sifted, out: BinaryIO
    ) -> archive.PackStats:
        # Checked again: whoever owns the file may have changed it since it was sifted.
        return self._read(blob, diff_id, lambda stream: rewrite(stream, sifted, out))

    def _read(self, blob: Blob, diff_id: str, reading: Callable[[BinaryIO], T]) -> T:
        """What ``reading`` makes of a layer's tar; raises ``ImageRefused``."""
        with self._source.open(blob.path) as (file, size):
            if blob.size is not None and blob.size != size:
                raise self._source.refused(
                    blob.path, f"has {size} bytes, where {blob.size} are promised"
                )
            try:
                with unfolded(
                    file,
                    size=size,
                    digest=blob.digest,
                    diff_id=diff_id,
                    limit=self._limit,
                    progress=self._progress,
                ) as stream:
                    return reading(stream)
            except BadBlob as error:
                raise self._source.refused(blob.path, f"is refused: {error.reason}") from None
            except Malformed as error:
                member = f"{blob.path!r}, member {readable(error.member)}"
                raise ImageRefused(self._source.name, f"{member}: {error.reason}") from None


def _known(folder: Path, store: Store) -> dict[str, ImageLayer]:
    """Layers of images that were imported before, by diff_id."""
    return {
        layer.diff_id: layer
        for record in images_in(folder)
        for layer in record.layers
        if store.has(layer.layer.digest)
    }


def _name_of(reference: str, path: Path) -> str:
    """A name for an image: the end of its reference, or of its file where that says nothing."""
    text = reference.rpartition("/")[2].removesuffix(":latest")
    if text in ("", "latest"):
        text = _SUFFIX.sub("", path.absolute().name)
    return keys.slug(text.replace(":", "-"))


def _record(name: str, described: Description, layers: list[ImageLayer]) -> ImageRecord:
    return ImageRecord(
        schema=IMAGE_SCHEMA,
        name=name,
        reference=described.reference,
        digest=described.digest,
        created=described.created,
        architecture=described.architecture,
        layers=tuple(layers),
        env=described.env,
        workdir=described.workdir,
        user=described.user,
        entrypoint=described.entrypoint,
        cmd=described.cmd,
    )
