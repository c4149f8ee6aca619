"""Somebody to attack: a process that holds a token in every place where one can be taken from it.

It lives until it is terminated, and takes what would outlive it along.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import signal
import socket
import sys
import threading

from attacks.table import call, libc

_IPC_CREAT, _IPC_RMID = 0o1000, 0
_KEY_SPEC_USER_KEYRING = -4
_KEYCTL_SETPERM, _KEYCTL_UNLINK = 5, 9
_PR_SET_PTRACER, _ANYBODY = 0x59616D61, -1


def live(token: str, folder: str, key: str) -> None:
    """Hold the token, tell the facts as one line of JSON, and wait for SIGTERM."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    memory = ctypes.create_string_buffer(token.encode())
    # With the Yama module only parents trace, unless the process itself lets others.
    libc.prctl(_PR_SET_PTRACER, ctypes.c_long(_ANYBODY), 0, 0, 0)
    paths = [f"/tmp/{token}", f"/dev/shm/{token}", f"{folder}/{token}.held"]
    for path in paths:
        with open(path, "w", encoding="utf-8") as file:
            file.write(token)
        os.chmod(path, 0o666)
    held = os.open(paths[-1], os.O_RDWR)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_tell, args=(listener, token), daemon=True).start()
    place = f"{folder}/{token}.socket"
    for address in (place, "\0" + place):
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        server.listen()
        threading.Thread(target=_hand_out_root, args=(server,), daemon=True).start()
    os.chmod(place, 0o777)
    undo = _share(token, int(key))
    serial = _add_key(token)
    facts = {
        "token": token,
        "pid": os.getpid(),
        "address": ctypes.addressof(memory),
        "port": listener.getsockname()[1],
        "key": int(key),
        "descriptor": held,
        "socket": place,
        "serial": serial,
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    signal.sigwait([signal.SIGTERM])
    for path in (*paths, place):
        os.unlink(path)
    for name, *arguments in undo:
        call(str(name), *arguments)
    if serial:
        call("keyctl", _KEYCTL_UNLINK, serial, _KEY_SPEC_USER_KEYRING)


def _tell(listener: socket.socket, token: str) -> None:
    while True:
        with listener.accept()[0] as connection:
            connection.sendall(token.encode())


def _hand_out_root(server: socket.socket) -> None:
    """As a service with more trust than sense would: whoever connects gets a descriptor."""
    root = array.array("i", [os.open("/", os.O_RDONLY | os.O_DIRECTORY)])
    while True:
        with server.accept()[0] as connection:
            connection.sendmsg([b"/"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, root)])


def _share(token: str, key: int) -> list[tuple[object, ...]]:
    """System V and POSIX objects that every user may open; returns the calls that remove them."""
    mode = _IPC_CREAT | 0o666
    memory = call("shmget", key, 4096, mode)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(memory, None, 0)
    ctypes.memmove(address, token.encode() + b"\0", len(token) + 1)
    queue = call("msgget", key, mode)
    semaphores = call("semget", key, 1, mode)
    mask = os.umask(0)
    call("mq_open", f"/{token}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
    os.umask(mask)
    return [
        ("shmctl", memory, _IPC_RMID, None),
        ("msgctl", queue, _IPC_RMID, None),
        ("semctl", semaphores, 0, _IPC_RMID),
        ("mq_unlink", f"/{token}".encode()),
    ]


def _add_key(token: str) -> int:
    """A key that its user may read; 0 where the sandbox of this actor forbids keys."""
    try:
        serial = call(
            "add_key", b"user", token.encode(), token.encode(), len(token), _KEY_SPEC_USER_KEYRING
        )
        call("keyctl", _KEYCTL_SETPERM, serial, 0x3F3F0000)  # everything to possessor and user
    except OSError:
        return 0
    return serial
