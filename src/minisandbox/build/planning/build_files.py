"""The key ``files`` of recipes, checked."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from minisandbox.errors import InvalidInput
from minisandbox.records.plan import BuildFile

#: Where the kernel, or the sandbox itself, keeps what is there.
_NO_PLACES = ("/dev", "/proc", "/sys", "/run/minisandbox")


def checked_files(files: Sequence[BuildFile], recipe: Path) -> tuple[BuildFile, ...]:
    """What a recipe file names, with paths of this machine as addresses; raises
    ``InvalidInput``.
    """
    where = f"{recipe}: key 'files'"
    paths = [file.path for file in files]
    for file in files:
        if not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
            raise InvalidInput(
                where, f"has the sha256 {file.sha256!r}", "expected 64 hexadecimal digits"
            )
        if not _is_place(file.path):
            raise InvalidInput(
                where,
                f"has the path {file.path!r}",
                "expected one file in the sandbox, as an absolute path",
            )
        if paths.count(file.path) > 1:
            raise InvalidInput(where, f"has the path {file.path!r} twice")
    return tuple(replace(file, url=_address(file.url, recipe, where)) for file in files)


def _is_place(path: str) -> bool:
    normal = posixpath.normpath(path) == path and re.match("/(?!/)", path) and path.isprintable()
    inside = any(path == place or path.startswith(f"{place}/") for place in _NO_PLACES)
    return bool(normal) and path.count("/") > 1 and not inside


def _address(url: str, recipe: Path, where: str) -> str:
    """``url``, which may be a path from the recipe's folder."""
    parts = urlsplit(url)
    if not parts.scheme and url:
        return (recipe.parent / url).resolve().as_uri()
    server = parts.scheme in ("http", "https") and parts.hostname
    local = parts.scheme == "file" and not parts.netloc and parts.path.startswith("/")
    if not server and not local:
        raise InvalidInput(
            where,
            f"has the url {url!r}",
            "expected an http, https or file address, or a path from the recipe's folder",
        )
    return url
