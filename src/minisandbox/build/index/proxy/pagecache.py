"""Pages of the index on disk: where ``cachecontrol`` keeps what it decides to keep.

It decides as HTTP says: how long a page is fresh, and when an ETag has to be asked about. This is
only the shelf. Invariant: what ``get`` returns is byte for byte what ``set`` was given.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path

from cachecontrol.cache import BaseCache

from minisandbox import atomic

_DIGEST = hashlib.sha256().digest_size


class PageCache(BaseCache):
    """One file a page, opened by its own digest; a damaged one counts as absent.

    Safe between processes: files are replaced whole, and the last writer wins.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / name[:2] / name

    def get(self, key: str) -> bytes | None:
        """What was kept under ``key``."""
        try:
            kept = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        digest, value = kept[:_DIGEST], kept[_DIGEST:]
        return value if hashlib.sha256(value).digest() == digest else None

    def set(
        self,
        key: str,
        value: bytes,
        expires: int | datetime | None = None,  # noqa: ARG002 - the age is in the value
    ) -> None:
        """Keep ``value``."""
        atomic.write_bytes(self._path(key), hashlib.sha256(value).digest() + value)

    def delete(self, key: str) -> None:
        """Forget ``key``."""
        self._path(key).unlink(missing_ok=True)
