"""Archives that others wrote are read as they meant them, and headers say what they should."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox.archive import pack, unpack
from minisandbox.archive.members import Kind, Member, encode_header
from minisandbox.archive.reading import Reader
from minisandbox.idmap import IdMap, call_mapped

DATE = 1_600_000_000


def packed(tree: Path, idmap: IdMap) -> bytes:
    def work() -> bytes:
        out = io.BytesIO()
        pack(tree, out, date=DATE, idmap=idmap)
        return out.getvalue()

    return call_mapped(idmap, work)


def unpacked(data: bytes, target: Path, idmap: IdMap) -> None:
    call_mapped(idmap, lambda: unpack(io.BytesIO(data), target, idmap=idmap))


@pytest.mark.parametrize("style", ["v7", "oldgnu", "gnu", "ustar", "pax"])
def test_archives_of_gnu_tar(place: Path, idmap: IdMap, style: str) -> None:
    tree = place / "tree"
    (tree / "d/e").mkdir(parents=True)
    (tree / "d/file").write_bytes(b"x" * 1000)
    (tree / "d/\u00e9t\u00e9").touch()
    os.link(tree / "d/file", tree / "hard")
    os.symlink("../d", tree / "d/link")
    if style not in ("v7", "ustar"):
        (tree / ("d" * 90) / ("e" * 90)).mkdir(parents=True)
        (tree / ("d" * 90) / ("e" * 90) / ("f" * 200)).touch()
        os.symlink("t" * 300, tree / "long")
    words = ["tar", "-c", f"--format={style}", "--owner=0", "--group=0", "--sort=name"]
    data = subprocess.run([*words, "-C", tree, "."], capture_output=True, check=True).stdout
    unpacked(data, place / "copy", idmap)
    assert packed(place / "copy", idmap) == packed(tree, idmap)


@pytest.mark.parametrize("style", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_python(place: Path, idmap: IdMap, style: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=style) as archive:
        info = tarfile.TarInfo("without/its/parents")
        info.size, info.mtime, info.mode = 3, DATE + 7, 0o640
        archive.addfile(info, io.BytesIO(b"abc"))
    unpacked(out.getvalue(), place / "copy", idmap)
    path = place / "copy/without/its/parents"
    assert path.read_bytes() == b"abc"
    assert (path.stat().st_mode, path.stat().st_mtime) == (0o100640, DATE + 7)
    parent = path.parent.stat()
    assert (parent.st_mode, parent.st_mtime) == (0o040755, DATE + 7)


def test_directory_may_come_again_and_after_what_is_in_it(place: Path, idmap: IdMap) -> None:
    """As in images that were put together from several archives."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, mode in (("./", 0o711), ("d/f", 0), ("d", 0o700), ("./d/", 0o750)):
            info = tarfile.TarInfo(name)
            if name != "d/f":
                info.type, info.mode = tarfile.DIRTYPE, mode
            archive.addfile(info)
    unpacked(out.getvalue(), place / "copy", idmap)
    assert (place / "copy").stat().st_mode == 0o040711
    assert (place / "copy/d").stat().st_mode == 0o040750


def test_archive_of_git_with_its_global_header(place: Path, idmap: IdMap) -> None:
    git = ["git", "-C", place / "repo", "-c", "user.name=n", "-c", "user.email=e@localhost"]
    subprocess.run(["git", "init", "-q", place / "repo"], check=True)
    (place / "repo/file").write_text("text")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    words = [*git, "archive", "--format=tar", "HEAD"]
    data = subprocess.run(words, capture_output=True, check=True).stdout
    assert data[156:157] == b"g"
    unpacked(data, place / "copy", idmap)
    assert (place / "copy/file").read_text() == "text"


def test_fractions_of_seconds_survive_reading(place: Path, idmap: IdMap) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, date in (("half", "1600000000.5"), ("before", "-1.25")):
            info = tarfile.TarInfo(name)
            info.pax_headers = {"mtime": date}
            archive.addfile(info)
    unpacked(out.getvalue(), place / "copy", idmap)
    assert (place / "copy/half").stat().st_mtime_ns == 1_600_000_000_500_000_000
    assert (place / "copy/before").stat().st_mtime_ns == -1_250_000_000


LENGTHS = [1, 99, 100, 101, 155, 156, 255, 256, 257, 1000, 5000]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("slash", [0, 1, 50, 100, 154, 155, 156])
@pytest.mark.parametrize("kind", [Kind.FILE, Kind.DIRECTORY])
def test_names_of_every_length(length: int, slash: int, kind: Kind) -> None:
    path = bytearray(b"n" * length)
    if 0 < slash < length - 1:
        path[slash] = ord("/")
    check(Member(bytes(path), kind, 0o644, 1, 2, DATE * 10**9))


@pytest.mark.parametrize(
    "member",
    [
        Member(b"f", Kind.FILE, 0o600, 0, 0, DATE * 10**9, size=1 << 40),
        Member(b"f", Kind.FILE, 0o600, 3_000_000, 4_000_000, DATE * 10**9),
        Member(b"l", Kind.SYMLINK, 0o777, 0, 0, DATE * 10**9, target=b"t" * 101),
        Member(b"l", Kind.HARD_LINK, 0o777, 0, 0, DATE * 10**9, target=b"t" * 4000),
        Member(b"p", Kind.FIFO, 0o644, 0, 0, DATE * 10**9),
        *(
            Member(b"x", Kind.FILE, 0, 0, 0, DATE * 10**9, xattrs={b"user.x": b"v" * size})
            for size in (0, *range(60, 80), *range(960, 980))
        ),
    ],
)
def test_fields_that_do_not_fit_ustar(member: Member) -> None:
    check(member)


def check(member: Member) -> None:
    """Our header is read as ``member`` by ``tarfile`` and by our reader."""
    data = encode_header(member)
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data + bytes(1024))) as archive:
        theirs = archive.next()
    assert theirs is not None
    assert (theirs.name.encode(), theirs.linkname.encode()) == (member.path, member.target)
    assert (theirs.uid, theirs.gid, theirs.size) == (member.uid, member.gid, member.size)
    ours = next(iter(Reader(io.BytesIO(data + bytes(1024)))))
    assert replace(ours, path=ours.path.rstrip(b"/")) == member
