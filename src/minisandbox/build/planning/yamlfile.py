"""Reading YAML that people write: one sentence per mistake, and dates that stay text."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, cast

import yaml

from minisandbox.errors import InvalidInput


def read_yaml(path: Path) -> Any:
    """Parse one YAML file; raises ``InvalidInput`` with file, line and problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(str(path), "does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(str(path), f"cannot be read ({error})") from None
    try:
        return plain(yaml.safe_load(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InvalidInput(f"{path}{line}", f"is not YAML ({problem})") from None


def plain(value: Any) -> Any:
    """YAML values as JSON ones: ``2026-01-15`` is a date to YAML and text to everyone who writes
    it.
    """
    if isinstance(value, dict):
        mapping = cast("dict[Any, Any]", value)
        return {str(key): plain(item) for key, item in mapping.items()}
    if isinstance(value, list):
        return [plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value
