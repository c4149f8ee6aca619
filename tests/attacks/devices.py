"""Devices and kernel memory."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import tempfile
import termios

from attacks.table import Facts, add, attack, read


def _open(path: str) -> str:
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    return f"{path} is open for writing"


@attack(by="root", lack="hosts without a block device that root may open")
def raw_disk(facts: Facts) -> str | None:
    """The host's disk is read and written, past all permissions."""
    return _open(facts.device[0])


@attack(by="root", lack="hosts without a block device that root may open")
def raw_disk_by_number(facts: Facts) -> str | None:
    """The same by a device node made for it."""
    return _made(stat.S_IFBLK, *facts.device[1:])


@attack(by="root")
def kernel_log_by_number(facts: Facts) -> str | None:
    """A character device of one's own making is opened."""
    return _made(stat.S_IFCHR, 1, 11)


def _made(kind: int, major: int, minor: int) -> str | None:
    refusal: OSError | None = None
    # Wherever a node can be made, a mount may have forgotten to be nodev.
    for place in ("/tmp", "/root", "/dev", "/dev/shm", "/run", "/var/tmp"):
        if not os.access(place, os.W_OK):
            continue
        folder = tempfile.mkdtemp(dir=place)
        try:
            node = os.path.join(folder, "node")
            os.mknod(node, kind | 0o600, os.makedev(major, minor))
            try:
                os.close(os.open(node, os.O_RDONLY | os.O_NONBLOCK))
                return f"{major}:{minor} in {place}"
            finally:
                os.unlink(node)
        except OSError as error:
            refusal = error
        finally:
            os.rmdir(folder)
    if refusal is not None:
        raise refusal
    return None


for _name, _path, _gain, _by, _lack in (
    ("kernel_messages", "/dev/kmsg", "the kernel's log is written", "root", ""),
    ("memory_device", "/dev/mem", "all memory", "root", "kernels without /dev/mem"),
    ("port_device", "/dev/port", "all devices", "root", "kernels without /dev/port"),
    ("loop_devices", "/dev/loop-control", "files become disks", "root", "hosts without loop"),
    ("fuse_device", "/dev/fuse", "file systems answered by the attacker", "root", "no FUSE"),
    ("virtual_machines", "/dev/kvm", "machines of its own", "root", "hosts without KVM"),
    ("console", "/dev/console", "the console of the host is written", "root", "no console"),
    ("first_terminal", "/dev/tty1", "the screen of the host is written", "root", "no screen"),
):
    add(_name, lambda facts, path=_path: _open(path), gain=_gain, by=_by, lack=_lack)


@attack(by="root", lack="kernels without /proc/kcore")
def kernel_core(facts: Facts) -> str | None:
    """/proc/kcore: all memory, to read."""
    return "an ELF file" if read("/proc/kcore").startswith(b"\x7fELF") else None


@attack(by="root")
def kernel_addresses(facts: Facts) -> str | None:
    """Addresses of the kernel, for exploits that need them, are in /proc/kallsyms."""
    for line in read("/proc/kallsyms").splitlines()[:1000]:
        if int(line.split()[0], 16):
            return line.decode()
    return None


@attack(by="root")
def page_frames(facts: Facts) -> str | None:
    """Physical addresses of one's own pages, for Rowhammer and the like."""
    import ctypes

    buffer = ctypes.create_string_buffer(b"x" * 4096)
    page = ctypes.addressof(buffer) // os.sysconf("SC_PAGESIZE")
    fd = os.open("/proc/self/pagemap", os.O_RDONLY)
    entry = int.from_bytes(os.pread(fd, 8, page * 8), "little")
    return "a frame" if entry & ((1 << 55) - 1) else None


@attack(by="root")
def kernel_message_reader(facts: Facts) -> str | None:
    """The kernel's log is read from its device."""
    os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    return "/dev/kmsg"


@attack(terminal=True, lack="kernels without TIOCSTI (dev.tty.legacy_tiocsti 0)")
def typed_into_the_terminal(facts: Facts) -> str | None:
    """TIOCSTI types commands that the caller's shell runs after the sandbox has ended."""
    refusal: OSError | None = None
    for fd in (0, 1, 2):
        try:
            fcntl.ioctl(fd, termios.TIOCSTI, b" ")
            return f"descriptor {fd}"
        except OSError as error:
            refusal = error
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            fcntl.ioctl(terminal, termios.TIOCSTI, b" ")
            return "/dev/tty"
    except OSError as error:
        refusal = error
    raise refusal


@attack(by="root", terminal=True)
def selection_of_the_console(facts: Facts) -> str | None:
    """TIOCLINUX pastes into the console what is on its screen."""
    del facts
    with open("/dev/tty1", "rb", buffering=0) as console:
        fcntl.ioctl(console, 0x541C, b"\x06" + bytes(7))  # the shift state, which is only read
    return "asked" if sys.platform == "linux" else None
