"""The system calls Python has no function for, each raising ``OSError`` with errno and path.

Invariant: nothing here decides anything; policy lives with the callers. Kept to the modules an
interpreter started with ``-I -S`` loads in a few milliseconds (no dataclasses, no pathlib), because
the server of sandboxes imports it. Constants are those of the kernel's uapi headers; both
x86_64 and aarch64.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from typing import NoReturn

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_SLAVE = 1 << 19
MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
MOUNT_ATTR_NOEXEC = 8
_AT_RECURSIVE = 0x8000
_AT_FDCWD = -100

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

CAP_SETUID = 7
CAP_SYS_ADMIN = 21

#: linux/capability.h; the sets of one process are two rows of three words.
_CAPABILITY_VERSION_3 = 0x20080522

_KEYCTL_JOIN_SESSION_KEYRING = 1

_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_GET_NOTIF_SIZES = 3
_SECCOMP_FLAG_SPEC_ALLOW = 1 << 2
_SECCOMP_FLAG_NEW_LISTENER = 1 << 3
_SECCOMP_FLAG_WAIT_KILLABLE_RECV = 1 << 5

_RTM_NEWROUTE = 24
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_REPLACE, _NLM_F_CREATE = 0x1, 0x4, 0x100, 0x400
_RT_TABLE_MAIN, _RTPROT_BOOT, _RT_SCOPE_LINK, _RTN_UNICAST = 254, 3, 253, 1
_RTA_OIF, _RTA_PREFSRC = 4, 7
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1

#: linux/fs.h: FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, and chattr(1)'s T.
_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS = 0x80086601, 0x40086602
_FS_TOPDIR_FL = 0x00020000

#: Numbers that differ between architectures; those since 5.1 (like mount_setattr) are the same
#: everywhere.
_SYSCALLS = {
    "x86_64": {"clone": 56, "pivot_root": 155, "keyctl": 250, "seccomp": 317},
    "aarch64": {"clone": 220, "pivot_root": 41, "keyctl": 219, "seccomp": 277},
}
_SYS_MOUNT_SETATTR = 442
_SYS_OPENAT2 = 437
_SYS_MOVE_MOUNT, _SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 429, 430, 431, 432

#: linux/mount.h; the CLOEXEC flags of fsopen(2) and fsmount(2) have the same value.
_FS_CLOEXEC = 1
_FSCONFIG_CMD_CREATE = 6
_MOVE_MOUNT_F_EMPTY_PATH = 4

#: No mount is crossed, no link and no ``/proc`` descriptor is followed, nothing leads above the
#: start (linux/openat2.h: NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH).
_RESOLVE_PLAIN = 0x01 | 0x02 | 0x04 | 0x08

#: What Python, the server and PID 1 handle or ignore; all others are as the kernel gave them.
CHANGED_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGCHLD,
)

#: One range of an id map: first id inside, first id outside, how many.
Extent = tuple[int, int, int]

_libc = ctypes.CDLL(None, use_errno=True)
#: Calls through it do not release the interpreter lock, which a copy of this process could not take
#: again.
_locked_libc = ctypes.PyDLL(None, use_errno=True)

#: Looked up here and kept by ctypes: else each fork of the server would search all libraries for
#: each of them, and write to pages that it shares until then.
_FUNCTIONS = (
    *("capset", "close_range", "mount", "prctl", "process_vm_readv"),
    *("setns", "syscall", "umount2", "unshare"),
)
for _name in _FUNCTIONS:
    getattr(_libc, _name, None)  # the C library may be older than one of them
for _name in ("PyOS_BeforeFork", "PyOS_AfterFork_Child", "PyOS_AfterFork_Parent"):
    getattr(ctypes.pythonapi, _name)
_locked_libc.syscall  # noqa: B018


class NamespacesRefused(OSError):
    """The kernel refused a namespace or its id map: ENOSPC is a limit then, not a full disk."""


def _check(result: int, what: str, path: str | None = None) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}", path)
    return result


def _number(name: str) -> int:
    numbers = _SYSCALLS.get(os.uname().machine)
    if numbers is None:
        raise OSError(errno.ENOSYS, f"{name}: no system call numbers for {os.uname().machine}")
    return numbers[name]


def _syscall(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    return _check(_libc.syscall(_number(name), *arguments), name)


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(flags), "unshare")


def enter_namespace(fd: int, kind: int) -> None:
    """setns(2) for a descriptor of ``/proc/<pid>/ns/...``; ``kind`` is its ``CLONE_NEW*``."""
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2); ``options`` longer than the kernel's one page are an error that says so."""
    encoded = os.fsencode(options)
    if len(encoded) >= os.sysconf("SC_PAGE_SIZE"):
        # mount(2) cuts at one page without a word: a lower layer would silently be missing.
        raise OSError(errno.E2BIG, f"mount options of {len(encoded)} bytes exceed one page", target)
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        encoded or None,
    )
    _check(result, f"mount {kind or source}", target)


def umount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), flags), "umount", target)


def open_beneath(directory: int, path: str, flags: int) -> int:
    """Open the relative ``path`` below the descriptor ``directory`` (openat2(2), Linux 5.6).

    ELOOP where a component is a link, EXDEV where one is a mount point or leads above the start.
    """
    # struct open_how: flags, mode, resolve.
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, _RESOLVE_PLAIN)
    result = _libc.syscall(
        _SYS_OPENAT2,
        directory,
        os.fsencode(path),
        ctypes.c_char_p(how),
        ctypes.c_size_t(len(how)),
    )
    return _check(result, "openat2", path)


def new_mount(kind: str, attributes: int) -> int:
    """A descriptor of a mount of a fresh file system that is attached nowhere (fsmount(2)).

    Whether it is allowed is decided by the mount namespace of the caller, not by the one in which
    it is attached later.
    """
    fd = _check(_libc.syscall(_SYS_FSOPEN, kind.encode(), _FS_CLOEXEC), f"fsopen {kind}")
    try:
        _check(_libc.syscall(_SYS_FSCONFIG, fd, _FSCONFIG_CMD_CREATE, None, None, 0), "fsconfig")
        return _check(_libc.syscall(_SYS_FSMOUNT, fd, _FS_CLOEXEC, attributes), f"fsmount {kind}")
    finally:
        os.close(fd)


def attach_mount(fd: int, target: str) -> None:
    """Attach what :func:`new_mount` made at ``target`` (move_mount(2))."""
    path = os.fsencode(target)
    result = _libc.syscall(_SYS_MOVE_MOUNT, fd, b"", _AT_FDCWD, path, _MOVE_MOUNT_F_EMPTY_PATH)
    _check(result, "move_mount", target)


def enter_pid_namespace(pid: int) -> None:
    """Have children of this process start in the pid namespace of ``pid`` (setns(2))."""
    fd = os.pidfd_open(pid)
    try:
        _check(_libc.setns(fd, CLONE_NEWPID), "setns")
    finally:
        os.close(fd)


def set_mount_attributes(target: str, attributes: int) -> None:
    """Add ``MOUNT_ATTR_*`` to a mount and all mounts below it (mount_setattr(2), Linux 5.12)."""
    # struct mount_attr: attr_set, attr_clr, propagation, userns_fd. Unlike a remount this cannot
    # clear a flag by omission, which the kernel refuses for mounts inherited from a more privileged
    # namespace.
    attr = struct.pack("=QQQQ", attributes, 0, 0, 0)
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(target),
        _AT_RECURSIVE,
        ctypes.c_char_p(attr),
        ctypes.c_size_t(len(attr)),
    )
    _check(result, "mount_setattr", target)


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2)."""
    _syscall("pivot_root", os.fsencode(new_root), os.fsencode(put_old))


def _prctl(option: int, value: int, what: str) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), what)


def set_parent_death_signal(number: int) -> None:
    """Get signal ``number`` when the parent *thread* ends; a change of ids clears it (prctl(2))."""
    _prctl(_PR_SET_PDEATHSIG, number, "PR_SET_PDEATHSIG")


def become_subreaper() -> None:
    """Orphans among the descendants become children of this process instead of PID 1's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def set_dumpable(dumpable: bool) -> None:
    """A change of ids clears it, and then ``/proc/self`` belongs to root of the host (proc(5))."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable), "PR_SET_DUMPABLE")


def forbid_new_privileges() -> None:
    """No program started from here on gains anything from set-id bits or file capabilities."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


def limit_capabilities(keep: frozenset[int]) -> None:
    """Drop all capabilities but ``keep`` from the bounding set, for every program executed
    later.
    """
    for capability in range(64):
        if capability in keep:
            continue
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) == -1:
            if ctypes.get_errno() == errno.EINVAL:  # one past the last this kernel knows
                return
            _check(-1, "PR_CAPBSET_DROP")


def install_filter(program: bytes) -> None:
    """Filter the system calls of this thread and of all it starts, for ever.

    ``program`` is an array of ``struct sock_filter``. Needs no_new_privs, or CAP_SYS_ADMIN in the
    own user namespace (EACCES). EINVAL or ENOSYS where the kernel has no filters, ENOMEM below too
    many others.
    """
    # Not prctl(2), which knows no flags: without SPEC_ALLOW, kernels before 5.16 slow every program
    # below the filter down.
    _seccomp(_SECCOMP_FLAG_SPEC_ALLOW, program)


def install_reporting_filter(program: bytes) -> int:
    """Like :func:`install_filter`; returns the listener at which the calls that the filter reports
    are answered.

    EBUSY where a filter with a listener applies already, as below some container engines.
    """
    flags = _SECCOMP_FLAG_NEW_LISTENER | _SECCOMP_FLAG_SPEC_ALLOW
    try:
        # A signal that interrupts connect(2) before it has begun would have programs wait for a
        # connection that nobody is making.
        return _seccomp(flags | _SECCOMP_FLAG_WAIT_KILLABLE_RECV, program)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the flag came with Linux 5.19
            raise
        return _seccomp(flags, program)


def _seccomp(flags: int, program: bytes) -> int:
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: count of instructions, their place.
    filters = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    return _syscall("seccomp", _SECCOMP_SET_MODE_FILTER, flags, filters)


def notification_sizes() -> tuple[int, int]:
    """Bytes of a notification and of an answer at a seccomp listener of this kernel."""
    # struct seccomp_notif_sizes: notification, answer, data.
    sizes = ctypes.create_string_buffer(6)
    _syscall("seccomp", _SECCOMP_GET_NOTIF_SIZES, 0, sizes)
    notification, answer, _ = struct.unpack("=HHH", sizes.raw)
    return notification, answer


def read_memory(pid: int, address: int, size: int) -> bytes:
    """Up to ``size`` bytes at ``address`` of process ``pid`` (process_vm_readv(2)).

    EFAULT where nothing is mapped, EPERM for a process that the caller may not trace.
    """
    buffer = ctypes.create_string_buffer(size)
    # struct iovec: start, length.
    ours = struct.pack("@PN", ctypes.addressof(buffer), size)
    theirs = struct.pack("@PN", address, size)
    one = ctypes.c_ulong(1)
    result = _libc.process_vm_readv(pid, ours, one, theirs, one, ctypes.c_ulong(0))
    return buffer.raw[: _check(result, "process_vm_readv")]


def drop_capabilities() -> None:
    """Give up every capability that this process has; its ids stay."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), 8)
    _check(_libc.capset(header, bytes(2 * 3 * 4)), "capset")


def effective_capabilities() -> int:
    """The effective set of this process as a bit mask."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0


def new_session_keyring() -> None:
    """Leave the caller's session keyring behind; kernels without keys are fine."""
    try:
        _syscall("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, 0)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES):
            raise


def bring_up_loopback() -> None:
    """Set ``lo`` up; the kernel then gives it 127.0.0.1 and, where it knows IPv6, ::1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(probe, _SIOCGIFFLAGS, request))[1]
        if not flags & _IFF_UP:  # nested in gVisor it is up already, and setting it fails
            fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def route_all_to_loopback() -> None:
    """Make the loopback device the way to every IPv4 address that is not local, from 127.0.0.1.

    The kernel drops what it is to route there without a word (the way out of such a route has no
    way in), so that a connection waits for its answer until it times out. Of IPv6 it makes routes
    there refusals, whatever is asked for. Layout: rtnetlink(7).
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        # struct rtmsg: family, lengths of destination and source, tos, table, protocol, scope,
        # type, flags.
        message = struct.pack(
            "=BBBBBBBBI",
            socket.AF_INET,
            0,
            0,
            0,
            _RT_TABLE_MAIN,
            _RTPROT_BOOT,
            _RT_SCOPE_LINK,
            _RTN_UNICAST,
            0,
        )
        # struct rtattr: length, type, value.
        message += struct.pack("=HHI", 8, _RTA_OIF, socket.if_nametoindex("lo"))
        message += struct.pack("=HH4s", 8, _RTA_PREFSRC, socket.inet_aton("127.0.0.1"))
        flags = _NLM_F_REQUEST | _NLM_F_ACK | _NLM_F_CREATE | _NLM_F_REPLACE
        # struct nlmsghdr: length, type, flags, sequence, port.
        header = struct.pack("=IHHII", 16 + len(message), _RTM_NEWROUTE, flags, 1, 0)
        netlink.send(header + message)
        answer = netlink.recv(4096)  # struct nlmsgerr: a header, a negative errno
        number = -struct.unpack_from("=i", answer, 16)[0]
        if number:
            raise OSError(number, os.strerror(number), "default route to lo")


def erase_command_line(title: bytes) -> None:
    """Overwrite what ``/proc/<pid>/cmdline`` shows: it names directories of the host."""
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    start, end = (
        int(fields[45]),
        int(fields[46]),
    )  # arg_start and arg_end, fields 48 and 49 of proc(5)
    if end > start > 0:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, title, min(len(title), end - start - 1))


def spread_subdirectories(directory: int) -> None:
    """Tell the file system that what is below the subdirectories of ``directory`` has nothing to do
    with each other, so that it lies apart; only those that know such a hint (ext4) heed it
    (chattr(1), attribute T).
    """
    flags = array.array("l", [0])
    try:
        fcntl.ioctl(directory, _FS_IOC_GETFLAGS, flags)
        flags[0] |= _FS_TOPDIR_FL
        fcntl.ioctl(directory, _FS_IOC_SETFLAGS, flags)
    except OSError:
        pass  # a hint: nothing but speed depends on it


def close_all_but(keep: Sequence[int]) -> None:
    """Close every descriptor from 0 up that is not in ``keep``."""
    low = 0
    for fd in sorted(set(keep)):
        if fd > low:  # CPython turns closerange(0, 0) into "close everything"
            os.closerange(low, fd)
        low = fd + 1
    limit = 1 << 20
    if hasattr(_libc, "close_range"):
        _libc.close_range(ctypes.c_uint(low), ctypes.c_uint(0xFFFFFFFF), 0)
    else:
        os.closerange(low, limit)


def reset_signals() -> None:
    """Give the dispositions a new program expects: Python ignores SIGPIPE and SIGXFSZ, programs do
    not.
    """
    for number in CHANGED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def log_exception(error: BaseException) -> None:
    """Write the traceback to standard error, where ``os._exit`` would lose it."""
    sys.excepthook(type(error), error, error.__traceback__)


def describe_exception(error: BaseException) -> str:
    """One line on what was raised and where, made without importing anything."""
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" ({os.path.basename(code.co_filename)}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{place}"


def _run(program: str, arguments: Sequence[str]) -> int:
    quiet = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in (0, 1, 2)]
    return os.posix_spawn(program, [program, *arguments], {}, file_actions=quiet)


def write_id_maps(
    pid: int, uids: Sequence[Extent], gids: Sequence[Extent], *, map_writers: tuple[str, str] | None
) -> None:
    """Write the maps of the user namespace of ``pid``, a child waiting in its new user namespace.

    With ``map_writers`` (paths of newuidmap and newgidmap) they do it, else this process, which
    must be allowed to: root any range, others one id of their own and only without setgroups
    (user_namespaces(7)).
    """
    if map_writers is not None:
        # Both run at once: each takes milliseconds, and every start waits for them.
        jobs = [
            (program, _run(program, [str(pid), *(str(number) for e in extents for number in e)]))
            for program, extents in zip(map_writers, (uids, gids), strict=True)
        ]
        for program, child in jobs:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status != 0:
                raise OSError(errno.EPERM, f"{program} ended with {status}", program)
        return
    if len(uids) == 1 and uids[0][2] == 1:
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", "".join(f"{a} {b} {n}\n" for a, b, n in uids))
    _write(f"/proc/{pid}/gid_map", "".join(f"{a} {b} {n}\n" for a, b, n in gids))


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def become_inside_root(*, groups: bool) -> None:
    """Take id 0 of the user namespace just entered; ``groups`` false where setgroups is denied."""
    if groups:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    set_dumpable(True)


def fork_mapped(
    uids: Sequence[Extent],
    gids: Sequence[Extent],
    *,
    map_writers: tuple[str, str] | None,
    child: Callable[[], None],
) -> int:
    """Fork a child that enters a new user namespace as its id 0, and runs ``child``.

    Returns its pid once the maps are written. The child ends with ``os._exit``: 0, or 1 when
    ``child`` raised, or the errno of a refused ``unshare``. The parent raises that, and a refused
    map, as ``NamespacesRefused``.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()

        def enter() -> None:
            try:
                unshare(CLONE_NEWUSER)
            except OSError as error:
                theirs.sendall(bytes([error.errno or errno.EPERM]))
                os._exit(1)
            theirs.sendall(b"\0")
            _await_maps(theirs, uids)
            set_parent_death_signal(signal.SIGKILL)  # only now: a change of ids clears it
            child()

        _run_and_exit(enter)
    theirs.close()
    with ours:
        try:
            answer = ours.recv(1)
            if answer != b"\0":
                number = answer[0] if answer else errno.EPERM
                raise NamespacesRefused(number, f"unshare: {os.strerror(number)}")
            _give_maps(pid, ours, uids, gids, map_writers)
        except BaseException:
            ours.close()
            os.waitpid(pid, 0)
            raise
    return pid


def clone_mapped(
    uids: Sequence[Extent],
    gids: Sequence[Extent],
    *,
    namespaces: int,
    child: Callable[[], None],
) -> int:
    """Like :func:`fork_mapped`, with ``namespaces`` besides; with ``CLONE_NEWPID`` the child is
    PID 1, and no process in between is needed.

    Only for programs of one thread: the C library's fork, which keeps locks that other threads hold
    from being copied, is passed by. The end of the parent is not told.
    """
    ours, theirs = socket.socketpair()
    try:
        pid = _clone(CLONE_NEWUSER | namespaces)
    except OSError as error:
        raise NamespacesRefused(error.errno, error.strerror) from error
    if pid == 0:
        ours.close()

        def enter() -> None:
            _await_maps(theirs, uids)
            child()

        _run_and_exit(enter)
    theirs.close()
    with ours:
        try:
            _give_maps(pid, ours, uids, gids, None)
        except BaseException:
            ours.close()
            os.waitpid(pid, 0)
            raise
    return pid


def _clone(flags: int) -> int:
    """What ``os.fork`` does around fork(2), around clone(2) with ``flags``."""
    arguments = (ctypes.c_ulong(flags | signal.SIGCHLD), *[ctypes.c_ulong(0)] * 4)
    number = _number("clone")
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _locked_libc.syscall(number, *arguments)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return _check(pid, "clone")


def _await_maps(go: socket.socket, uids: Sequence[Extent]) -> None:
    """Wait for the maps of the user namespace that this process is in, and become its root."""
    if go.recv(1) != b"g":
        os._exit(1)
    go.close()
    become_inside_root(groups=len(uids) > 1 or uids[0][2] > 1)


def _give_maps(
    pid: int,
    go: socket.socket,
    uids: Sequence[Extent],
    gids: Sequence[Extent],
    map_writers: tuple[str, str] | None,
) -> None:
    try:
        write_id_maps(pid, uids, gids, map_writers=map_writers)
    except OSError as error:
        number = error.errno or errno.EPERM
        raise NamespacesRefused(number, error.strerror, error.filename) from error
    go.sendall(b"g")


def _run_and_exit(action: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        action()
        code = 0
    except BaseException as error:  # noqa: BLE001 - the process ends here
        log_exception(error)  # os._exit would lose it
    finally:
        os._exit(code)
