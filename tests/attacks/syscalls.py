"""Parts of the kernel that nothing inside has business with."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from attacks.table import Facts, add, allowed, attack, call


def _bytes(size: int, *head: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack(f"<{len(head)}I", *head), size)


@attack(by="root", lack="kernels without BPF")
def bpf(facts: Facts) -> str | None:
    """Programs of the attacker's run in the kernel."""
    create, array = 0, 2
    return f"a map, {call('bpf', create, _bytes(120, array, 4, 4, 1), 120)}"


@attack(by="root", lack="kernels without performance counters")
def perf_event_open(facts: Facts) -> str | None:
    """What runs on a processor, whoever's it is, is sampled."""
    software, size, context_switches = 1, 128, 3
    attributes = _bytes(size, software, size, context_switches, 0)
    return f"descriptor {call('perf_event_open', attributes, -1, 0, -1, 0)}"


@attack(by="root", lack="kernels without performance counters")
def perf_event_open_on_itself(facts: Facts) -> str | None:
    """The same interface, with its record of holes, for one's own process."""
    software, size, page_faults = 1, 128, 2
    attributes = _bytes(size, software, size, page_faults, 0)
    ctypes.memmove(ctypes.addressof(attributes) + 40, b"\x60", 1)  # without kernel and hypervisor
    return f"descriptor {call('perf_event_open', attributes, 0, -1, -1, 0)}"


@attack(by="root", lack="kernels without io_uring")
def io_uring(facts: Facts) -> str | None:
    """System calls that no filter sees."""
    return f"descriptor {call('io_uring_setup', 1, _bytes(120))}"


@attack(lack="kernels without userfaultfd")
def userfaultfd(facts: Facts) -> str | None:
    """The kernel is halted in the middle of reading memory, for exploits."""
    user_mode_only = 1
    return f"descriptor {call('userfaultfd', os.O_CLOEXEC | user_mode_only)}"


for _name, _arguments, _until, _gain, _lack in (
    ("kexec_load", (0, 0, None, 1 << 30), errno.EINVAL, "another kernel", "kernels without kexec"),
    ("init_module", (None, 0, b""), errno.ENOEXEC, "code in the kernel", "no modules"),
    ("finit_module", (-1, b"", 0), errno.EBADF, "code in the kernel", "no modules"),
    ("swapoff", (b"/nothing-here",), errno.ENOENT, "memory of others ends", "no swap"),
    (
        "swapon",
        (b"/nothing-here", 0),
        errno.ENOENT,
        "memory goes to the attacker's file",
        "no swap",
    ),
    ("acct", (b"/nothing-here",), errno.ENOENT, "every command of the host is logged", "no acct"),
    ("iopl", (3,), errno.EINVAL, "all ports", "kernels without ports for programs"),
    ("ioperm", (0x80, 1, 1), errno.EINVAL, "a port", "kernels without ports for programs"),
    ("sethostname", (b"", -1), errno.EINVAL, "the name of the machine", ""),
):
    add(
        f"call_{_name}",
        lambda facts, name=_name, arguments=_arguments, until=_until: allowed(
            name, *arguments, until=until
        ),
        gain=_gain,
        by="root",
        lack=_lack,
    )


@attack(by="root")
def set_the_clock(facts: Facts) -> str | None:
    """Certificates expire, builds break: the time zone of the kernel is set to what it is."""
    zone = _bytes(8)
    call("gettimeofday", None, zone)
    call("settimeofday", None, zone)
    return "set"


@attack(by="root")
def tune_the_clock(facts: Facts) -> str | None:
    """The clock of the host runs faster: its status bits are set to what they are."""
    buffer = _bytes(256)
    call("adjtimex", buffer)
    status_bits = 0x10
    ctypes.memmove(buffer, struct.pack("<I", status_bits), 4)
    call("adjtimex", buffer)
    return "set"


@attack(by="root")
def reboot(facts: Facts) -> str | None:
    """The machine stops: what Ctrl-Alt-Del does is set to what it is."""
    with open("/proc/sys/kernel/ctrl-alt-del", encoding="ascii") as file:
        on = int(file.read())
    call("reboot", 0x89ABCDEF if on else 0)
    return "set"


@attack(by="root", lack="kernels without quota, or a root that is no disk")
def quotactl(facts: Facts) -> str | None:
    """The disk quotas of others are read and set."""
    get_info, user_quota = 0x800005, 0
    return allowed(
        "quotactl",
        get_info << 8 | user_quota,
        (facts.disk or "/nothing-here").encode(),
        0,
        _bytes(256),
        until=errno.ESRCH,
    )


@attack(by="root")
def kernel_log(facts: Facts) -> str | None:
    """dmesg: what the kernel says of the host and of other sandboxes."""
    read_all = 3
    return f"{call('klogctl', read_all, ctypes.create_string_buffer(4096), 4096)} bytes"


@attack(by="root")
def clear_kernel_log(facts: Facts) -> str | None:
    """Traces are wiped: the level of the console is set to what it is."""
    with open("/proc/sys/kernel/printk", encoding="ascii") as file:
        level = int(file.read().split()[0])
    set_level = 8
    call("klogctl", set_level, None, level)
    return "set"


@attack(lack="kernels without the x32 interface")
def x32_calls(facts: Facts) -> str | None:
    """The same system calls by other numbers, which filters forget."""
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, "no x32 here")
    from attacks.table import libc

    pid = libc.syscall(ctypes.c_long(0x40000000 | 39))
    if pid != os.getpid():
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "getpid answers"
