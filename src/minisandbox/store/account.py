"""What each item of a node store took on disk when it was made, so that a size limit costs no walk.

A text file, one ``<name> <bytes>`` a line, of which the last of a name counts. A survey of the
store writes it anew. It is only kept where there is a limit: an item that it does not name was made
without one, or by a process that was killed, and then a survey is due.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from minisandbox import atomic
from minisandbox.store.locks import tried
from minisandbox.store.usage import LOCKS, items_in

_NAME = "account"


class Account:
    """The account of the node store ``base``."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._path = base / _NAME
        self._lock = base / LOCKS / "account.lock"

    def add(self, name: str, size: int) -> None:
        """Write down what an item takes, or will take: it counts from now on."""
        with atomic.locked(self._lock), open(self._path, "a", encoding="ascii") as file:
            file.write(f"{name} {size}\n")

    def replace(self, sizes: Mapping[str, int]) -> None:
        """Write down what a survey found; what others are making keeps what they wrote."""
        with atomic.locked(self._lock):
            made = {name: size for name, size in self._read().items() if self._is_being_made(name)}
            for left in self._base.glob(f".{_NAME}.*.tmp"):  # of processes that were killed
                left.unlink(missing_ok=True)
            lines = [f"{name} {size}\n" for name, size in {**made, **sizes}.items()]
            try:
                atomic.write_text(self._path, "".join(lines))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._path.unlink(missing_ok=True)  # it is wrong, and the next survey makes one

    def total(self) -> int | None:
        """Bytes of all items, and of those that are being made; None if an item is not known."""
        with atomic.locked(self._lock):
            known = self._read()
        there = {path.name for _, path in items_in(self._base)}
        if there - known.keys():
            return None
        return sum(
            size for name, size in known.items() if name in there or self._is_being_made(name)
        )

    def _is_being_made(self, name: str) -> bool:
        lock = self._base / LOCKS / f"{name}.lock"
        if not lock.exists():
            return False
        with tried(lock) as free:
            return not free

    def _read(self) -> dict[str, int]:
        known: dict[str, int] = {}
        try:
            text = self._path.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return known
        for line in text.splitlines():
            name, _, size = line.partition(" ")
            if size.isdigit():
                known[name] = int(size)
        return known
