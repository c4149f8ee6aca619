"""Processes of the host, of neighbours, and those that keep the sandbox."""

from __future__ import annotations

import ctypes
import os
import signal

from attacks.descriptors import guardian_pids
from attacks.table import Actor, Facts, add, attack, call

_PTRACE_DETACH, _PTRACE_SEIZE = 17, 0x4206
_KCMP_VM = 1


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _is(actor: Actor) -> bool:
    """Whether the number means the actor here; in another pid namespace it is somebody else's."""
    try:
        with open(f"/proc/{actor.pid}/cmdline", "rb") as file:
            return actor.token.encode() in file.read()
    except FileNotFoundError:
        return False


def _command_line(actor: Actor) -> str | None:
    return "the command line" if _is(actor) else None


def _environment(actor: Actor) -> str | None:
    with open(f"/proc/{actor.pid}/environ", "rb") as file:
        return "the environment" if actor.token.encode() in file.read() else None


def _signal(actor: Actor) -> str | None:
    os.kill(actor.pid, signal.SIGUSR1)  # which it ignores
    return "sent" if _is(actor) else None


def _signal_by_handle(actor: Actor) -> str | None:
    signal.pidfd_send_signal(os.pidfd_open(actor.pid), signal.SIGUSR1)
    return "sent" if _is(actor) else None


def _trace(actor: Actor) -> str | None:
    call("ptrace", _PTRACE_SEIZE, actor.pid, None, None)
    return "traced" if _is(actor) else None


def _read_memory(actor: Actor) -> str | None:
    size = len(actor.token)
    buffer = ctypes.create_string_buffer(size)
    ours = _Vector(ctypes.addressof(buffer), size)
    theirs = _Vector(actor.address, size)
    call("process_vm_readv", actor.pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    return "the memory" if buffer.raw == actor.token.encode() else None


def _write_memory(actor: Actor) -> str | None:
    text = actor.token.encode()  # what is there already
    buffer = ctypes.create_string_buffer(text)
    ours = _Vector(ctypes.addressof(buffer), len(text))
    theirs = _Vector(actor.address, len(text))
    call("process_vm_writev", actor.pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    return "the memory" if _is(actor) else None


def _memory_file(actor: Actor) -> str | None:
    fd = os.open(f"/proc/{actor.pid}/mem", os.O_RDWR)
    held = os.pread(fd, len(actor.token), actor.address)
    return "the memory" if held == actor.token.encode() else None


def _compare(actor: Actor) -> str | None:
    call("kcmp", os.getpid(), actor.pid, _KCMP_VM, 0, 0)
    return "compared" if _is(actor) else None


def _slow_down(actor: Actor) -> str | None:
    os.setpriority(os.PRIO_PROCESS, actor.pid, os.getpriority(os.PRIO_PROCESS, actor.pid))
    return "its priority is set" if _is(actor) else None


def _limit(actor: Actor) -> str | None:
    import resource

    resource.prlimit(
        actor.pid, resource.RLIMIT_CPU, resource.prlimit(actor.pid, resource.RLIMIT_CPU)
    )
    return "its limits are set" if _is(actor) else None


for _whose in ("host", "neighbour"):
    _of = "the_host" if _whose == "host" else "a_neighbour"
    for _name, _try, _gain in (
        ("command_line_of_a_process_of", _command_line, "what runs there, with its arguments"),
        ("environment_of_a_process_of", _environment, "passwords in the environment"),
        ("signal_to_a_process_of", _signal, "it is ended"),
        ("signal_by_pidfd_to_a_process_of", _signal_by_handle, "it is ended"),
        ("trace_of_a_process_of", _trace, "ptrace runs code in it"),
        ("process_vm_readv_on", _read_memory, "its memory is read"),
        ("process_vm_writev_on", _write_memory, "its memory is written"),
        ("memory_file_of_a_process_of", _memory_file, "/proc/PID/mem is opened for writing"),
        ("kcmp_with_a_process_of", _compare, "kernel addresses are compared"),
        ("priority_of_a_process_of", _slow_down, "it is starved"),
        ("limits_of_a_process_of", _limit, "it is cut short"),
    ):
        add(
            f"{_name}_{_of}",
            lambda facts, whose=_whose, attempt=_try: attempt(getattr(facts, whose)),
            gain=_gain,
        )


@attack()
def trace_of_a_guardian(facts: Facts) -> str | None:
    """PID 1 or a monitor is made to run code, with the capabilities that it kept."""
    refusal: OSError | None = None
    for pid in guardian_pids(facts):
        try:
            call("ptrace", _PTRACE_SEIZE, pid, None, None)
            return f"traces {pid}"
        except OSError as error:
            refusal = error
    if refusal is not None:
        raise refusal
    return None


@attack()
def process_vm_readv_on_a_guardian(facts: Facts) -> str | None:
    """The memory of PID 1 or a monitor is read."""
    refusal: OSError | None = None
    buffer = ctypes.create_string_buffer(1)
    ours, theirs = _Vector(ctypes.addressof(buffer), 1), _Vector(0, 1)
    for pid in guardian_pids(facts):
        try:
            call("process_vm_readv", pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        except OSError as error:
            if error.errno == 14:  # EFAULT: all but the address was in order
                return f"of {pid}"
            refusal = error
    if refusal is not None:
        raise refusal
    return None


@attack()
def descriptor_taken_from_a_guardian(facts: Facts) -> str | None:
    """pidfd_getfd copies the control socket of PID 1 or a monitor."""
    refusal: OSError | None = None
    for pid in guardian_pids(facts):
        for number in range(8):
            try:
                call("pidfd_getfd", os.pidfd_open(pid), number, 0)
                return f"descriptor {number} of {pid}"
            except OSError as error:
                refusal = error
    if refusal is not None:
        raise refusal
    return None


def _enter(facts: Facts, name: str) -> str | None:
    fd = os.open(f"/proc/{facts.host.pid}/ns/{name}", os.O_RDONLY)
    call("setns", fd, 0)
    return f"entered {name}"


for _name in ("mnt", "net", "ipc", "uts", "pid", "cgroup"):
    add(
        f"enter_the_{_name}_namespace_of_the_host",
        lambda facts, name=_name: _enter(facts, name),
        gain=f"the host's {_name} namespace is entered by way of /proc/PID/ns",
        by="root",
    )


@attack(by="root")
def enter_namespaces_by_pidfd(facts: Facts) -> str | None:
    """The host's namespaces are entered by a handle of one of its processes."""
    call("setns", os.pidfd_open(facts.host.pid), 0x04000000)
    return "entered" if _is(facts.host) else None


@attack()
def namespaces_of_the_host(facts: Facts) -> str | None:
    """A namespace was forgotten: network, processes, mounts, ipc or host name are the host's."""
    names = ("mnt", "net", "ipc", "pid", "uts", "cgroup", "user")
    shared = [
        name for name in names if os.readlink(f"/proc/self/ns/{name}") == facts.namespaces[name]
    ]
    return " ".join(shared) or None
