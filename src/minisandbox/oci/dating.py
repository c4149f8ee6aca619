"""When an image says that it was made: at no time that depends on who exports it, or when.

The files of all layers have one date, of which nobody learns anything. The commit that a sandbox
has checked out has the date of its base commit, and lies as a loose object in the layer that the
build laid on the source.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from minisandbox.archive.reading import Reader
from minisandbox.records.layer import LayerRef
from minisandbox.store import Store, gitobjects

#: Kinds of layers that hold the checked-out commit, or may.
_COMMITTED = ("instance", "bug")
_BUFFER = 1 << 16


def commit_date(head: str, layers: Sequence[LayerRef], store: Store) -> int | None:
    """The date of the commit ``head``, in unix seconds; None where no layer holds it.

    The layers have been read and were whole: nothing is checked again.
    """
    path = f"testbed/.git/objects/{head[:2]}/{head[2:]}".encode()
    for layer in reversed(layers):
        if not head or layer.kind not in _COMMITTED:
            continue
        with store.stored(layer.digest) as stored:
            reader = Reader(io.BufferedReader(stored.unchecked(), _BUFFER))
            for member in reader:
                if member.path == path:
                    return _date(b"".join(reader.content()))
    return None


def _date(file: bytes) -> int | None:
    try:
        return gitobjects.date_of_commit(file)
    except ValueError:
        return None
