"""Sizes as people read and write them."""

from __future__ import annotations

import os
import re

from minisandbox.errors import InvalidInput

#: Bytes on disk that a node store may have: its least recently used content is collected for more.
LIMIT_VARIABLE = "MINISANDBOX_NODE_STORE_SIZE"

_UNITS = {
    "": 1,
    **{name: 1000**power for power, name in enumerate(("b", "kb", "mb", "gb", "tb"))},
    **{name: 1024**power for power, name in enumerate(("kib", "mib", "gib", "tib"), 1)},
    **{name: 1000**power for power, name in enumerate(("k", "m", "g", "t"), 1)},
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(where: str, text: str) -> int:
    """Bytes of ``80 GB``, ``1.5T``, ``512MiB``; raises ``InvalidInput`` that names ``where``."""
    found = _SIZE.fullmatch(text)
    if found is None or found[2].lower() not in _UNITS:
        raise InvalidInput(where, f"is {text!r}", "write a size such as 80GB, 512MiB or 1.5TB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def size_from_environment(name: str) -> int | None:
    """What a variable says, None where it is not set or empty; raises ``InvalidInput``."""
    text = os.environ.get(name, "")
    if not text:
        return None
    size = parse_size(name, text)
    if size < 1:
        raise InvalidInput(name, f"is {text!r}", "write a size above 0, or unset it")
    return size


def size_limit() -> int | None:
    """The limit of ``LIMIT_VARIABLE``, None where there is none; raises ``InvalidInput``."""
    return size_from_environment(LIMIT_VARIABLE)


def readable_size(size: float) -> str:
    """Bytes as people read them, in powers of 1000 as storage is sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
