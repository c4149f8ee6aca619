"""Why a kernel refused a step of the start, and what to do about it: errno and sysctls to
sentences.
"""

from __future__ import annotations

import errno
import os
import platform

from minisandbox import namespaces
from minisandbox.errors import HostUnsupported, InvalidInput, MiniSandboxError

#: mount_setattr(2), with which inherited mounts are made read-only; an overlay in a user namespace
#: needs 5.11 alone.
KERNEL_FLOOR = (5, 12)

#: What each step of a start makes, as people know it.
MECHANISMS = {
    "namespaces": "user namespaces",
    "scratch": "the scratch directory",
    "mounts": "mount namespaces",
    "groups": "control groups for limits",
    "memory": "an upper directory in memory",
    "overlay": "an overlay of the layers",
    "binds": "bind mounts of host directories",
    "root": "changing the root directory",
    "proc": "a fresh /proc",
    "dev": "a private /dev",
    "directories": "private temporary directories",
    "hostname": "a host name of its own",
    "loopback": "a loopback device of its own",
    "blackhole": "a default route into its loopback device",
    "syscalls": "a filter of system calls",
    "listen": "listening sockets on a loopback device of its own",
}


def describe(error: OSError) -> str:
    """The clause ``detail`` for an error met in this process."""
    reason = error.strerror or str(error)
    place = error.filename2 or error.filename  # of a link, what is made and not where it leads
    return f"{reason} ({place})" if place else reason


def explain(step: str, number: int, detail: str) -> MiniSandboxError:
    """The error for errno ``number`` at setup step ``step``."""
    mechanism = MECHANISMS.get(step, step)
    if number == errno.ENOTDIR and step in ("proc", "dev", "directories", "binds"):
        return InvalidInput("layers", detail, "build the layer again without that entry")
    if number == errno.E2BIG:
        return InvalidInput(
            "layers", f"too many layers: {detail}", "join layers before materializing"
        )
    if number == errno.ENOSPC and step in ("namespaces", "mounts"):
        return namespaces.refused(number, detail, mechanism)
    if number in (errno.EMFILE, errno.ENFILE):
        return HostUnsupported(
            "starting another sandbox", detail, "raise the limit on open files (`ulimit -n`)"
        )
    if number == errno.EFBIG:
        return HostUnsupported(
            "starting another sandbox", detail, "raise the limit on the size of files (`ulimit -f`)"
        )
    if number == errno.EAGAIN and step in ("namespaces", "processes"):
        return HostUnsupported(
            "starting another sandbox",
            f"the limit on processes is reached: {detail}",
            "raise it (`ulimit -u`, or pids.max of a control group around this process)",
        )
    if step == "namespaces":
        return namespaces.refused(number, detail)
    if step == "scratch":
        return HostUnsupported(
            mechanism, detail, "make it writable and free some space there, or choose another one"
        )
    if step == "groups" and number in (errno.ENOSPC, errno.EAGAIN):
        return HostUnsupported(
            mechanism,
            f"{detail}, which is about the number of groups",
            "remove some, or ask for more (cgroup.max.descendants of the groups around this one)",
        )
    if step == "memory" and number in (errno.EOPNOTSUPP, errno.EPERM):
        return HostUnsupported(
            mechanism,
            f"{detail}: memory file systems keep users' extended attributes since Linux 6.6 "
            f"(here: {platform.release()})",
            "use a profile whose upper is on disk",
        )
    if step == "overlay":
        return HostUnsupported(mechanism, detail, _overlay_remedy(number, detail))
    if step == "proc" and number == errno.EPERM:
        return HostUnsupported(
            mechanism,
            f"{detail}: the /proc here is partly covered, as in containers, and then "
            "the kernel lets nobody mount another one",
            "start the outer container with its /proc unmasked "
            "(`--security-opt systempaths=unconfined`, in Kubernetes `procMount: Unmasked`), or "
            "run outside it",
        )
    if step == "syscalls":
        return HostUnsupported(mechanism, detail, _filter_remedy(number))
    if number == errno.ENOSYS:
        needed = ".".join(map(str, KERNEL_FLOOR))
        remedy = f"this needs Linux {needed} or later (here: {platform.release()}), outside gVisor"
        return HostUnsupported(mechanism, detail, remedy)
    if step == "root" and number == errno.EINVAL:
        return HostUnsupported(
            mechanism,
            f"{detail}: the root of this host is the initial ram file system",
            "boot from a disk, or chroot onto a mount first",
        )
    return HostUnsupported(mechanism, detail, "run `minisandbox doctor` for what this host allows")


def explain_unwatched(number: int) -> str:
    """Why connections are not recorded: the kernel refused the filter with errno ``number``."""
    if number == errno.EBUSY:
        reason = "a seccomp filter around this process, such as a container engine's, has the one"
        return f"{reason} listener that the kernel allows"
    if number in (errno.ENOSYS, errno.EINVAL):
        return (
            "this kernel has no seccomp listeners, or a seccomp filter around this process says so"
        )
    return f"the kernel refuses a seccomp listener: {os.strerror(number)}"


def explain_unreadable(error: OSError) -> str:
    """Why the recorded addresses say nothing: the memory of programs inside is closed to us."""
    return (
        "memory of programs inside cannot be read, as where kernel.yama.ptrace_scope is 3: "
        f"{describe(error)}"
    )


def _filter_remedy(number: int) -> str:
    if number == errno.ENOMEM:
        return "too many filters apply around this process: start it below fewer of them"
    outside = "start the outer container with `--security-opt seccomp=unconfined`"
    if number in (errno.ENOSYS, errno.EINVAL):
        return f"use a kernel with CONFIG_SECCOMP_FILTER, or, inside a container, {outside}"
    return f"a filter around this process or a security module forbids it; {outside}"


def _overlay_remedy(number: int, detail: str) -> str:
    if number == errno.ENODEV:
        return "this kernel has no overlay file system: ask for `modprobe overlay`"
    # EACCES may also be about the way to a layer.
    if number == errno.EPERM or (number == errno.EACCES and detail.startswith("mount ")):
        needed = ".".join(map(str, KERNEL_FLOOR))
        return (
            f"in a user namespace this needs Linux {needed} or later (here: {platform.release()}), "
            "and no security module or seccomp filter that forbids it, as container engines have: "
            "`--security-opt apparmor=unconfined --security-opt seccomp=unconfined`"
        )
    if number == errno.EINVAL:
        return (
            "the scratch directory must lie on a file system that can hold an upper directory "
            "(ext4, xfs, btrfs, tmpfs since Linux 6.6; not overlay, NFS or Lustre), the layers "
            "on one that can be a lower one; choose another scratch directory: "
            "MINISANDBOX_SCRATCH names it"
        )
    if number in (errno.EACCES, errno.ENOENT):
        return "every directory on the way to the layers must exist and be searchable by the caller"
    return "see the kernel log for the reason the overlay file system gives"
