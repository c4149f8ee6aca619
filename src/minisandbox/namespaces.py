"""Why a kernel refuses namespaces, and what to ask for: errno and sysctls to sentences.

Kernels report a limit on namespaces as ENOSPC, which everything above would take for a full disk.
Below ``idmap``, because not only sandboxes need them: so does unpacking as an ordinary user.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from minisandbox.errors import HostUnsupported


def refused(number: int, detail: str, mechanism: str = "user namespaces") -> HostUnsupported:
    """The error for errno ``number`` of unshare(2) or of writing an id map."""
    if number == errno.ENOSPC:
        return HostUnsupported(
            mechanism,
            "a limit on the number of namespaces (or of mounts) is reached; "
            "this is not about disk space",
            "raise user.max_*_namespaces and fs.mount-max with sysctl, or close sandboxes",
        )
    return HostUnsupported(mechanism, detail, _remedy(number))


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys", name.replace(".", "/")).read_text().strip()
    except OSError:
        return ""


def _remedy(number: int) -> str:
    if _sysctl("kernel.unprivileged_userns_clone") == "0":
        return "ask for `sysctl -w kernel.unprivileged_userns_clone=1`"
    if _sysctl("user.max_user_namespaces") == "0":
        return "ask for `sysctl -w user.max_user_namespaces=10000`"
    if _sysctl("kernel.apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor forbids it to this interpreter: ask for `sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0`, or for an AppArmor profile with "
            f"`userns,` for {os.path.realpath('/proc/self/exe')}"
        )
    if number == errno.EINVAL:
        return "the kernel was built without user namespaces (CONFIG_USER_NS)"
    return (
        "no sysctl forbids it, so a seccomp filter or a security module does; inside a container "
        "start it with `--security-opt seccomp=unconfined`"
    )
