"""The key ``files`` of recipes: what it can say, and what is fetched by it."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from minisandbox.build.build_files import fetch_files
from minisandbox.build.planning.recipes import read_recipe
from minisandbox.errors import InvalidInput, StageFailed
from minisandbox.records.plan import BuildFile

CONTENT = b"an archive"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
FILE = {"url": "https://example.org/a.tgz", "sha256": DIGEST, "path": "/opt/a.tgz"}


def read(folder: Path, *files: dict[str, Any]) -> tuple[BuildFile, ...]:
    path = folder / "project.yaml"
    path.write_text(yaml.safe_dump({"repo": "o/p", "amends": True, "files": list(files)}))
    return read_recipe(path).sourced.recipe.files


def test_an_address_stays_as_it_is(tmp_path: Path) -> None:
    assert read(tmp_path, FILE) == (BuildFile(**FILE),)


@pytest.mark.parametrize("url", ["archives/an archive#1", "{folder}/archives/an archive#1"])
def test_a_path_is_one_from_the_folder_of_the_recipe(tmp_path: Path, url: str) -> None:
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives/an archive#1").write_bytes(CONTENT)
    files = read(tmp_path, {**FILE, "url": url.format(folder=tmp_path)})
    assert files[0].url == f"file://{tmp_path}/archives/an%20archive%231"
    (given,) = fetch_files(files, tmp_path / "cache")
    assert (given.local.read_bytes(), given.path) == (CONTENT, "/opt/a.tgz")
    # What an address shows is itself an address.
    assert read(tmp_path, {**FILE, "url": files[0].url}) == files


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sha256": "abc"}, "has the sha256 'abc'; expected 64 hexadecimal digits"),
        ({"sha256": DIGEST.upper()}, "expected 64 hexadecimal digits"),
        ({"path": "opt/a"}, "has the path 'opt/a'; expected one file"),
        ({"path": "/opt/../a/b"}, "has the path"),
        ({"path": "/opt/"}, "has the path"),
        ({"path": "/opt"}, "has the path"),
        ({"path": "//opt/a"}, "has the path"),
        ({"path": "/opt/a\nb"}, "has the path"),
        ({"path": "/proc/sys/a"}, "has the path"),
        ({"path": "/run/minisandbox/mirror/a"}, "has the path"),
        ({"url": ""}, "has the url ''; expected an http, https or file address"),
        ({"url": "ftp://example.org/a"}, "has the url"),
        ({"url": "https:///a"}, "has the url"),
        ({"url": "file://example.org/a"}, "has the url"),
        ({"mode": 0o755}, "key 'files[0].mode': is unknown"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, {**FILE, **changes})
    assert said in str(caught.value)
    assert "files" in str(caught.value)


def test_two_files_have_two_places(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'/opt/a\.tgz' twice"):
        read(tmp_path, FILE, {**FILE, "url": "https://example.org/b.tgz"})


@dataclass
class Server:
    """Answers every request with a status and a body, and counts them."""

    url: str = ""
    status: int = 200
    body: bytes = CONTENT
    requests: int = 0


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests += 1
            self.send_response(state.status)
            self.send_header("Content-Length", str(len(state.body)))
            self.end_headers()
            self.wfile.write(state.body)

        def log_message(self, *arguments: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://user:secret@127.0.0.1:{listener.server_port}/a.tgz"
        yield state
        listener.shutdown()
        thread.join()


def test_nothing_is_fetched_twice(server: Server, tmp_path: Path) -> None:
    files = [BuildFile(server.url, DIGEST, "/opt/a"), BuildFile(server.url, DIGEST, "/opt/b")]
    found = fetch_files(files, tmp_path)
    assert [given.path for given in found] == ["/opt/a", "/opt/b"]
    assert {given.local.read_bytes() for given in found} == {CONTENT}
    # Wherever the same file is said to be.
    assert fetch_files([replace(file, url="file:///nowhere") for file in files], tmp_path) == found
    assert server.requests == 1


def test_a_file_that_was_damaged_is_fetched_again(server: Server, tmp_path: Path) -> None:
    (given,) = fetch_files([BuildFile(server.url, DIGEST, "/opt/a")], tmp_path)
    given.local.write_bytes(CONTENT[:-1])
    (again,) = fetch_files([BuildFile(server.url, DIGEST, "/opt/a")], tmp_path)
    assert again.local.read_bytes() == CONTENT


def failure(url: str, folder: Path) -> StageFailed:
    with pytest.raises(StageFailed) as caught:
        fetch_files([BuildFile(url, DIGEST, "/opt/a")], folder)
    assert not [path for path in folder.rglob("*") if path.is_file()]
    assert "\n" not in caught.value.message
    assert "secret" not in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("status", "body", "transient", "said"),
    [
        (200, b"another", False, "127.0.0.1 serves another file (sha256 ae448ac86c4e8e4d…)"),
        (404, CONTENT, False, "127.0.0.1 answers 404"),
        (503, CONTENT, True, "127.0.0.1 answers 503"),
        (429, CONTENT, True, "127.0.0.1 answers 429"),
    ],
)
def test_only_what_may_pass_is_tried_again(
    server: Server, tmp_path: Path, status: int, body: bytes, transient: bool, said: str
) -> None:
    server.status, server.body = status, body
    failed = failure(server.url, tmp_path)
    assert failed.message.endswith(f"/a.tgz cannot be had: {said}")
    assert failed.transient == transient
    assert failed.kind == ("index" if transient else "install")


def test_a_server_that_is_not_there_may_come_back(tmp_path: Path) -> None:
    failed = failure("http://127.0.0.1:1/a", tmp_path)
    assert "127.0.0.1 cannot be reached (ConnectionError)" in failed.message
    assert (failed.kind, failed.transient) == ("index", True)


@pytest.mark.parametrize(("name", "said"), [("a", "No such file"), (".", "Is a directory")])
def test_a_path_that_holds_no_file_is_named(tmp_path: Path, name: str, said: str) -> None:
    failed = failure((tmp_path / name).as_uri(), tmp_path)
    assert f"{tmp_path}{'/a' if name == 'a' else ''} cannot be read ({said}" in failed.message
    assert (failed.kind, failed.transient) == ("install", False)
