"""Digests, keys and slugs: how content and configuration get their names.

A key is the SHA-256 of a canonical JSON text, so that it can be recomputed by anyone who reads the
record.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def canonical_json(value: Any) -> bytes:
    """``value`` as JSON with sorted keys and no blanks: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8"
    )


def digest_of(value: Any) -> str:
    """``sha256:<64 hex>`` of the canonical JSON of ``value``."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, as 64 hex digits; raises ``OSError``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hex_of(digest: str) -> str:
    """The hex part of ``sha256:<hex>``; raises ``ValueError`` for anything else (it becomes a
    path).
    """
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256" or not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError(f"not a sha256 digest: {digest!r}")
    return value


def slug(text: str) -> str:
    """``text`` as one safe path component: ``owner/name`` becomes ``owner__name``, other bytes
    ``-``.
    """
    safe = _UNSAFE.sub("-", text.replace("/", "__")).strip("-.")
    return safe or "unnamed"


def short(digest: str, length: int = 8) -> str:
    """The first ``length`` hex digits of a digest, for names that people read."""
    return hex_of(digest)[:length]
