"""What is kept of an image that was imported: enough to start it anywhere that has its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minisandbox.records.layer import LayerRef

#: Version of the record.
IMAGE_SCHEMA = 1


@dataclass(frozen=True)
class ImageLayer:
    """One layer: ``diff_id`` is that of the image, ``layer`` what became of it in the store.

    ``notes`` say what differs, ``owned`` is how many of its members are not root's, and
    ``hides_below`` that nothing of the layers below it shows.
    """

    diff_id: str
    layer: LayerRef
    owned: int
    hides_below: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """An imported image.

    ``reference`` is its name where it came from, ``digest`` that of its manifest (of its
    configuration where there is none). ``layers`` are those that show, bottom first.
    """

    schema: int
    name: str
    reference: str
    digest: str
    created: str
    architecture: str
    layers: tuple[ImageLayer, ...]
    env: Mapping[str, str]
    workdir: str
    user: str
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
