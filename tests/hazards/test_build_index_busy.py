"""D3: an index that limits rates or fails for a moment breaks no build, and is not hammered."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from minisandbox.build.index.proxy import IndexProxy, Patience
from minisandbox.build.index.proxy.fetching import Fetcher

CONTENT = os.urandom(1_000_000)
PAGE = json.dumps(
    {
        "meta": {"api-version": "1.1"},
        "name": "foo",
        "files": [
            {
                "filename": "foo-1.tar.gz",
                "url": "/files/foo-1.tar.gz",
                "hashes": {"sha256": hashlib.sha256(CONTENT).hexdigest()},
                "size": len(CONTENT),
            }
        ],
    }
).encode()
FILE = "/files/foo/foo-1.tar.gz"


@dataclass
class Moody:
    """An index that first answers what ``moods`` says for a path: a status, or where it breaks."""

    port: int
    moods: dict[str, list[int | str]] = field(default_factory=dict)
    retry_after: str = ""
    asked: list[str] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)

    def always(self, path: str, mood: int | str) -> None:
        self.moods[path] = [mood] * 1000


class Handler(http.server.BaseHTTPRequestHandler):
    state: Moody

    def do_GET(self) -> None:
        self.state.asked.append(self.path)
        moods = self.state.moods.get(self.path, [])
        mood = moods.pop(0) if moods else 200
        body = PAGE if self.path.startswith("/simple/") else CONTENT
        if mood == "reset":
            return
        if mood == "store":
            self.deny()
            return
        self.send_response(mood if isinstance(mood, int) else 200)
        self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
        if mood in (200, "cut", "other half"):
            self.send_header("Content-Length", str(len(body)))
        elif self.state.retry_after:
            self.send_header("Retry-After", self.state.retry_after)
        self.end_headers()
        if mood == 200:
            self.wfile.write(body)
        elif mood == "cut":
            self.wfile.write(body[: len(body) // 2])
        elif mood == "other half":
            self.wfile.write(bytes(len(body) // 2))
            assert self.state.go.wait(30)

    def deny(self) -> None:
        """What S3 says of a key that it does not have, to who may not list the keys."""
        body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moody]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    class Bound(Handler):
        pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bound) as listener:
        Bound.state = Moody(listener.server_port)
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Bound.state
        listener.shutdown()
        thread.join()


@dataclass
class Serving:
    proxy: IndexProxy
    port: int

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            with connection.getresponse() as response:
                return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture
def serving(index: Moody, tmp_path: Path) -> Iterator[Serving]:
    patience = Patience(attempts=4, first=0.01, total=5)
    urls = [f"http://127.0.0.1:{index.port}/simple"]
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with IndexProxy(cache=tmp_path, indexes=urls, patience=patience) as proxy:
        proxy.serve(listener)
        yield Serving(proxy, port)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which pass at once."""
    made: list[float] = []
    monkeypatch.setattr(Fetcher, "_pause", lambda self, seconds: made.append(seconds))
    return made


@pytest.mark.parametrize("mood", [429, 500, 502, 503, 504, "reset", "cut"])
@pytest.mark.parametrize("path", ["/simple/foo/", "/files/foo-1.tar.gz"])
def test_a_failure_that_passes_is_not_seen(
    index: Moody, serving: Serving, mood: int | str, path: str
) -> None:
    index.moods[path] = [mood, mood]
    status, body = serving.get("/simple/foo/")
    assert (status, b"foo-1.tar.gz" in body) == (200, True)
    assert serving.get(FILE) == (200, CONTENT)
    assert index.asked.count(path) == 3
    assert serving.proxy.unreachable == ""


def test_a_transfer_that_goes_on_with_something_else_is_cut_off(
    index: Moody, serving: Serving, pauses: list[float]
) -> None:
    index.moods["/files/foo-1.tar.gz"] = ["other half"]
    with socket.create_connection(("127.0.0.1", serving.port)) as client:
        client.sendall(f"GET {FILE} HTTP/1.0\r\n\r\n".encode())
        got = client.recv(1 << 10)
        index.go.set()
        while piece := client.recv(1 << 16):
            got += piece
    assert len(got) < len(CONTENT)
    assert serving.get(FILE) == (200, CONTENT)


def test_a_transfer_that_never_succeeds_is_said(index: Moody, serving: Serving) -> None:
    index.always("/files/foo-1.tar.gz", "cut")
    try:
        assert serving.get(FILE)[0] == 503
    except http.client.IncompleteRead:
        pass  # its first half was sent before the transfer broke
    assert "the connection failed" in serving.proxy.unreachable
    assert serving.get(FILE)[0] == 503
    assert serving.proxy.served == ()


def test_a_page_that_is_forbidden_for_a_moment_is_no_missing_project(
    index: Moody, serving: Serving
) -> None:
    index.moods["/simple/foo/"] = [403, 403]
    assert serving.get("/simple/foo/")[0] == 200
    assert len(index.asked) == 3
    assert (serving.proxy.refused, serving.proxy.unreachable) == ((), "")


@pytest.mark.parametrize("mood", [403, 429, 503, "reset"])
def test_an_index_that_stays_away_makes_the_build_transient(
    index: Moody, serving: Serving, mood: int | str
) -> None:
    index.always("/simple/foo/", mood)
    status, body = serving.get("/simple/foo/")
    assert status == 503
    assert b"cannot be reached" in body
    assert len(index.asked) == 4
    assert serving.proxy.unreachable.startswith(
        f"the package index at 127.0.0.1:{index.port} cannot be reached: "
    )
    # Installers try again by themselves. They must not wait, nor the index be asked, each time.
    for _ in range(5):
        assert serving.get("/simple/foo/")[0] == 503
        assert serving.get("/simple/bar/")[0] == 503
    assert len(index.asked) == 4
    assert serving.proxy.refused == ()


def test_the_pause_an_index_asks_for_is_kept(
    index: Moody, serving: Serving, pauses: list[float]
) -> None:
    index.retry_after = "2"
    index.moods["/simple/foo/"] = [429, 429]
    assert serving.get("/simple/foo/")[0] == 200
    assert pauses == [2.0, 2.0]


def test_pauses_grow_and_are_spread(index: Moody, serving: Serving, pauses: list[float]) -> None:
    index.retry_after = "soon"  # is no number, and no date
    index.always("/simple/foo/", 503)
    assert serving.get("/simple/foo/")[0] == 503
    for number, pause in enumerate(pauses):
        assert 0.01 * 2**number <= pause <= 0.015 * 2**number
    assert len(pauses) == 3


@pytest.mark.parametrize("asked_for", ["3600", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_a_pause_that_is_too_long_is_the_end(
    index: Moody, serving: Serving, pauses: list[float], asked_for: str
) -> None:
    index.retry_after = asked_for
    index.always("/simple/foo/", 429)
    assert serving.get("/simple/foo/")[0] == 503
    assert (pauses, len(index.asked)) == ([], 1)


@pytest.mark.parametrize(("page", "file"), [(404, 404), (410, 410), (451, 451), ("store", 403)])
def test_what_is_not_there_is_not_asked_for_again(
    index: Moody, serving: Serving, page: int | str, file: int
) -> None:
    index.always("/simple/bar/", page)
    index.always("/files/foo-1.tar.gz", file)
    assert serving.get("/simple/bar/")[0] == 404
    assert serving.get(FILE)[0] == 404
    assert index.asked == ["/simple/bar/", "/simple/foo/", "/files/foo-1.tar.gz"]
    assert serving.proxy.refused == ("GET /simple/bar/ 404", f"GET {FILE} 404")
    assert serving.proxy.unreachable == ""


@pytest.mark.parametrize("mood", [400, 401, 418])
def test_a_refusal_is_no_outage(index: Moody, serving: Serving, mood: int) -> None:
    index.always("/simple/foo/", mood)
    assert serving.get("/simple/foo/")[0] == 502
    assert serving.proxy.unusable.endswith(f"/simple/foo/ answers HTTP {mood}")
    assert (serving.proxy.unreachable, len(index.asked)) == ("", 1)


def test_waiting_for_an_index_does_not_hold_up_the_end(index: Moody, tmp_path: Path) -> None:
    index.retry_after = "30"
    index.always("/simple/foo/", 503)
    urls = [f"http://127.0.0.1:{index.port}/simple"]
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with IndexProxy(cache=tmp_path, indexes=urls) as proxy:
        proxy.serve(listener)
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"GET /simple/foo/ HTTP/1.1\r\n\r\n")
        while not index.asked:
            time.sleep(0.01)
    client.close()
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("waitress")]
    assert workers == []
