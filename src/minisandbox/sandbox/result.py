"""What came of a command."""

from __future__ import annotations

from dataclasses import dataclass

#: ``exit_code`` of a command that was ended by its timeout, as timeout(1) has it.
EXIT_TIMED_OUT = 124


@dataclass(frozen=True)
class Result:
    """Output and end of one command.

    ``exit_code`` is what a shell would show: 0..255, 128 + signal for one that was killed, 126/127
    when the program could not be executed or found, and 124 when ``timed_out``. ``duration`` is
    wall time in seconds. ``truncated`` says that a stream was longer than ``max_output``; its
    middle is then left out, with a line that says how much. ``limit`` names the limit of the
    sandbox for which something in it was ended while the command ran (``memory``, ``disk``,
    ``inodes`` or ``processes``), not always a process of this command; it is empty otherwise.
    """

    stdout: bytes
    stderr: bytes
    exit_code: int
    duration: float
    timed_out: bool = False
    truncated: bool = False
    limit: str = ""

    @property
    def oom(self) -> bool:
        """Whether the sandbox ran out of its memory while the command ran, and something was ended
        for it.
        """
        return self.limit == "memory"

    @property
    def stdout_text(self) -> str:
        """Standard output as text; bytes that are no UTF-8 become U+FFFD, never an error."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """Standard error as text, like :attr:`stdout_text`."""
        return self.stderr.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """Standard output followed by standard error (run with ``merge_stderr`` to have them in
        order).
        """
        return self.stdout_text + self.stderr_text

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with 0."""
        return self.exit_code == 0 and not self.timed_out
