"""The index proxy: what exists as of a date or in a lock, what is recorded, what is refused."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import io
import json
import os
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from minisandbox.build.index.proxy import IndexProxy, Patience
from minisandbox.errors import InvalidInput, StageFailed
from minisandbox.records.lock import IndexFile

JSON = "application/vnd.pypi.simple.v1+json"
#: An index that fails is given up at once.
HASTY = Patience(attempts=2, first=0.001, total=1.0)


@dataclass
class Upstream:
    """A package index on a local port; tests change what it answers."""

    port: int
    pages: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    logins: set[str | None] = field(default_factory=set)
    html: bool = False
    etag: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    def add(
        self, filename: str, content: bytes = b"", uploaded: str | None = None, **keys: object
    ) -> str:
        """Put a file on its project's page; returns its digest."""
        content = content or filename.encode() * 3000
        name = filename.split("-")[0].lower().replace("_", "-")
        digest = hashlib.sha256(content).hexdigest()
        self.files[filename] = content
        entry: dict[str, object] = {
            "filename": filename,
            "url": f"../../files/{filename.replace('+', '%2B')}",
            "hashes": {"sha256": digest},
            "size": len(content),
        }
        if uploaded is not None:
            entry["upload-time"] = uploaded
        self.pages.setdefault(name, []).append({**entry, **keys})
        return digest

    def answer(self, path: str) -> tuple[int, str, bytes]:
        _, top, name, *_ = (*path.split("/"), "", "")
        if top == "files" and unquote(name) in self.files:
            return 200, "application/octet-stream", self.files[unquote(name)]
        if top != "simple" or name not in self.pages:
            return 404, "text/plain", b"nothing"
        entries = self.pages[name]
        if self.html:
            links = [
                f'<a href="{entry["url"]}'
                + "".join(f"#{kind}={value}" for kind, value in entry["hashes"].items())  # type: ignore[attr-defined]
                + f'">{entry["filename"]}</a>'
                for entry in entries
            ]
            return 200, "text/html", "".join(links).encode()
        page = {"meta": {"api-version": "1.1"}, "name": name, "files": entries}
        return 200, JSON, json.dumps(page).encode()


@pytest.fixture
def make_upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Upstream]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running: list[tuple[http.server.ThreadingHTTPServer, threading.Thread]] = []

    def make() -> Upstream:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self) -> None:
                state.asked.append(self.path)
                state.logins.add(self.headers.get("Authorization"))
                status, kind, body = state.answer(self.path)
                if state.etag and self.headers.get("If-None-Match") == state.etag:
                    status, body = 304, b""
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if state.etag:
                    self.send_header("ETag", state.etag)
                    self.send_header("Cache-Control", "max-age=0")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Quiet."""

        listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        state = Upstream(listener.server_port)
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((listener, thread))
        return state

    yield make
    for listener, thread in running:
        listener.shutdown()
        listener.server_close()
        thread.join()


@pytest.fixture
def upstream(make_upstream: Callable[[], Upstream]) -> Upstream:
    return make_upstream()


@dataclass
class Client:
    """A proxy that serves, and how to ask it."""

    proxy: IndexProxy
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple/"

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, headers=headers)
            with connection.getresponse() as response:
                return response.status, response.read()
        finally:
            connection.close()

    def names(self, project: str) -> list[str]:
        status, body = self.ask(f"/simple/{project}/", Accept=JSON)
        assert status == 200, body
        return [file["filename"] for file in json.loads(body)["files"]]

    def raw(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(request)
            try:
                connection.shutdown(socket.SHUT_WR)
            except OSError as error:  # ENOTCONN: the other side was faster
                raise ConnectionResetError(str(error)) from error
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
            return answer


Start = Callable[..., Client]


@pytest.fixture
def start(upstream: Upstream, tmp_path: Path) -> Iterator[Start]:
    started: list[IndexProxy] = []

    def begin(**options: object) -> Client:
        settings = {"cache": tmp_path / "cache", "indexes": [upstream.url], "patience": HASTY}
        proxy = IndexProxy(**{**settings, **options})  # type: ignore[arg-type]
        started.append(proxy)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        proxy.serve(listener)
        return Client(proxy, port)

    yield begin
    for proxy in started:
        proxy.close()


def wheel(name: str, version: str, *requires: str) -> bytes:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {other}\n" for other in requires)
    members = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, text in members.items():
            archive.writestr(path, text)
    return out.getvalue()


def test_a_day_ends_at_midnight_utc(upstream: Upstream, start: Start) -> None:
    upstream.add("foo-1.tar.gz", uploaded="2020-06-01T23:59:59.999999Z")
    upstream.add("foo-2.tar.gz", uploaded="2020-06-02T00:00:00Z")
    client = start(date="2020-06-01")
    assert client.names("foo") == ["foo-1.tar.gz"]
    _, page = client.ask("/simple/foo/", Accept="text/html")
    assert b">foo-1.tar.gz</a>" in page
    assert b"foo-2" not in page
    assert client.ask("/files/foo/foo-2.tar.gz")[0] == 404
    assert start().names("foo") == ["foo-1.tar.gz", "foo-2.tar.gz"]


def test_a_file_without_upload_time_does_not_exist_at_a_date(
    upstream: Upstream, start: Start
) -> None:
    upstream.add("foo-1.tar.gz", uploaded="2020-01-01T00:00:00Z")
    upstream.add("foo-2.tar.gz")
    client = start(date="2020-06-01")
    assert client.names("foo") == ["foo-1.tar.gz"]
    assert client.proxy.undated == 1


@pytest.mark.parametrize("html", [True, False], ids=["html", "json"])
def test_an_index_without_upload_times_has_no_past(
    upstream: Upstream, start: Start, html: bool
) -> None:
    upstream.html = html
    upstream.add("foo-1.tar.gz")
    assert start().names("foo") == ["foo-1.tar.gz"]
    client = start(date="2020-06-01")
    status, body = client.ask("/simple/foo/")
    assert status == 502
    assert b"no upload times (PEP 700)" in body
    assert "/simple/foo/ has no upload times" in client.proxy.unusable
    assert client.proxy.unreachable == ""


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/html"),
        ("*/*", "text/html"),
        ("text/html", "text/html"),
        (f"{JSON}, application/vnd.pypi.simple.v1+html; q=0.1, text/html; q=0.01", JSON),
    ],
    ids=["easy_install", "curl", "old-pip", "new-pip"],
)
def test_each_installer_gets_a_page_it_reads(
    upstream: Upstream, start: Start, accept: str, kind: str
) -> None:
    upstream.add("foo-1.tar.gz")
    client = start()
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    connection.request("GET", "/simple/foo/", headers={"Accept": accept} if accept else {})
    with connection.getresponse() as response:
        assert response.headers["Content-Type"] == kind
        # The same address is another index in the next build.
        assert response.headers["Cache-Control"] == "no-store"
    connection.close()
    assert client.ask("/simple/foo/", Accept="image/png")[0] == 406
    assert client.ask("/simple/foo/", Accept="text/html;q=high")[0] == 406


def test_pages_keep_what_installers_choose_by(upstream: Upstream, start: Start) -> None:
    digest = upstream.add("foo-1-py3-none-any.whl", **{"requires-python": ">=3.7,<4"})
    reason = 'broke "everything" <b>'
    upstream.add("foo-2.tar.gz", yanked=reason)
    client = start()
    _, page = client.ask("/simple/foo/")
    text = page.decode()
    assert f'href="/files/foo/foo-1-py3-none-any.whl#sha256={digest}"' in text
    assert 'data-requires-python="&gt;=3.7,&lt;4"' in text
    assert 'data-yanked="broke &quot;everything&quot; &lt;b&gt;"' in text
    first, second = json.loads(client.ask("/simple/foo/", Accept=JSON)[1])["files"]
    assert first["requires-python"] == ">=3.7,<4"
    assert second["yanked"] == reason


def test_names_are_taken_as_setup_scripts_spell_them(upstream: Upstream, start: Start) -> None:
    upstream.add("foo_bar-1.tar.gz")
    client = start()
    for spelled in ("foo-bar", "Foo_Bar", "FOO.bar"):
        for slash in ("", "/"):
            status, page = client.ask(f"/simple/{spelled}{slash}")
            assert status == 200
            assert b'href="/files/foo-bar/foo_bar-1.tar.gz#' in page


def test_only_what_installers_install_is_listed(upstream: Upstream, start: Start) -> None:
    upstream.add("foo-1-py2.7.egg")
    for useless in ("foo-1.win32.exe", "foo-1.src.rpm", "foo-1.dmg"):
        upstream.add(useless)
    upstream.pages["foo"].append({"filename": "../../x-1.zip", "url": "x", "hashes": {}, "size": 1})
    upstream.pages["foo"].append(
        {"filename": "bar-1-py3-none-any.whl", "url": "x", "hashes": {}, "size": 1}
    )
    assert start().names("foo") == ["foo-1-py2.7.egg"]


def test_what_was_sent_whole_is_recorded_once(upstream: Upstream, start: Start) -> None:
    for name in ("zoo", "foo"):
        upstream.add(f"{name}-1.0+cpu-py3-none-any.whl", uploaded="2020-01-02T03:04:05.6Z")
    upstream.add("foo-2.tar.gz", uploaded="2020-01-02T03:04:05Z")
    client = start(date="2021-01-01")
    for path in (
        "zoo/zoo-1.0+cpu-py3-none-any.whl",
        "zoo/zoo-1.0%2Bcpu-py3-none-any.whl",
        "foo/foo-1.0%2Bcpu-py3-none-any.whl",
    ):
        status, body = client.ask(f"/files/{path}")
        assert (status, body) == (200, upstream.files[unquote(path.partition("/")[2])])
    assert client.ask("/files/foo/foo-2.tar.gz", "HEAD") == (200, b"")
    foo, zoo = client.proxy.served
    assert zoo.filename == "zoo-1.0+cpu-py3-none-any.whl"
    assert foo == IndexFile(
        project="foo",
        version="1.0+cpu",
        filename="foo-1.0+cpu-py3-none-any.whl",
        sha256=hashlib.sha256(upstream.files["foo-1.0+cpu-py3-none-any.whl"]).hexdigest(),
        size=len(upstream.files["foo-1.0+cpu-py3-none-any.whl"]),
        uploaded="2020-01-02T03:04:05Z",
    )
    assert client.proxy.path(foo).read_bytes() == upstream.files[foo.filename]
    assert client.proxy.refused == ()


def test_ranges_are_answered_with_the_whole(upstream: Upstream, start: Start) -> None:
    upstream.add("foo-1.tar.gz", b"0123456789")
    assert start().ask("/files/foo/foo-1.tar.gz", Range="bytes=2-4") == (200, b"0123456789")


def test_metadata_is_passed_on_where_its_digest_is_known(upstream: Upstream, start: Start) -> None:
    good = hashlib.sha256(b"Name: foo").hexdigest()
    upstream.files["foo-1-py3-none-any.whl.metadata"] = b"Name: foo"
    upstream.files["foo-2-py3-none-any.whl.metadata"] = b"Name: bar"
    upstream.add("foo-1-py3-none-any.whl", **{"core-metadata": {"sha256": good}})
    upstream.add("foo-2-py3-none-any.whl", **{"core-metadata": {"sha256": good}})
    upstream.add("foo-3-py3-none-any.whl", **{"core-metadata": True})
    client = start()
    assert client.ask("/files/foo/foo-1-py3-none-any.whl.metadata") == (200, b"Name: foo")
    assert client.ask("/files/foo/foo-2-py3-none-any.whl.metadata")[0] == 502
    assert client.ask("/files/foo/foo-3-py3-none-any.whl.metadata")[0] == 404
    files = json.loads(client.ask("/simple/foo/", Accept=JSON)[1])["files"]
    assert [file.get("core-metadata") for file in files] == [{"sha256": good}] * 2 + [None]
    assert client.proxy.served == ()


def test_another_content_than_promised_is_never_seen_whole(
    upstream: Upstream, start: Start
) -> None:
    upstream.add("foo-1.tar.gz", os.urandom(300_000))
    upstream.files["foo-1.tar.gz"] = os.urandom(300_000)
    client = start()
    try:
        assert client.ask("/files/foo/foo-1.tar.gz")[0] == 502
    except http.client.IncompleteRead:
        pass  # it is sent while it arrives: the status may be out before the digest is known
    assert client.ask("/simple/foo/")[0] == 200
    assert client.proxy.served == ()
    assert "but the index promises" in client.proxy.unusable
    with pytest.raises(StageFailed, match="but the index promises"):
        client.proxy.path(
            IndexFile(
                "foo",
                "1",
                "foo-1.tar.gz",
                str(upstream.pages["foo"][0]["hashes"]["sha256"]),
                300_000,
                "",
            )  # type: ignore[index]
        )


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 30_000], ids=["empty", "cut", "changed"])
def test_damage_in_the_cache_is_repaired(
    upstream: Upstream, start: Start, tmp_path: Path, damage: bytes
) -> None:
    upstream.add("foo-1.tar.gz")
    client = start()
    assert client.ask("/files/foo/foo-1.tar.gz")[0] == 200
    client.proxy.close()
    kept = [
        path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size
    ]
    assert len(kept) == 2  # the page and the file
    for path in kept:
        path.write_bytes(damage)
    client = start()
    assert client.ask("/files/foo/foo-1.tar.gz") == (200, upstream.files["foo-1.tar.gz"])
    for path in kept:
        path.write_bytes(damage)  # under a proxy that has seen it whole
    assert client.ask("/files/foo/foo-1.tar.gz") == (200, upstream.files["foo-1.tar.gz"])
    assert client.proxy.path(client.proxy.served[0]).read_bytes() == upstream.files["foo-1.tar.gz"]


def test_a_page_is_read_once_by_a_build_and_revalidated_by_the_next(
    upstream: Upstream, start: Start
) -> None:
    upstream.add("foo-1.tar.gz")
    upstream.etag = '"1"'
    first = start()
    assert first.names("foo") == first.names("foo") == ["foo-1.tar.gz"]
    assert upstream.asked == ["/simple/foo/"]
    assert start().names("foo") == ["foo-1.tar.gz"]  # 304: the page comes from the disk
    assert upstream.asked == ["/simple/foo/"] * 2
    upstream.add("foo-2.tar.gz")
    upstream.etag = '"2"'
    assert start().names("foo") == ["foo-1.tar.gz", "foo-2.tar.gz"]


def test_a_page_of_an_index_that_says_nothing_of_caching_is_kept_for_a_while(
    upstream: Upstream, start: Start
) -> None:
    upstream.add("foo-1.tar.gz")
    assert start().names("foo") == start().names("foo")
    assert upstream.asked == ["/simple/foo/"]


def test_the_first_index_wins(
    upstream: Upstream, make_upstream: Callable[[], Upstream], start: Start
) -> None:
    other = make_upstream()
    upstream.add("foo-1.tar.gz", b"ours")
    other.add("foo-1.tar.gz", b"theirs")
    other.add("foo-2.tar.gz", b"more")
    client = start(indexes=[upstream.url, other.url])
    assert client.names("foo") == ["foo-1.tar.gz", "foo-2.tar.gz"]
    assert client.ask("/files/foo/foo-1.tar.gz") == (200, b"ours")
    assert client.ask("/files/foo/foo-2.tar.gz") == (200, b"more")


def test_credentials_are_used_and_shown_nowhere(
    upstream: Upstream, start: Start, tmp_path: Path
) -> None:
    upstream.add("foo-1.tar.gz")
    upstream.add("bar-1.tar.gz", url="http://127.0.0.1:1/bar-1.tar.gz")
    client = start(indexes=[upstream.url.replace("//", "//someone:s%40cret@")])
    assert client.ask("/files/foo/foo-1.tar.gz")[0] == 200
    assert client.ask("/simple/baz/")[0] == 404
    assert client.ask("/files/bar/bar-1.tar.gz")[0] == 503
    assert upstream.logins == {"Basic c29tZW9uZTpzQGNyZXQ="}
    shown = [repr(client.proxy.served), *client.proxy.refused, client.proxy.unreachable]
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    shown += [path.read_bytes().decode("latin-1") + str(path) for path in kept]
    assert "127.0.0.1:1 cannot be reached" in client.proxy.unreachable
    for secret in ("s%40cret", "s@cret", "c29tZW9uZTpzQGNyZXQ", "someone"):
        assert not any(secret in text for text in shown)


def test_files_without_a_digest_get_one(upstream: Upstream, start: Start) -> None:
    upstream.html = True
    upstream.add("foo-1.tar.gz", b"content", hashes={})
    client = start()
    assert client.ask("/files/foo/foo-1.tar.gz") == (200, b"content")
    upstream.files["foo-1.tar.gz"] = b"changed meanwhile"
    assert client.ask("/files/foo/foo-1.tar.gz") == (200, b"content")
    (file,) = client.proxy.served
    assert file.sha256 == hashlib.sha256(b"content").hexdigest()
    assert file.size == len(b"content")


# The lock.


def lock_of(client: Client, *filenames: str) -> tuple[IndexFile, ...]:
    for filename in filenames:
        assert client.ask(f"/files/{filename.split('-')[0]}/{filename}")[0] == 200
    return client.proxy.served


def test_a_lock_is_all_that_exists(upstream: Upstream, start: Start, tmp_path: Path) -> None:
    for filename in ("foo-1.tar.gz", "foo-2.tar.gz", "bar-1.tar.gz"):
        upstream.add(filename, uploaded="2020-01-01T00:00:00Z")
    lock = lock_of(start(), "foo-1.tar.gz")
    upstream.pages["foo"][0]["yanked"] = True
    asked = len(upstream.asked)
    # A date before the files: a lock has none.
    client = start(only=lock, date="1999-01-01", cache=tmp_path / "other")
    assert client.names("foo") == ["foo-1.tar.gz"]
    assert b"yanked" not in client.ask("/simple/foo/")[1]
    assert client.ask("/simple/bar/")[0] == 404
    assert client.ask("/files/foo/foo-2.tar.gz")[0] == 404
    assert len(upstream.asked) == asked  # nothing of this needed the index
    assert client.ask("/files/foo/foo-1.tar.gz") == (200, upstream.files["foo-1.tar.gz"])
    assert client.proxy.served == lock


def test_a_lock_in_the_cache_needs_no_index(upstream: Upstream, start: Start) -> None:
    upstream.add("foo-1.tar.gz")
    lock = lock_of(start(), "foo-1.tar.gz")
    client = start(only=lock, indexes=["http://127.0.0.1:1/simple"])
    assert lock_of(client, "foo-1.tar.gz") == lock
    assert client.proxy.unreachable == ""


def test_a_lock_is_not_filled_with_something_else(
    upstream: Upstream, start: Start, tmp_path: Path
) -> None:
    upstream.add("foo-1.tar.gz")
    upstream.add("bar-1.tar.gz")
    lock = lock_of(start(), "foo-1.tar.gz", "bar-1.tar.gz")
    upstream.pages.clear()
    upstream.add("foo-1.tar.gz", b"rebuilt")
    client = start(only=lock, cache=tmp_path / "other")
    status, body = client.ask("/files/foo/foo-1.tar.gz")
    assert status == 502
    assert b"another foo-1.tar.gz than the lock" in body
    assert client.ask("/files/bar/bar-1.tar.gz")[0] == 404
    assert client.proxy.refused == ("GET /files/bar/bar-1.tar.gz 404",)
    with pytest.raises(StageFailed, match=r"no package index has bar-1\.tar\.gz any more"):
        client.proxy.path(lock[0])


@pytest.mark.parametrize(
    ("sha256", "filename"),
    [("a" * 63, "foo-1.zip"), ("A" * 64, "foo-1.zip"), ("a" * 64, "../x"), ("a" * 64, ".tmp")],
)
def test_a_lock_names_no_path(sha256: str, filename: str) -> None:
    with pytest.raises(InvalidInput, match="the lock entry of"):
        IndexFile("foo", "1", filename, sha256, 1, "")


@pytest.mark.parametrize(
    ("project", "size", "uploaded", "field"),
    [
        ("Foo", 1, "", "project"),
        ("../foo", 1, "", "project"),
        ("foo--bar", 1, "", "project"),
        ("", 1, "", "project"),
        ("foo", -1, "", "size"),
        ("foo", 1, "yesterday", "uploaded"),
        ("foo", 1, "2020-99-01T00:00:00Z", "uploaded"),
    ],
)
def test_an_entry_of_a_lock_that_cannot_be_is_named(
    project: str, size: int, uploaded: str, field: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"'foo-1\.zip'.*: has {field} "):
        IndexFile(project, "1", "foo-1.zip", "a" * 64, size, uploaded)


@pytest.mark.parametrize("day", ["2020-13-01", "yesterday", "2020-01-01T00:00:00Z", ""])
def test_a_date_is_a_day(tmp_path: Path, day: str) -> None:
    with pytest.raises(InvalidInput, match="write it as YYYY-MM-DD"):
        IndexProxy(cache=tmp_path, date=day, indexes=["http://127.0.0.1:1"])


def test_an_index_is_at_an_http_address(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="is not at an http address") as e:
        IndexProxy(cache=tmp_path, indexes=["file:///srv/simple"])
    assert e.value.kind == "index"


# Whoever is on the other side.


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("POST /simple/foo/", 405),
        ("DELETE /files/foo/foo-1.tar.gz", 405),
        ("CONNECT example.org:443", 405),
        ("GET http://example.org/simple/foo/", 403),
        ("GET //example.org/simple/foo/", 404),
        ("GET /", 404),
        ("GET /simple/", 404),
        ("GET /simple/foo/?q=secret", 404),
        ("GET /simple/../simple/foo/", 404),
        ("GET /simple/%2e%2e/", 404),
        ("GET /simple/foo%2fbar/", 404),
        ("GET /simple/foo%00/", 404),
        ("GET /simple/-foo/", 404),
        (f"GET /simple/{'a' * 201}/", 404),
        ("GET /files/foo/..%2f..%2f..%2fetc%2fpasswd", 404),
        ("GET /files/foo/../foo-1.tar.gz", 404),
        ("GET /files/foo/%00", 404),
        ("GET /files/foo/.lock", 404),
        ("GET /files/../foo-1.tar.gz", 404),
    ],
)
def test_everything_else_is_refused(
    upstream: Upstream, start: Start, line: str, status: int
) -> None:
    upstream.add("foo-1.tar.gz")
    client = start()
    answer = client.raw(f"{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert client.proxy.refused == (f"{line} {status}",)
    assert "/simple/foo/" not in upstream.asked or line.startswith("GET /files/foo/")
    assert set(upstream.asked) <= {"/simple/foo/"}


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /simple/foo/ HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /simple/foo/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"GET /simple/foo/ HTTP/1.1\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"GET /simple/" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /simple/\xff\xfe/ HTTP/1.1\r\n\r\n",
    ],
    ids=["tls", "blank", "short", "length", "chunked", "headers", "long", "bytes"],
)
def test_garbage_breaks_nothing(upstream: Upstream, start: Start, request_: bytes) -> None:
    upstream.add("foo-1.tar.gz")
    client = start()
    try:
        client.raw(request_)
    except ConnectionError:
        pass  # closed with the rest of the request unread
    assert client.names("foo") == ["foo-1.tar.gz"]
    assert client.proxy.unusable == ""


def test_connections_that_say_nothing_hold_nobody_up(upstream: Upstream, start: Start) -> None:
    upstream.add("foo-1.tar.gz")
    client = start()
    idle = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(150)]
    for number, connection in enumerate(idle):
        connection.sendall(b"GET /simple/foo/ HTTP/1.1\r\nX: "[: number % 30])
    threads = threading.active_count()
    assert client.names("foo") == ["foo-1.tar.gz"]
    assert threading.active_count() <= threads + 2  # one of the upstream, for each connection
    client.proxy.close()
    for connection in idle:
        connection.close()


def test_what_is_kept_of_refusals_is_bounded(upstream: Upstream, start: Start) -> None:
    client = start()
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    for number in range(600):
        connection.request("GET", f"/{number}/{'x' * 1000}")
        with connection.getresponse() as response:
            response.read()
    connection.close()
    assert len(client.proxy.refused) == 500
    assert max(map(len, client.proxy.refused)) < 400


def test_the_number_of_projects_is_bounded(
    upstream: Upstream, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minisandbox.build.index.proxy.catalogue._MAX_PROJECTS", 3)
    client = start()
    statuses = [client.ask(f"/simple/secret-{number}/")[0] for number in range(5)]
    assert statuses == [404, 404, 404, 403, 403]
    assert len(upstream.asked) == 3


# Life and death.


def test_several_proxies_in_one_process_end_cleanly(upstream: Upstream, start: Start) -> None:
    upstream.add("foo-1.tar.gz", uploaded="2020-01-01T00:00:00Z")
    upstream.add("foo-2.tar.gz", uploaded="2022-01-01T00:00:00Z")
    before = set(os.listdir("/proc/self/fd"))
    clients = [start(date=date) for date in ("2019-01-01", "2021-01-01", "2023-01-01")]
    assert [len(client.names("foo")) for client in clients] == [0, 1, 2]
    for client in clients:
        client.proxy.close()
        client.proxy.close()
        with pytest.raises(ConnectionError):
            client.ask("/simple/foo/")
    named = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith(("index proxy", "fetch ", "waitress")) for name in named)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_cache_that_cannot_be_written_is_said(
    upstream: Upstream, start: Start, tmp_path: Path
) -> None:
    upstream.add("foo-1.tar.gz")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "files").write_text("in the way")
    client = start()
    assert client.ask("/files/foo/foo-1.tar.gz")[0] == 502
    assert client.proxy.unusable.startswith("the cache of the package index cannot be used: ")


def test_a_reader_is_cut_off_at_the_end(upstream: Upstream, start: Start) -> None:
    upstream.add("foo-1.tar.gz", os.urandom(20_000_000))
    client = start()
    with socket.create_connection(("127.0.0.1", client.port)) as reader:
        reader.sendall(b"GET /files/foo/foo-1.tar.gz HTTP/1.0\r\n\r\n")
        assert reader.recv(100)
        client.proxy.close()
        size = 100
        try:
            while piece := reader.recv(1 << 20):
                size += len(piece)
        except ConnectionError:
            pass  # it may end either way
    assert size < 20_000_000
    assert client.proxy.served == ()


# Real installers.


def installers(port: int, target: Path) -> dict[str, list[str]]:
    url = f"http://127.0.0.1:{port}/simple/"
    pip = [sys.executable, "-m", "pip", "--isolated", "install", "--no-cache-dir", "-q"]
    uv = ["uv", "--no-config", "--no-cache", "pip", "install", "-q", "-p", sys.executable]
    return {
        "pip": [*pip, "--disable-pip-version-check", "-i", url, "-t", str(target)],
        "uv": [*uv, "--default-index", url, "--target", str(target)],
    }


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_installers_see_the_index_as_of_the_date(
    upstream: Upstream, start: Start, tmp_path: Path, tool: str
) -> None:
    for version, day in (("1.0", "2020-01-01"), ("2.0", "2022-01-01")):
        for name, needs in (("foo", ("bar",)), ("bar", ())):
            filename = f"{name}-{version}-py3-none-any.whl"
            upstream.add(filename, wheel(name, version, *needs), f"{day}T00:00:00Z")
    client = start(date="2021-01-01")
    target = tmp_path / "target"
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
    }
    command = [*installers(client.port, target)[tool], "foo"]
    subprocess.run(command, check=True, env=environment)
    assert (target / "bar.py").read_text() == "version = '1.0'\n"
    assert [(file.project, file.version) for file in client.proxy.served] == [
        ("bar", "1.0"),
        ("foo", "1.0"),
    ]
    rebuilt = start(only=client.proxy.served, indexes=["http://127.0.0.1:1/simple"])
    again = tmp_path / "again"
    subprocess.run([*installers(rebuilt.port, again)[tool], "foo"], check=True, env=environment)
    assert rebuilt.proxy.served == client.proxy.served
    assert urlsplit(rebuilt.url).port != urlsplit(client.url).port
