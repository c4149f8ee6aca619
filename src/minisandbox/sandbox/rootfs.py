"""The file system and devices a sandbox sees, as an ordered plan of mounts.

Runs in two places. ``stage`` mounts what needs the rights of the caller: the overlay of the layers
and the host's directories, below a staging directory. ``enter`` runs as PID 1 inside all
namespaces: it makes the staged tree the root and adds /proc, /dev and the private temporary
directories. Invariant: after ``enter`` no path and no descriptor leads to the host's root;
everything bound from it is nosuid and nodev.

All paths before the pivot are relative to the staging directory: the mapped root may not be allowed
to walk to it, and an overlay's options, limited to one page, name layers by descriptor number.
"""

from __future__ import annotations

import errno
import os
import socket
import stat

from minisandbox import linux
from minisandbox.sandbox import orders

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from typing import Any

#: Pseudo-terminals of one sandbox. All sandboxes of a machine share 3,072 (kernel.pty.max less
#: kernel.pty.reserve); without a bound, one of them leaves none to the others.
MOST_TERMINALS = 64
#: Holds upper and work directory where they are in memory.
MEMORY = "memory"

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
#: What container engines hide of /proc: settings of the host, and what tells about it.
_READ_ONLY_PROC = ("bus", "fs", "irq", "sys", "sysrq-trigger")
_MASKED_PROC = (
    "acpi",
    "asound",
    "interrupts",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
)
_PLAIN = linux.MS_NOSUID | linux.MS_NODEV
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class Refused(Exception):
    """The kernel refused a step of the setup; ``step`` is one that ``refusals`` can explain."""

    def __init__(self, step: str, error: OSError) -> None:
        self.step = step
        self.number = error.errno or errno.EIO
        self.detail = (
            f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror)
        )
        super().__init__(f"{step}: {self.detail}")


def unshare_mounts() -> None:
    """A mount namespace of this process's own: the host never sees what is staged, and the kernel
    undoes it with the end of the process.
    """
    _step("mounts", linux.unshare, linux.CLONE_NEWNS)


def detach_from_host() -> None:
    """Receive the host's unmounts but send nothing back: private copies would keep its disks
    busy.
    """
    _step("mounts", linux.mount, "", "/", "", linux.MS_SLAVE | linux.MS_REC)


def join(mounts: int, staging: int) -> None:
    """Go to the directory ``staging`` of the mount namespace ``mounts``."""
    _step("mounts", linux.enter_namespace, mounts, linux.CLONE_NEWNS)
    # By descriptor: by its path, the mapped root may not be allowed to go there.
    _step("mounts", os.fchdir, staging)
    for fd in (mounts, staging):
        os.close(fd)


def _enter_staging(spec: dict[str, Any], box: str) -> None:
    """Go to a staging directory that covers ``box``: what is made in it to mount on costs no disk
    anything.
    """
    options = "mode=755,size=1m,nr_inodes=1k"
    if spec["kind"] == "root":
        options += f",uid={spec['uids'][0][1]},gid={spec['gids'][0][1]}"
    linux.mount("tmpfs", box, "tmpfs", _PLAIN, options)
    os.chdir(box)
    os.mkdir("root", 0o755)


def mount_memory(spec: dict[str, Any]) -> None:
    """Make upper and work directory in a memory file system as large as the limits allow."""
    os.mkdir(MEMORY, 0o755)
    options = _room(spec, spec["sizes"]["upper"], "mode=755")
    linux.mount("tmpfs", MEMORY, "tmpfs", _PLAIN, options)
    for name in ("upper", "work"):
        os.mkdir(f"{MEMORY}/{name}", 0o755)
    if spec["kind"] == "root":
        for name in ("", "upper", "work"):
            os.chown(f"{MEMORY}/{name}", spec["uids"][0][1], spec["gids"][0][1])
    else:
        # The overlay would mount without them, and lose what says that a directory is opaque.
        os.setxattr(f"{MEMORY}/upper", "user.overlay.tried", b"")
        os.removexattr(f"{MEMORY}/upper", "user.overlay.tried")


def _mount_overlay(spec: dict[str, Any], upper: int, work: int) -> None:
    """Mount the layers at ``root``, with the directories ``upper`` and ``work``."""
    staging = os.open(".", _DIRECTORY)
    lowers: list[int] = []
    try:
        for path in spec["lowers"]:
            lowers.append(os.open(path, _DIRECTORY))  # noqa: PERF401 - those opened must be closed
        target = os.open("root", _DIRECTORY)
        lowers.append(target)
        # Relative to /proc/self/fd a layer costs a few bytes, and ':' or ',' in its path cannot
        # matter.
        os.chdir("/proc/self/fd")
        options = f"lowerdir={':'.join(map(str, lowers[:-1]))},upperdir={upper},workdir={work}"
        options += ",index=off,volatile"
        if spec["kind"] == "root":
            options += f",metacopy=off,redirect_dir={'on' if spec['redirect_dir'] else 'off'}"
        else:
            # Without it the mount succeeds, and removing a lower directory fails later with EIO.
            options += ",userxattr"
        linux.mount("overlay", str(target), "overlay", _PLAIN, options)
    finally:
        os.fchdir(staging)
        for fd in (*lowers, staging):
            os.close(fd)


def stage_binds(spec: dict[str, Any]) -> None:
    """Bind each host path of the spec to ``bind-<n>``, with its final attributes."""
    for number, (source, _, writable, beneath, under) in enumerate(spec["binds"]):
        place = f"bind-{number}"
        if under:
            _mount_merged(spec, [source, *under], beneath, place)
            continue
        found = _open_source(source, beneath)
        try:
            if stat.S_ISDIR(os.fstat(found).st_mode):
                os.mkdir(place, 0o755)
            else:
                os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            # Recursive: a single mount taken out of an inherited tree would uncover what lies below
            # it. A layer has no mounts, so there what lies below must not come along.
            flags = linux.MS_BIND | (0 if beneath else linux.MS_REC)
            linux.mount(f"/proc/self/fd/{found}", place, "", flags)
        finally:
            os.close(found)
        attributes = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV
        linux.set_mount_attributes(place, attributes | (0 if writable else linux.MOUNT_ATTR_RDONLY))


def _mount_merged(spec: dict[str, Any], trees: list[str], beneath: str, place: str) -> None:
    """Mount at ``place`` what is ``beneath`` each of several layers, the first on top. Without an
    upper directory an overlay is read-only.
    """
    os.mkdir(place, 0o755)
    staging = os.open(".", _DIRECTORY)
    found: list[int] = []
    try:
        for tree in trees:
            found.append(_open_source(tree, beneath))  # noqa: PERF401 - those opened must be closed
        target = os.open(place, _DIRECTORY)
        found.append(target)
        os.chdir("/proc/self/fd")
        options = f"lowerdir={':'.join(map(str, found[:-1]))},index=off"
        options += ",userxattr" if spec["kind"] != "root" else ",metacopy=off,redirect_dir=off"
        linux.mount("overlay", str(target), "overlay", _PLAIN | linux.MS_RDONLY, options)
    finally:
        os.fchdir(staging)
        for fd in (*found, staging):
            os.close(fd)


def _open_source(source: str, beneath: str) -> int:
    """What a bind shows, as a descriptor: bound by it, a path cannot lead elsewhere meanwhile."""
    # In this mount namespace, not by the client: the kernel binds no descriptor of another one.
    top = os.open(source, os.O_PATH | os.O_CLOEXEC)
    if not beneath:
        return top
    try:
        return linux.open_beneath(top, beneath, os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EXDEV):
            raise
        reason = f"{beneath} of a layer is no directory of its own, and no link there is followed"
        raise OSError(errno.ENOTDIR, reason, source) from error
    finally:
        os.close(top)


def stage(spec: dict[str, Any], box: str) -> None:
    """Everything that is mounted with the caller's rights, for the sandbox with the directory
    ``box``; the working directory is the staging one afterwards.
    """
    # Before they are covered.
    changes = _step("scratch", _open_changes, box)
    try:
        _step("mounts", _enter_staging, spec, box)
        if spec["upper"] == "memory":
            _step("memory", mount_memory, spec)
            on_disk, changes = changes, _step("memory", _open_changes, MEMORY)
            _close(on_disk)
        _step("overlay", _mount_overlay, spec, *changes)
    finally:
        _close(changes)
    _step("binds", stage_binds, spec)


def _open_changes(place: str) -> list[int]:
    """Upper and work directory in ``place``."""
    return [os.open(os.path.join(place, name), _DIRECTORY) for name in ("upper", "work")]


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def is_proc_covered() -> bool:
    """Whether something is mounted below /proc: then the kernel lets no user namespace have a /proc
    of its own, which would show what was covered (mount_namespaces(7)).
    """
    with open("/proc/self/mountinfo", "rb") as mounts:
        return any(line.split(b" ", 5)[4].startswith(b"/proc/") for line in mounts)


def new_proc() -> int:
    """A /proc of the pid namespace of this process, as a descriptor for ``enter``."""
    attributes = linux.MOUNT_ATTR_NOSUID | linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOEXEC
    return linux.new_mount("proc", attributes)


def enter(spec: dict[str, Any], proc: int | None = None) -> None:
    """Make the staged tree the root of this process (PID 1 of the sandbox) and furnish it.

    ``proc`` is a /proc that was made where more is allowed.
    """
    staging = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    host = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _step("root", _pivot)
        _step("directories", _check_directories)
        os.fchdir(staging)
        _step("binds", _move_binds, spec)
        _step("proc", _mount_proc, proc)
        os.fchdir(host)
        _step("dev", _mount_dev, spec)
        _step("root", linux.umount, ".", linux.MNT_DETACH)
    finally:
        os.close(staging)
        os.close(host)
    os.chdir("/")
    _step("hostname", socket.sethostname, spec["hostname"])


def bring_up_loopback() -> None:
    """In a network namespace of its own."""
    _step("loopback", linux.bring_up_loopback)


def make_blackhole() -> None:
    """In a network namespace of its own, whose loopback device is up."""
    _step("blackhole", linux.route_all_to_loopback)


def _step(name: str, function: Any, *arguments: Any) -> Any:
    orders.at(name)
    try:
        return function(*arguments)
    except OSError as error:
        raise Refused(name, error) from error


def _pivot() -> None:
    # An inherited mount is locked and cannot become the root; a copy of it can. Recursive, as runc
    # does.
    linux.mount("root", "root", "", linux.MS_BIND | linux.MS_REC)
    os.chdir("root")
    # Both arguments the same: the old root lies on top of the new one, still reachable by
    # descriptor, and no directory of the sandbox has to serve as its place (pivot_root(2), NOTES).
    linux.pivot_root(".", ".")


def _directory(path: str, mode: int = 0o755) -> str:
    """``path`` as a real directory to mount on. A layer that has a link there would redirect the
    mount.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise OSError(errno.ENOTDIR, "a layer replaces this directory by something else", path)
    except FileNotFoundError:
        os.mkdir(path, mode)
    return path


def _check_directories() -> None:
    for name in ("/tmp", "/run"):
        _directory(name)


def _tmpfs(path: str, options: str, flags: int = _PLAIN) -> None:
    linux.mount("tmpfs", _directory(path), "tmpfs", flags, options)


def _room(spec: dict[str, Any], size: int, options: str) -> str:
    """Mount options of a memory file system of ``size`` bytes (0: the kernel's default).

    Inodes are memory that no size counts, and the kernel's default of them is gigabytes.
    """
    inodes = spec["limits"]["inodes"]
    options += f",size={size}" if size else ""
    return options + (f",nr_inodes={inodes}" if inodes is not None else "")


def _move_binds(spec: dict[str, Any]) -> None:
    for number, (_, target, *_) in enumerate(spec["binds"]):
        place = f"bind-{number}"
        if os.path.isdir(place):
            os.makedirs(target, exist_ok=True)
        elif not os.path.exists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC, 0o644))
        linux.mount(place, target, "", linux.MS_BIND | linux.MS_REC)


def _mount_proc(made: int | None) -> None:
    if made is None:
        linux.mount("proc", _directory("/proc"), "proc", _PLAIN | linux.MS_NOEXEC)
    else:
        linux.attach_mount(made, _directory("/proc"))
        os.close(made)
    for name in _READ_ONLY_PROC:
        path = f"/proc/{name}"
        if os.path.exists(path):
            linux.mount(path, path, "", linux.MS_BIND | linux.MS_REC)
            linux.set_mount_attributes(path, linux.MOUNT_ATTR_RDONLY)


def _mask_proc() -> None:
    for name in _MASKED_PROC:
        path = f"/proc/{name}"
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(mode):
            linux.mount("tmpfs", path, "tmpfs", _PLAIN | linux.MS_RDONLY, "size=4k,mode=555")
        else:
            linux.mount("/dev/null", path, "", linux.MS_BIND)


def _mount_dev(spec: dict[str, Any]) -> None:
    # Empty files take no blocks, and the kernel's default of inodes is millions.
    _tmpfs("/dev", "mode=755,size=1m,nr_inodes=1k", linux.MS_NOSUID)
    for name in _DEVICES:
        os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_CLOEXEC, 0o666))
        linux.mount(f"dev/{name}", f"/dev/{name}", "", linux.MS_BIND)  # relative: the host's
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"/dev/{name}")
    os.mkdir("/dev/pts", 0o755)
    group = ",gid=5" if spec["ids"] > 5 else ""  # 5 is the group tty; it must exist in the id map
    options = f"newinstance,ptmxmode=0666,mode=620,max={MOST_TERMINALS}{group}"
    linux.mount("devpts", "/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, options)
    os.mkdir("/dev/shm", 0o755)
    _tmpfs("/dev/shm", _room(spec, spec["sizes"]["shm"], "mode=1777"))
    os.mkdir("/dev/mqueue", 0o755)
    try:
        linux.mount("mqueue", "/dev/mqueue", "mqueue", _PLAIN | linux.MS_NOEXEC)
    except OSError as error:
        if error.errno != errno.ENODEV:  # kernels without POSIX message queues
            raise
    _mask_proc()
