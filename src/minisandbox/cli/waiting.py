"""What is being waited for, on standard error; nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from minisandbox.sizes import readable_size

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


class Advance(Protocol):
    """Says that so many more are done."""

    def __call__(self, count: int, /) -> object: ...


@contextmanager
def bar(what: str, total: int, unit: str) -> Generator[Advance]:
    """A bar for so many of ``unit``, ``B`` for bytes; a line that counts them where nothing is
    installed that draws one.
    """
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:  # it comes with the extra `build`
        with waiting_line() as show:
            yield _Counter(what, total, unit, show)
        return
    with tqdm(desc=what, total=total, unit=unit, unit_scale=unit == "B", disable=None) as drawn:
        yield drawn.update


class _Counter:
    """A line that says how many of how many are done."""

    def __init__(self, what: str, total: int, unit: str, show: Callable[[str], None]) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._show = show
        self._done = 0
        self(0)

    def __call__(self, count: int, /) -> None:
        self._done += count
        if self._unit == "B":
            done = f"{readable_size(self._done)} of {readable_size(self._total)}"
        else:
            done = f"{self._done} of {self._total} {self._unit}s"
        self._show(f"{self._what}: {done}")
