"""Settings of the host's kernel."""

from __future__ import annotations

import os
import socket

from attacks.table import Facts, add, attack, same_value, writable

for _name, _path, _gain, _lack in (
    ("core_pattern", "kernel/core_pattern", "the next crash runs a program as root", ""),
    ("modprobe_path", "kernel/modprobe", "an unknown file format runs a program", "no modules"),
    ("address_randomisation", "kernel/randomize_va_space", "exploits of others get easier", ""),
    ("panic_setting", "kernel/panic", "the machine starts again after a panic", ""),
    ("overcommit", "vm/overcommit_memory", "allocations of others fail", ""),
    ("drop_caches", "vm/swappiness", "the machine slows down", ""),
    ("open_files_of_the_host", "fs/file-max", "nobody can open a file", ""),
    ("symlink_protection", "fs/protected_symlinks", "links in /tmp are followed", ""),
    ("pointer_protection", "kernel/kptr_restrict", "addresses of the kernel show", ""),
    ("bpf_setting", "kernel/unprivileged_bpf_disabled", "programs in the kernel", "no BPF"),
):
    add(
        _name,
        lambda facts, path=_path: same_value(f"/proc/sys/{path}"),
        gain=_gain,
        by="root",
        lack=_lack,
    )


@attack(by="root")
def forwarding_on_the_host(facts: Facts) -> str | None:
    """The host becomes a router."""
    if os.readlink("/proc/self/ns/net") != facts.namespaces["net"]:
        return None
    return same_value("/proc/sys/net/ipv4/ip_forward")


@attack(by="root", lack="kernels without SysRq")
def system_request(facts: Facts) -> str | None:
    """The machine starts again at once."""
    return writable("/proc/sysrq-trigger")


@attack(by="root", lack="kernels without binfmt_misc mounted")
def binary_formats(facts: Facts) -> str | None:
    """Other people's programs are run by one of the attacker's."""
    return writable("/proc/sys/fs/binfmt_misc/register")


@attack(by="root", lack="kernels without uevent_helper")
def device_helper(facts: Facts) -> str | None:
    """The next new device runs a program as root."""
    return writable("/sys/kernel/uevent_helper")


@attack(by="root")
def kernel_settings_in_sys(facts: Facts) -> str | None:
    """/sys is there and can be written."""
    return writable("/sys/kernel/profiling")


@attack(by="root")
def interrupts(facts: Facts) -> str | None:
    """Interrupts are bent to one processor."""
    return same_value("/proc/irq/default_smp_affinity")


@attack(by="root", lack="hosts without debugfs mounted")
def debugging_files(facts: Facts) -> str | None:
    """The insides of drivers are shown in /sys/kernel/debug."""
    return " ".join(os.listdir("/sys/kernel/debug")[:3]) or None


@attack(by="root")
def host_name_of_the_host(facts: Facts) -> str | None:
    """The host's name is set (to what it is)."""
    socket.sethostname(socket.gethostname())
    return "set" if os.readlink("/proc/self/ns/uts") == facts.namespaces["uts"] else None


@attack(by="root")
def memory_information_of_others(facts: Facts) -> str | None:
    """/proc/slabinfo: who allocates what in the kernel, for exploits."""
    with open("/proc/slabinfo", encoding="ascii") as file:
        return file.readline().strip()


@attack(by="root")
def timers_of_others(facts: Facts) -> str | None:
    """/proc/timer_list or sched_debug names processes of the host."""
    for name in ("timer_list", "sched_debug", "interrupts"):
        path = f"/proc/{name}"
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                if file.read(64):
                    return path
    return None
