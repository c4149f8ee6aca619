"""What is closed at the end of a ``with``, and what is closed by the last who needs it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A context manager whose end is :meth:`close`."""

    @abstractmethod
    def close(self) -> None:
        """Give up what it holds; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Shared(Closing):
    """Needed by several, who count themselves: it ends with the last :meth:`release`.

    Who makes it needs it, and closes it.
    """

    def __init__(self) -> None:
        self._users = 1
        self._counting = threading.Lock()
        self._closed = False

    def retain(self) -> Self:
        """Need it too, until :meth:`release`."""
        with self._counting:
            self._users += 1
        return self

    def release(self) -> None:
        """Need it no longer."""
        with self._counting:
            self._users -= 1
            last = self._users == 0
        if last:
            self._end()

    def close(self) -> None:
        """Need it no longer, as the one who made it; a second call does nothing."""
        with self._counting:
            closed, self._closed = self._closed, True
        if not closed:
            self.release()

    @abstractmethod
    def _end(self) -> None:
        """Give up what it holds."""
