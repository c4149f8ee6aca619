"""H2: what trees of real environments hold comes back the same, or is dropped as documented."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import socket
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minisandbox.archive import PackStats, pack, unpack
from minisandbox.idmap import IdMap, call_mapped, current, remove_tree, single

DATE = 1_600_000_000
IDMAPS = [current()] if current().kind in ("root", "single") else [current(), single()]


@pytest.fixture(params=IDMAPS, ids=[idmap.kind for idmap in IDMAPS])
def idmap(request: pytest.FixtureRequest) -> IdMap:
    return request.param


@pytest.fixture
def place(tmp_path: Path, idmap: IdMap) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.iterdir():
        remove_tree(path, idmap)


def packed(tree: Path, idmap: IdMap, **options: object) -> bytes:
    def work() -> bytes:
        out = io.BytesIO()
        pack(tree, out, date=DATE, idmap=idmap, **options)  # type: ignore[arg-type]
        return out.getvalue()

    return call_mapped(idmap, work)


def unpacked(data: bytes, target: Path, idmap: IdMap) -> None:
    call_mapped(idmap, lambda: unpack(io.BytesIO(data), target, idmap=idmap))


def snapshot(root: Path) -> dict[bytes, tuple[object, ...]]:
    """All that can be asked about a tree but owners; by descriptor, as paths are long."""
    found: dict[bytes, tuple[object, ...]] = {}
    links: dict[int, bytes] = {}

    def visit(directory: int, prefix: bytes) -> None:
        for text in sorted(os.listdir(directory)):
            name = os.fsencode(text)
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            kind, content = stat.S_IFMT(status.st_mode), b""
            xattrs: dict[str, bytes] = {}
            if stat.S_ISREG(kind) or stat.S_ISDIR(kind):
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
                xattrs = {key: os.getxattr(fd, key) for key in os.listxattr(fd)}
                if stat.S_ISREG(kind):
                    with open(fd, "rb") as file:
                        content = hashlib.file_digest(file, "sha256").digest()
                else:
                    visit(fd, prefix + name + b"/")
                    os.close(fd)
            elif stat.S_ISLNK(kind):
                content = os.readlink(name, dir_fd=directory)
            same = links.setdefault(status.st_ino, prefix + name)
            found[prefix + name] = (
                *(kind, stat.S_IMODE(status.st_mode), content, same, status.st_rdev),
                *(status.st_mtime_ns, tuple(sorted(xattrs.items()))),
                status.st_nlink if stat.S_ISREG(kind) else 1,
            )

    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    visit(top, b"")
    os.close(top)
    return found


def write(path: bytes | str, content: bytes = b"content\n", mode: int = 0o644) -> None:
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)


def hard_links() -> None:
    os.makedirs("z")
    write("m")
    os.link("m", "a")
    os.link("m", "z/last")
    write("other")
    os.link("other", "z/other")


def links() -> None:
    os.makedirs("real/sub")
    write("real/file")
    os.symlink("/usr/bin/python3", "absolute")
    os.symlink("real/file", "one")
    os.symlink("one", "two")
    os.symlink("two", "three")
    os.symlink("real", "to-directory")
    os.symlink("../../../../../../etc/passwd", "up")
    os.symlink("nowhere", "dangling")
    os.symlink("loop", "loop")
    os.symlink(b"long/" * 800, b"long-target")
    os.symlink(b"\xe9t\xe9", b"latin-\xe9")


def names() -> None:
    for name in (
        *(b"n" * 255, b"\xff\xfe-bytes", "\u00e9t\u00e9".encode(), "e\u0301te\u0301".encode()),
        *(b"new\nline", b"back\\slash", b"-rf", b" blanks ", b"...", b"a=b", b"%3D", b".whiteout"),
        *(b"n" * 100, b"n" * 101, b"\xe2\x82", b"q" * 154 + b"\xff"),
    ):
        write(name)
        os.mkdir(b"in-" + name[:200])
        write(b"in-" + name[:200] + b"/" + name)


def long_path() -> None:
    here = os.open(".", os.O_RDONLY)
    for level in range(30):
        name = b"%02d-" % level + b"d" * 240
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open(b"f" * 255, os.O_WRONLY | os.O_CREAT, 0o640, dir_fd=here))
    os.symlink(b"x" * 3000, b"link", dir_fd=here)
    os.link(b"f" * 255, b"hard", src_dir_fd=here, dst_dir_fd=here)
    os.close(here)


def many_levels() -> None:
    here = os.open(".", os.O_RDONLY)
    for level in range(120):
        for name in (b"d", b"e"):
            os.mkdir(name, dir_fd=here)
        if level % 50 == 0:
            os.close(os.open(b"file", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=here))
        below = os.open(b"d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def modes() -> None:
    for mode in (0o000, 0o200, 0o444, 0o600, 0o755, 0o777, 0o1777):
        write(f"file-{mode:o}", mode=mode)
        os.mkdir(f"directory-{mode:o}")
        write(f"directory-{mode:o}/inside")
        os.mkdir(f"directory-{mode:o}/below")
        os.chmod(f"directory-{mode:o}", mode)


def fifos() -> None:
    os.mkfifo("fifo")
    os.chmod("fifo", 0o620)


def sparse() -> None:
    with open("sparse", "wb") as file:
        file.seek(5 << 20)
        file.write(b"end")
        file.truncate(9 << 20)


def sizes() -> None:
    for size in (0, 1, 511, 512, 513, 1 << 20, (1 << 20) + 1):
        write(f"size-{size}", os.urandom(size))


def attributes() -> None:
    write("file")
    os.mkdir("directory")
    for path in ("file", "directory"):
        os.setxattr(path, "user.plain", b"text")
        os.setxattr(path, "user.any=%3D.key", bytes(range(256)))
    write("read-only", mode=0o444)
    os.setxattr("read-only", "user.empty", b"")


TREES: list[Callable[[], None]] = [
    *(hard_links, links, names, long_path, many_levels),
    *(modes, fifos, sparse, sizes, attributes),
]


def make_in(tree: Path, make: Callable[[], None]) -> None:
    """Run ``make`` in a new directory ``tree``, with one date for all that it makes."""
    tree.mkdir()
    before = os.getcwd()
    os.chdir(tree)
    try:
        make()
    finally:
        os.chdir(before)


def dated(content: dict[bytes, tuple[object, ...]]) -> dict[bytes, tuple[object, ...]]:
    return {path: (*row[:5], DATE * 10**9, *row[6:]) for path, row in content.items()}


@pytest.mark.parametrize("make", TREES, ids=lambda make: make.__name__)
def test_tree_comes_back_the_same(place: Path, idmap: IdMap, make: Callable[[], None]) -> None:
    tree, copy = place / "tree", place / "copy"
    call_mapped(idmap, functools.partial(make_in, tree, make))
    data = packed(tree, idmap)
    unpacked(data, copy, idmap)
    before = call_mapped(idmap, functools.partial(snapshot, tree))
    after = call_mapped(idmap, functools.partial(snapshot, copy))
    assert after == dated(before)
    assert packed(copy, idmap) == data


@pytest.mark.parametrize("make", TREES, ids=lambda make: make.__name__)
def test_other_programs_read_the_same(place: Path, idmap: IdMap, make: Callable[[], None]) -> None:
    tree = place / "tree"
    call_mapped(idmap, functools.partial(make_in, tree, make))
    data = packed(tree, idmap)
    expected = sorted(os.fsdecode(path) for path in call_mapped(idmap, lambda: snapshot(tree)))
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        assert sorted(archive.getnames()) == expected
        assert {(member.uid, member.gid, member.mtime) for member in archive} == {(0, 0, DATE)}
    listed = subprocess.run(
        ["tar", "--list", "--quoting-style=escape"], input=data, capture_output=True, check=True
    )
    assert listed.stdout.count(b"\n") == len(expected)
    assert listed.stderr == b""


def test_gnu_tar_unpacks_the_same_content(place: Path, idmap: IdMap) -> None:
    call_mapped(idmap, functools.partial(make_in, place / "tree", names))
    (place / "copy").mkdir()
    data = packed(place / "tree", idmap)
    subprocess.run(["tar", "-x", "-C", place / "copy", "--no-same-owner"], input=data, check=True)
    assert packed(place / "copy", idmap) == data


@pytest.mark.parametrize("bits", [0o4755, 0o2755, 0o6711])
def test_setuid_and_setgid_are_dropped(place: Path, idmap: IdMap, bits: int) -> None:
    def make() -> None:
        write("program", mode=bits)
        os.mkdir("directory")
        os.chmod("directory", bits)

    call_mapped(idmap, functools.partial(make_in, place / "tree", make))
    unpacked(packed(place / "tree", idmap), place / "copy", idmap)
    rows = call_mapped(idmap, lambda: snapshot(place / "copy"))
    assert {row[1] for row in rows.values()} == {bits & 0o1777}


def test_socket_is_dropped(place: Path, idmap: IdMap) -> None:
    def make() -> None:
        write("beside")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")

    call_mapped(idmap, functools.partial(make_in, place / "tree", make))
    unpacked(packed(place / "tree", idmap), place / "copy", idmap)
    assert os.listdir(place / "copy") == ["beside"]


def test_sparse_file_counts_with_its_full_size(place: Path, idmap: IdMap) -> None:
    call_mapped(idmap, functools.partial(make_in, place / "tree", sparse))

    def stats() -> PackStats:
        return pack(place / "tree", io.BytesIO(), date=DATE, idmap=idmap)

    assert call_mapped(idmap, stats) == PackStats(unpacked_size=9 << 20, files=1)
