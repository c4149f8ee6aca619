"""The type of what ``add_subparsers`` returns, which argparse has only under a private name."""

from __future__ import annotations

import argparse
from typing import Any, Protocol


class Subparsers(Protocol):
    """Registers commands."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """A parser for the command ``name``."""
        ...
