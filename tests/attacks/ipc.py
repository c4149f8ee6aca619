"""Shared memory, queues and keys of the host and of neighbours."""

from __future__ import annotations

import ctypes
import os

from attacks.table import Actor, Facts, add, attack, call, holds, libc, read

_KEYCTL_DESCRIBE, _KEYCTL_SEARCH, _KEYCTL_READ = 6, 10, 11
_USER_KEYRING = -4


def _shared_memory(actor: Actor) -> str | None:
    memory = call("shmget", actor.key, 0, 0)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(memory, None, 0)
    got = ctypes.string_at(address, len(actor.token))
    return "attached" if got == actor.token.encode() else None


def _message_queue(actor: Actor) -> str | None:
    return f"queue {call('msgget', actor.key, 0)}"


def _semaphores(actor: Actor) -> str | None:
    return f"set {call('semget', actor.key, 0, 0)}"


def _posix_memory(actor: Actor) -> str | None:
    return holds(f"/dev/shm/{actor.token}", actor.token)


def _posix_queue(actor: Actor) -> str | None:
    return f"queue {call('mq_open', f'/{actor.token}'.encode(), os.O_RDWR, 0, None)}"


for _whose in ("host", "neighbour"):
    _of = "the_host" if _whose == "host" else "a_neighbour"
    for _name, _try in (
        ("System_V_memory_of", _shared_memory),
        ("System_V_queue_of", _message_queue),
        ("System_V_semaphores_of", _semaphores),
        ("POSIX_memory_of", _posix_memory),
        ("POSIX_queue_of", _posix_queue),
    ):
        add(
            f"{_name}_{_of}",
            lambda facts, whose=_whose, attempt=_try: attempt(getattr(facts, whose)),
            gain="what programs share there is read and written",
        )

_NO_KEYS = "kernels without keys (CONFIG_KEYS)"


@attack(lack=_NO_KEYS)
def key_by_search(facts: Facts) -> str | None:
    """A key in the keyring of the host's user is found (a Kerberos ticket, a disk's password)."""
    token = facts.host.token.encode()
    return f"key {call('keyctl', _KEYCTL_SEARCH, _USER_KEYRING, b'user', token, 0)}"


@attack(lack=_NO_KEYS)
def key_by_number(facts: Facts) -> str | None:
    """The content of a key of the host's user is read."""
    buffer = ctypes.create_string_buffer(256)
    call("keyctl", _KEYCTL_READ, facts.host.serial, ctypes.byref(buffer), 256)
    return "the content" if facts.host.token.encode() in buffer.raw else None


@attack(lack=_NO_KEYS)
def key_described(facts: Facts) -> str | None:
    """The name of a key of the host's user is read."""
    buffer = ctypes.create_string_buffer(256)
    call("keyctl", _KEYCTL_DESCRIBE, facts.host.serial, ctypes.byref(buffer), 256)
    return "the name" if facts.host.token.encode() in buffer.raw else None


@attack(lack=_NO_KEYS)
def list_of_keys(facts: Facts) -> str | None:
    """/proc/keys lists the keys of the host's user."""
    # In the list a name is cut; the number is not.
    return "listed" if f"{facts.host.serial:08x}" in read("/proc/keys").decode() else None
