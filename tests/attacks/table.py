"""What an attack is, what it is told, and the table of all of them. Runs inside: standard library
alone, any Python since 3.8.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass

#: Of the program, before it forks: what a guardian may be.
PARENT = os.getppid()

libc = ctypes.CDLL(None, use_errno=True)

#: System calls without a function in the C library: number on x86_64 and on aarch64
#: (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h of the kernel).
_NUMBERS = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "gettimeofday": (96, 169),  # the library's makes the time zone up
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "userfaultfd": (323, 282),
}


@dataclass(frozen=True)
class Actor:
    """A process that has something to lose: of the host, or of another sandbox."""

    token: str  #: is in its environment, command line, memory, files, services
    pid: int  #: as the host counts
    address: int  #: of the token in its memory
    port: int  #: at 127.0.0.1, where it tells the token
    key: int  #: of its System V shared memory, semaphores and message queue
    descriptor: int  #: an open file with the token
    socket: str  #: path of a socket at which it hands out its root directory; and its abstract name
    serial: int  #: of a key in its user's keyring; 0 where it could make none


@dataclass(frozen=True)
class Facts:
    """All that an attacker could know about the outside."""

    host: Actor
    neighbour: Actor
    secret: str  #: path of a file on the host that holds the host actor's token
    handle: tuple[int, str]  #: type and hexadecimal bytes of its file handle
    guardians: tuple[int, ...]  #: processes that keep the attacker in, as it counts; -1: its parent
    disk: str  #: of the host's root; empty where that is no disk
    device: tuple[str, int, int]  #: path and numbers of a block device that the host can read
    namespaces: dict[str, str]  #: the host's
    run: tuple[str, int, int]  #: an entry of the host's /run: path, device, inode
    program: tuple[str, int, int]  #: the same of a file in the host's /usr
    set_uid: tuple[str, int, int]  #: the same of a set-uid program there; or an empty path
    shadow: str  #: SHA-256 of the host's /etc/shadow

    @classmethod
    def of(cls, plain: dict[str, object]) -> Facts:
        """From JSON."""
        actors = {name: Actor(**plain[name]) for name in ("host", "neighbour")}  # type: ignore[arg-type]
        return cls(**{**plain, **actors})  # type: ignore[arg-type]


#: What it got, in a few words; or nothing. An ``OSError`` says no as well.
Program = Callable[[Facts], "str | None"]


@dataclass(frozen=True)
class Attack:
    """One row of the table.

    ``by`` says who reaches the goal where no sandbox is in the way: anybody, or only root. That is
    tried (the control), for a program that never succeeds proves nothing. ``lack`` names what a
    host can lack so that even the control fails. ``mounts``: the control needs a mount namespace
    of its own, as the attack would change the mounts of the host.
    """

    name: str
    group: str
    gain: str
    program: Program
    by: str
    lack: str
    mounts: bool
    terminal: bool


TABLE: dict[str, Attack] = {}


def attack(
    *, by: str = "anybody", lack: str = "", mounts: bool = False, terminal: bool = False
) -> Callable[[Program], Program]:
    """Put a function into the table: its name says what is done, its docstring what for."""

    def register(program: Program) -> Program:
        add(program.__name__, program, by=by, lack=lack, mounts=mounts, terminal=terminal)
        return program

    return register


def add(
    name: str,
    program: Program,
    *,
    gain: str = "",
    by: str = "anybody",
    lack: str = "",
    mounts: bool = False,
    terminal: bool = False,
) -> None:
    """Put a row into the table; it belongs to the group that the program's module is named after.

    Raises ``ValueError`` for a name that is taken: an attack would be lost.
    """
    if name in TABLE:
        raise ValueError(f"two attacks are named {name}")
    group = program.__module__.rpartition(".")[2]
    gain = gain or (program.__doc__ or "").strip().splitlines()[0]
    TABLE[name] = Attack(name, group, gain, program, by, lack, mounts, terminal)


def call(function: str, *arguments: object) -> int:
    """Call a function of the C library, or the kernel where it has none. Raises ``OSError``."""
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    if function in _NUMBERS:
        number = _NUMBERS[function][platform.machine() == "aarch64"]
        result = libc.syscall(ctypes.c_long(number), *converted)
    else:
        result = getattr(libc, function)(*converted)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), function)
    return int(result)


def allowed(function: str, *arguments: object, until: int) -> str:
    """Whether the kernel lets this process ask: it looks at rights first, and then fails with
    ``until`` for arguments that ask for nothing. Raises ``OSError`` where it does not.
    """
    try:
        call(function, *arguments)
    except OSError as error:
        if error.errno != until:
            raise
        return f"allowed ({errno.errorcode[until]} only for want of an argument)"
    return "allowed"


def make_mounts_private() -> None:
    """A mount namespace whose changes nobody else sees. Raises ``OSError``."""
    new_mounts, private, recursive = 0x20000, 1 << 18, 16384
    call("unshare", new_mounts)
    call("mount", b"none", b"/", None, private | recursive, None)


def writable(path: str) -> str:
    """Open for writing and close: what can be opened so could be written. Raises ``OSError``."""
    os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    return f"{path} is open for writing"


def same_value(path: str) -> str:
    """Write what a setting says already. Raises ``OSError``."""
    with open(path, "rb") as file:
        value = file.read()
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value)
    finally:
        os.close(fd)
    return f"{path} is written"


def read(path: str) -> bytes:
    """The first MiB of a file. Raises ``OSError``."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(fd, 1 << 20)
    finally:
        os.close(fd)


def is_there(entry: tuple[str, int, int]) -> bool:
    """Whether the host's file of this path, device and inode is what the path leads to here."""
    path, *numbers = entry
    status = os.stat(path)
    return [status.st_dev, status.st_ino] == numbers


def holds(path: str, token: str) -> str | None:
    """The path where a file holds the token. Raises ``OSError``."""
    return path if token.encode() in read(path) else None


def in_child(action: Callable[[], str | None]) -> str | None:
    """What ``action`` returns in a child; for what cannot be undone. Raises its ``OSError``."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                text = "+" + (action() or "")
            except OSError as error:
                text = f"-{error.errno} {error.strerror}"
            os.write(write_end, text.encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    if text.startswith("-"):
        number, _, reason = text[1:].partition(" ")
        raise OSError(int(number), reason)
    if not text:
        raise RuntimeError("the child died")
    return text[1:] or None
