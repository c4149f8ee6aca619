"""Deterministic packing of directory trees into tar streams, and safe unpacking of such streams.

The bytes are described in ``docs/formats.md``. Imports only the standard library, ``errors`` and
``idmap``.
"""

from __future__ import annotations

from minisandbox.archive.packing import EARLIEST_DATE, PackStats, pack
from minisandbox.archive.unpacking import Files, Limits, Members, lay_out, unpack

__all__ = [
    "EARLIEST_DATE",
    "Files",
    "Limits",
    "Members",
    "PackStats",
    "lay_out",
    "pack",
    "unpack",
]
