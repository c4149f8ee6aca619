"""The one place that starts programs of the host: git, uv, pip of the pipeline itself.

Invariant: a call returns when the program ends or its time is over, whatever its children hold
open, and a program that fails says what was run. Code that nobody trusts is not started here but in
a sandbox.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from minisandbox.errors import InvalidInput, ProcessFailed

#: One locale for every program: messages in English, file names in UTF-8.
_LOCALE = "C.UTF-8"
#: Seconds: poll(2) counts milliseconds in an int, which 25 days overflow.
_LONGEST_POLL = 86_400.0


@dataclass(frozen=True)
class Completed:
    """How a program ended: ``returncode`` is negative where a signal ended it."""

    returncode: int
    stdout: bytes
    stderr: bytes


class ProcessTimedOut(ProcessFailed):
    """A program was killed, with its whole process group, because its time was over.

    ``timeout`` is in seconds; ``returncode`` is 124, as ``timeout(1)`` has it.
    """

    def __init__(self, argv: Sequence[str], timeout: float, output: str) -> None:
        self.timeout = timeout
        super().__init__(argv, 124, f"{output}\nkilled after {timeout:g} seconds")


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    log: Path | None = None,
    check: bool = True,
) -> Completed:
    """Run a program to its end and return what it wrote.

    ``env`` is the whole environment (None: this process's), in both cases with ``LC_ALL=C.UTF-8``.
    Without ``stdin`` there is nothing to read, so a program that asks gets no answer instead of
    waiting for one. ``timeout`` is in seconds. ``log`` gets the command as one can paste it into a
    shell, what it wrote, and how it ended. Raises ``ProcessFailed`` when the program cannot be
    started, or ends with another code than 0 and ``check`` is set, and ``ProcessTimedOut``.
    """
    if timeout is not None and not timeout >= 0:  # NaN is not either
        raise InvalidInput("timeout", f"is {timeout}", "give seconds from 0 on")
    words = [os.fspath(word) for word in argv]
    environment = dict(os.environ if env is None else env) | {"LC_ALL": _LOCALE}
    started = time.monotonic()
    # Files, not pipes: a daemon that the program leaves behind keeps a pipe open for ever, and two
    # pipes can fill up in the wrong order.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = _run_group(words, cwd, environment, stdin, timeout, out, err)
        completed = Completed(-signal.SIGKILL if code is None else code, _all(out), _all(err))
    if log is not None:
        _append(log, _command_line(words, cwd, environment), completed, time.monotonic() - started)
    if code is None:
        raise ProcessTimedOut(words, timeout or 0.0, _tail(completed))
    if check and code != 0:
        raise ProcessFailed(words, code, _tail(completed))
    return completed


def _run_group(
    words: list[str],
    cwd: Path | None,
    environment: Mapping[str, str],
    stdin: bytes | None,
    timeout: float | None,
    out: IO[bytes],
    err: IO[bytes],
) -> int | None:
    """Run in a session of its own; None when the time was over and the whole group was killed."""
    with tempfile.TemporaryFile() as given:
        given.write(stdin or b"")
        given.seek(0)
        try:
            process = subprocess.Popen(
                words,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL if stdin is None else given,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise ProcessFailed(words, 127, _reason(words[0], environment, error)) from error
    try:
        if _ended(process, timeout):
            return process.wait()
        return None
    finally:
        # Also for Ctrl-C, which the terminal does not send to another session.
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ended(process: subprocess.Popen[bytes], timeout: float | None) -> bool:
    """Wait without polling: ``Popen.wait`` with a time limit sleeps up to 50 ms too long."""
    descriptor = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if timeout is None:
            return bool(poll.poll())
        deadline = time.monotonic() + timeout
        while not poll.poll(min(max(0.0, deadline - time.monotonic()), _LONGEST_POLL) * 1000):
            if time.monotonic() >= deadline:
                return False
        return True
    finally:
        os.close(descriptor)


def _reason(program: str, environment: Mapping[str, str], error: OSError) -> str:
    # The kernel's answer does not tell: a PATH through a forbidden directory makes it "permission
    # denied", and a missing working directory "no such file".
    if shutil.which(program, path=environment.get("PATH")) is None:
        return f"{program} is not installed, or not on PATH"
    return f"it cannot be started: {error}"


def _all(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _tail(completed: Completed) -> str:
    """What explains a failure: the error output, or the output of programs that explain there."""
    return (completed.stderr.strip() or completed.stdout.strip()).decode("utf-8", "replace")


def _command_line(words: list[str], cwd: Path | None, environment: Mapping[str, str]) -> str:
    changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    removed = [name for name in sorted(os.environ) if name not in environment]
    line = shlex.join(words)
    if changed or removed:
        options = [word for name in removed for word in ("-u", name)]
        settings = [f"{name}={value}" for name, value in sorted(changed.items())]
        line = f"{shlex.join(['env', *options, *settings])} {line}"
    return line if cwd is None else f"(cd {shlex.quote(os.fspath(cwd))} && {line})"


def _append(log: Path, line: str, completed: Completed, seconds: float) -> None:
    """One ``write`` to a file opened for appending, so that parallel commands do not mix."""
    head = f"$ {line}\n".encode("utf-8", "surrogateescape")
    end = f"[ended with {completed.returncode} after {seconds:.1f} s]\n".encode()
    outputs = [
        output if not output or output.endswith(b"\n") else output + b"\n"
        for output in (completed.stdout, completed.stderr)
    ]
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab", buffering=0) as file:
        file.write(b"".join([head, *outputs, end]))
