"""Why a kernel refused a step of the start, and what to do about it: errno and sysctls to
sentences.
"""

from __future__ import annotations

import errno
import os
import platform
from pathlib import Path

from minisandbox.errors import HostUnsupported, InvalidInput, MiniSandboxError

_MECHANISMS = {
    "namespaces": "user namespaces",
    "mounts": "mount namespaces",
    "overlay": "an overlay of the layers",
    "binds": "bind mounts of host directories",
    "root": "changing the root directory",
    "proc": "a fresh /proc",
    "dev": "a private /dev",
    "tmpfs": "private temporary directories",
    "hostname": "a host name of its own",
    "loopback": "a loopback device of its own",
}


def explain(step: str, number: int, detail: str) -> MiniSandboxError:
    """The error for errno ``number`` at setup step ``step``."""
    mechanism = _MECHANISMS.get(step, step)
    if number == errno.ENOTDIR and step in ("proc", "dev", "tmpfs", "binds"):
        return InvalidInput("layers", detail, "build the layer again without that entry")
    if number == errno.E2BIG:
        return InvalidInput(
            "layers", f"too many layers: {detail}", "join layers before materializing"
        )
    if number == errno.ENOSPC and step in ("namespaces", "mounts"):
        return HostUnsupported(
            mechanism,
            "a limit on the number of namespaces (or of mounts) is reached; "
            "this is not about disk space",
            "raise user.max_*_namespaces and fs.mount-max with sysctl, or close sandboxes",
        )
    if step == "namespaces":
        return HostUnsupported(mechanism, detail, _namespace_remedy(number))
    if step == "overlay":
        return HostUnsupported(mechanism, detail, _overlay_remedy(number))
    if step == "proc" and number == errno.EPERM:
        return HostUnsupported(
            mechanism,
            f"{detail}: the /proc here is partly covered, as in containers, and then "
            "the kernel lets nobody mount another one",
            "start the outer container with its /proc unmasked "
            "(`--security-opt systempaths=unconfined`), or run outside it",
        )
    if number == errno.ENOSYS:
        remedy = f"this needs Linux 5.12 or later (here: {platform.release()}), outside gVisor"
        return HostUnsupported(mechanism, detail, remedy)
    if step == "root" and number == errno.EINVAL:
        return HostUnsupported(
            mechanism,
            f"{detail}: the root of this host is the initial ram file system",
            "boot from a disk, or chroot onto a mount first",
        )
    return HostUnsupported(mechanism, detail, "run `minisandbox doctor` for what this host allows")


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys", name.replace(".", "/")).read_text().strip()
    except OSError:
        return ""


def _namespace_remedy(number: int) -> str:
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


def _overlay_remedy(number: int) -> str:
    if number in (errno.ENODEV, errno.EPERM):
        return f"overlay in a user namespace needs Linux 5.11 or later (here: {platform.release()})"
    if number == errno.EINVAL:
        return (
            "the scratch directory must lie on a file system that can hold an upper directory "
            "(ext4, xfs, btrfs, tmpfs since Linux 6.6; not overlay, NFS or Lustre), the layers "
            "on one that can be a lower one; choose another scratch directory"
        )
    if number in (errno.EACCES, errno.ENOENT):
        return "every directory on the way to the layers must exist and be searchable by the caller"
    return "see the kernel log for the reason the overlay file system gives"
