"""Listening sockets that are made inside a sandbox and served from outside of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput, SandboxDied
from minisandbox.idmap import IdMap
from minisandbox.sandbox import Profile, Sandbox, launch
from minisandbox.sandbox.profile import MOST_LISTENING
from waiting import eventually

PORT = 8099
SOURCE = Path(launch.__file__).parents[2]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"from outside: " + self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def served(listener: socket.socket) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_programs_inside_are_served_from_outside(start, name: str) -> None:
    box = start(profile=Profile(listen=(PORT,)))
    assert list(box.listeners) == [PORT]
    with served(box.listeners[PORT]):
        url = f"http://{name}:{PORT}/x"
        for command in (["python3", "-c", GET, url], ["curl", "-sS", "--fail", url]):
            result = box.run(command, timeout=30)
            assert result.stdout.strip() == b"from outside: /x", result.text


def test_nothing_listens_on_the_host(start) -> None:
    box = start(profile=Profile(listen=(PORT,)))
    with served(box.listeners[PORT]):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", PORT), 5)
        with socket.create_server(("127.0.0.1", PORT)):
            pass  # the port of the host is free


def test_the_same_port_in_two_sandboxes(start) -> None:
    one, other = (start(profile=Profile(listen=(PORT, 80))) for _ in range(2))
    with served(one.listeners[PORT]):
        ask = ["curl", "-sS", "--max-time", "2", f"http://127.0.0.1:{PORT}/"]
        assert one.run(ask).ok
        assert other.run(ask).exit_code == 28, "accepted by nobody: curl gives up"
    assert other.run(["curl", "-sS", "http://127.0.0.1:81/"]).exit_code == 7, "refused"


def test_as_many_ports_as_a_profile_takes(start) -> None:
    ports = tuple(range(1, MOST_LISTENING + 1))
    box = start(profile=Profile(listen=ports, watch=True))
    assert box.watched == ""
    assert [sock.getsockname() for sock in box.listeners.values()] == [
        ("127.0.0.1", port) for port in ports
    ]


def test_no_copy_stays_inside_or_in_children(start) -> None:
    box = start(profile=Profile(listen=(PORT,), watch=True))
    assert box.run(["true"]).ok  # PID 1 gives its copies up after it has sent them, and then serves
    held = [os.readlink(f"/proc/{box.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{box.pid}/fd")]
    assert not [name for name in held if "seccomp" in name], "PID 1 has kept the listener"
    (port,) = box.listeners.values()
    assert f"socket:[{os.fstat(port.fileno()).st_ino}]" not in held
    assert not port.get_inheritable()
    look = "import os\nfor n in range(3, 64): os.path.lexists(f'/proc/self/fd/{n}') and print(n)"
    theirs = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True)
    assert theirs.stdout == ""
    assert box.run('[ "$(ls /proc/self/fd | wc -l)" = 4 ]').ok, "the three streams, and ls's own"


def test_closing_wakes_who_accepts(start) -> None:
    box = start(profile=Profile(listen=(PORT,)))
    ended: list[int | None] = []

    def accept() -> None:
        try:
            box.listeners[PORT].accept()
        except OSError as error:
            ended.append(error.errno)

    thread = threading.Thread(target=accept)
    thread.start()
    box.close()
    thread.join(20)
    assert len(ended) == 1
    assert box.listeners[PORT].fileno() == -1


@pytest.mark.parametrize("end", ["seal", "close"])
def test_the_end_of_a_sandbox_closes_everything(start, end: str) -> None:
    start().run("true")  # whatever is opened once for the process
    before = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    box = start(profile=Profile(listen=(PORT, 80), watch=True))
    box.listeners[80].close()  # the caller may
    getattr(box, end)()
    assert box.listeners[PORT].fileno() == -1
    assert threading.active_count() == threads
    box.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(SandboxDied):
        box.run("true")


def test_the_end_of_the_client_ends_everything(scratch: Path, idmap: IdMap) -> None:
    program = f"""
import sys
from pathlib import Path
from minisandbox.idmap import IdMap
from minisandbox.sandbox import Profile, Sandbox
profile = Profile(listen=({PORT},), watch=True)
box = Sandbox.start([], scratch=Path({str(scratch)!r}), idmap={idmap!r}, profile=profile)
box.run("while :; do (: < /dev/tcp/127.0.0.1/1); done > /dev/null 2>&1 &")
print(box.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    ) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        client.kill()
        assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))

    def left() -> list[Path]:
        return [path for path in scratch.iterdir() if not path.name.startswith(("base-", ".base"))]

    assert eventually(lambda: not left()), "its directory is removed by the server"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"listen": (PORT,), "network": "host"}, "that port of the host"),
        ({"listen": (0,)}, "port 0 cannot"),
        ({"listen": (65_536,)}, "port 65536 cannot"),
        ({"listen": (-1,)}, "port -1 cannot"),
        ({"listen": (80, 81, 80)}, "twice"),
        ({"listen": tuple(range(1, MOST_LISTENING + 2))}, "at most"),
    ],
)
def test_ports_that_make_no_sense(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        Profile(**options)


def test_both_are_part_of_what_a_profile_is() -> None:
    profiles = [Profile(), Profile(listen=(1, 2)), Profile(watch=True)]
    assert len({profile.digest() for profile in profiles}) == 3
    assert Profile(listen=(2, 1)).digest() == Profile(listen=(1, 2)).digest()


def test_control_the_server_of_these_tests_serves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, served(listener):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/y"
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.read() == b"from outside: /y"


def test_sandboxes_without_listening_sockets_have_none(box: Sandbox) -> None:
    assert dict(box.listeners) == {}
