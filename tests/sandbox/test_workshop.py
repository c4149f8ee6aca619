"""What is said of a command of a build that fails, and what its record says nevertheless."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from minisandbox.build import stage
from minisandbox.build.index.egress import INDEX_URL, IndexAccess
from minisandbox.build.index.proxy.fetching import Fetcher
from minisandbox.build.workshop import Workshop
from minisandbox.errors import StageFailed
from minisandbox.records.stages import Failure, InstanceRecord
from minisandbox.sandbox import Limits
from minisandbox.store import Store

JSON = "application/vnd.pypi.simple.v1+json"
#: Ask the index for a page, whatever comes of it.
GET = (
    "python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1])' "
    f"{INDEX_URL}{{name}}/ 2>&1 || true"
)
#: An address of a documentation network: nobody's.
CONNECT = (
    "python3 -c 'import socket; socket.create_connection((\"192.0.2.7\", 80))' 2>/dev/null || true"
)

#: Takes memory and disk and stays.
GREEDY = (
    'python3 -c \'x = b"x" * (512 << 20); '
    'open("/root/f", "wb").write(x[:256 << 20]); import time; time.sleep(50)\''
)


@dataclass
class Upstream:
    """A package index: a status for each path, 404 for others."""

    statuses: dict[str, int] = field(default_factory=dict)


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    state = Upstream()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            old = {"filename": "foo-1.tar.gz", "url": "x", "hashes": {}}
            dated = {**old, "filename": "foo-2.tar.gz", "upload-time": "2020-01-01T00:00:00Z"}
            page = {"meta": {"api-version": "1.0"}, "name": "foo", "files": [old, dated]}
            body = json.dumps(page).encode()
            self.send_response(state.statuses.get(self.path, 404))
            self.send_header("Content-Type", JSON)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{listener.server_port}/simple"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr("minisandbox.build.index.proxy.proxy.index_urls", lambda: [url])
        monkeypatch.setattr(Fetcher, "_pause", lambda self, seconds: None)
        yield state
        listener.shutdown()
        thread.join()


@dataclass
class Build:
    """Commands of one instance, run as its stage runs them."""

    folder: Path
    date: str = ""
    limits: Limits | None = None

    def record(self, *commands: str, timeout: float | None = None) -> InstanceRecord:
        log = self.folder / "build.log"

        def work() -> InstanceRecord:
            with Workshop(
                [],
                store=Store(self.folder / "store"),
                network="index",
                log=log,
                name="build",
                index=IndexAccess(self.folder / "index", self.date),
                limits=self.limits,
            ) as shop:
                for command in commands:
                    shop.run(
                        command,
                        failure="install",
                        what="the install command",
                        timeout=timeout,
                        hint="see the recipe",
                    )
                return stage.new(InstanceRecord, network=shop.network_use(), **shop.ran_under)

        return stage.make(
            InstanceRecord,
            stage="instances",
            key="k",
            inputs="i",
            log=log,
            work=work,
            attempt=stage.Attempt(stage.ATTEMPTS),
        )

    def failure(self, *commands: str) -> Failure:
        failure = self.record(*commands).failure
        assert failure is not None
        return failure


@pytest.fixture
def build(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "node"))
    return Build(tmp_path)


@pytest.mark.parametrize(
    ("command", "kind"), [("exit 1", "install"), ("sleep 60", "timeout")], ids=["fails", "hangs"]
)
def test_the_record_of_a_failed_build_says_what_it_tried(
    build: Build, command: str, kind: str
) -> None:
    record = build.record(CONNECT, GET.format(name="absent"), command, timeout=5)
    assert record.failure is not None
    assert record.failure.kind == kind
    assert "192.0.2.7:80" in record.network.tried
    assert record.network.refused == ("GET /simple/absent/ 404",)
    assert record.network.unwatched == ""


def test_the_record_of_a_bug_says_what_the_build_tried(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Workshop) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("minisandbox.build.workshop._decisive", broken)
    record = build.record(CONNECT, "exit 1")
    assert record.failure is not None
    assert record.failure.kind == "internal"
    assert "192.0.2.7:80" in record.network.tried


def test_a_server_of_the_builds_own_is_listed_like_all_others(build: Build) -> None:
    own = (
        "import socket; server = socket.create_server(('127.0.0.1', 4321)); "
        "socket.create_connection(server.getsockname())"
    )
    record = build.record(f'python3 -c "{own}"')
    assert record.status == "ok"
    assert "127.0.0.1:4321" in record.network.tried


def test_an_outage_makes_the_command_transient_that_it_befell(
    build: Build, upstream: Upstream
) -> None:
    upstream.statuses["/simple/foo/"] = 503
    befallen = build.failure(f"{GET.format(name='foo')}; echo error: no foo; exit 1")
    assert befallen.kind == "index"
    assert "cannot be reached: it answers HTTP 503" in befallen.message
    assert befallen.hint == "the install command ended with 1: error: no foo"
    after = build.failure(GET.format(name="foo"), "exit 1")
    assert (after.kind, after.hint) == ("install", "see the recipe")


def test_an_outage_that_was_survived_does_not_make_a_build_transient(
    build: Build, upstream: Upstream
) -> None:
    upstream.statuses["/simple/foo/"] = 503
    shop = Workshop(
        [],
        store=Store(build.folder / "store"),
        network="index",
        log=build.folder / "log",
        name="build",
        index=IndexAccess(build.folder / "index"),
    )
    with shop:
        with pytest.raises(StageFailed) as during:
            shop.run(f"{GET.format(name='foo')}; exit 1", failure="install", what="it")
        with pytest.raises(StageFailed) as later:
            shop.run("exit 1", failure="install", what="it")
    assert (during.value.transient, later.value.transient) == (True, False)


def test_a_page_that_cannot_be_used_is_not_the_recipes_fault(
    build: Build, upstream: Upstream
) -> None:
    upstream.statuses["/simple/odd/"] = 418
    befallen = build.failure(f"{GET.format(name='odd')}; exit 1")
    assert befallen.kind == "index"
    assert befallen.message.endswith("/simple/odd/ answers HTTP 418")
    after = build.failure(GET.format(name="odd"), "exit 1")
    assert (after.kind, after.hint) == ("install", "see the recipe")


def test_a_cache_that_cannot_be_written_is_not_the_recipes_fault(
    build: Build, upstream: Upstream
) -> None:
    upstream.statuses["/simple/foo/"] = 200
    (build.folder / "index").write_text("in the way")
    page = GET.format(name="foo")
    file = page.replace("/simple/foo/", "/files/foo/foo-1.tar.gz")
    befallen = build.failure(f"{page}; {file}; exit 1")
    assert befallen.kind == "index"
    assert "cannot be used: " in befallen.message


def test_an_index_of_another_kind_is_not_a_bug(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "minisandbox.build.index.proxy.proxy.index_urls", lambda: ["file:///srv/simple"]
    )
    failure = build.failure("true")
    assert failure.kind == "index"
    assert failure.message == ("the package index file:///srv/simple/ is not at an http address")


def test_a_full_disk_is_not_the_recipes_fault(build: Build) -> None:
    failure = build.failure("dd if=/dev/zero of=/dev/full")
    assert failure.kind == "store"
    assert failure.message.startswith("the install command ended with 1: ")
    assert failure.hint == f"a disk is full: check the free space of {build.folder}/node"


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"memory": 256 << 20}, "the install command reached the limit of its sandbox on memory"),
        ({"disk": 64 << 20}, "the install command reached the limit of its sandbox on disk"),
        ({"time": 2.0}, "its time of 2 s was over"),
    ],
    ids=["memory", "disk", "time"],
)
def test_a_limit_is_named_and_what_raises_it(
    build: Build, limits: dict[str, float], said: str
) -> None:
    build.limits = Limits(**limits)  # type: ignore[arg-type]
    record = build.record(GREEDY, timeout=60)
    assert record.failure is not None
    assert record.failure.kind == "limit"
    assert said in record.failure.message
    assert "raise it in 'limits' of the recipe or the configuration" in record.failure.hint
    assert record.limits == build.limits.identity()
    assert record.network.unwatched == ""
    build.limits = None
    record = build.record("true")
    assert (record.status, record.limits) == ("ok", Limits().identity())


@pytest.mark.parametrize("date", ["", "2024-01-01"])
def test_files_that_no_date_is_known_of_are_counted_and_said(
    build: Build, upstream: Upstream, date: str
) -> None:
    upstream.statuses["/simple/foo/"] = 200
    build.date = date
    record = build.record(GET.format(name="foo"), "exit 1")
    assert record.failure is not None
    assert record.network.undated == (1 if date else 0)
    assert ("no upload time" in record.failure.hint) == bool(date)


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("no-such-tool --version", "no-such-tool"),
        ("cd /tmp && printf 'all:\\n\\tno-such-tool\\n' > Makefile && make", "no-such-tool"),
        (
            "python3 -c 'import subprocess; subprocess.run([\"no-such-tool\"])'",
            "no-such-tool",
        ),
        ("echo \"error: command 'no-such-gcc' failed: No such file or directory\"; exit 1", "gcc"),
    ],
)
def test_a_program_that_the_base_lacks_is_named(build: Build, command: str, program: str) -> None:
    failure = build.failure(command)
    assert failure.kind == "program"
    assert program in failure.message
    assert "system_packages" in failure.hint


@pytest.mark.parametrize(
    "command",
    [
        "echo 'sh: 1: git: not found'; exit 1",
        "cat no-such-file",
        "python3 -c 'open(\"no-such-tool\")'",
    ],
)
def test_a_program_that_is_there_is_not_called_missing(build: Build, command: str) -> None:
    assert build.failure(command).kind == "install"
