"""A background service in a sandbox, as its client holds it.

Several threads may use one process at once. Invariant: what a service prints never holds it up, and
``close`` leaves nothing of its tree.
"""

from __future__ import annotations

import io
import signal
import socket
import threading
import time

from minisandbox.closing import Closing
from minisandbox.sandbox import arguments, capture, wire
from minisandbox.sandbox.requests import EXIT_KILLED, Requests
from minisandbox.sandbox.steps import Cancelled, Steps, Wait, blocking


class Process(Closing):
    """A program that runs in a sandbox beside others. Made by ``Sandbox.popen``.

    ``pid`` is its process id inside, and that of its process group; 0 when it could not be started,
    which ``stderr`` and the exit code tell as those of a command do.

    ``stdout`` and ``stderr`` are binary streams that end when the process ends. A stream that is
    not read holds the process up for a second at most: then the newest MiB of it is kept, and a
    line tells what was left out before. ``stderr`` is None where it goes into ``stdout``,
    as on a terminal. ``stdin`` is there if it was asked for, unbuffered; writing to it waits until
    the process reads.
    """

    def __init__(
        self,
        requests: Requests,
        token: str,
        channel: socket.socket,
        stdin: int | None,
        outputs: list[int],
    ) -> None:
        self.pid = 0
        self.stdin = None if stdin is None else io.FileIO(stdin, "w")
        self.stdout = io.BufferedReader(io.FileIO(outputs[0]))
        self.stderr = io.BufferedReader(io.FileIO(outputs[1])) if len(outputs) > 1 else None
        self._requests = requests
        self._token = token
        self._channel = channel
        self._lock = threading.Lock()
        self._code: int | None = None
        #: Whether nothing is left of its tree, by the word of its monitor.
        self._gone = False
        #: Whether the monitor will send no more.
        self._over = False
        requests.hold(self)

    def poll(self) -> int | None:
        """The exit code, as ``Result`` has it, or None while the process runs.

        Raises ``SandboxDied`` when the sandbox went away under it.
        """
        return self.wait(0)

    @blocking
    def wait(self, timeout: float | None = None) -> Steps[int | None]:
        """The exit code once the process has ended, or None after ``timeout`` seconds.

        What it left in the background does not count. Raises ``SandboxDied`` when the sandbox went
        away under it.
        """
        patience = arguments.seconds("timeout", timeout)
        deadline = None if patience is None else time.monotonic() + patience
        while self._code is None and not self._over:
            ready = yield Wait((self._channel.fileno(),), deadline)
            if ready:
                self._receive()
            elif deadline is not None and time.monotonic() >= deadline:
                return None
        if self._code is None:
            self._requests.raise_if_dead()
            return EXIT_KILLED  # something inside killed all it could see, the monitor included
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process and its group, as a terminal would; harmless after its
        end.
        """
        remedy = "give the number of a signal, 64 at most"
        checked = arguments.whole("number", number, least=0, most=64, remedy=remedy)
        self._tell("signal", str(checked))

    def terminate(self) -> None:
        """Ask the process and its group to end (SIGTERM)."""
        self.send_signal(signal.SIGTERM)

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size; without one nothing happens."""
        rows, columns = arguments.terminal_size("rows, columns", (rows, columns))
        self._tell("resize", str(rows), str(columns))

    @blocking
    def kill(self) -> Steps[None]:
        """End the whole tree at once, with daemons and what the process left in the background.

        Returns when nothing of it is left.
        """
        yield from self._end()

    @blocking
    def close(self) -> Steps[None]:
        """:meth:`kill`, and close the streams; harmless when done already."""
        try:
            yield from self._end()
        finally:
            self.forget("it was closed")

    def forget(self, _reason: str, /) -> None:
        """Close what this client has of the process, upon which its monitor ends its tree."""
        with self._lock:
            self._over = True
            if self._channel.fileno() != -1:
                try:
                    self._channel.shutdown(socket.SHUT_RDWR)  # wakes threads that wait
                except OSError:
                    pass  # the monitor is gone
            self._channel.close()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self._requests.release(self)

    def _end(self) -> Steps[None]:
        self._tell("kill")
        deadline = time.monotonic() + capture.KILL_PATIENCE
        try:
            while not (self._gone or self._over):
                if (yield Wait((self._channel.fileno(),), deadline)):
                    self._receive()
                elif time.monotonic() >= deadline:  # a program can stop its monitor
                    self._requests.kill(self._token)
                    return
        except Cancelled:
            self._requests.kill(self._token)
            raise

    def _tell(self, *packet: str) -> None:
        with self._lock:
            if not self._over:
                try:
                    wire.send(self._channel, *packet)
                except OSError:
                    pass  # the monitor is gone, and what it watched over

    def _receive(self) -> None:
        with self._lock:
            if self._over:
                return
            try:
                fields, _ = wire.receive(self._channel, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return  # another thread was there first
            self.note(fields)

    def note(self, fields: list[str]) -> None:
        """Take in what the monitor says of the process; no fields are its last word."""
        if fields[:1] == ["started"]:
            self.pid = int(fields[1])
        elif fields[:1] == ["exit"]:
            self._code = int(fields[1])
        self._gone = fields[:1] == ["gone"]
        self._over = not fields
