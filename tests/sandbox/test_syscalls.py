"""The filter of system calls in running sandboxes: what it answers, and what it must not disturb.

How each call is decided is a table in ``unit/test_seccomp.py``; here the kernel decides.
"""

from __future__ import annotations

import errno
import json
import platform
import re
import signal
import subprocess
import sys

import pytest

from minisandbox.sandbox import Profile, Sandbox
from minisandbox.sandbox.seccomp import numbers, policy

MACHINE = platform.machine()
NUMBERS = numbers.NUMBERS[MACHINE]

#: Makes each call of the list at its standard input; prints its errno, or "done".
CALL = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
for name, number, *arguments in json.load(sys.stdin):
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) for a in arguments))
    print(name, ctypes.get_errno() if result == -1 else "done")
"""


def existing(box: Sandbox, user: str) -> str:
    """``user``, or root where a single id is mapped and there is nobody else."""
    return user if int(box.read_file("/proc/self/uid_map").split()[2]) > 1 else "root"


def calls_of(*names: str, argument: int = -1) -> list[tuple[str | int, ...]]:
    return [(name, NUMBERS[name], *(argument,) * 6) for name in sorted(names)]


def answers(output: str) -> dict[str, str]:
    return dict(line.split() for line in output.splitlines())


def make(box: Sandbox, calls: list[tuple[str | int, ...]], **options: object) -> dict[str, str]:
    result = box.run(["python3", "-c", CALL], stdin=json.dumps(calls).encode(), **options)
    assert result.ok, result.text
    return answers(result.stdout_text)


def make_outside(calls: list[tuple[str | int, ...]]) -> dict[str, str]:
    words = [sys.executable, "-c", CALL]
    done = subprocess.run(words, input=json.dumps(calls), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return answers(done.stdout)


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_each_refused_call_fails_as_the_policy_says(box: Sandbox, user: str) -> None:
    refused = (policy.REFUSED | policy.NAMESPACES) & NUMBERS.keys()
    absent = policy.ABSENT & NUMBERS.keys()
    found = make(box, calls_of(*refused, *absent), user=existing(box, user))
    assert found == {
        **dict.fromkeys(refused, str(errno.EPERM)),
        **dict.fromkeys(absent, str(errno.ENOSYS)),
    }


def test_the_kernel_would_have_answered_otherwise(box: Sandbox) -> None:
    calls = [
        *calls_of("add_key", "io_uring_setup", "name_to_handle_at", "setns"),
        ("unshare", NUMBERS["unshare"], 0),
        ("personality", NUMBERS["personality"], 0x40000),
        ("AF_ALG", NUMBERS["socket"], 38, 5, 0),
        ("NETLINK_AUDIT", NUMBERS["socket"], 16, 3, 9),
        ("TIOCSTI", NUMBERS["ioctl"], -1, 0x5412, 0),
    ]
    inside, outside = make(box, calls), make_outside(calls)
    assert inside == {
        **dict.fromkeys(("add_key", "name_to_handle_at", "setns", "unshare"), str(errno.EPERM)),
        **dict.fromkeys(("personality", "TIOCSTI"), str(errno.EPERM)),
        "io_uring_setup": str(errno.ENOSYS),
        "AF_ALG": str(errno.EAFNOSUPPORT),
        "NETLINK_AUDIT": str(errno.EPROTONOSUPPORT),
    }
    assert not [name for name in inside.keys() - {"AF_ALG"} if outside[name] == inside[name]]


@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("clone", (0x10000000 | 17,), errno.EPERM),  # NEWUSER
        ("clone", (0x40000000 | 17,), errno.EPERM),  # NEWNET
        ("clone3", (), errno.ENOSYS),
        ("ioctl", (0, 1 << 40 | 0x5412), errno.EPERM),
        ("socket", (1 << 40 | 38, 5), errno.EAFNOSUPPORT),
        ("socket", (17, 3, 0), errno.EAFNOSUPPORT),  # PACKET
        ("socket", (40, 1, 0), errno.EAFNOSUPPORT),  # VSOCK
        ("socketpair", (30, 1, 0), errno.EAFNOSUPPORT),  # TIPC
        ("personality", (1 << 40 | 0x40000,), errno.EPERM),
        ("personality", (-1,), "done"),
        ("personality", (0,), "done"),
        ("socket", (16, 3, 0), "done"),
        ("socket", (1, 1, 0), "done"),
        ("socket", (10, 1, 0), "done"),
    ],
)
def test_arguments(box: Sandbox, name: str, arguments: tuple[int, ...], answer: str | int) -> None:
    assert make(box, [("it", NUMBERS[name], *arguments)]) == {"it": str(answer)}


@pytest.mark.parametrize(
    "number", [2000, 423, 0x3FFFFFFF, 0x40000000 | NUMBERS["getpid"], 0x40000000 | 520]
)
def test_numbers_that_are_in_no_table(box: Sandbox, number: int) -> None:
    assert make(box, [("it", number)]) == {"it": str(errno.ENOSYS)}


#: getpid as a program of 32 bits asks for it: mov $20, %eax; int $0x80; ret.
CALL_OF_32_BITS = """
import ctypes, mmap
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))
code = ctypes.c_char.from_buffer(memory)
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(code))(), flush=True)
"""


@pytest.mark.skipif(MACHINE != "x86_64", reason="needs x86_64")
def test_programs_of_32_bits_are_ended(box: Sandbox) -> None:
    words = [sys.executable, "-c", CALL_OF_32_BITS]
    runs_outside = subprocess.run(words, capture_output=True).returncode == 0
    result = box.run(["python3", "-c", CALL_OF_32_BITS])
    # Where the kernel runs no such programs, it ends them itself.
    expected = signal.SIGSYS if runs_outside else signal.SIGSEGV
    assert (result.exit_code, result.stdout) == (128 + expected, b"")


def test_it_applies_to_every_process(box: Sandbox) -> None:
    script = """
for status in /proc/self/status /proc/1/status /proc/$PPID/status; do grep ^Seccomp: $status; done
setsid -w grep ^Seccomp: /proc/self/status
"""
    assert box.run(script).stdout_text == "Seccomp:\t2\n" * 4
    assert b"Seccomp:\t2\n" in box.read_file("/proc/self/status")


def test_programs_are_not_slowed_down_against_speculation(box: Sandbox) -> None:
    script = "grep ^Speculation_Store_Bypass: /proc/self/status || echo none"
    inside = box.run(script).stdout_text
    outside = subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout
    assert inside == outside
    assert "force mitigated" not in inside


#: What must still work, and a Python program that fails where it does not.
PROGRAMS = {
    "threads": """
import threading
done = []
threads = [threading.Thread(target=done.append, args=(n,)) for n in range(50)]
[t.start() for t in threads]; [t.join() for t in threads]
assert sorted(done) == list(range(50))
""",
    "subprocesses": """
import os, subprocess
assert subprocess.run(["echo", "x"], capture_output=True, check=True).stdout == b"x\\n"
assert subprocess.run("exit 3", shell=True, start_new_session=True).returncode == 3
assert subprocess.run("exit 4", shell=True, preexec_fn=lambda: None).returncode == 4
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 5"], {}, setsid=True)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
pid = os.fork() or os._exit(6)
handle = os.pidfd_open(pid)
assert os.waitid(os.P_PIDFD, handle, os.WEXITED).si_status == 6
""",
    "multiprocessing": """
import concurrent.futures, multiprocessing, os
for method in ("fork", "spawn", "forkserver"):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        assert list(pool.map(abs, range(-3, 0))) == [3, 2, 1]
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=4096)
memory.unlink()
""",
    "asyncio": """
import asyncio
async def main():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b""
    writer.close()
    process = await asyncio.create_subprocess_exec("echo", "x", stdout=-1)
    assert await process.communicate() == (b"x\\n", None)
    assert await asyncio.to_thread(abs, -1) == 1
asyncio.run(main())
""",
    "signals and timers": """
import select, signal
caught = []
signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
assert caught
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
signal.raise_signal(signal.SIGUSR1)
assert signal.sigtimedwait([signal.SIGUSR1], 5).si_signo == signal.SIGUSR1
with select.epoll() as epoll:
    assert epoll.poll(0.01) == []
""",
    "terminals": """
import os, pty, termios
pid, master = pty.fork()
if not pid:
    os.execvp("sh", ["sh", "-c", "test -t 0 && stty size"])
termios.tcsetwinsize(master, (7, 9)) if hasattr(termios, "tcsetwinsize") else None
os.read(master, 100)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
""",
    "extended attributes, locks, files without names": """
import fcntl, os, tempfile
with tempfile.TemporaryFile() as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
    os.posix_fallocate(file.fileno(), 0, 4096)
    assert os.sendfile(os.memfd_create("x"), file.fileno(), 0, 10) == 10
os.mkfifo("/tmp/fifo")
os.unlink("/tmp/fifo")
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.nice(1)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("user", ["root", "nobody"])
def test_python_works(box: Sandbox, name: str, user: str) -> None:
    # A file, because `spawn` and `forkserver` read it again.
    guarded = "if __name__ == '__main__':\n" + re.sub(
        "^", "    ", PROGRAMS[name], flags=re.MULTILINE
    )
    box.write_file("/tmp/program.py", guarded)
    result = box.run(["python3", "/tmp/program.py"], user=existing(box, user), timeout=50)
    assert result.ok, result.text


SCRIPTS = {
    "virtual environments": """
python3 -m venv --without-pip /tmp/venv
/tmp/venv/bin/python -c 'import sys; assert sys.prefix != sys.base_prefix'
""",
    "git": """
git init -q /tmp/git && cd /tmp/git && echo x > x && git add x
git -c user.name=a -c user.email=b commit -qm x && git gc -q && git fsck
""",
    "compilers": """
cd /tmp && echo 'int main(void) { return 42; }' > x.c && gcc -pipe -o x x.c
./x && false || test $? = 42
""",
    "archives": """
tar -C /usr/include -cf - linux | tar -C /tmp --no-same-owner -xf -
test -e /tmp/linux/fs.h
""",
    "personalities": f"setarch {MACHINE} true && setarch --uname-2.6 true",
    "limits and priorities": "ulimit -n 100 && nice -n 5 ionice -c 3 taskset -c 0 true",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_programs_work(box: Sandbox, name: str) -> None:
    result = box.run(f"set -e; {SCRIPTS[name]}", timeout=50)
    assert result.ok, result.text


#: A tracer of its own child: reads its memory, and answers its getppid itself.
TRACER = """
import ctypes, os, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
def ptrace(request, pid, address, data):
    result = libc.ptrace(ctypes.c_long(request), pid, ctypes.c_void_p(address), data)
    assert result == 0, (request, ctypes.get_errno())
secret = ctypes.create_string_buffer(b"secret")
pid = os.fork()
if not pid:
    ptrace(0, 0, 0, None)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(7 if os.getppid() == 12345 else 8)
assert os.WSTOPSIG(os.waitpid(pid, 0)[1]) == signal.SIGSTOP
room = ctypes.create_string_buffer(6)
ours = struct.pack("@PN", ctypes.addressof(room), 6)
theirs = struct.pack("@PN", ctypes.addressof(secret), 6)
assert libc.process_vm_readv(pid, ours, 1, theirs, 1, 0) == 6 and room.raw == b"secret"
ptrace(0x4200, pid, 0, ctypes.c_void_p(1))  # SETOPTIONS, TRACESYSGOOD
registers = (ctypes.c_ulonglong * 27)()
entering, skipped = False, 0
while True:
    ptrace(24, pid, 0, None)  # SYSCALL
    status = os.waitpid(pid, 0)[1]
    if not os.WIFSTOPPED(status):
        break
    entering = not entering
    ptrace(12, pid, 0, registers)  # GETREGS
    if entering and registers[15] == 110:  # orig_rax: getppid
        registers[15], registers[10] = 2**64 - 1, 12345  # and rax
        ptrace(13, pid, 0, registers)
        skipped += 1
assert (os.waitstatus_to_exitcode(status), skipped) == (7, 1)
"""


@pytest.mark.skipif(MACHINE != "x86_64", reason="needs x86_64")
@pytest.mark.parametrize("user", ["root", "nobody"])
def test_tracing_a_child(box: Sandbox, user: str) -> None:
    result = box.run(["python3", "-c", TRACER], user=existing(box, user), timeout=30)
    assert result.ok, result.text


#: Tries to seize, to read and to write the process in its argument.
TRACE_ANOTHER = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1]) or os.getppid()
def ended(result):
    return ctypes.get_errno() if result == -1 else "done"
room = ctypes.create_string_buffer(8)
vector = struct.pack("@PN", ctypes.addressof(room), 8)
print(ended(libc.ptrace(16, pid, None, None)), ended(libc.ptrace(0x4206, pid, None, None)))
print(ended(libc.process_vm_readv(pid, vector, 1, vector, 1, 0)))
print(ended(libc.process_vm_writev(pid, vector, 1, vector, 1, 0)))
"""


@pytest.mark.parametrize("pid", ["1", "0"], ids=["PID 1", "the monitor"])
def test_what_runs_the_sandbox_cannot_be_traced(box: Sandbox, pid: str) -> None:
    result = box.run(["python3", "-c", TRACE_ANOTHER, pid])
    assert result.stdout_text.split() == [str(errno.EPERM)] * 4, result.text


@pytest.mark.parametrize("flags", ["-U", "-Ur", "-Urn", "-Urpf", "-m", "-n", "-i", "-u", "-C"])
def test_no_namespace_can_be_made(box: Sandbox, flags: str) -> None:
    assert "Operation not permitted" in box.run(f"unshare {flags} true").stderr_text


def test_nested_namespaces_by_name_only(start) -> None:
    box = start(profile=Profile(nested=True))
    assert box.run("unshare -Urm mount -t tmpfs x /mnt && unshare -Urpf true").ok
    assert box.run("unshare -Urn sh -c 'test $(id -u) = 0'").ok
    # What covers parts of /proc comes from a namespace with more rights, and stays.
    assert not box.run("unshare -rm umount /proc/keys").ok
    assert not box.run("unshare -rmpf mount -t proc none /mnt").ok
    assert make(box, calls_of("bpf", "keyctl", "clone3")) == {
        **dict.fromkeys(("bpf", "keyctl"), str(errno.EPERM)),
        "clone3": str(errno.ENOSYS),
    }


def test_programs_can_filter_themselves_further(box: Sandbox) -> None:
    program = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
code = struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000)
room = ctypes.create_string_buffer(code, 8)
head = struct.pack("@HP", 1, ctypes.addressof(room))
assert libc.syscall(%d, 1, 0, head) == 0, ctypes.get_errno()
assert libc.unshare(0) == -1 and ctypes.get_errno() == 1
"""
    result = box.run(["python3", "-c", program % NUMBERS["seccomp"]])
    assert result.ok, result.text


def test_it_stays_with_the_record_of_connections(start) -> None:
    box = start(profile=Profile(watch=True))
    assert box.watched == ""
    assert box.run("grep ^Seccomp: /proc/self/status").stdout == b"Seccomp:\t2\n"
    assert make(box, [("unshare", NUMBERS["unshare"], 0)]) == {"unshare": str(errno.EPERM)}
    script = "import socket; print(socket.socket().connect_ex(('127.0.0.1', 9)))"
    assert box.run(["python3", "-c", script]).stdout_text == f"{errno.ECONNREFUSED}\n"
    assert "127.0.0.1:9" in {attempt.address for attempt in box.attempts()}


def test_it_stays_with_what_is_made_of_a_sandbox(start) -> None:
    box = start(profile=Profile(nested=True))
    strict = start()
    strict.reset()
    with strict.fork() as fork, box.fork() as loose:
        for one in (strict, fork):
            assert one.run("grep -q '^Seccomp:.2' /proc/self/status && ! unshare -U true").ok
        assert loose.run("grep -q '^Seccomp:.2' /proc/self/status && unshare -U true").ok
