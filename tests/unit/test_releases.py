"""Release pairs: from the sdists of an index to commits, patches and a problem statement."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from minisandbox.build.checkouts import releases
from minisandbox.build.index.package_index import Index, download, find_release
from minisandbox.build.index.upstream import DEFAULT_INDEX, pip_settings
from minisandbox.errors import StageFailed

#: What a tar member is: bytes are a file, text is a symlink, a TarInfo is itself.
Member = bytes | str | tarfile.TarInfo

CLEAN_GIT = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(repository: Path, *argv: str) -> bytes:
    command = ["git", "-c", "safe.directory=*", *argv]
    return subprocess.run(
        command, cwd=repository, env=CLEAN_GIT, check=True, capture_output=True
    ).stdout


def sdist(top: str, members: Mapping[str, Member], *, executable: tuple[str, ...] = ()) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, content in members.items():
            info = tarfile.TarInfo(f"{top}/{path}" if top else path)
            info.mode = 0o755 if path in executable else 0o644
            if isinstance(content, tarfile.TarInfo):
                content.name = info.name
                archive.addfile(content)
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@dataclass
class Server:
    """A package index on a local port; tests change what it answers."""

    port: int
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    entries: list[dict[str, object]] = field(default_factory=list[dict[str, object]])
    asked: list[str] = field(default_factory=list[str])
    content_type: str = "application/vnd.pypi.simple.v1+json"
    status: int = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    @property
    def index(self) -> Index:
        return Index(self.url)

    def add(self, version: str, content: bytes, *, uploaded: str = "2024-01-01T00:00:00Z") -> None:
        name = f"sample-{version}.tar.gz"
        self.files[name] = content
        self.entries.append(
            {
                "filename": name,
                "url": f"../../files/{name}",
                "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
                "upload-time": uploaded,
            }
        )

    def answer(self, path: str, accept: str) -> tuple[int, str, bytes]:
        self.asked.append(path)
        if self.status != 200:
            return self.status, "text/plain", b""
        if path == "/simple/sample/":
            assert accept.startswith("application/vnd.pypi.simple.v1+json")
            page = {"meta": {"api-version": "1.1"}, "name": "sample", "files": self.entries}
            body = json.dumps(page).encode() if "json" in self.content_type else b"<html></html>"
            return 200, self.content_type, body
        name = path.removeprefix("/files/")
        if name in self.files:
            return 200, "application/octet-stream", self.files[name]
        return 404, "text/plain", b""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = state.answer(self.path, self.headers.get("Accept", ""))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        state = Server(listener.server_port)
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        listener.shutdown()
        thread.join()


def build(
    server: Server, tmp_path: Path, *versions: str, name: str = "m"
) -> tuple[Path, list[str]]:
    mirror = tmp_path / name
    commits = releases.build_repository(
        "sample", versions, mirror, cache=tmp_path / "cache", index=server.index
    )
    assert list(commits) == list(versions)
    return mirror, list(commits.values())


BEFORE: dict[str, Member] = {
    "PKG-INFO": b"Version: 1.0\n",
    "setup.cfg": b"[metadata]\nname = sample\n\n[egg_info]\ntag_build = \ntag_date = 0\n\n",
    "src/sample.egg-info/SOURCES.txt": b"all\n",
    "src/sample.py": b"def double(x):\n    return x + x + 1\n",
    "tests/test_sample.py": b"def test_double():\n    assert True\n",
    "CHANGES.rst": b"Changes\n=======\n\n1.0\n---\n\n- First.\n",
}
AFTER: dict[str, Member] = BEFORE | {
    "PKG-INFO": b"Version: 1.1\n",
    "src/sample.egg-info/SOURCES.txt": b"more\n",
    "src/sample.py": b"def double(x):\n    return x + x\n",
    "tests/test_sample.py": b"import sample\n\ndef test():\n    assert sample.double(2) == 4\n",
    "CHANGES.rst": b"Changes\n=======\n\n1.1\n---\n\n- Fix double.\n\n1.0\n---\n\n- First.\n",
}


def test_a_release_is_found_with_its_time_and_digest(server: Server) -> None:
    server.add("1.0", b"x", uploaded="2023-04-18T08:29:52.387990Z")

    release = find_release("Sample", "1.0", index=server.index)

    assert (release.project, release.filename) == ("sample", "sample-1.0.tar.gz")
    assert release.url == f"http://127.0.0.1:{server.port}/files/sample-1.0.tar.gz"
    assert release.sha256 == hashlib.sha256(b"x").hexdigest()
    assert release.uploaded == 1681806592


def test_a_missing_version_names_the_nearest(server: Server) -> None:
    for version in ("0.9", "1.0", "1.9", "1.10", "2.0"):
        server.add(version, b"x")

    with pytest.raises(
        StageFailed, match=r"sample 1\.5; the nearest are 0\.9, 1\.0, 1\.9, 1\.10$"
    ) as e:
        find_release("sample", "1.5", index=server.index)

    assert e.value.kind == "clone"
    assert not e.value.transient


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"filename": "sample-1.0-py3-none-any.whl"}, "has none of any version"),
        ({"filename": "sample-1.0.zip"}, "has none of any version"),
        ({"filename": "../sample-1.0.tar.gz"}, "has none of any version"),
        ({"filename": "other-1.0.tar.gz"}, "has none of any version"),
        ({"upload-time": None}, "no upload time"),
        ({"hashes": {}}, "no sha256"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused(
    server: Server, entry: dict[str, object], problem: str
) -> None:
    server.add("1.0", b"x")
    server.entries[0] |= entry

    with pytest.raises(StageFailed, match=problem):
        find_release("sample", "1.0", index=server.index)


def test_a_version_has_to_be_one(server: Server) -> None:
    with pytest.raises(StageFailed, match="'one' is not a version"):
        find_release("sample", "one", index=server.index)


def test_an_unknown_project_is_not_worth_another_try(server: Server) -> None:
    with pytest.raises(StageFailed, match="does not have project nothing; check the name") as e:
        find_release("nothing", "1.0", index=server.index)
    assert not e.value.transient


@pytest.mark.parametrize(("status", "transient"), [(503, True), (429, True), (403, False)])
def test_a_refusal_is_transient_where_it_may_pass(
    server: Server, status: int, transient: bool
) -> None:
    server.status = status
    with pytest.raises(StageFailed, match=f"HTTP {status}") as e:
        find_release("sample", "1.0", index=server.index)
    assert (e.value.transient, e.value.kind) == (transient, "index")


def test_an_unreachable_index_is_transient_and_keeps_the_password() -> None:
    index = Index("http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(StageFailed, match="could not be fetched from http://127") as e:
        find_release("sample", "1.0", index=index)
    assert e.value.transient
    assert "secret" not in str(e.value)


def test_an_index_without_the_json_api_is_named(server: Server) -> None:
    server.content_type = "text/html"
    with pytest.raises(StageFailed, match="answers with text/html instead of the JSON simple API"):
        find_release("sample", "1.0", index=server.index)


def test_the_index_is_the_one_of_pip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    config = tmp_path / "pip.conf"
    pip_settings.cache_clear()
    request.addfinalizer(pip_settings.cache_clear)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:pw@mirror.test/simple/")
    assert str(Index.of_this_machine()) == "https://mirror.test/simple"

    monkeypatch.delenv("PIP_INDEX_URL")
    pip_settings.cache_clear()
    config.write_text("[global]\nindex-url = https://configured.test/simple\n")
    assert str(Index.of_this_machine()) == "https://configured.test/simple"

    config.write_text("")
    pip_settings.cache_clear()
    assert str(Index.of_this_machine()) == DEFAULT_INDEX


def test_a_download_is_made_once_and_again_when_damaged(server: Server, tmp_path: Path) -> None:
    server.add("1.0", b"content")
    release = find_release("sample", "1.0", index=server.index)

    path = download(release, tmp_path)
    assert download(release, tmp_path) == path
    assert server.asked.count("/files/sample-1.0.tar.gz") == 1

    path.write_bytes(b"cont")
    assert download(release, tmp_path).read_bytes() == b"content"


def test_a_wrong_digest_is_refused_and_not_kept(server: Server, tmp_path: Path) -> None:
    server.add("1.0", b"content")
    release = find_release("sample", "1.0", index=server.index)
    server.files[release.filename] = b"other"

    with pytest.raises(StageFailed, match=f"but the index promises {release.sha256}"):
        download(release, tmp_path)

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_releases_become_linear_history(server: Server, tmp_path: Path) -> None:
    server.add("1.0", sdist("sample-1.0", BEFORE), uploaded="2024-01-02T00:00:00Z")
    # Uploaded before its predecessor, as a backport may be.
    server.add("1.1", sdist("sample-1.1", AFTER), uploaded="2024-01-01T00:00:00Z")

    mirror, commits = build(server, tmp_path, "1.0", "1.1")

    log = git(mirror, "log", "--reverse", "--format=%H %ct %at %an %s", "main").decode()
    assert log.splitlines() == [
        f"{commits[0]} 1704153600 1704153600 Release Pairs sample 1.0",
        f"{commits[1]} 1704153600 1704153600 Release Pairs sample 1.1",
    ]
    git(mirror, "fsck", "--strict", "--full")
    assert git(mirror, "rev-parse", "--is-bare-repository") == b"true\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "m", "m.lock"]


def test_generated_files_stay_out(server: Server, tmp_path: Path) -> None:
    server.add("1.0", sdist("sample-1.0", BEFORE))

    mirror, _ = build(server, tmp_path, "1.0")

    names = git(mirror, "ls-tree", "-r", "--name-only", "main").decode().split()
    assert names == ["CHANGES.rst", "setup.cfg", "src/sample.py", "tests/test_sample.py"]
    assert git(mirror, "show", "main:setup.cfg") == b"[metadata]\nname = sample\n"


def test_a_setup_cfg_of_nothing_but_the_section_stays_out(server: Server, tmp_path: Path) -> None:
    section = b"[egg_info]\ntag_build = \ntag_date = 0\n\n"
    server.add("1.0", sdist("sample-1.0", {"setup.cfg": section, "a.py": b""}))

    mirror, _ = build(server, tmp_path, "1.0")

    assert git(mirror, "ls-tree", "-r", "--name-only", "main") == b"a.py\n"


def test_the_tree_is_byte_exact(server: Server, tmp_path: Path) -> None:
    target = tarfile.TarInfo()
    target.type, target.linkname = tarfile.LNKTYPE, "sample-1.0/run.sh"
    awkward = 'dir/quote " back\\slash and é\nnewline'
    members: dict[str, Member] = {
        ".gitattributes": b"* text=auto eol=lf\n*.txt filter=lfs\n",
        ".gitignore": b"ignored.txt\n",
        "ignored.txt": b"dos\r\nline\r\nends",
        "latin.txt": "café\n".encode("latin-1"),
        "binary": bytes(range(256)),
        "run.sh": b"#!/bin/sh\n",
        "hard.sh": target,
        "link": "dir/../run.sh",
        "here": ".",
        "vendored/.git": b"gitdir: ../nowhere\n",
        awkward: b"odd name",
        "empty": b"",
    }
    server.add("1.0", sdist("sample-1.0", members, executable=("run.sh",)))

    mirror, _ = build(server, tmp_path, "1.0")

    tree = git(mirror, "ls-tree", "-r", "-z", "main").decode().split("\0")[:-1]
    modes = {line.partition("\t")[2]: line.split()[0] for line in tree}
    assert modes.pop("run.sh") == "100755"
    assert modes.pop("link") == "120000"
    assert modes.pop("here") == "120000"
    assert set(modes.values()) == {"100644"}
    assert set(modes) == set(members) - {"run.sh", "link", "here", "vendored/.git"}
    for name in ("ignored.txt", "latin.txt", "binary", "empty", awkward):
        assert git(mirror, "cat-file", "blob", f"main:{name}") == members[name]
    assert git(mirror, "cat-file", "blob", "main:hard.sh") == b"#!/bin/sh\n"
    assert git(mirror, "cat-file", "blob", "main:link") == b"dir/../run.sh"


def test_hashes_depend_on_the_releases_alone(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("1.0", sdist("sample-1.0", BEFORE))
    server.add("1.1", sdist("sample-1.1", AFTER))
    _, first = build(server, tmp_path, "1.0", "1.1")
    home = tmp_path / "home"
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/attributes").write_text("* text eol=crlf\n")
    (home / ".gitconfig").write_text("[user]\nname = Me\n[core]\nautocrlf = true\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody")
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))

    _, second = build(server, tmp_path, "1.0", "1.1", name="again")

    # Equal on every machine: whoever changes how commits are made moves all base commits.
    assert second == first
    assert first[0] == "3afb0cd3e8a2eb4dad3de6bdb96b440c1e2d5276"


def test_a_finished_mirror_is_left_alone_and_an_older_one_replaced(
    server: Server, tmp_path: Path
) -> None:
    server.add("1.0", sdist("sample-1.0", BEFORE))
    server.add("1.1", sdist("sample-1.1", AFTER))
    mirror, _ = build(server, tmp_path, "1.0")
    made = mirror.stat().st_ino

    build(server, tmp_path, "1.0")
    assert mirror.stat().st_ino == made

    mirror, commits = build(server, tmp_path, "1.0", "1.1")
    assert git(mirror, "rev-parse", "main").decode().strip() == commits[1]
    (mirror / "HEAD").unlink()
    build(server, tmp_path, "1.0", "1.1")
    assert git(mirror, "rev-parse", "main").decode().strip() == commits[1]


def test_other_users_can_read_the_mirror(server: Server, tmp_path: Path) -> None:
    server.add("1.0", sdist("sample-1.0", BEFORE))
    before = os.umask(0o077)
    try:
        mirror, _ = build(server, tmp_path, "1.0")
    finally:
        os.umask(before)
    for path in mirror.rglob("*"):
        assert path.stat().st_mode & (0o005 if path.is_dir() else 0o004), path


def device() -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type = tarfile.CHRTYPE
    return info


def hard_link(target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = tarfile.LNKTYPE, target
    return info


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"s/../../evil": b""}, "leaves the archive"),
        ({"/etc/evil": b""}, "leaves the archive"),
        ({"s/dev": device()}, "neither file, directory nor link"),
        ({"s/link": "/etc/passwd"}, "links to /etc/passwd"),
        ({"s/link": "../../etc/passwd"}, "links to"),
        ({"s/link": "../t/x"}, "links to"),
        ({"s/hard": hard_link("/etc/passwd")}, "hard link to /etc/passwd"),
        ({"s/a": b"", "t/b": b""}, "beside s/"),
    ],
)
def test_a_hostile_sdist_is_refused(
    server: Server, tmp_path: Path, members: Mapping[str, Member], reason: str
) -> None:
    server.add("1.0", sdist("", members))

    with pytest.raises(StageFailed, match=reason) as e:
        build(server, tmp_path, "1.0")

    assert e.value.kind == "clone"
    assert "sample-1.0.tar.gz" in str(e.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "m.lock"]


def test_a_bomb_is_refused(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releases, "_MAX_UNPACKED", 1000)
    server.add("1.0", sdist("sample-1.0", {"a": b"x" * 600, "b": b"x" * 600}))
    with pytest.raises(StageFailed, match="exceed"):
        build(server, tmp_path, "1.0")


@pytest.mark.parametrize("cut", [0, 3, 40, -3000])
def test_what_is_not_a_whole_archive_is_refused(server: Server, tmp_path: Path, cut: int) -> None:
    whole = sdist("sample-1.0", {"a": os.urandom(5000), "b": os.urandom(5000)})
    server.add("1.0", whole[:cut])
    with pytest.raises(StageFailed, match="not a readable sdist"):
        build(server, tmp_path, "1.0")


def pair(
    server: Server, tmp_path: Path, before: Mapping[str, Member], after: Mapping[str, Member]
) -> tuple[Path, list[str]]:
    server.add("1.0", sdist("sample-1.0", before))
    server.add("1.1", sdist("sample-1.1", after))
    return build(server, tmp_path, "1.0", "1.1")


def assert_patches_lead_to(mirror: Path, commits: list[str], patches: releases.PairPatches) -> None:
    """Through JSON and back, on a checkout: both patches together give the later tree."""
    checkout = mirror.parent / "checkout"
    git(mirror, "clone", "--quiet", str(mirror), str(checkout))
    git(checkout, "checkout", "--quiet", commits[0])
    for text in (patches.test_patch, patches.patch):
        file = mirror.parent / "applied.patch"
        file.write_bytes(json.loads(json.dumps(text)).encode("utf-8"))
        git(checkout, "apply", "--index", str(file))
    tree = git(checkout, "write-tree").decode().strip()
    assert tree == git(mirror, "rev-parse", f"{commits[1]}^{{tree}}").decode().strip()


def test_a_pair_is_split_into_fix_and_tests(server: Server, tmp_path: Path) -> None:
    mirror, commits = pair(server, tmp_path, BEFORE, AFTER)

    patches = releases.split_pair(mirror, *commits, test_paths=[])

    assert "-    return x + x + 1\n+    return x + x\n" in patches.patch
    assert "test_sample" not in patches.patch
    assert patches.test_patch.startswith("diff --git a/tests/test_sample.py b/tests/test_sample.py")
    assert patches.problem_statement == "sample 1.1\n\n1.1\n---\n\n- Fix double.\n"
    assert_patches_lead_to(mirror, commits, patches)


def test_patches_carry_every_kind_of_change(server: Server, tmp_path: Path) -> None:
    before: dict[str, Member] = {
        "latin.py": "# coding: latin-1\nname = 'café'\n".encode("latin-1"),
        "image.png": b"\x89PNG\0\1\2",
        "late-nul.txt": b"x" * 9000 + b"\nend\0\n",
        "dos.txt": b"a\r\nb\r\n",
        "no-newline": b"a",
        "gone.py": b"1\n",
        "moved.py": b"the same text\n" * 20,
        "script": b"#!/bin/sh\n",
        "becomes-link": b"file\n",
        "[odd] *.txt": b"1\n",
        "tests/café.txt": "één\n".encode(),
    }
    after: dict[str, Member] = {
        "latin.py": "# coding: latin-1\nname = 'thé'\n".encode("latin-1"),
        "image.png": b"\x89PNG\0\1\3",
        "late-nul.txt": b"x" * 9000 + b"\nEND\0\n",
        "dos.txt": b"a\r\nc\r\n",
        "no-newline": b"b",
        "moved/here.py": b"the same text\n" * 20,
        "script": b"#!/bin/sh\n",
        "becomes-link": "script",
        "[odd] *.txt": b"2\n",
        "tests/café.txt": "twéé\n".encode(),
        "tests/new": "café.txt",
    }
    server.add("1.0", sdist("sample-1.0", before))
    server.add("1.1", sdist("sample-1.1", after, executable=("script",)))
    mirror, commits = build(server, tmp_path, "1.0", "1.1")

    patches = releases.split_pair(mirror, *commits, test_paths=[])

    assert "rename from" not in patches.patch
    assert patches.patch.count("GIT binary patch") == 3
    assert_patches_lead_to(mirror, commits, patches)


def test_an_empty_half_is_an_empty_patch(server: Server, tmp_path: Path) -> None:
    mirror, commits = pair(server, tmp_path, {"a.py": b"1\n"}, {"a.py": b"2\n"})
    patches = releases.split_pair(mirror, *commits, test_paths=[])
    assert patches.test_patch == ""
    assert patches.patch
    assert patches.problem_statement == (
        "Change sample 1.0 so that it behaves as sample 1.1 does.\n"
    )


@pytest.mark.parametrize(
    ("path", "is_test"),
    [
        ("tests/data/x.json", True),
        ("test/x.py", True),
        ("testing/x.py", True),
        ("pkg/tests/x.py", True),
        ("pkg/test_x.py", True),
        ("pkg/x_test.py", True),
        ("conftest.py", True),
        ("checks/deep/x.txt", True),
        ("src/spec.cases", True),
        ("django/test/client.py", False),
        ("numpy/testing/utils.py", False),
        ("src/testament.py", False),
        ("checks.py", False),
        ("tests", False),
    ],
)
def test_tests_are_told_by_place_and_name(
    server: Server, tmp_path: Path, path: str, is_test: bool
) -> None:
    mirror, commits = pair(server, tmp_path, {path: b"1\n"}, {path: b"2\n"})
    patches = releases.split_pair(mirror, *commits, test_paths=["checks/", "*.cases"])
    assert bool(patches.test_patch) is is_test
    assert bool(patches.patch) is not is_test


@pytest.mark.parametrize(
    "changelog", ["CHANGES", "CHANGELOG.md", "NEWS.txt", "HISTORY.rst", "docs/changes.rst"]
)
def test_the_changelog_states_the_problem(server: Server, tmp_path: Path, changelog: str) -> None:
    old = "1.0\n\n- café\n".encode("latin-1")
    mirror, commits = pair(
        server, tmp_path, {changelog: old}, {changelog: b"1.1\r\n\n-- dashes\n++ \xff\n\n" + old}
    )
    patches = releases.split_pair(mirror, *commits, test_paths=[])
    assert patches.problem_statement == "sample 1.1\n\n1.1\n\n-- dashes\n++ \ufffd\n"


def test_a_read_me_with_a_changelog_states_the_problem(server: Server, tmp_path: Path) -> None:
    before = {"README.rst": b"Sample\n\n- 1.0 First\n"}
    after = {"README.rst": b"Sample with more\n\n- 1.1 Fix double\n- 1.0 First\n"}
    mirror, commits = pair(server, tmp_path, before, after)
    patches = releases.split_pair(mirror, *commits, test_paths=[])
    assert patches.problem_statement == "sample 1.1\n\n- 1.1 Fix double\n"


def test_a_read_me_that_does_not_speak_of_the_version_is_not_the_problem(
    server: Server, tmp_path: Path
) -> None:
    mirror, commits = pair(server, tmp_path, {"README": b"one\n"}, {"README": b"two\n"})
    patches = releases.split_pair(mirror, *commits, test_paths=[])
    assert patches.problem_statement.startswith("Change sample 1.0 ")
