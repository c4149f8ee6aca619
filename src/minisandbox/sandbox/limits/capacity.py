"""For people: by which mechanism each limit holds on this host, and how many sandboxes fit.

Not loaded by the server. Each figure is one of the kernel's, read when asked; what a sandbox takes
of it is measured on one that runs.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minisandbox.sandbox.limits import usage
from minisandbox.sandbox.limits.declared import Limits

_MIB = 1 << 20
#: The namespaces of a sandbox as the sysctls user.max_*_namespaces name them (namespaces(7)).
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
#: What PID 1 and its waiting monitor are to the kernel.
_PROCESSES = 2
#: Descriptors for each sandbox in the client or in the server, whichever has more.
_DESCRIPTORS = 3


@dataclass(frozen=True)
class Room:
    """How many sandboxes one resource is enough for, and in a clause why."""

    resource: str
    count: int
    why: str


def mechanisms(
    words: Mapping[str, str], limits: Limits, *, events: str, ids: int
) -> dict[str, str]:
    """For each limit in force, its word and what keeps it; ``events`` as in the ledger."""
    version = 1 if events.endswith("oom_control") else 2
    group = f"by a control group (version {version})"
    each = "by RLIMIT_NPROC" if ids == 1 else "by RLIMIT_NPROC for each user inside"
    enforced = {
        "memory": group,
        "cpus": f"by the affinity of its processes, and {group}",
        "processes": group if events else each,
        "disk": "by the size of its memory file system",
        "inodes": "by the size of its memory file system",
        "open_files": "by RLIMIT_NOFILE",
        "time": "by the server's clock",
    }
    watched = {
        "memory": "measured four times a second, as no control group can be made here",
        "cpus": "the affinity of its processes, put back when they change it",
        "processes": f"{each}; all users together are counted",
        "disk": "its upper directory is measured while something runs",
        "inodes": "its upper directory is measured while something runs",
    }
    texts: dict[str, str] = {}
    for name, value in limits.identity().items():
        if words[name] != "none":
            how = (enforced if words[name] == "enforced" else watched)[name]
            texts[name] = f"{_shown(name, value)}, {words[name]}: {how}"
    return texts


def _shown(name: str, value: float) -> str:
    return f"{value / (1 << 30):g} GiB" if name in ("memory", "disk") else f"{value:,}"


def rooms(init: int, scratch: Path, limits: Limits) -> list[Room]:
    """How many sandboxes like the one of PID 1 ``init``, in which nothing runs, fit on this host
    at once, by each resource that they share; the scarcest first.
    """
    # Theirs alone is what one more of them takes; the interpreter's pages they all share.
    private = sum(_private(pid) for pid in (init, *usage.below(init).processes))
    available = _meminfo("MemAvailable")
    found = [
        Room(
            "memory",
            available // max(private, 1),
            f"{private / _MIB:.1f} MiB, and what the kernel needs, for each in which nothing runs, "
            f"of {_gib(available)}",
        ),
        _processes(),
        _namespaces(),
        _descriptors(),
        Room(
            "inotify",
            _number("/proc/sys/user/max_inotify_instances"),
            "if each takes one instance: all of a host id share user.max_inotify_instances",
        ),
    ]
    if limits.memory is not None:
        why = f"if each uses all of its {_gib(limits.memory)}, of {_gib(available)}"
        found.append(Room("memory in full use", available // limits.memory, why))
    if limits.disk is not None:
        status = os.statvfs(scratch)
        free = status.f_bavail * status.f_frsize
        why = f"if each writes all of its {_gib(limits.disk)}, of {_gib(free)} free"
        found.append(Room("disk in full use", free // limits.disk, why))
    return sorted(found, key=lambda room: room.count)


def _private(pid: int) -> int:
    total = 0
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):  # a monitor whose request is done
        return 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in ("Private_Clean", "Private_Dirty"):
            total += int(value.split()[0]) << 10
    return total


def _processes() -> Room:
    bounds = {
        "kernel.pid_max": _number("/proc/sys/kernel/pid_max"),
        "kernel.threads-max": _number("/proc/sys/kernel/threads-max"),
    }
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        bounds["`ulimit -u`"] = soft
    name = min(bounds, key=bounds.__getitem__)
    why = f"{_PROCESSES} for each in which nothing runs, and {name} is {bounds[name]:,}"
    return Room("processes", bounds[name] // _PROCESSES, why)


def _namespaces() -> Room:
    bounds = {
        f"user.max_{name}_namespaces": _number(f"/proc/sys/user/max_{name}_namespaces")
        for name in _NAMESPACES
    }
    name = min(bounds, key=bounds.__getitem__)
    return Room("namespaces", bounds[name], f"{name}, one for each")


def _descriptors() -> Room:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        soft = _number("/proc/sys/fs/nr_open")
    why = f"{_DESCRIPTORS} for each in this process or its server, and `ulimit -n` is {soft:,}"
    return Room("descriptors", soft // _DESCRIPTORS, why)


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    raise ValueError(f"/proc/meminfo has no {name}")


def _number(path: str) -> int:
    return int(Path(path).read_text())


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.3g} GiB"
