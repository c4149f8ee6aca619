"""What installing a repository again needs, as a layer of its own.

Evaluation scripts install the repository once more, in build isolation, where there is no network.
So everything that the index served while it was installed goes along. A layer, and not part of the
instance's: instances with the same build requirements share it by its digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minisandbox.build.workshop import Workshop
from minisandbox.records.layer import LayerRef
from minisandbox.records.lock import IndexFile
from minisandbox.runtime.instance import WHEELHOUSE
from minisandbox.sandbox import Limits
from minisandbox.store import Store


def pack_wheelhouse(
    files: Sequence[tuple[IndexFile, Path]], *, store: Store, log: Path, name: str, limits: Limits
) -> LayerRef | None:
    """A layer of the index files, given with the paths they lie at; ``None`` if there are none."""
    if not files:
        return None
    with Workshop(
        [], store=store, network="none", log=log, name=f"{name}-wheelhouse", limits=limits
    ) as shop:
        for file, path in files:
            shop.sandbox.upload(path, f"{WHEELHOUSE}/{file.filename}")
        return shop.pack("wheelhouse")
