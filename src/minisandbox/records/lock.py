"""What a build took from the package index: the lock that a rebuild is held to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class IndexFile:
    """A file of the package index.

    ``project`` is the canonical name, ``version`` as in the file's name, ``sha256`` 64 hex digits,
    ``size`` bytes, ``uploaded`` ISO 8601 UTC or empty where the index does not say.
    """

    project: str
    version: str
    filename: str
    sha256: str
    size: int
    uploaded: str
