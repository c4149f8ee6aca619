"""What a build took from the package index: the lock that a rebuild is held to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from minisandbox.errors import InvalidInput

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
#: A name as PEP 503 normalises it: a component of an address, and of a path.
_PROJECT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
#: What can name a distribution: no separator, no leading dot, so that it is safe inside a path.
_FILENAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+!~-]{0,249}", re.ASCII)


def is_filename(name: str) -> bool:
    """Whether ``name`` can be a file of a package index, and a path component as it is."""
    return _FILENAME.fullmatch(name) is not None


@dataclass(frozen=True)
class IndexFile:
    """One file of the package index.

    ``project`` is the canonical name (PEP 503), ``version`` is spelled as in the file name,
    ``sha256`` has 64 hex digits, ``size`` is in bytes, ``uploaded`` is ISO 8601 in UTC, or empty
    where the index does not say.
    """

    project: str
    version: str
    filename: str
    sha256: str
    size: int
    uploaded: str

    def __post_init__(self) -> None:
        # Name, digest and project become components of paths and addresses.
        if not is_filename(self.filename):
            raise self._refused("filename", "a plain name of a wheel or an sdist is expected")
        if not _SHA256.fullmatch(self.sha256):
            raise self._refused("sha256", "64 lower-case hex digits are expected")
        if not _PROJECT.fullmatch(self.project):
            raise self._refused("project", "a normalised name (PEP 503) is expected")
        if self.size < 0:
            raise self._refused("size", "a number of bytes is expected")
        if self.uploaded and not _is_time(self.uploaded):
            raise self._refused("uploaded", "a time in ISO 8601, or nothing, is expected")

    def _refused(self, field: str, expected: str) -> InvalidInput:
        return InvalidInput(
            f"the lock entry of file {self.filename!r} of project {self.project!r}",
            f"has {field} {getattr(self, field)!r}",
            expected,
        )


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
