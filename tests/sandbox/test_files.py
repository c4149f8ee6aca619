"""Files in and out of a sandbox: byte-exact, of any size, and never through a link to the host."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from minisandbox.errors import SandboxFileError
from minisandbox.sandbox import Sandbox


def test_bytes_come_back_as_they_went(box: Sandbox) -> None:
    for data in (b"", bytes(range(256)), b"\r\n\0\xff" * 1000, "ü".encode("latin-1")):
        box.write_file("/root/a/b/c", data)
        assert box.read_file("/root/a/b/c") == data
    box.write_file("/root/text", "é\r\n")
    assert box.read_file("/root/text") == b"\xc3\xa9\r\n"


def test_fifty_megabytes(box: Sandbox) -> None:
    data = os.urandom(1 << 20) * 50
    box.write_file("/root/large", data)
    assert (
        box.run("sha256sum < /root/large").stdout_text.split()[0]
        == hashlib.sha256(data).hexdigest()
    )
    assert box.read_file("/root/large") == data
    box.run("rm /root/large")


def test_modes_and_replacement(box: Sandbox) -> None:
    box.write_file("/root/run.sh", "#!/bin/sh\necho ran\n", mode=0o755)
    assert box.run(["/root/run.sh"]).stdout == b"ran\n"
    box.run("ln -s run.sh /root/link")
    box.write_file("/root/link", "new")
    assert box.read_file("/root/run.sh") == b"new"
    assert box.run("ls -A /root | grep minisandbox").stdout == b""


PROBLEMS = [
    ("/root/missing", errno.ENOENT),
    ("/etc", errno.EISDIR),
    ("/dev/zero", errno.EINVAL),
    ("/tmp/fifo", errno.EINVAL),
    ("/etc/passwd/x", errno.ENOTDIR),
]


@pytest.mark.parametrize(("path", "number"), PROBLEMS)
def test_what_cannot_be_read(box: Sandbox, path: str, number: int) -> None:
    box.run("mkfifo /tmp/fifo")
    with pytest.raises(SandboxFileError) as caught:
        box.read_file(path)
    assert (caught.value.errno, caught.value.path) == (number, path)


def test_reading_is_bounded(box: Sandbox) -> None:
    box.run("truncate -s 1T /root/huge")
    for bound in ({}, {"max_bytes": 1000}):
        with pytest.raises(SandboxFileError, match=r"larger than max_bytes, 1,0.*raise") as caught:
            box.read_file("/root/huge", **bound)
        assert (caught.value.errno, caught.value.path) == (errno.EFBIG, "/root/huge")
    box.run("rm /root/huge; printf 0123456789 > /root/ten")
    assert box.read_file("/root/ten", max_bytes=10) == b"0123456789"
    with pytest.raises(SandboxFileError, match="larger"):
        box.read_file("/root/ten", max_bytes=9)


def test_files_that_the_kernel_makes_up_are_read_whole(box: Sandbox) -> None:
    """Their size is 0, or as good as."""
    assert box.read_file("/proc/self/status").startswith(b"Name:")
    assert box.read_file("/proc/self/status", max_bytes=1 << 62).startswith(b"Name:")
    with pytest.raises(SandboxFileError, match="larger"):
        box.read_file("/proc/self/status", max_bytes=10)


def test_relative_paths_start_at_the_sandboxs_directory(start) -> None:
    box = start(cwd="/root")
    box.write_file("here", "x")
    assert box.read_file("/root/here") == b"x"


def tree(root: Path) -> dict[bytes, tuple[int, bytes]]:
    found: dict[bytes, tuple[int, bytes]] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if os.path.islink(path):
                content = os.readlink(path)
            else:
                content = b"" if os.path.isdir(path) else Path(os.fsdecode(path)).read_bytes()
            found[os.path.relpath(path, os.fsencode(root))] = (status.st_mode, content)
    return found


def test_directories_survive_a_round_trip(box: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "empty").mkdir(mode=0o700)
    (source / "deep/er/program").write_bytes(b"\x7fELF\0\xff")
    (source / "deep/er/program").chmod(0o755)
    (source / "read-only").write_text("x")
    (source / "read-only").chmod(0o444)
    (source / os.fsdecode(b"latin-\xe4")).write_text("y")
    (source / "with\nnewline").write_text("z")
    os.symlink("/nonexistent", source / "dangling")
    os.symlink("deep", source / "to-directory")
    os.utime(source / "read-only", ns=(10**18, 10**18 + 7))
    box.upload(source, "/root/tree")
    box.download("/root/tree", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    assert (tmp_path / "back/read-only").stat().st_mtime_ns == 10**18 + 7
    box.run("rm -rf /root/tree")


def test_single_files_and_merging(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("new")
    box.upload(tmp_path / "file", "/root/dir/file")
    box.write_file("/root/dir/other", "kept")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir/file").write_text("newer")
    box.upload(tmp_path / "dir", "/root/dir")
    assert box.run("cat /root/dir/file /root/dir/other").stdout == b"newerkept"
    box.download("/root/dir/file", tmp_path / "one")
    assert (tmp_path / "one").read_text() == "newer"


def test_missing_sources_are_errors_that_name_them(box: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(SandboxFileError, match="missing"):
        box.download("/root/missing", tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        box.upload(tmp_path / "missing", "/root/x")
    box.run("mkdir /root/odd && mkfifo /root/odd/fifo")
    with pytest.raises(SandboxFileError, match="fifo"):
        box.download("/root/odd", tmp_path / "odd")
    box.run("mkdir /root/odd/a && mv /root/odd/fifo /root/odd/a/fifo")
    with pytest.raises(SandboxFileError) as caught:
        box.download("/root/odd", tmp_path / "odd")
    assert caught.value.path == "/root/odd/a/fifo"
    with pytest.raises(SandboxFileError) as caught:
        box.download("/nope", tmp_path / "x")
    assert caught.value.path == "/nope"
    with pytest.raises(FileNotFoundError) as missing:
        box.upload(tmp_path / "missing", "/root/x")
    assert missing.value.filename == str(tmp_path / "missing")


BOUNDS = [
    ({}, "/root/t/big/sparse", "1,099,511,627,776 bytes, 1,099,511,627,780 with all before it"),
    ({"max_bytes": 3}, "/root/t/a", "it has 4 bytes: more than max_bytes, 3; raise"),
    (
        {"max_bytes": 1 << 50, "max_entries": 3},
        "/root/t/big/sparse",
        "one more than max_entries, 3; raise",
    ),
    ({"max_entries": 0}, "/root/t", "one more than max_entries, 0"),
]


@pytest.mark.parametrize(("bounds", "where", "reason"), BOUNDS)
def test_downloads_are_bounded_and_then_leave_nothing(
    box: Sandbox, tmp_path: Path, bounds: dict[str, int], where: str, reason: str
) -> None:
    box.run("mkdir -p /root/t/big; echo new > /root/t/a; truncate -s 1T /root/t/big/sparse")
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a").write_text("old")
    before = tree(tmp_path)
    for target in (tmp_path / "there", tmp_path / "new", tmp_path / "un/made"):
        with pytest.raises(SandboxFileError, match=reason) as caught:
            box.download("/root/t", target, **bounds)
        assert caught.value.errno == errno.EFBIG
        assert caught.value.path == where
        assert tree(tmp_path) == before
    assert box.run("rm -r /root/t; echo works").stdout == b"works\n"


def test_exactly_the_bounds_are_not_too_much(box: Sandbox, tmp_path: Path) -> None:
    box.run("mkdir /root/t; echo 123 > /root/t/a; ln -s a /root/t/l; mkdir /root/t/d")
    box.download("/root/t", tmp_path / "got", max_bytes=4, max_entries=4)
    assert (tmp_path / "got/l").read_text() == "123\n"
    box.run("rm -r /root/t")


def test_a_download_that_fails_changes_nothing(box: Sandbox, tmp_path: Path) -> None:
    box.run("mkdir -p /root/t/m; echo new > /root/t/a; chmod 0 /root/t/m; mkfifo /root/t/z")
    (tmp_path / "t").mkdir()
    (tmp_path / "t/a").write_text("old")
    before = tree(tmp_path)
    with pytest.raises(SandboxFileError, match="t/z"):
        box.download("/root/t", tmp_path / "t")
    with pytest.raises(SandboxFileError, match="t/z"):
        box.download("/root/t", tmp_path / "u")
    assert tree(tmp_path) == before
    box.run("rm -r /root/t")


def test_directories_that_may_not_be_written_are_merged(box: Sandbox, tmp_path: Path) -> None:
    box.run(
        "mkdir -p /root/t/new/below /root/t/old/new; echo x > /root/t/new/below/f; "
        "echo y > /root/t/old/f; touch -d @1000000000 /root/t/old /root/t/old/new /root/t; "
        "chmod 555 /root/t /root/t/new /root/t/new/below /root/t/old /root/t/old/new"
    )
    (tmp_path / "t/old").mkdir(parents=True)
    (tmp_path / "t/old/kept").write_text("kept")
    box.download("/root/t", tmp_path / "t")
    found = tree(tmp_path / "t")
    assert {name: content for name, (_, content) in found.items() if content} == {
        b"new/below/f": b"x\n",
        b"old/f": b"y\n",
        b"old/kept": b"kept",
    }
    assert {mode & 0o777 for mode, content in found.values() if not content} == {0o555}
    for folder in ("t", "t/old", "t/old/new"):
        assert (tmp_path / folder).stat().st_mtime == 1e9
    for folder in ("t", "t/new", "t/new/below", "t/old", "t/old/new"):
        (tmp_path / folder).chmod(0o755)
    box.run("rm -r /root/t")


def test_links_inside_lead_nowhere_outside(box: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host")
    box.run(f"mkdir -p /root/l && ln -sf {secret} /root/l/link && ln -sfn {tmp_path} /root/l/dir")
    with pytest.raises(SandboxFileError):
        box.read_file("/root/l/link")
    box.download("/root/l", tmp_path / "got")
    assert os.readlink(tmp_path / "got/link") == str(secret)
    box.write_file("/root/l/link", "inside")
    assert secret.read_text() == "host"


def test_a_link_already_at_the_destination_is_replaced_not_followed(
    box: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "into").mkdir()
    os.symlink(tmp_path / "victim", tmp_path / "into/file")
    box.run("mkdir -p /root/m && echo x > /root/m/file")
    box.download("/root/m", tmp_path / "into")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "into/file").read_text() == "x\n"
