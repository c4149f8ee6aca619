"""Sandboxes for asyncio: what the blocking classes have, by the same names; methods are coroutines.

Commands, services and sessions are waited for on the event loop itself, by the operations of the
blocking classes: no thread is needed for one that runs, however many do. Files, and what starts,
ends or copies a sandbox, are work for the file system; that is done in a few threads, none of which
ever waits for another. A task that is cancelled has ended what it began when it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import RawIOBase
from types import TracebackType
from typing import Any, BinaryIO, Concatenate, ParamSpec, Protocol, Self, TypeVar

from minisandbox.sandbox.client import Sandbox
from minisandbox.sandbox.popen import Process
from minisandbox.sandbox.requests import note_requests
from minisandbox.sandbox.session import Session
from minisandbox.sandbox.steps import Cancelled, Steps, Wait, steps_of

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

_MOST_THREADS = 32
#: Seconds between two looks at whether the thread of a cancelled task has sent more requests.
_LOOK_AGAIN = 0.05
_threads: ThreadPoolExecutor | None = None


async def drive(steps: Steps[T]) -> T:
    """Drive an operation to its end on the running loop.

    A first cancellation takes until what the operation has begun is ended; a second gives it up.
    """
    loop = asyncio.get_running_loop()
    cancelled: asyncio.CancelledError | None = None
    try:
        wait = next(steps)
        while True:
            try:
                ready = await _ready(loop, wait)
            except asyncio.CancelledError as error:
                if cancelled is not None:
                    raise
                cancelled = error
                wait = steps.throw(Cancelled())
            else:
                wait = steps.send(ready)
    except StopIteration as stop:
        if cancelled is not None:
            raise cancelled from None
        return stop.value
    except Cancelled:
        assert cancelled is not None
        raise cancelled from None
    finally:
        steps.close()


async def _ready(loop: asyncio.AbstractEventLoop, wait: Wait) -> set[int]:
    woken = loop.create_future()
    ready: set[int] = set()

    def wake(fd: int | None = None) -> None:
        if fd is not None:
            ready.add(fd)
        if not woken.done():
            woken.set_result(None)

    seconds = wait.seconds()
    timer = None if seconds is None else loop.call_later(seconds, wake)
    # Copies: two tasks may wait for one descriptor, of which a loop knows one reader only; and
    # another thread may close it, whose number the loop would then take for another.
    copies: list[int] = []
    try:
        for fd in wait.fds:
            copies.append(os.dup(fd))
            loop.add_reader(copies[-1], wake, fd)
        await woken
    finally:
        if timer is not None:
            timer.cancel()
        for copy in copies:
            loop.remove_reader(copy)
            os.close(copy)
    return ready


async def in_thread(call: Callable[[], T], *, undo: Callable[[T], None] | None = None) -> T:
    """Do ``call`` in a thread of the pool.

    When the task is cancelled, what was asked of sandboxes in that thread is ended, and then what
    came of it goes to ``undo``.
    """
    context = contextvars.copy_context()
    requests = context.run(note_requests)
    job = _pool().submit(context.run, call)
    done = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if job.cancel():
            raise  # it had not begun
        while not done.done():
            while requests:
                held, token = requests.pop()
                held.kill(token)
            await asyncio.wait([done], timeout=_LOOK_AGAIN)
        if done.exception() is None and undo is not None:
            await in_thread(functools.partial(undo, done.result()))
        raise


def _pool() -> ThreadPoolExecutor:
    global _threads
    if _threads is None:
        # Not the loop's own, which may be full of a program's threads that wait for us.
        _threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="minisandbox")
    return _threads


def _forget() -> None:
    """In a forked child: the threads are the parent's."""
    global _threads
    _threads = None


os.register_at_fork(after_in_child=_forget)


def awaited(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of a blocking class as that of the class that wraps it (as ``blocking``)."""
    steps = steps_of(method)

    @functools.wraps(method)
    async def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        if steps is not None:
            return await drive(steps(self.blocking, *args, **kwargs))
        return await in_thread(lambda: method(self.blocking, *args, **kwargs))

    return call


def at_once(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Like :func:`awaited`, of a method that does not wait."""

    @functools.wraps(method)
    async def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self.blocking, *args, **kwargs)

    return call


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


def opened(
    method: Callable[Concatenate[Any, P], C], wrap: Callable[[C], Coroutine[Any, Any, U]]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, U]]:
    """Like :func:`awaited`, of a method whose result is wrapped; a cancelled task leaves none."""
    steps = steps_of(method)

    @functools.wraps(method)
    async def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> U:
        if steps is not None:
            return await wrap(await drive(steps(self.blocking, *args, **kwargs)))
        bound = functools.partial(method, self.blocking, *args, **kwargs)
        return await wrap(await in_thread(bound, undo=_close))

    return call


def opening(
    function: Callable[P, C], wrap: Callable[[C], Coroutine[Any, Any, U]]
) -> Callable[P, Coroutine[Any, Any, U]]:
    """:func:`opened`, of a function."""

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> U:
        return await wrap(await in_thread(lambda: function(*args, **kwargs), undo=_close))

    return call


async def identity(thing: U) -> U:
    """What needs no wrapping."""
    return thing


def _close(thing: _Closable) -> None:
    thing.close()


class Closing(ABC):
    """An asynchronous context manager that closes itself."""

    @abstractmethod
    def close(self, /) -> Coroutine[Any, Any, None]:
        """End it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncProcess(Closing):
    """``Process`` for asyncio; ``stdout`` and ``stderr`` are ``asyncio.StreamReader``, ``stdin`` is
    an ``asyncio.StreamWriter``. Made by :meth:`AsyncSandbox.popen`.
    """

    stdin: asyncio.StreamWriter | None
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader | None

    def __init__(self, process: Process) -> None:
        self.blocking = process
        self._transports: list[asyncio.BaseTransport] = []

    @property
    def pid(self) -> int:
        """As of ``Process``."""
        return self.blocking.pid

    poll = at_once(Process.poll)
    wait = awaited(Process.wait)
    send_signal = at_once(Process.send_signal)
    terminate = at_once(Process.terminate)
    resize = at_once(Process.resize)
    kill = awaited(Process.kill)
    _end = awaited(Process.close)

    async def close(self) -> None:
        """As of ``Process``."""
        try:
            await self._end()
        finally:
            self._disconnect()

    @classmethod
    async def take_over(cls, process: Process) -> AsyncProcess:
        """Wrap ``process`` and its streams; what cannot be wrapped is closed."""
        taken = cls(process)
        try:
            taken.stdout = await taken._reader(process.stdout)
            taken.stderr = await taken._reader(process.stderr) if process.stderr else None
            taken.stdin = await taken._writer(process.stdin) if process.stdin else None
        except BaseException:
            process.forget("it was closed")
            taken._disconnect()
            raise
        return taken

    def _disconnect(self) -> None:
        for transport in self._transports:
            transport.close()

    async def _reader(self, stream: BinaryIO | RawIOBase) -> asyncio.StreamReader:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), _own(stream, "rb")
        )
        self._transports.append(transport)
        return reader

    async def _writer(self, stream: BinaryIO | RawIOBase) -> asyncio.StreamWriter:
        loop = asyncio.get_running_loop()
        # The reader is never fed: this is how asyncio makes a protocol that can be drained.
        reader = asyncio.StreamReader(loop=loop)
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), _own(stream, "wb")
        )
        self._transports.append(transport)
        return asyncio.StreamWriter(transport, protocol, reader, loop)


def _own(stream: BinaryIO | RawIOBase, mode: str) -> Any:
    """The stream, by a descriptor that nobody but the loop closes."""
    copy = os.dup(stream.fileno())
    stream.close()
    return open(copy, mode, buffering=0)


class AsyncSession(Closing):
    """``Session`` for asyncio. Made by :meth:`AsyncSandbox.session`."""

    def __init__(self, session: Session) -> None:
        self.blocking = session

    @property
    def alive(self) -> bool:
        """As of ``Session``."""
        return self.blocking.alive

    @property
    def pid(self) -> int:
        """As of ``Session``."""
        return self.blocking.pid

    run = awaited(Session.run)
    interrupt = at_once(Session.interrupt)
    reopen = awaited(Session.reopen)
    close = awaited(Session.close)


async def _session(session: Session) -> AsyncSession:
    return AsyncSession(session)


async def _sandbox(sandbox: Sandbox) -> AsyncSandbox:
    return AsyncSandbox(sandbox)


class AsyncSandbox(Closing):
    """``Sandbox`` for asyncio, made by ``await AsyncSandbox.start(...)``, or around one that is
    there already, which is its ``blocking``.

    Any number of tasks may use it at once. ``on_output`` is called on the loop.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.blocking = sandbox

    @property
    def name(self) -> str:
        """As of ``Sandbox``."""
        return self.blocking.name

    @property
    def alive(self) -> bool:
        """As of ``Sandbox``."""
        return self.blocking.alive

    @property
    def pid(self) -> int:
        """As of ``Sandbox``."""
        return self.blocking.pid

    @property
    def limits(self) -> Mapping[str, str]:
        """As of ``Sandbox``."""
        return self.blocking.limits

    @property
    def listeners(self) -> Mapping[int, socket.socket]:
        """As of ``Sandbox``."""
        return self.blocking.listeners

    @property
    def watched(self) -> str:
        """As of ``Sandbox``."""
        return self.blocking.watched

    start = staticmethod(opening(Sandbox.start, _sandbox))
    attempts = at_once(Sandbox.attempts)
    run = awaited(Sandbox.run)
    popen = opened(Sandbox.popen, AsyncProcess.take_over)
    session = opened(Sandbox.session, _session)
    open_shell = awaited(Sandbox.open_shell)
    read_file = awaited(Sandbox.read_file)
    write_file = awaited(Sandbox.write_file)
    upload = awaited(Sandbox.upload)
    download = awaited(Sandbox.download)
    reset = awaited(Sandbox.reset)
    snapshot = opened(Sandbox.snapshot, identity)
    fork = opened(Sandbox.fork, _sandbox)
    start_from = opened(Sandbox.start_from, _sandbox)
    seal = awaited(Sandbox.seal)
    close = awaited(Sandbox.close)
