"""Limits that the kernel keeps for each process (setrlimit(2)), set inside the user namespace.

Never RLIMIT_AS: node, java and torch reserve address space that they do not use.
"""

from __future__ import annotations

import resource

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from typing import Any

#: Processes that PID 1 may have beyond the limit of its commands: monitors, so that a sandbox full
#: of processes can still be told to end them.
SPARE = 16

#: One byte. A file that small is not written, and where the host pipes dumps to a program of its
#: own, run as root on the host, 1 is the one value that keeps the kernel from it; 0 does not
#: (fs/coredump.c, do_coredump).
_NO_CORE = 1


def limit_init(limits: dict[str, Any]) -> None:
    """Limit the caller, PID 1, and all that it will start.

    To be called in the new user namespace: set before, RLIMIT_NPROC would count all processes of
    the host's user, since entering one makes it the bound of the whole namespace
    (user_namespaces(7), getrlimit(2)).
    """
    _lower(resource.RLIMIT_CORE, _NO_CORE)
    if limits["open_files"] is not None:
        _lower(resource.RLIMIT_NOFILE, limits["open_files"])
    if limits["processes"] is not None:
        _lower(resource.RLIMIT_NPROC, limits["processes"] + SPARE)


def limit_monitor(limits: dict[str, Any]) -> None:
    """Limit the caller, a monitor, and the command that it will start."""
    if limits["processes"] is not None:
        _lower(resource.RLIMIT_NPROC, limits["processes"])
    # The kernel then ends a command before PID 1, and code in sandboxes before anything else of the
    # machine. Nothing inside can go below what PID 1 has (proc(5), oom_score_adj).
    with open("/proc/self/oom_score_adj", "wb", buffering=0) as score:
        score.write(b"1000")


def _lower(name: int, value: int) -> None:
    """Set both limits, as high as allowed: raising the hard one needs rights in the host."""
    _, hard = resource.getrlimit(name)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(name, (value, value))
