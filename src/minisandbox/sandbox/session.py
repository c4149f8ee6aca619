"""A persistent bash in a sandbox, as its client holds it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from minisandbox.closing import Closing
from minisandbox.errors import InvalidInput, SessionDied
from minisandbox.sandbox import arguments, capture, wire
from minisandbox.sandbox.requests import Requests
from minisandbox.sandbox.result import EXIT_TIMED_OUT, Result
from minisandbox.sandbox.steps import Cancelled, Steps, blocking


@dataclass(frozen=True)
class SessionResult(Result):
    """Output and end of one command of a session.

    ``shell_ended`` says that the shell is gone with it: the command left it (``exit``, ``exec``,
    ``set -e``), killed it, or had to be ended together with it. :meth:`Session.reopen` starts
    another.
    """

    shell_ended: bool = False


class Session(Closing):
    """A bash that keeps its directory, variables, functions, options and jobs from one command to
    the next. Made by ``Sandbox.session``.

    The shell is interactive as far as errors go: one that would end a script gives the next
    command its turn. It has no prompt, no history and no terminal, and reads no start-up file
    unless told to. Standard input of commands is /dev/null. Output redirected by ``exec`` is
    redirected for one command only. A session runs one command at a time; any number of sessions
    may be open.
    """

    def __init__(self, requests: Requests, request: dict[str, Any]) -> None:
        self._requests = requests
        self._request = request
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._token = ""
        self._pid = 0
        self._number = 0
        #: The number of the command that runs, or 0.
        self._running = 0
        self._ended = "it was not opened"

    @property
    def alive(self) -> bool:
        """Whether the next command finds the shell, as far as is known."""
        return not self._ended and self._requests.alive

    @property
    def pid(self) -> int:
        """Process id of the shell inside the sandbox."""
        return self._pid

    @blocking
    def reopen(self) -> Steps[None]:
        """Start a new shell, as at the beginning, and end all that is left of the one before."""
        yield from self.open()

    def open(self) -> Steps[None]:
        """The steps of :meth:`reopen`."""
        yield from self._close("it is being opened")
        token, channel, fields, _ = yield from self._requests.begin(
            self._request, [], sign="started"
        )
        with self._lock:
            self._token, self._channel, self._pid = token, channel, int(fields[1])
            self._ended = ""
        self._requests.hold(self)

    @blocking
    def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        max_output: int = 16 << 20,
        merge_stderr: bool = False,
        on_output: Callable[[str, bytes], None] | None = None,
        stdout_file: Path | None = None,
        stderr_file: Path | None = None,
    ) -> Steps[SessionResult]:
        """Run shell text of any size in the session's shell and return when it has ended.

        Arguments and result are those of ``Sandbox.run``. After ``timeout`` seconds the command is
        interrupted (SIGINT, and SIGKILL a second later) with all that it started, in the background
        as well; what earlier commands left there stays, and so does the shell if it can. Raises
        ``SessionDied`` when the shell had ended before, ``SandboxDied`` when the sandbox is gone,
        and ``InvalidInput`` while another thread's command runs in this session.
        """
        patience = arguments.seconds("timeout", timeout)
        script = arguments.text("command", command, remedy="give shell text as a string")
        with capture.open_streams(
            merged=merge_stderr,
            limit=max_output,
            watch=on_output,
            stdout_file=stdout_file,
            stderr_file=stderr_file,
        ) as streams:
            started = time.monotonic()
            before = self._requests.link.limits.mark()
            channel = self._occupy()
            try:
                ended = yield from self._run(channel, script, streams, patience)
            finally:
                self._running = 0
        outputs = [stream.content() for stream in streams]
        code = EXIT_TIMED_OUT if ended.timed_out else self._requests.exit_code(ended.fields)
        return SessionResult(
            stdout=outputs[0],
            stderr=b"" if merge_stderr else outputs[1],
            exit_code=code,
            duration=time.monotonic() - started,
            timed_out=ended.timed_out,
            truncated=any(stream.dropped for stream in streams),
            limit=self._requests.link.limits.since(before),
            shell_ended=bool(self._ended),
        )

    def interrupt(self) -> None:
        """End the command that another thread runs here, as a timeout does; nothing if none
        runs.
        """
        with self._lock:
            if self._running and self._channel is not None and not self._ended:
                try:
                    wire.send(self._channel, "interrupt", str(self._running))
                except OSError:
                    pass  # its monitor is gone, which the command's result tells

    @blocking
    def close(self) -> Steps[None]:
        """End the shell and everything that commands left in the background; harmless when done
        already.
        """
        yield from self._close("it was closed")

    def forget(self, reason: str) -> None:
        """Close what this client has of the session, upon which its monitor ends its tree."""
        if self._channel is not None:
            self._give_up(self._channel, reason)

    def _occupy(self) -> socket.socket:
        """Make the next command ours; its number is then the one that runs."""
        with self._lock:
            if self._ended or self._channel is None:
                self._requests.raise_if_dead()
                raise SessionDied(self._requests.name, self._ended)
            if self._running:
                raise InvalidInput(
                    "session", "another command runs in it", "open one session for each thread"
                )
            self._number += 1
            self._running = self._number
            return self._channel

    def _run(
        self,
        channel: socket.socket,
        command: str,
        streams: list[capture.Stream],
        timeout: float | None,
    ) -> Steps[capture.Ended]:
        deadline = None if timeout is None else time.monotonic() + timeout
        number = str(self._running)
        text = wire.memory_file("command", arguments.encoded("command", command))
        try:
            kind = "merged" if len(streams) == 1 else "apart"
            wire.send(channel, "command", number, kind, fds=[text])
        except OSError:
            self._raise_gone("its monitor was killed")
        finally:
            os.close(text)
        try:
            fields, pipes = yield from self._requests.reply(
                channel, "streams", "exit", timeout=timeout, or_nothing=True
            )
            if fields[:1] != ["streams"]:
                code = fields[1] if fields else ""
                self._raise_gone(
                    f"its shell ended with {code}" if code else "its monitor was killed"
                )
            stop = ("interrupt", number)
            ended = yield from capture.collect(channel, pipes, streams, deadline, stop)
        except BaseException:
            # Where the command is in its course is not known: nothing can follow it.
            self._give_up(channel, "a command in it was given up")
            raise
        if not ended.fields:
            self._requests.raise_if_dead()
            self._requests.kill(self._token)
            self._give_up(channel, "its monitor was killed")
        elif ended.fields[0] == "exit":
            self._ended = f"its shell ended with {ended.fields[1]}"
        elif ended.fields[2:] == ["held"]:
            wire.send(channel, "drained")
        if ended.cancelled:
            raise Cancelled
        return ended

    def _raise_gone(self, reason: str) -> NoReturn:
        self._ended = reason
        self._requests.raise_if_dead()
        raise SessionDied(self._requests.name, reason)

    def _close(self, reason: str) -> Steps[None]:
        with self._lock:
            self._ended = reason
            channel = self._channel
        if channel is None:
            return
        try:
            wire.send(channel, "end")
            yield from self._requests.end(channel, self._token)
        except OSError:
            pass  # it has ended
        finally:
            self._give_up(channel, reason)

    def _give_up(self, channel: socket.socket, reason: str) -> None:
        with self._lock:
            self._ended = self._ended or reason
            self._channel = None
            if channel.fileno() != -1:
                try:
                    channel.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits
                except OSError:
                    pass  # its monitor is gone
            channel.close()
        self._requests.release(self)
