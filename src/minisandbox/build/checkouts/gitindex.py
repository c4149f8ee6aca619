"""Make a git index say nothing of the machine that wrote it.

An index entry holds device, inode, owner and change time of its file. Repositories of instances are
configured with ``core.checkStat=minimal``, so git does not look at them, and zeros make the same
checkout give the same bytes everywhere. Format: gitformat-index(5), version 2 (and 3, whose
extended entries are two bytes longer).
"""

from __future__ import annotations

import hashlib

from minisandbox.store.gitobjects import INDEX_ENTRY, walk_index


def normalise(index: bytes) -> bytes:
    """``index`` with machine-dependent fields zeroed and its checksum renewed; raises
    ``ValueError``.
    """
    data = bytearray(index[:-20])
    for position, _, _ in walk_index(data):
        fields = INDEX_ENTRY.unpack_from(data, position)
        _, _, mtime, _, _, _, mode, _, _, size, object_id, flags = fields
        INDEX_ENTRY.pack_into(
            data, position, 0, 0, mtime, 0, 0, 0, mode, 0, 0, size, object_id, flags
        )
    return bytes(data) + hashlib.sha1(data, usedforsecurity=False).digest()
