"""Why a kernel refuses namespaces, and what to ask for: errno and sysctls to sentences.

Kernels report a limit on namespaces as ENOSPC, which everything above would take for a full disk.
Below ``idmap``, because not only sandboxes need them: so does unpacking as an ordinary user.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from minisandbox.errors import HostUnsupported

#: The namespaces of a sandbox as the sysctls user.max_*_namespaces name them (namespaces(7)).
_LIMITED = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
#: What /proc/self/attr/current holds where no security module confines this process.
_UNCONFINED = ("", "kernel", "unconfined")


def refused(number: int, detail: str, mechanism: str = "user namespaces") -> HostUnsupported:
    """The error for errno ``number`` of unshare(2) or of writing an id map.

    The remedy names what refuses, as far as it shows from inside: a sysctl, a change of the root
    directory, a seccomp filter or a security module.
    """
    if number == errno.ENOSPC:
        none = [name for name in _LIMITED if _sysctl(f"user.max_{name}_namespaces") == "0"]
        settings = ", ".join(f"user.max_{name}_namespaces" for name in none)
        return HostUnsupported(
            mechanism,
            (f"{settings} is 0" if none else "a limit on the number of namespaces is reached")
            + "; this is not about disk space",
            f"ask for `sysctl -w user.max_{none[0]}_namespaces=10000`"
            if none
            else "raise user.max_*_namespaces with sysctl, here and in every container around "
            "this one, or close sandboxes",
        )
    return HostUnsupported(mechanism, detail, _remedy(number, detail))


def _sysctl(name: str) -> str:
    return _content(f"/proc/sys/{name.replace('.', '/')}")


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip("\0\n ")
    except OSError:
        return ""


def _remedy(number: int, detail: str) -> str:
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
    if number in (errno.EINVAL, errno.ENOSYS):
        return "the kernel was built without user namespaces (CONFIG_USER_NS)"
    if number == errno.EUSERS:
        return "namespaces are nested as deep as the kernel lets them: run with fewer around it"
    if _is_chrooted():
        return (
            "this process runs in a chroot, where the kernel makes no user namespace: start it "
            "outside, or enter that tree by pivot_root, as systemd-nspawn does"
        )
    # A filter sees numbers and flags, and no path: it does not refuse to write one file.
    writes_map = "uid_map" in detail or "gid_map" in detail
    if _content("/proc/self/status").partition("\nSeccomp:\t")[2][:1] == "2" and not writes_map:
        return (
            "a seccomp filter is around this process, as container engines' are: start the "
            "container with `--security-opt seccomp=unconfined` (in Kubernetes "
            "`seccompProfile: {type: Unconfined}`), or with a profile that allows unshare, clone "
            "and mount"
        )
    label = _content("/proc/self/attr/current")
    confined = f" (it confines this process as {label!r})" if label not in _UNCONFINED else ""
    return (
        f"no sysctl and no seccomp filter forbids it, so a security module does{confined}: ask "
        "for a profile of it that lets this interpreter make user namespaces; a container is "
        "started with `--security-opt apparmor=unconfined`"
    )


def _is_chrooted() -> bool:
    """Whether the root directory is no mount, which unshare(2) gives as a reason for EPERM."""
    mounts = _content("/proc/self/mountinfo").splitlines()
    return bool(mounts) and not any(line.split(" ", 5)[4] == "/" for line in mounts)
