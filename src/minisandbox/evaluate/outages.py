"""What a log shows of a machine that failed its tests: killed from outside, no space left.

Test output may hold any word. Only what stands where and how the program at fault writes it counts,
and only to take back an "unresolved": a run that has what it needs is not looked at.
"""

from __future__ import annotations

import re
import signal

#: Signals by which a test runner ends through its own fault, or that of the code it tests.
_FAULTS = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
)
#: The others by number. They come from outside: from the kernel for want of memory, or from
#: somebody.
KILLED = {number.value: number.name for number in signal.Signals if number not in _FAULTS}

#: A runner that started the tests says how they ended in its last lines; what tests printed of
#: processes of their own stands before the summary.
_LAST = 10

_EXITS = (
    # tox 4, the line of the command and that of the environment
    re.compile(r"\S+: exit (-?\d+)(?: \(\d+\.\d+ seconds?\) .*)?"),
    re.compile(r"\s*\S+: FAIL code (-?\d+)(?: \(.*\))?"),
    # tox 3
    re.compile(r"ERROR: InvocationError for command .* \(exited with code (-?\d+)(?: .*)?\)"),
    # make
    re.compile(r"make(?:\[\d+\])?: \*\*\* \[.*\] Error (\d+)"),
)
#: Shells and make, of a process that SIGKILL ended.
_SAID_KILLED = re.compile(
    r"(?:\S+: line \d+: +\d+ )?Killed(?: {2,}.*)?|make(?:\[\d+\])?: \*\*\* \[.*\] Killed"
)
#: The last line of a traceback (as pytest shows it, too), and the form of system programs: name of
#: the program first. Not what an assertion quotes.
_NO_SPACE = re.compile(
    r"^(?:E {3,})?OSError: \[Errno 28\] No space left on device(?:: .*)?$"
    r"|^(?:cp|mv|mkdir|touch|tee|dd|tar|ln|install|git|fatal|error|ld|gcc|as|collect2|/?\S*sh)"
    r"(?:: [^:]+)*: No space left on device$",
    re.MULTILINE,
)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def outage(tests: str) -> str | None:
    """The line that shows why the tests could not run as they should; ``None`` if none does.

    ``tests`` is what the test command printed, and nothing after it.
    """
    text = _ANSI.sub("", tests).replace("\r\n", "\n")
    if (full := _NO_SPACE.search(text)) is not None:
        return full[0].strip()
    for line in text.rstrip().split("\n")[-_LAST:]:
        if _SAID_KILLED.fullmatch(line) or any(
            _is_kill(int(found[1])) for form in _EXITS if (found := form.fullmatch(line))
        ):
            return line.strip()
    return None


def _is_kill(code: int) -> bool:
    """Whether an exit code, a shell's or Python's ``returncode``, is a signal from outside."""
    return (-code if code < 0 else code - 128) in KILLED
