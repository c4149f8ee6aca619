"""Operations that wait, written once for callers that block and for those that await.

An operation is a generator: it yields what it waits for, is sent what came of that, and returns its
result. :func:`finish` drives one with ``poll``; ``minisandbox.sandbox.aio`` drives the same ones on
an event loop. Nothing else in them may wait for a program inside the sandbox.
"""

from __future__ import annotations

import functools
import select
import time
from collections.abc import Callable, Generator, Sequence
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_OPERATION = "_minisandbox_operation"

#: Seconds: poll(2) counts milliseconds in an int, which 25 days overflow.
LONGEST_WAIT = 86_400.0


class Wait:
    """What an operation waits for: one of ``fds`` to be readable, or ``deadline`` (monotonic)."""

    __slots__ = ("deadline", "fds")

    def __init__(self, fds: Sequence[int], deadline: float | None = None) -> None:
        self.fds = fds
        self.deadline = deadline

    def seconds(self) -> float | None:
        """How long that is from now on at most; None for ever."""
        if self.deadline is None:
            return None
        return min(max(0.0, self.deadline - time.monotonic()), LONGEST_WAIT)


#: Is sent the descriptors that are readable; none when the deadline, or a long time, has passed.
Steps = Generator[Wait, set[int], T]


class Cancelled(BaseException):
    """Thrown into an operation whose caller does not want it any more.

    It may still yield, to end inside what it has begun. Thrown a second time it must not.
    """


def finish(steps: Steps[T]) -> T:
    """Drive an operation to its end in this thread.

    A first Ctrl-C cancels it, which takes until what it has begun is ended; a second gives it up.
    """
    interrupt: KeyboardInterrupt | None = None
    try:
        wait = next(steps)
        while True:
            try:
                ready = _poll(wait)
            except KeyboardInterrupt as error:
                if interrupt is not None:
                    raise
                interrupt = error
                wait = steps.throw(Cancelled())
            else:
                wait = steps.send(ready)
    except StopIteration as stop:
        if interrupt is not None:
            raise interrupt from None
        return stop.value
    except Cancelled:
        assert interrupt is not None
        raise interrupt from None
    finally:
        steps.close()  # whatever else ended this thread's waiting


def _poll(wait: Wait) -> set[int]:
    poller = select.poll()  # not select(): descriptors may be above 1023
    for fd in wait.fds:
        poller.register(fd, select.POLLIN)
    seconds = wait.seconds()
    return {fd for fd, _ in poller.poll(None if seconds is None else seconds * 1000)}


def blocking(operation: Callable[P, Steps[T]]) -> Callable[P, T]:
    """The operation as a plain function, which others can take apart with :func:`steps_of`."""

    @functools.wraps(operation)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return finish(operation(*args, **kwargs))

    call.__dict__[_OPERATION] = operation
    return call


def steps_of(method: Callable[P, T]) -> Callable[P, Steps[T]] | None:
    """The operation that a function made by :func:`blocking` drives, or None for any other."""
    return method.__dict__.get(_OPERATION)
