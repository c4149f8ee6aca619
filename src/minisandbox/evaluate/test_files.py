"""Which files hold the tests that a row names."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: ``test_name (package.module.Class)``, with or without the name again.
_UNITTEST = re.compile(r"\S+ \((?P<dotted>\w+(?:\.\w+)+)\)")


def test_files(names: Iterable[str]) -> tuple[str, ...]:
    """Where the tests of these names may be, sorted, as paths below the repository: whether there
    is such a file is for the caller to see.

    Of pytest's ids that is the part before ``::``; of unittest's a module, of which the name does
    not say where it ends.
    """
    found: set[str] = set()
    for name in names:
        path, separator, _ = name.partition("::")
        if separator:
            found.add(path)
        elif (said := _UNITTEST.fullmatch(name)) is not None:
            parts = said["dotted"].split(".")
            found |= {f"{'/'.join(parts[:end])}.py" for end in range(1, len(parts))}
    return tuple(sorted(path for path in found if _is_below(path)))


def _is_below(path: str) -> bool:
    parts = path.split("/")
    return not any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
