"""D4: builds that install at once share one cache, fetch once, and never see half a file."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from minisandbox.build.index.proxy import IndexProxy

CONTENT = os.urandom(2_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FILE = "/files/foo/foo-1.tar.gz"

#: A build: serves itself the file through a proxy of its own, and says its digest.
BUILD = """
import hashlib, http.client, socket, sys
from pathlib import Path
from minisandbox.build.index.proxy import IndexProxy
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
with IndexProxy(cache=Path(sys.argv[1]), indexes=[sys.argv[2]]) as proxy:
    proxy.serve(listener)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/files/foo/foo-1.tar.gz")
    body = connection.getresponse().read()
    connection.close()
    assert [file.sha256 for file in proxy.served] == [hashlib.sha256(body).hexdigest()]
    assert proxy.path(proxy.served[0]).read_bytes() == body
print(hashlib.sha256(body).hexdigest())
"""


@dataclass
class Halting:
    """An index that stops in the middle of a file until ``go`` is set."""

    port: int
    go: threading.Event = field(default_factory=threading.Event)
    transfers: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Halting]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    entry = {"filename": "foo-1.tar.gz", "url": "/f", "size": len(CONTENT)}
    entry["hashes"] = {"sha256": SHA256}
    page = json.dumps({"meta": {"api-version": "1.1"}, "name": "foo", "files": [entry]}).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page if self.path.startswith("/simple/") else CONTENT
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            half = len(body) // 2
            try:
                self.wfile.write(body[:half])
                if body is CONTENT:
                    state.transfers += 1
                    assert state.go.wait(30)
                self.wfile.write(body[half:])
            except ConnectionError:
                pass  # the build was killed

        def log_message(self, *args: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        state = Halting(listener.server_port)
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        state.go.set()
        listener.shutdown()
        thread.join()


def until(claim: Callable[[], bool]) -> None:
    while not claim():
        time.sleep(0.01)


def test_a_killed_build_leaves_nothing_to_the_others(index: Halting, tmp_path: Path) -> None:
    def begin() -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", "-c", BUILD, str(tmp_path), index.url]
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    victim = begin()
    until(lambda: index.transfers == 1)
    builds = [begin() for _ in range(4)]
    victim.kill()
    victim.communicate()
    until(lambda: index.transfers == 2)  # one of the others took over, and the rest wait for it
    index.go.set()
    for build in builds:
        out, errors = build.communicate()
        assert (out.strip(), errors, build.returncode) == (SHA256, "", 0)
    assert index.transfers == 2
    files = [path for path in (tmp_path / "files").rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == [".lock", "foo-1.tar.gz"]


def test_two_requests_fetch_once_and_a_stalled_one_holds_nobody_up(
    index: Halting, tmp_path: Path
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with IndexProxy(cache=tmp_path, indexes=[index.url]) as proxy:
        proxy.serve(listener)
        with socket.create_connection(("127.0.0.1", port)) as stalled:
            stalled.sendall(f"GET {FILE} HTTP/1.0\r\n\r\n".encode())
            assert stalled.recv(20).startswith(b"HTTP/1.0 200")  # while the index halts
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", FILE)
            with connection.getresponse() as response:
                beginning = response.read(len(CONTENT) // 4)
                assert proxy.served == ()
                index.go.set()
                assert beginning + response.read() == CONTENT
            connection.close()
        assert index.transfers == 1
        assert [file.sha256 for file in proxy.served] == [SHA256]


def test_what_the_end_of_a_build_cuts_off_is_no_failure(index: Halting, tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with IndexProxy(cache=tmp_path, indexes=[index.url]) as proxy:
        proxy.serve(listener)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(f"GET {FILE} HTTP/1.0\r\n\r\n".encode())
            assert client.recv(20).startswith(b"HTTP/1.0 200")
    index.go.set()
    until(lambda: not any(thread.name.startswith("fetch ") for thread in threading.enumerate()))
    assert (proxy.unreachable, proxy.unusable, proxy.served) == ("", "", ())
    assert [path.name for path in (tmp_path / "files" / SHA256).iterdir()] == [".lock"]
