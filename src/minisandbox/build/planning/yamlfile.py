"""Reading YAML that people write: one sentence per mistake, and dates that stay text."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, cast

import yaml

from minisandbox.errors import InvalidInput

#: So many values a file may have, with those that aliases repeat: a dozen lines can name billions.
_MOST_VALUES = 1_000_000
#: Python writes no longer number.
_LONGEST_NUMBER = 4096


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
    except RecursionError:
        raise InvalidInput(str(path), "is nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InvalidInput(f"{path}{line}", f"is not YAML ({problem})") from None
    except (ValueError, AttributeError) as error:  # dates that there are not, numbers without end
        raise InvalidInput(str(path), f"has a value that cannot be meant ({error})") from None


def plain(value: Any) -> Any:
    """YAML values as JSON ones: ``2026-01-15`` is a date to YAML and text to everyone who writes
    it. Raises ``ValueError`` for what has too many of them, or a number that is too long.
    """
    left = _MOST_VALUES

    def converted(value: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"with its aliases it has more than {_MOST_VALUES} values")
        if isinstance(value, dict):
            mapping = cast("dict[Any, Any]", value)
            return {str(key): converted(item) for key, item in mapping.items()}
        if isinstance(value, list):
            return [converted(item) for item in cast("list[Any]", value)]
        if isinstance(value, datetime.date):
            return value.isoformat()
        if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER:
            raise ValueError("a number is too long")
        return value

    return converted(value)
