"""How a record refers to a packed layer in the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from minisandbox import keys
from minisandbox.errors import InvalidInput

LayerKind = Literal[
    "base",
    "interpreter",
    "environment",
    "service",
    "source",
    "instance",
    "bug",
    "wheelhouse",
    "checkpoint",
    "image",
]


@dataclass(frozen=True)
class LayerRef:
    """One packed layer.

    ``digest`` is ``sha256:<hex>`` of the *uncompressed* tar (an OCI diff_id); ``size`` is the bytes
    of the compressed file, ``unpacked_size`` the bytes of its regular files, ``files`` their
    number.
    """

    kind: LayerKind
    digest: str
    size: int
    unpacked_size: int
    files: int

    def __post_init__(self) -> None:
        try:
            keys.hex_of(self.digest)  # it becomes a path
        except ValueError as error:
            raise InvalidInput(
                "a layer", str(error), "build the record or manifest again"
            ) from None
