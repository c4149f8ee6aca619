"""What a sandbox records of the connections that programs inside try, and that none of them waits
for ever.

Each target that must be out of reach is reached from the host first: a control.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minisandbox import linux
from minisandbox.idmap import current, remove_tree, single
from minisandbox.sandbox import Attempt, Profile, Sandbox, launch
from minisandbox.sandbox.watching import MOST_ADDRESSES, OTHERS
from waiting import eventually

SOURCE = Path(launch.__file__).parents[2]
WATCHED = Profile(watch=True)

#: Connects to the Python address in its argument, and prints how that ended.
CONNECT = """
import socket, sys
family, address = eval(sys.argv[1])
sock = socket.socket(family, socket.SOCK_STREAM)
sock.settimeout(10)
try:
    sock.connect(address)
    print("connected")
except OSError as error:
    print(type(error).__name__, error.errno)
"""
#: A loop of connects to a port where nothing listens, until it is ended from outside.
HAMMER = """
import socket
while True:
    with socket.socket() as sock:
        try:
            sock.connect(("127.0.0.1", 9))
        except ConnectionRefusedError:
            pass
"""


def connect(box: Sandbox, family: int, address: object) -> str:
    command = ["python3", "-c", CONNECT, repr((int(family), address))]
    return box.run(command, timeout=30).stdout_text.strip()


def counts(box: Sandbox) -> dict[str, int]:
    return {attempt.address: attempt.count for attempt in box.attempts()}


@contextmanager
def answering(listener: socket.socket) -> Iterator[None]:
    """Accept on ``listener`` and say hello, so that a client can tell that it was reached."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"hello")

    listener.listen()
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def reached(family: int, address: object) -> bool:
    with socket.socket(family) as client:
        client.connect(address)
        return client.recv(5) == b"hello"


def test_the_loopback_of_the_host(start) -> None:
    box = start(profile=WATCHED)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        with answering(server):
            port = server.getsockname()[1]
            assert reached(socket.AF_INET, ("127.0.0.1", port)), "the control"
            assert connect(box, socket.AF_INET, ("127.0.0.1", port)) == (
                f"ConnectionRefusedError {errno.ECONNREFUSED}"
            )
    assert box.watched == ""
    assert box.attempts() == (Attempt(f"127.0.0.1:{port}", 1),)


def test_abstract_sockets_of_the_host(start) -> None:
    box = start(profile=WATCHED)
    name = f"minisandbox-{os.getpid()}-{threading.get_ident()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        with answering(server):
            assert reached(socket.AF_UNIX, f"\0{name}"), "the control"
            assert connect(box, socket.AF_UNIX, f"\0{name}") == (
                f"ConnectionRefusedError {errno.ECONNREFUSED}"
            )
    assert box.attempts() == (Attempt(f"unix:@{name}", 1),)


@pytest.mark.parametrize(
    ("family", "address", "ended", "recorded"),
    [
        (socket.AF_INET, ("192.0.2.1", 80), f"OSError {errno.ENETUNREACH}", "192.0.2.1:80"),
        (
            socket.AF_INET6,
            ("2001:db8::1", 443),
            f"OSError {errno.ENETUNREACH}",
            "[2001:db8::1]:443",
        ),
        (socket.AF_UNIX, "/run/no", f"FileNotFoundError {errno.ENOENT}", "unix:/run/no"),
    ],
)
def test_other_addresses(start, family: int, address: object, ended: str, recorded: str) -> None:
    box = start(profile=WATCHED)
    assert connect(box, family, address) == ended
    assert box.attempts() == (Attempt(recorded, 1),)


def test_sockets_that_lead_to_the_kernel(start) -> None:
    box = start(profile=WATCHED)
    program = "import socket; socket.socket(16, 3, 0).connect((0, 0)); print('connected')"
    assert box.run(["python3", "-c", program]).stdout == b"connected\n"
    assert box.attempts() == (Attempt("netlink", 1),)


def test_datagrams(start) -> None:
    box = start(profile=WATCHED)
    program = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    sock.sendto(b"x", ("192.0.2.7", 53))
except OSError as error:
    print(error.errno)
sock.connect(("127.0.0.1", 5353))
sock.send(b"no address: not reported")
"""
    assert box.run(["python3", "-c", program]).stdout_text == f"{errno.ENETUNREACH}\n"
    assert box.attempts() == (Attempt("192.0.2.7:53", 1), Attempt("127.0.0.1:5353", 1))


def test_what_is_inside_works_as_ever(start) -> None:
    box = start(profile=WATCHED)
    program = """
import socket, threading
with socket.create_server(("127.0.0.1", 0)) as server:
    thread = threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"))
    thread.start()
    with socket.create_connection(server.getsockname()) as client:
        print(client.recv(5))
    thread.join()
client = socket.socket()
client.setblocking(False)
print(client.connect_ex(("127.0.0.1", 9)) in (111, 115))
"""
    result = box.run(["python3", "-c", program], timeout=30)
    assert result.stdout_text.split() == ["b'hello'", "True"], result.text


def test_addresses_at_bad_pointers(start) -> None:
    box = start(profile=WATCHED)
    program = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
sock = libc.socket(2, 1, 0)
for pointer, length in ((0, 16), (8, 16), (-4096, 16), (id(libc), -1), (id(libc), 2**31 - 1)):
    libc.connect(sock, ctypes.c_void_p(pointer), ctypes.c_int(length))
    print(ctypes.get_errno())
"""
    result = box.run(["python3", "-c", program], timeout=30)
    assert result.stdout_text.split() == [str(errno.EFAULT)] * 3 + [str(errno.EINVAL)] * 2
    assert counts(box)["unreadable"] == 3


def test_programs_that_hide_their_memory(start) -> None:
    box = start(profile=WATCHED)
    program = "import ctypes; assert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0\n" + CONNECT
    command = ["python3", "-c", program, repr((2, ("127.0.0.1", 9)))]
    assert box.run(command).stdout_text.startswith("ConnectionRefusedError")
    assert box.attempts() == (Attempt("127.0.0.1:9", 1),)


@pytest.mark.parametrize(
    "wrapper",
    [
        "",
        "sh -c '\"$@\"' sh",
        "setsid -w",
        "unshare -U",
        "unshare -Ur unshare -Ur",
        "unshare -Urn",
        "unshare -Urpf",
    ],
)
def test_every_process_inside_is_seen(start, wrapper: str) -> None:
    box = start(profile=Profile(watch=True, nested=True))
    script = f'exec {wrapper} python3 -c "$PROGRAM" "(2, (\'127.0.0.1\', 9))"'
    result = box.run(script, env={"PROGRAM": CONNECT}, timeout=30)
    assert result.exit_code == 0, result.text
    # Not the only one: bash asks a name service, at a socket, who its user is.
    assert counts(box)["127.0.0.1:9"] == 1


def test_other_users_inside_are_seen(start, idmap) -> None:
    box = start(profile=WATCHED)
    user = "nobody" if idmap.count > 1 else "root"
    command = ["python3", "-c", CONNECT, "(2, ('127.0.0.1', 9))"]
    assert box.run(command, user=user).stdout_text.startswith("ConnectionRefusedError")
    assert box.attempts() == (Attempt("127.0.0.1:9", 1),)


def test_many_connects_and_many_addresses(start) -> None:
    box = start(profile=WATCHED)
    program = """
import socket
for number in range(10_000):
    with socket.socket() as sock:
        sock.connect_ex(("127.1.0.0", 1 + number % 3_000))
print("done")
"""
    box.run(["python3", "-c", program], timeout=50)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first = box.attempts()
    assert len(first) == MOST_ADDRESSES + 1
    assert first[0].address == "127.1.0.0:1"
    assert first[-1].address == OTHERS
    assert sum(attempt.count for attempt in first) == 10_000
    assert box.run(["python3", "-c", program], timeout=50).stdout == b"done\n"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096, "KiB"
    assert len(box.attempts()) == MOST_ADDRESSES + 1


def test_the_record_outlives_the_sandbox(start) -> None:
    box = start(profile=WATCHED)
    connect(box, socket.AF_INET, ("127.0.0.1", 9))
    box.seal()
    assert box.attempts() == (Attempt("127.0.0.1:9", 1),)
    box.close()
    assert box.attempts() == (Attempt("127.0.0.1:9", 1),)


def test_the_record_goes_on_after_a_snapshot_and_ends_with_a_reset(start) -> None:
    box = start(profile=WATCHED)
    connect(box, socket.AF_INET, ("127.0.0.1", 9))
    for count in (1, 2):
        with box.snapshot() as snapshot, box.start_from(snapshot) as child:
            assert snapshot.way == "sealed"
            assert box.attempts() == (Attempt("127.0.0.1:9", count),)
            assert child.attempts() == ()
        connect(box, socket.AF_INET, ("127.0.0.1", 9))
    connect(box, socket.AF_INET, ("127.0.0.1", 10))
    assert box.attempts() == (Attempt("127.0.0.1:9", 3), Attempt("127.0.0.1:10", 1))
    box.reset()
    assert box.attempts() == ()


@contextmanager
def stalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Hold the watcher where it reads the first address: it has been reached, it may go on."""
    arrived, proceed = threading.Event(), threading.Event()
    read = linux.read_memory

    def slow(pid: int, address: int, size: int) -> bytes:
        if address == 0:  # the start of a sandbox asks whether memory can be read at all
            return read(pid, address, size)
        arrived.set()
        assert proceed.wait(50)
        return read(pid, address, size)

    with monkeypatch.context() as patch:
        patch.setattr(linux, "read_memory", slow)
        try:
            yield arrived, proceed
        finally:
            proceed.set()


def test_a_process_killed_while_it_waits(start, monkeypatch: pytest.MonkeyPatch) -> None:
    box = start(profile=WATCHED)
    with stalled(monkeypatch) as (arrived, proceed):
        # Not through bash, which would wait in a connect of its own.
        begin = 'python3 -c "$PROGRAM" "(2, (\'127.0.0.1\', 7))" & echo $! > /pid'
        box.run(["sh", "-c", begin], env={"PROGRAM": CONNECT})
        assert arrived.wait(20)
        end = "kill -9 $(cat /pid); while [ -e /proc/$(cat /pid) ]; do sleep 0.05; done"
        assert box.run(["sh", "-c", end], timeout=20).ok
        proceed.set()
    assert connect(box, socket.AF_INET, ("127.0.0.1", 9)).startswith("ConnectionRefusedError")
    assert box.attempts() == (Attempt("127.0.0.1:9", 1),), "the first never came to connect"


@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (5, 19),
    reason="before Linux 5.19 signals end the wait for an answer",
)
def test_signals_do_not_cut_a_connect_short(start, monkeypatch: pytest.MonkeyPatch) -> None:
    box = start(profile=WATCHED)
    program = "import signal; signal.signal(signal.SIGALRM, lambda *_: None); "
    program += "signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\n" + CONNECT
    with stalled(monkeypatch) as (arrived, proceed):

        def proceed_later() -> None:
            arrived.wait(20)
            time.sleep(0.3)  # some thirty signals
            proceed.set()

        thread = threading.Thread(target=proceed_later)
        thread.start()
        ended = box.run(["python3", "-c", program, "(2, ('127.0.0.1', 9))"], timeout=30)
        thread.join()
        assert arrived.is_set()
    assert ended.stdout_text.startswith("ConnectionRefusedError"), ended.text
    assert box.attempts() == (Attempt("127.0.0.1:9", 1),)


def test_a_timeout_ends_a_process_that_waits(start, monkeypatch: pytest.MonkeyPatch) -> None:
    box = start(profile=WATCHED)
    with stalled(monkeypatch) as (arrived, _):
        result = box.run(["python3", "-c", CONNECT, "(2, ('127.0.0.1', 9))"], timeout=4)
        assert arrived.is_set()
    assert result.timed_out
    assert box.run("true").ok


def test_a_timeout_while_many_hammer(start) -> None:
    box = start(profile=WATCHED)
    script = 'for n in 1 2 3 4 5 6; do python3 -c "$PROGRAM" & done; wait'
    assert box.run(script, env={"PROGRAM": HAMMER}, timeout=3).timed_out
    assert box.run("! pgrep -f 127.0.0.1").ok
    assert counts(box)["127.0.0.1:9"] > 1


@pytest.mark.parametrize("end", ["seal", "close"])
def test_the_end_while_many_hammer(start, end: str) -> None:
    box = start(profile=WATCHED)
    box.run('for n in 1 2 3 4 5 6; do python3 -c "$PROGRAM" & done', env={"PROGRAM": HAMMER})
    assert eventually(lambda: counts(box).get("127.0.0.1:9", 0) > 100)
    pid = box.pid
    getattr(box, end)()
    assert not os.path.exists(f"/proc/{pid}")
    assert not [t for t in threading.enumerate() if t.name == "minisandbox-watcher"]


def test_the_watcher_goes_with_a_sandbox_that_dies(start) -> None:
    box = start(profile=WATCHED)
    connect(box, socket.AF_INET, ("127.0.0.1", 9))
    os.kill(box.pid, 9)
    assert eventually(
        lambda: not [t for t in threading.enumerate() if t.name == "minisandbox-watcher"]
    )
    assert box.attempts() == (Attempt("127.0.0.1:9", 1),)


def test_sandboxes_are_recorded_apart(start) -> None:
    one, other, third = start(profile=WATCHED), start(profile=WATCHED), start()
    for box, port in ((one, 1), (other, 2), (third, 3)):
        connect(box, socket.AF_INET, ("127.0.0.1", port))
    assert one.attempts() == (Attempt("127.0.0.1:1", 1),)
    assert other.attempts() == (Attempt("127.0.0.1:2", 1),)
    assert third.attempts() == ()
    assert "does not ask" in third.watched


def test_with_the_network_of_the_host(start) -> None:
    box = start(profile=Profile(network="host", watch=True))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connect(box, socket.AF_INET, ("127.0.0.1", port)) == "connected"
    assert box.attempts() == (Attempt(f"127.0.0.1:{port}", 1),)


def test_closed_memory_is_said(start, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(pid: int, address: int, size: int) -> bytes:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(linux, "read_memory", closed)
    box = start(profile=WATCHED)
    assert "ptrace_scope" in box.watched
    assert connect(box, socket.AF_INET, ("127.0.0.1", 9)).startswith("ConnectionRefusedError")
    assert box.attempts() == (Attempt("unreadable", 1),)


#: Puts itself below a filter of system calls, as a container engine would, then uses a sandbox.
BELOW_A_FILTER = """
import ctypes, struct, sys
from pathlib import Path
from minisandbox import linux
from minisandbox.idmap import current, single
from minisandbox.sandbox import Profile, Sandbox

number = linux._SYSCALLS[__import__("os").uname().machine]["seccomp"]
refusal, idmap = int(sys.argv[1]), current() if current().kind == "root" else single()
if idmap.kind != "root":
    linux.forbid_new_privileges()
if refusal == 16:  # EBUSY: a listener of somebody else's, for a system call that nobody makes
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, 0x3FFFFFFF), (6, 0, 0, 0x7FC00000), (6, 0, 0, 0x7FFF0000)]
    listener = linux.install_reporting_filter(b"".join(struct.pack("=HBBI", *i) for i in code))
else:
    code = [
        (0x20, 0, 0, 0),  # the number
        (0x15, 0, 3, number),
        (0x20, 0, 0, 24),  # the second argument: flags
        (0x45, 0, 1, 8),  # NEW_LISTENER
        (6, 0, 0, 0x00050000 | refusal),
        (6, 0, 0, 0x7FFF0000),
    ]
    program = b"".join(struct.pack("=HBBI", *i) for i in code)
    buffer = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(code), ctypes.addressof(buffer))
    linux._syscall("seccomp", 1, 0, head)
profile = Profile(watch=True, listen=(80,))
with Sandbox.start([], scratch=Path(sys.argv[2]), idmap=idmap, profile=profile) as box:
    probe = "import socket; print(socket.create_connection(('127.0.0.1', 80)).getpeername()[1])"
    print(box.run(["python3", "-c", probe]).text.strip(), len(box.attempts()), box.watched)
"""


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (errno.EPERM, "refuses a seccomp listener: Operation not permitted"),
        (errno.ENOSYS, "has no seccomp listeners"),
        (errno.EINVAL, "has no seccomp listeners"),
        (errno.EBUSY, "container engine"),
    ],
    ids=lambda value: errno.errorcode.get(value, "") if isinstance(value, int) else "",
)
def test_where_the_kernel_refuses_the_sandbox_works_and_says_so(
    tmp_path: Path, refusal: int, reason: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BELOW_A_FILTER, str(refusal), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), *sys.path])},
        capture_output=True,
        text=True,
    )
    remove_tree(tmp_path, current() if current().kind == "root" else single())
    port, attempts, watched = done.stdout.split(" ", 2)
    assert (port, attempts) == ("80", "0"), done.stderr
    assert reason in watched
