"""What this host lets a sandbox do, found by doing it.

A kernel that mounts an overlay may still refuse to remove a lower directory through it, so reading
versions and settings is not enough: a sandbox is started, and each promise is tried inside. Backs
`minisandbox doctor`.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from minisandbox import mounts
from minisandbox.errors import HostUnsupported, MiniSandboxError
from minisandbox.idmap import IdMap, call_mapped, current, remove_tree
from minisandbox.sandbox import refusals, rootfs
from minisandbox.sandbox.client import Sandbox
from minisandbox.sandbox.limits import capacity
from minisandbox.sandbox.profile import Profile
from minisandbox.sandbox.refusals import KERNEL_FLOOR


@dataclass(frozen=True)
class Check:
    """One promise: whether it holds here, what was seen, and what to do where it does not.

    Without a ``required`` one instances are not what they were built as; without another one some
    of their tests fail.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True


_OPTIONAL = frozenset({"loopback IPv4", "loopback IPv6", "terminals", "shared memory"})

#: Name, script that must end with 0, and what a failure means.
_PROMISES = (
    (
        "overlay: copy-up",
        "echo x >> /testbed/low",
        "the scratch file system cannot hold an upper directory",
    ),
    (
        "overlay: whiteout",
        "rm /testbed/gone && test ! -e /testbed/gone",
        "files of layers cannot be deleted; choose another scratch directory",
    ),
    (
        "overlay: opaque directory",
        'rm -r /testbed/dir && mkdir /testbed/dir && test -z "$(ls -A /testbed/dir)"',
        "the scratch file system keeps no extended attributes (tmpfs does since Linux 6.6)",
    ),
    (
        "overlay: moving a directory",
        "mv /testbed/moves /testbed/moved && test -e /testbed/moved/a",
        "directories of layers cannot be moved; choose another scratch directory",
    ),
    (
        "own processes only",
        'test -d /proc/1 && test "$(ls -d /proc/[0-9]* | wc -l)" -lt 20',
        "/proc shows processes of the host",
    ),
    (
        "loopback IPv4",
        "python3 -c \"import socket; socket.create_server(('127.0.0.1', 0))\"",
        "tests that open local servers fail",
    ),
    (
        "loopback IPv6",
        "python3 -c \"import socket; socket.create_server(('::1', 0), family=10)\"",
        "IPv6 is switched off; tests that use ::1 fail",
    ),
    ("terminals", "script -qc true /dev/null", "tests that open a terminal fail"),
    (
        "shared memory",
        'test "$(stat -c %a /dev/shm)" = 1777 && echo x > /dev/shm/x',
        "multiprocessing fails",
    ),
)


def probe(scratch: Path | None = None) -> list[Check]:
    """Try everything a sandbox needs with the caller's best id map; never raises for a host's
    refusal.

    ``scratch`` is where sandboxes would keep their files (a temporary directory unless given):
    whether it can hold an overlay's upper directory is part of the answer.
    """
    checks = [_kernel(), _id_map(current())]
    directory = Path(tempfile.mkdtemp(prefix="probe-", dir=scratch))
    try:
        checks.extend(_promises(directory, current()))
    finally:
        remove_tree(directory, current())
    return checks


def _kernel() -> Check:
    release = os.uname().release
    numbers = re.match(r"(\d+)\.(\d+)", release)
    ok = bool(numbers) and (int(numbers[1]), int(numbers[2])) >= KERNEL_FLOOR
    needed = ".".join(map(str, KERNEL_FLOOR))
    return Check(
        "kernel", ok, f"Linux {release}", "" if ok else f"Linux {needed} or later is needed"
    )


def _id_map(idmap: IdMap) -> Check:
    if idmap.kind == "single":
        found = shutil.which("newuidmap", path="/usr/bin:/bin:/usr/sbin:/sbin")
        remedy = (
            f"for more ids: give {os.geteuid()} 65536 of them in /etc/subuid and /etc/subgid"
            f"{'' if found else ' and install newuidmap (package uidmap or shadow-utils)'}"
        )
        seen = "only id 0 inside: chown and su to other users fail"
        return Check("ids", True, seen, remedy, required=False)
    origin = "a range that root takes" if idmap.kind == "root" else "the range in /etc/subuid"
    return Check("ids", True, f"{idmap.count} ids inside, from {origin}", required=False)


def _mechanisms(box: Sandbox, idmap: IdMap, scratch: Path) -> list[Check]:
    """What ``box`` uses of what this host offers."""
    root = idmap.kind == "root"
    overlay = "mounted by root" if root else "mounted in the user namespace"
    kind, place = mounts.file_system(scratch)
    proc = "its own"
    if rootfs.is_proc_covered():
        proc += ", made by root: the one here is partly covered, as in containers"
    listener = box.watched
    filters = box.run("grep '^Seccomp:' /proc/self/status").text.split()[-1:] == ["2"]
    return [
        Check(
            "namespaces", True, "user, mount, pid, network, ipc, uts and cgroup: a sandbox starts"
        ),
        Check("overlay", True, f"{overlay}, its upper directory on {kind} ({place})"),
        Check("/proc", True, proc),
        Check("network", True, "a network of its own: the loopback device, and nothing else"),
        Check(
            "system calls",
            filters,
            "a seccomp filter of ours" if filters else "no filter is in force",
            "" if filters else "the kernel needs CONFIG_SECCOMP_FILTER",
        ),
        Check(
            "record of connections",
            not listener,
            listener or "a seccomp listener",
            "records of builds do not say which addresses were tried" if listener else "",
            required=False,
        ),
    ]


def _limits(box: Sandbox, profile: Profile, idmap: IdMap, scratch: Path) -> list[Check]:
    """How each limit of the default profile holds here, and how many sandboxes fit."""
    events = box._link.limits.events  # pyright: ignore[reportPrivateUsage]
    texts = capacity.mechanisms(box.limits, profile.limits, events=events, ids=idmap.count)
    checks = [
        Check(f"limit on {name.replace('_', ' ')}", True, text) for name, text in texts.items()
    ]
    rooms = capacity.rooms(box.pid, scratch, profile.limits)
    checks.extend(
        Check(f"room by {room.resource}", True, f"{room.count:,} sandboxes: {room.why}")
        for room in rooms
    )
    return checks


def _next(error: HostUnsupported, idmap: IdMap) -> list[Check]:
    """What will be refused as soon as ``error`` is mended, so that both are asked for at once."""
    covered = refusals.explain("proc", errno.EPERM, "Operation not permitted")
    assert isinstance(covered, HostUnsupported)
    if idmap.kind == "root" or not rootfs.is_proc_covered():
        return []
    if error.mechanism == covered.mechanism:
        return []  # it is what was met
    return [Check(covered.mechanism, False, covered.reason, covered.remedy)]


def _write_layer(root: Path, owner: tuple[int, int] | None) -> None:
    for name in ("testbed/low", "testbed/gone", "testbed/dir/a", "testbed/moves/a"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    if owner is not None:
        for path in (root, *root.rglob("*")):
            os.chown(path, *owner)


def _promises(directory: Path, idmap: IdMap) -> list[Check]:
    layer, scratch = directory / "layer", directory / "scratch"
    owner = (idmap.host_uid(0), idmap.host_gid(0)) if idmap.kind == "root" else None
    scratch.mkdir()
    try:
        call_mapped(idmap, partial(_write_layer, layer, owner))
        profile = Profile(watch=True)
        with Sandbox.start([layer], scratch=scratch, idmap=idmap, profile=profile) as box:
            checks = [*_mechanisms(box, idmap, scratch), *_limits(box, profile, idmap, scratch)]
            for name, script, meaning in _PROMISES:
                result = box.run(script, timeout=30)
                ended = f"ended with {result.exit_code}"
                seen = (result.stderr_text.strip().splitlines() or [ended])[-1]
                remedy = "" if result.ok else meaning
                detail = "works" if result.ok else seen
                required = name not in _OPTIONAL
                checks.append(Check(name, result.ok, detail, remedy, required=required))
            return checks
    except HostUnsupported as error:
        return [Check(error.mechanism, False, error.reason, error.remedy), *_next(error, idmap)]
    except (MiniSandboxError, OSError) as error:
        return [Check("starting a sandbox", False, str(error), "see the reason given")]
