"""One line on standard error that says what is being waited for; nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

_CLEAR = "\r\x1b[K"


@contextmanager
def waiting_line() -> Generator[Callable[[str], None]]:
    """A function that replaces the line; the line is gone afterwards."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return

    def show(text: str) -> None:
        print(f"{_CLEAR}{text} ...", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print(_CLEAR, end="", file=sys.stderr, flush=True)
