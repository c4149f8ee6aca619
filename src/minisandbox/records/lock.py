"""What a build took from the package index: the lock that a rebuild is held to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from minisandbox.errors import InvalidInput

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
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
        # Both become components of paths.
        if not _SHA256.fullmatch(self.sha256):
            raise InvalidInput(
                f"the lock entry of {self.filename!r}",
                f"has sha256 {self.sha256!r}",
                "64 lower-case hex digits are expected",
            )
        if not is_filename(self.filename):
            raise InvalidInput(
                f"the lock entry of project {self.project!r}",
                f"has the file name {self.filename!r}",
                "a plain name of a wheel or an sdist is expected",
            )
