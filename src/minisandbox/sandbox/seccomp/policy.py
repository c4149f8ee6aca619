"""Which system calls programs in a sandbox may make.

A list of what is allowed, as container engines have it: the kernel gets new calls every few months,
and a list of what is forbidden would let them all in. The rest has three answers. A call that
reaches for more than a sandbox has is EPERM, as if the kernel had looked at capabilities. One that
programs have an older way for is ENOSYS, because that is what makes them take it, and so is every
number that is in no table. A program of another architecture (32 bits on a 64-bit kernel) is ended.
Invariant: each known call is in one group, on every architecture the same. ``docs/security.md``
argues for the groups.
"""

from __future__ import annotations

import errno
import functools
import socket
from collections.abc import Collection

from minisandbox import linux
from minisandbox.errors import HostUnsupported
from minisandbox.sandbox.seccomp import bpf
from minisandbox.sandbox.seccomp.numbers import ARCHITECTURES, NUMBERS


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FILES = """
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek
    sendfile splice tee vmsplice copy_file_range readahead fadvise64
    open openat openat2 creat close close_range dup dup2 dup3 fcntl flock
    access faccessat faccessat2 stat fstat lstat newfstatat statx statfs fstatfs
    getdents getdents64 getcwd chdir fchdir chroot umask
    mkdir mkdirat rmdir mknod mknodat link linkat symlink symlinkat readlink readlinkat
    rename renameat renameat2 unlink unlinkat truncate ftruncate fallocate
    chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat
    utime utimes futimesat utimensat
    setxattr lsetxattr fsetxattr setxattrat getxattr lgetxattr fgetxattr getxattrat
    listxattr llistxattr flistxattr listxattrat
    removexattr lremovexattr fremovexattr removexattrat
    sync fsync fdatasync syncfs sync_file_range cachestat
    inotify_init inotify_init1 inotify_add_watch inotify_rm_watch fanotify_mark
"""
_MEMORY = """
    mmap munmap mremap mprotect msync madvise mincore brk remap_file_pages mseal
    mlock mlock2 mlockall munlock munlockall membarrier map_shadow_stack
    pkey_mprotect pkey_alloc pkey_free memfd_create memfd_secret
    shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
"""
_PROCESSES = """
    fork vfork execve execveat exit exit_group wait4 waitid
    set_tid_address set_robust_list get_robust_list rseq
    futex futex_waitv futex_wake futex_wait futex_requeue
    kill tkill tgkill pidfd_open pidfd_send_signal process_mrelease
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo
    rt_tgsigqueueinfo rt_sigsuspend sigaltstack signalfd signalfd4 pause restart_syscall
    getpid getppid gettid getpgid getpgrp setpgid getsid setsid
    getuid geteuid getgid getegid getresuid getresgid getgroups
    setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups
    capget capset prctl arch_prctl seccomp
    landlock_create_ruleset landlock_add_rule landlock_restrict_self
    ptrace process_vm_readv process_vm_writev uretprobe uprobe
    sched_yield sched_setparam sched_getparam sched_setscheduler sched_getscheduler
    sched_get_priority_max sched_get_priority_min sched_rr_get_interval
    sched_setaffinity sched_getaffinity sched_setattr sched_getattr
    getpriority setpriority ioprio_set ioprio_get getcpu
    getrlimit setrlimit prlimit64 getrusage sysinfo uname getrandom
"""
_WAITING_AND_TIME = """
    accept accept4 bind connect listen shutdown getsockname getpeername getsockopt setsockopt
    sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg
    pipe pipe2 poll ppoll select pselect6 eventfd eventfd2
    epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
    io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents
    time gettimeofday clock_gettime clock_getres nanosleep clock_nanosleep alarm times
    getitimer setitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete
    timerfd_create timerfd_settime timerfd_gettime
"""
ALLOWED = _names(_FILES + _MEMORY + _PROCESSES + _WAITING_AND_TIME)

#: With these and a user namespace of its own, a program has every capability there, and with it
#: most of the kernel that only administrators reach otherwise.
NAMESPACES = _names(
    """
    unshare setns mount umount2 pivot_root sethostname setdomainname
    open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick mount_setattr
    """
)

REFUSED = _names(
    """
    bpf perf_event_open userfaultfd fanotify_init lookup_dcookie
    add_key request_key keyctl
    name_to_handle_at open_by_handle_at quotactl quotactl_fd acct swapon swapoff vhangup
    init_module finit_module delete_module kexec_load kexec_file_load reboot syslog iopl ioperm
    settimeofday clock_settime clock_adjtime adjtimex
    kcmp pidfd_getfd process_madvise
    mbind get_mempolicy set_mempolicy set_mempolicy_home_node migrate_pages move_pages
    """
)

#: clone3 takes its flags from memory, where no filter sees them. Below the others are those that
#: no kernel of today has, and those of 16-bit and 32-bit programs.
ABSENT = _names(
    """
    clone3 io_uring_setup io_uring_enter io_uring_register statmount listmount listns
    lsm_get_self_attr lsm_set_self_attr lsm_list_modules file_getattr file_setattr
    modify_ldt set_thread_area get_thread_area
    uselib ustat sysfs _sysctl create_module get_kernel_syms query_module nfsservctl getpmsg
    putpmsg afs_syscall tuxcall security vserver epoll_ctl_old epoll_wait_old
    """
)

_NAMESPACE_FLAGS = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWCGROUP
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUSER
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
)
#: asm-generic/ioctls.h: typing into a terminal (TIOCSTI), the console's selection (TIOCLINUX), and
#: line disciplines, whose modules the kernel loads for anybody (TIOCSETD).
_TERMINAL_REQUESTS = (0x5412, 0x541C, 0x5423)
#: linux/personality.h: Linux and 32-bit Linux, each also with a version number of 2.6; the last
#: asks what it is.
_PERSONALITIES = (0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
_FAMILIES = (int(socket.AF_UNIX), int(socket.AF_INET), int(socket.AF_INET6))
#: linux/netlink.h: ROUTE, SOCK_DIAG, KOBJECT_UEVENT, GENERIC.
_NETLINK = (0, 4, 15, 16)
#: What a tracer puts in the place of a call that it answers itself; the kernel does nothing.
_SKIPPED_BY_TRACER = 0xFFFFFFFF


# To the kernel, each argument that is looked at here is an int or, for clone, the lower half of a
# long: what stands in the upper half changes nothing, so the filter must not look at it.


def _only(argument: int, values: Collection[int], otherwise: bpf.Tree) -> bpf.Tree:
    tree = otherwise
    for value in values:
        tree = bpf.if_equal(value, bpf.ALLOW, tree)
    return bpf.load(bpf.low_half(argument), tree)


def _socket() -> bpf.Tree:
    # As a kernel without these families and protocols answers: that is what libraries expect.
    netlink = _only(2, _NETLINK, bpf.fail(errno.EPROTONOSUPPORT))
    others = bpf.if_equal(int(socket.AF_NETLINK), netlink, bpf.fail(errno.EAFNOSUPPORT))
    return _only(0, _FAMILIES, others)


def decisions(*, nested: bool) -> dict[str, bpf.Tree]:
    """What becomes of each known call; ``nested`` lets programs make namespaces of their own."""
    refusal = bpf.fail(errno.EPERM)
    terminal = bpf.ALLOW
    for request in _TERMINAL_REQUESTS:
        terminal = bpf.if_equal(request, refusal, terminal)
    clone = bpf.load(bpf.low_half(0), bpf.if_any_bit(_NAMESPACE_FLAGS, refusal, bpf.ALLOW))
    return {
        **dict.fromkeys(ALLOWED, bpf.ALLOW),
        **dict.fromkeys(NAMESPACES, bpf.ALLOW if nested else refusal),
        **dict.fromkeys(REFUSED, refusal),
        **dict.fromkeys(ABSENT, bpf.fail(errno.ENOSYS)),
        "clone": bpf.ALLOW if nested else clone,
        "ioctl": bpf.load(bpf.low_half(1), terminal),
        "personality": _only(0, _PERSONALITIES, refusal),
        "socket": _socket(),
        "socketpair": _socket(),
    }


@functools.cache
def compiled(machine: str, *, nested: bool = False) -> bytes:
    """The filter for a machine, named as by uname(2); raises ``HostUnsupported`` for others than
    x86_64 and aarch64.
    """
    if machine not in NUMBERS:
        known = " and ".join(sorted(NUMBERS))
        raise HostUnsupported(
            "the system call filter", f"no numbers are known for {machine}", f"use {known}"
        )
    unknown = bpf.fail(errno.ENOSYS)
    trees = dict.fromkeys(range(max(NUMBERS[machine].values()) + 1), unknown)
    decided = decisions(nested=nested)
    trees |= {number: decided[name] for name, number in NUMBERS[machine].items()}
    # Of the x32 calls of x86_64 each has a bit set that makes it a number beyond the table.
    trees |= {len(trees): unknown, _SKIPPED_BY_TRACER: bpf.ALLOW}
    starts: list[tuple[int, bpf.Tree]] = []
    for number, tree in trees.items():
        if not starts or starts[-1][1] != tree:
            starts.append((number, tree))
    by_number = bpf.load(bpf.NUMBER, bpf.by_range(starts))
    own = bpf.if_equal(ARCHITECTURES[machine], by_number, bpf.KILL)
    return bpf.assemble(bpf.load(bpf.ARCHITECTURE, own))


@functools.cache
def digest(*, nested: bool = False) -> str:
    """``sha256:<hex>`` of all decisions, the same on every host: part of a profile's identity."""
    import hashlib  # slow to load (OpenSSL), and only wanted where records are written

    text = repr(sorted(decisions(nested=nested).items()))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
