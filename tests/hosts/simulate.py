"""Run a command on a host that refuses something: `python simulate.py HOST... -- COMMAND...`.

Each HOST is a thing that real hosts do to the programs they run, done for real to COMMAND and all
that it starts, and to nothing else. Those of one line are applied from left to right:

    uid=ID                   as this ordinary user (root only)
    without-sys-admin        without CAP_SYS_ADMIN, whoever runs it, as in a plain container
    no-new-privileges        set-uid programs have no effect, as in most pods
    container-root           root of a user namespace that maps this one id, as in rootless podman
    namespace-limit=N        user.max_user_namespaces is N
    masked-proc              /proc is partly covered, as in every unprivileged container
    read-only=PATH           PATH is mounted read-only
    tmpfs=PATH, overlay=PATH PATH is a fresh file system of this kind
    unshare=ERRNO            a seccomp filter refuses user namespaces, as container engines' do
    id-map=ERRNO             a security module refuses to write id maps, as Ubuntu's AppArmor does
    mount-TYPE=ERRNO         the kernel mounts no file system of this type

Standard library only, and nothing of the project: what is tested must not be what tests.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import signal
import socket
import struct
import sys

_LIBC = ctypes.CDLL(None, use_errno=True)

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_CAP_SYS_ADMIN = 21
_CAPABILITY_VERSION_3 = 0x20080522

#: linux/audit.h and the kernel's syscall tables.
_NUMBERS = {
    "x86_64": {
        "arch": 0xC000003E,
        "clone": 56,
        "mount": 165,
        "openat": 257,
        "unshare": 272,
        "seccomp": 317,
        "fsopen": 430,
        "clone3": 435,
    },
    "aarch64": {
        "arch": 0xC00000B7,
        "mount": 40,
        "openat": 56,
        "unshare": 97,
        "clone": 220,
        "seccomp": 277,
        "fsopen": 430,
        "clone3": 435,
    },
}[platform.machine()]

_RET_ALLOW, _RET_ERRNO, _RET_NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1  # linux/seccomp.h


def main(words: list[str]) -> int:
    """Apply the hosts before `--`, run the command after it; its exit code."""
    split = words.index("--")
    hosts, command = words[:split], words[split + 1 :]
    refusals: dict[str, int] = {}
    for host in hosts:
        name, _, value = host.partition("=")
        if name in _STEPS:
            _STEPS[name](value)
        elif name in ("unshare", "id-map") or name.startswith("mount-"):
            refusals[name] = getattr(errno, value)
        else:
            raise SystemExit(f"simulate: no host is called {name!r}")
    return _run(refusals, command)


def _check(result: int, what: str) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"simulate: {what}: {os.strerror(number)}")
    return result


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = [os.fsencode(word) for word in (source, target, kind)]
    result = _LIBC.mount(*words, ctypes.c_ulong(flags), os.fsencode(options) or None)
    _check(result, f"mount {target}")


def _capable() -> bool:
    with open("/proc/self/status") as status:
        effective = next(line for line in status if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> _CAP_SYS_ADMIN & 1)


def _new_user_namespace(inside: int) -> None:
    """Enter a user namespace in which the caller's id, and no other, exists as `inside`."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_LIBC.unshare(_CLONE_NEWUSER), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {uid} 1"),
        ("gid_map", f"{inside} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _own_mounts() -> None:
    """Enter a mount namespace of its own, below a user namespace where that takes one.

    An ordinary user stays one: its capabilities there end with the next program it executes.
    """
    if not _capable():
        _new_user_namespace(os.geteuid())
    _check(_LIBC.unshare(_CLONE_NEWNS), "unshare")
    _mount("", "/", "", _MS_PRIVATE | _MS_REC)


def _become(uid: str) -> None:
    os.setgroups([])
    os.setresgid(int(uid), int(uid), int(uid))
    os.setresuid(int(uid), int(uid), int(uid))
    # As a program of this user is: its files in /proc are its own.
    _check(_LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def _without_sys_admin(_: str) -> None:
    if _capable():
        _check(_LIBC.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(_CAP_SYS_ADMIN), 0, 0, 0), "prctl")
        header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
        sets = ctypes.create_string_buffer(24)
        _check(_LIBC.capget(header, sets), "capget")
        words = [word & ~(1 << _CAP_SYS_ADMIN) for word in struct.unpack("=6I", sets.raw)[:3]]
        _check(_LIBC.capset(header, struct.pack("=3I", *words) + sets.raw[12:]), "capset")


def _no_new_privileges(_: str) -> None:
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def _container_root(_: str) -> None:
    _new_user_namespace(0)
    _own_mounts()


def _limit_namespaces(number: str) -> None:
    # The limit is one of the namespace; lowering the host's own would hit everybody.
    uid = os.geteuid()
    _new_user_namespace(uid)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write(number)


def _mask_proc(_: str) -> None:
    _own_mounts()
    _mount("/dev/null", "/proc/interrupts", "", _MS_BIND)


def _mount_read_only(path: str) -> None:
    _own_mounts()
    _mount(path, path, "", _MS_BIND)
    _mount("", path, "", _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _mount_tmpfs(path: str) -> None:
    _own_mounts()
    _mount("tmpfs", path, "tmpfs", 0, "size=256m,mode=755")


def _mount_overlay(path: str) -> None:
    _own_mounts()
    for name in ("lower", "upper", "work"):
        os.makedirs(f"{path}.{name}", exist_ok=True)
    options = f"lowerdir={path}.lower,upperdir={path}.upper,workdir={path}.work"
    user = ",userxattr" if os.geteuid() else ""
    _mount("overlay", path, "overlay", 0, options + user)


_STEPS = {
    "uid": _become,
    "without-sys-admin": _without_sys_admin,
    "no-new-privileges": _no_new_privileges,
    "container-root": _container_root,
    "namespace-limit": _limit_namespaces,
    "masked-proc": _mask_proc,
    "read-only": _mount_read_only,
    "tmpfs": _mount_tmpfs,
    "overlay": _mount_overlay,
}


def _filter(refusals: dict[str, int]) -> bytes:
    """BPF that refuses by flags by itself, and reports what only a look at a path can tell."""
    load, equal, any_bit, answer = 0x20, 0x15, 0x45, 0x06
    number, arch, argument = 0, 4, 16
    program = [(load, 0, 0, arch), (equal, 1, 0, _NUMBERS["arch"]), (answer, 0, 0, _RET_ALLOW)]
    program.append((load, 0, 0, number))
    if "unshare" in refusals:
        # A user namespace is asked for by a flag, which is in the first argument of both; clone3
        # has it in memory, and is answered as container engines do.
        refused = (answer, 0, 0, _RET_ERRNO | refusals["unshare"])
        for call in ("unshare", "clone"):
            program += [
                (equal, 0, 4, _NUMBERS[call]),
                (load, 0, 0, argument),
                (any_bit, 0, 1, _CLONE_NEWUSER),
                refused,
                (load, 0, 0, number),
            ]
        program += [
            (equal, 0, 1, _NUMBERS["clone3"]),
            (answer, 0, 0, _RET_ERRNO | errno.ENOSYS),
        ]
    reported = [call for call in ("openat",) if "id-map" in refusals]
    if any(name.startswith("mount-") for name in refusals):
        reported += ["mount", "fsopen"]
    for call in reported:
        program += [(equal, 0, 1, _NUMBERS[call]), (answer, 0, 0, _RET_NOTIFY)]
    program.append((answer, 0, 0, _RET_ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _install(program: bytes, *, listen: bool) -> int:
    if not _capable():
        _no_new_privileges("")
    code = ctypes.create_string_buffer(program, len(program))
    filters = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    flags = _NEW_LISTENER if listen else 0
    number = ctypes.c_long(_NUMBERS["seccomp"])
    return _check(_LIBC.syscall(number, _SET_MODE_FILTER, flags, filters), "seccomp")


def _run(refusals: dict[str, int], command: list[str]) -> int:
    program = _filter(refusals)
    if set(refusals) <= {"unshare"}:
        if refusals:
            _install(program, listen=False)
        os.execvp(command[0], command)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        os.get_exec_path()  # imports a module, and an import opens files: before there is an answer
        listener = _install(program, listen=True)
        socket.send_fds(theirs, [b"x"], [listener])
        os.close(listener)
        os.execvp(command[0], command)
    _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
    theirs.close()
    answerer = os.fork()
    if answerer == 0:
        ours.close()
        _answer(listener, refusals)
    os.close(listener)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # Not before the last process below the filter is gone: the next call of one would fail.
    os.waitpid(answerer, 0)
    return code if code >= 0 else 128 - code


def _answer(listener: int, refusals: dict[str, int]) -> None:
    """Answer until nobody is left below the filter; never returns."""
    import select

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    while True:
        (_, events), *_ = poller.poll()
        if not events & select.POLLIN:
            os._exit(0)
        notification = bytearray(128)
        try:
            fcntl.ioctl(listener, _RECEIVE, notification)
            identity, pid, _, number = struct.unpack_from("=QIIi", notification)
            arguments = struct.unpack_from("=6Q", notification, 32)
            refused = _decide(pid, number, arguments, refusals)
            result = struct.pack("=QqiI", identity, 0, -refused, 0 if refused else _CONTINUE)
            fcntl.ioctl(listener, _SEND, bytearray(result + bytes(64)))
        except OSError as error:
            if error.errno != errno.ENOENT:  # its process was killed meanwhile
                raise


def _decide(pid: int, number: int, arguments: tuple[int, ...], refusals: dict[str, int]) -> int:
    """The errno that one call gets, or 0."""
    if number == _NUMBERS["openat"]:
        path, flags = _string(pid, arguments[1]), arguments[2]
        is_map = path.startswith("/proc/") and path.endswith(("/uid_map", "/gid_map"))
        return refusals["id-map"] if is_map and flags & os.O_ACCMODE else 0
    kind = _string(pid, arguments[2 if number == _NUMBERS["mount"] else 0])
    return refusals.get(f"mount-{kind}", 0)


def _string(pid: int, address: int) -> str:
    if not address:
        return ""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        room = 4096 - address % 4096  # not beyond its page, which may be the last
        return os.fsdecode(memory.read(min(room, 256)).partition(b"\0")[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
