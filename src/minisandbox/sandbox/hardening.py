"""What PID 1 and its monitors give up before any program of the sandbox runs."""

from __future__ import annotations

import os

from minisandbox import linux
from minisandbox.sandbox import rootfs
from minisandbox.sandbox.limits import rlimits

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from typing import Any

#: A group that no command has as its saved one, for execve(2) sets that to the effective one.
_NOBODYS_GROUP = 65_534

#: What programs inside may do in their own user namespace: the set that container engines grant,
#: without raw sockets. Without CAP_SYS_ADMIN no mount can be undone, and without CAP_SYS_PTRACE
#: programs cannot look into PID 1 and the monitors, which hold more.
_CAPABILITIES = frozenset(
    {
        0,  # CHOWN
        1,  # DAC_OVERRIDE
        3,  # FOWNER
        4,  # FSETID
        5,  # KILL
        6,  # SETGID
        7,  # SETUID
        8,  # SETPCAP
        10,  # NET_BIND_SERVICE
        18,  # SYS_CHROOT
        27,  # MKNOD
        29,  # AUDIT_WRITE
        31,  # SETFCAP
    }
)


def limit_capabilities() -> None:
    """Those of programs; this process keeps its own."""
    linux.limit_capabilities(_CAPABILITIES)


def harden(spec: dict[str, Any], keep: list[int]) -> None:
    """Let go of all descriptors but ``keep``, and of what can be done to the host: to be called
    inside the root. Raises ``rootfs.Refused`` where the system calls cannot be filtered.
    """
    linux.close_all_but(keep)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if null > 2:
        os.close(null)
    if spec["ids"] > _NOBODYS_GROUP:
        # prlimit(2) asks for no capability where all ids are the caller's: root inside could leave
        # this process and its monitors, which inherit it, without descriptors or time.
        os.setresgid(-1, -1, _NOBODYS_GROUP)
    rlimits.limit_init(spec["limits"])
    linux.forbid_new_privileges()
    try:
        linux.install_filter(spec["policy"])
    except OSError as error:
        raise rootfs.Refused("syscalls", error) from error
