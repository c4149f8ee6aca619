"""How a record refers to a packed layer in the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LayerKind = Literal["interpreter", "environment", "source", "instance"]


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
