"""Make a git index say nothing of the machine that wrote it.

An index entry holds device, inode, owner and change time of its file. Repositories of instances are
configured with ``core.checkStat=minimal``, so git does not look at them, and zeros make the same
checkout give the same bytes everywhere. Format: gitformat-index(5), version 2 (and 3, whose
extended entries are two bytes longer).
"""

from __future__ import annotations

import hashlib
import struct

_HEADER = struct.Struct(">4sII")
# ctime s, ns; mtime s, ns; dev; ino; mode; uid; gid; size; object id; flags
_ENTRY = struct.Struct(">IIIIIIIIII20sH")
_EXTENDED = 0x4000


def normalise(index: bytes) -> bytes:
    """``index`` with machine-dependent fields zeroed and its checksum renewed; raises
    ``ValueError``.
    """
    signature, version, count = _HEADER.unpack_from(index)
    if signature != b"DIRC" or version not in (2, 3):
        raise ValueError(f"not a git index of version 2 or 3 (version {version})")
    data = bytearray(index[:-20])
    position = _HEADER.size
    for _ in range(count):
        fields = _ENTRY.unpack_from(data, position)
        _, _, mtime, _, _, _, mode, _, _, size, object_id, flags = fields
        _ENTRY.pack_into(data, position, 0, 0, mtime, 0, 0, 0, mode, 0, 0, size, object_id, flags)
        fixed = _ENTRY.size + (2 if flags & _EXTENDED else 0)
        end = data.index(b"\0", position + fixed)
        length = end - position
        position += (length + 8) // 8 * 8
    return bytes(data) + hashlib.sha1(data, usedforsecurity=False).digest()
