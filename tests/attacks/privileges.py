"""Rights: capabilities, ids, priorities and limits."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import tempfile
import time

from attacks.table import Facts, add, attack, call, in_child, is_there

_NOBODY = 65534
_CAPABILITIES = {"NET_ADMIN": 12, "SYS_MODULE": 16, "SYS_PTRACE": 19, "SYS_ADMIN": 21, "BPF": 39}
_PR_CAPBSET_READ, _PR_GET_NO_NEW_PRIVS = 23, 39


@attack()
def host_root_is_mapped(facts: Facts) -> str | None:
    """Id 0 of the host has a number inside: what is its can be written, /proc/sys above all."""
    # Not by /proc/self/uid_map, which counts as the namespace above does, and that may be nested.
    owner = os.stat("/proc/sys/kernel/panic").st_uid
    with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
        nobody = int(file.read())
    return f"as {owner}" if owner != nobody else None


@attack(by="root")
def more_of_the_host_is_mapped(facts: Facts) -> str | None:
    """A nested namespace maps ids that the sandbox does not have."""
    read_end, write_end = os.pipe()
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            call("unshare", 0x10000000)
            os.write(go, b"g")
            os.read(read_end, 1)
        finally:
            os._exit(0)
    os.close(go)
    try:
        if os.read(ready, 1) != b"g":
            raise PermissionError(1, "no nested namespace")
        with open(f"/proc/{pid}/uid_map", "w", encoding="ascii") as table:
            table.write("0 0 4294967295")
        return "all ids"
    finally:
        os.write(write_end, b"x")
        os.waitpid(pid, 0)


for _name, _number in _CAPABILITIES.items():

    def _raise(facts: Facts, number: int = _number) -> str | None:
        """Hold a capability, or take it."""
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        data = (ctypes.c_uint32 * 6)()
        call("capget", header, data)
        word, bit = divmod(number, 32)
        data[word * 3] |= 1 << bit
        call("capset", header, data)
        return "effective"

    add(f"capability_{_name}", _raise, gain=f"CAP_{_name} is held or taken", by="root")


def _status(pid: int | str, field: str) -> list[str]:
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == field:
                return value.split()
    raise KeyError(field)


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def _runs_as(program: list[str], field: str) -> list[str]:
    """A field of the status of a program that nobody starts."""
    child = subprocess.Popen(
        program,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_become_nobody,
    )
    try:
        time.sleep(0.2)  # for a program that changes its ids itself
        return _status(child.pid, field)
    finally:
        child.kill()
        child.wait()


def _copy_of_cat() -> str:
    for place in ("/var/tmp", "/root", "/tmp"):
        if os.access(place, os.W_OK) and not os.statvfs(place).f_flag & os.ST_NOSUID:
            break
    folder = tempfile.mkdtemp(dir=place)
    os.chmod(folder, 0o755)
    return shutil.copy(str(shutil.which("cat")), f"{folder}/cat")


@attack(by="root")
def set_uid_program_made_inside(facts: Facts) -> str | None:
    """A program that root inside leaves behind makes everybody root."""
    copy = _copy_of_cat()
    try:
        os.chmod(copy, 0o4755)
        return "effective id 0" if _runs_as([copy], "Uid")[1] == "0" else None
    except subprocess.SubprocessError as error:
        raise PermissionError(1, "ids cannot be changed") from error
    finally:
        shutil.rmtree(os.path.dirname(copy))


@attack(by="root")
def file_capabilities(facts: Facts) -> str | None:
    """A file's capabilities give a program what its user does not have."""
    copy = _copy_of_cat()
    try:
        chown_and_more = 0xFF
        xattr = (0x02000001).to_bytes(4, "little") + chown_and_more.to_bytes(4, "little")
        os.chmod(copy, 0o755)
        os.setxattr(copy, "security.capability", xattr + bytes(12))
        held = int(_runs_as([copy], "CapEff")[0], 16)
        return f"{held:#x}" if held else None
    except subprocess.SubprocessError as error:
        raise PermissionError(1, "ids cannot be changed") from error
    finally:
        shutil.rmtree(os.path.dirname(copy))


@attack(by="root", lack="hosts without su, and newgrp, and passwd")
def set_uid_program_of_the_host(facts: Facts) -> str | None:
    """su of the host's /usr runs as root for everybody inside."""
    if not is_there(facts.set_uid):
        return None
    program = facts.set_uid[0]
    try:
        return program if _runs_as([program], "Uid")[1] == "0" else None
    except subprocess.SubprocessError as error:
        raise PermissionError(1, "ids cannot be changed") from error


@attack()
def new_privileges(facts: Facts) -> str | None:
    """Programs may gain rights by execve at all."""
    from attacks.table import libc

    return "no_new_privs is off" if libc.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0 else None


@attack(by="root")
def higher_priority(facts: Facts) -> str | None:
    """Everything else on the machine waits."""
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    return "nice -20"


@attack(by="root", lack="control groups without a real-time budget")
def real_time_scheduling(facts: Facts) -> str | None:
    """A loop that nothing interrupts."""

    def rise() -> str | None:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        return "SCHED_FIFO"

    return in_child(rise)


@attack(by="root")
def real_time_disk_access(facts: Facts) -> str | None:
    """The disk serves nobody else."""
    who_process, real_time = 1, 1 << 13
    call("ioprio_set", who_process, 0, real_time)
    return "real time"


_NO_RESOURCE = "callers without CAP_SYS_RESOURCE"


@attack(by="root", lack=_NO_RESOURCE)
def spared_by_the_oom_killer(facts: Facts) -> str | None:
    """When memory ends, others die."""

    def rise() -> str | None:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("-1000")
        return "-1000"

    return in_child(rise)


@attack(by="root", lack=_NO_RESOURCE)
def raised_limit(facts: Facts) -> str | None:
    """A hard limit on open files is raised again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def rise() -> str | None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard - 1))
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except ValueError as error:  # what the module makes of EPERM
            raise PermissionError(1, str(error)) from error
        return "raised"

    return in_child(rise)


@attack(lack="callers with a hard limit of 0 on core dumps")
def core_dump(facts: Facts) -> str | None:
    """A crash fills the disk, or runs the host's crash handler on what the attacker prepared."""
    folder = tempfile.mkdtemp()

    def crash() -> None:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        os.chdir(folder)
        os.kill(os.getpid(), 11)

    pid = os.fork()
    if pid == 0:
        try:
            crash()
        finally:
            os._exit(1)
    dumped = os.WCOREDUMP(os.waitpid(pid, 0)[1])
    shutil.rmtree(folder)
    return "dumped" if dumped else None
