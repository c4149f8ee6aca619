"""What ``pack`` writes: a function of the tree's content alone, in the dialect of OCI layers."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from minisandbox.archive import EARLIEST_DATE, PackStats, pack, unpack
from minisandbox.errors import UnpackableTree
from minisandbox.idmap import IdMap, call_mapped, current, single

DATE = 1_600_000_000


def fill(tree: Path, files: dict[str, bytes | None]) -> Path:
    """Files with their content, and directories (None)."""
    for name, content in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)
    return tree


def packed(tree: Path, idmap: IdMap, **options: object) -> bytes:
    def work() -> bytes:
        out = io.BytesIO()
        pack(tree, out, idmap=idmap, **({"date": DATE} | options))  # type: ignore[arg-type]
        return out.getvalue()

    return call_mapped(idmap, work)


def refused(tree: Path, idmap: IdMap) -> str:
    """The sentence with which ``pack`` refuses the tree."""

    def work() -> str:
        with pytest.raises(UnpackableTree) as caught:
            pack(tree, io.BytesIO(), date=DATE, idmap=idmap)
        return str(caught.value)

    return call_mapped(idmap, work)


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        return {member.name: member for member in archive}


SOURCES: dict[str, bytes | None] = {
    "opt/python/bin/python3": b"#!" + bytes(range(256)),
    "opt/python/lib/a.py": b"a = 1\n",
    "opt/python/lib.d/b": b"",
    "testbed/.git/index": b"DIRC",
    "testbed/empty": None,
}


def test_members_are_sorted_and_named_as_inside(place: Path, idmap: IdMap) -> None:
    names = list(members(packed(fill(place / "tree", SOURCES), idmap)))
    assert names == sorted(names)
    assert names[:3] == ["opt", "opt/python", "opt/python/bin"]
    assert names[-1] == "testbed/empty"


def test_same_content_gives_the_same_bytes(place: Path, idmap: IdMap) -> None:
    """Another place, order, date, umask, directory size: nothing of it is in the archive."""
    one = fill(place / "one", SOURCES)
    for number in range(300):
        (one / f"passing-{number}").touch()
    for number in range(300):
        (one / f"passing-{number}").unlink()
    other = fill(place / "further" / "down", dict(reversed(SOURCES.items())))
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
    assert packed(one, idmap) == packed(other, idmap)


def test_bytes_are_the_same_with_every_map(tmp_path: Path) -> None:
    tree = fill(tmp_path / "tree", SOURCES)
    assert len({packed(tree, idmap) for idmap in (current(), single())}) == 1


def test_digest_is_known(place: Path, idmap: IdMap) -> None:
    """These bytes name every published layer: a change here makes all of them be built again."""
    tree = fill(place / "tree", SOURCES)
    for path in tree.rglob("*"):
        path.chmod(0o755)
    os.symlink("python3", tree / "opt/python/bin/python")
    (tree / ("n" * 120)).touch(0o644)
    (tree / ("n" * 120)).chmod(0o644)
    data = packed(tree, idmap)
    assert hashlib.sha256(data).hexdigest() == (
        "4b88e7affe0f457011b4508b1a1d0e4338e5828d76bf9dd4f1c019445436ed3d"
    )


def test_date_is_in_every_member_and_one_later_where_asked(place: Path, idmap: IdMap) -> None:
    tree = fill(place / "tree", SOURCES)
    found = members(packed(tree, idmap, newer=frozenset({"testbed/.git/index"})))
    dates = {name: member.mtime for name, member in found.items()}
    assert dates.pop("testbed/.git/index") == DATE + 1
    assert set(dates.values()) == {DATE}


def test_date_before_zip_archives_is_refused(place: Path, idmap: IdMap) -> None:
    with pytest.raises(ValueError, match="before 1980"):
        pack(place, io.BytesIO(), date=EARLIEST_DATE - 1, idmap=idmap)


def test_byte_code_stays_behind(place: Path, idmap: IdMap) -> None:
    tree = fill(
        place / "tree",
        {
            "lib/a.py": b"",
            "lib/a.pyc": b"old way",
            "lib/only.pyc": b"its source was never there",
            "lib/__pycache__/a.cpython-311.pyc": b"x",
            "lib/__pycache__/sub/kept.txt": b"x",
            "bin/__pycache__": b"a file of that name",
        },
    )
    assert list(members(packed(tree, idmap))) == [
        *("bin", "bin/__pycache__"),
        *("lib", "lib/a.py", "lib/only.pyc"),
    ]


def test_running_the_code_does_not_change_the_digest(place: Path, idmap: IdMap) -> None:
    tree = fill(place / "tree", {"lib/a.py": b"b = 1\n", "lib/package/__init__.py": b""})
    before = packed(tree, idmap)
    subprocess.run(
        [sys.executable, "-c", "import a, package"],
        env={"PYTHONPATH": str(tree / "lib")},
        check=True,
    )
    assert (tree / "lib/__pycache__").is_dir()
    assert packed(tree, idmap) == before


def test_exclude_takes_directories_with_their_content(place: Path, idmap: IdMap) -> None:
    tree = fill(place / "tree", SOURCES)
    asked: list[str] = []

    def exclude(path: str) -> bool:
        asked.append(path)
        return path in ("opt/python", "testbed/.git/index")

    out = io.BytesIO()
    pack(tree, out, date=DATE, idmap=idmap, exclude=exclude)
    assert list(members(out.getvalue())) == ["opt", "testbed", "testbed/.git", "testbed/empty"]
    assert not any(path.startswith("opt/python/") for path in asked)


def test_statistics_count_content_once(place: Path, idmap: IdMap) -> None:
    tree = fill(place / "tree", {"a": b"12345", "d/b": b"678"})
    os.link(tree / "a", tree / "d/again")
    os.symlink("a", tree / "s")
    stats = call_mapped(idmap, lambda: pack(tree, io.BytesIO(), date=DATE, idmap=idmap))
    assert stats == PackStats(unpacked_size=8, files=2)


def test_first_name_is_the_file_and_later_ones_are_links(place: Path, idmap: IdMap) -> None:
    tree = fill(place / "tree", {"m": b"x", "d": None})
    os.link(tree / "m", tree / "z")
    os.link(tree / "m", tree / "d/first")
    found = members(packed(tree, idmap))
    assert found["d/first"].isreg()
    assert {found[name].linkname for name in ("m", "z")} == {"d/first"}


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def overlay_attribute(path: Path, name: str, value: bytes, idmap: IdMap) -> None:
    os.setxattr(path, f"{'user' if idmap.sees_inside else 'trusted'}.overlay.{name}", value)


def test_deletions_travel_as_oci_whiteouts(place: Path, idmap: IdMap) -> None:
    tree = fill(place / "tree", {"d/kept": b"", "replaced/new": b""})

    def delete() -> None:
        whiteout(tree / "d/gone")
        whiteout(tree / "d/__pycache__")
        overlay_attribute(tree / "replaced", "opaque", b"y", idmap)
        overlay_attribute(tree / "d", "impure", b"y", idmap)
        overlay_attribute(tree / "d/kept", "origin", b"\0handle", idmap)

    call_mapped(idmap, delete)
    data = packed(tree, idmap)
    found = members(data)
    assert list(found) == [
        *("d", "d/.wh.gone", "d/kept"),
        *("replaced", "replaced/.wh..wh..opq", "replaced/new"),
    ]
    assert found["d/.wh.gone"].isreg()
    assert found["d/.wh.gone"].size == 0

    def back() -> tuple[bool, bytes]:
        unpack(io.BytesIO(data), place / "copy", idmap=idmap)
        status = (place / "copy/d/gone").lstat()
        kind = "user" if idmap.sees_inside else "trusted"
        mark = os.getxattr(place / "copy/replaced", f"{kind}.overlay.opaque")
        return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0, mark

    assert call_mapped(idmap, back) == (True, b"y")
    assert packed(place / "copy", idmap) == data


@pytest.mark.parametrize("name", ["redirect", "metacopy"])
def test_parts_that_the_overlay_keeps_elsewhere_are_refused(
    place: Path, idmap: IdMap, name: str
) -> None:
    tree = fill(place / "tree", {"d/moved/file": b""})
    call_mapped(idmap, functools.partial(overlay_attribute, tree / "d/moved", name, b"/old", idmap))
    assert refused(tree, idmap) == (
        f"d/moved cannot be packed into a layer: part of it is elsewhere "
        f"({'user' if idmap.sees_inside else 'trusted'}.overlay.{name}); "
        "mount the overlay with redirect_dir=off"
    )


@pytest.mark.parametrize("name", [".wh.name", "d/.wh..wh..opq"])
def test_names_of_whiteouts_are_refused(place: Path, idmap: IdMap, name: str) -> None:
    tree = fill(place / "tree", {name: b""})
    assert refused(tree, idmap).startswith(f"{name} cannot be packed into a layer: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_device_is_refused(place: Path, idmap: IdMap) -> None:
    tree = fill(place / "tree", {"d": None})
    os.mknod(tree / "d/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert refused(tree, idmap) == "d/null cannot be packed into a layer: it is a device"


def test_file_that_shrinks_is_noticed(place: Path, idmap: IdMap) -> None:
    tree = fill(place / "tree", {"a": b"x" * 5000, "log": b"y" * 5000})

    class Truncating(io.BytesIO):
        def write(self, data: bytes, /) -> int:  # type: ignore[override]
            if data.startswith(b"log"):
                (tree / "log").write_bytes(b"")
            return super().write(data)

    def work() -> str:
        with pytest.raises(UnpackableTree) as caught:
            pack(tree, Truncating(), date=DATE, idmap=idmap)
        return str(caught.value)

    assert "was changed while it was read" in call_mapped(idmap, work)


OWNERS: list[tuple[str, Callable[[IdMap], tuple[int, int]], tuple[int, int]]] = [
    ("mapped", lambda m: (7, 8) if m.sees_inside else (m.host_uid(7), m.host_gid(8)), (7, 8)),
    ("nobody", lambda m: (65534,) * 2 if m.sees_inside else (m.host_uid(65534),) * 2, (0, 0)),
]


@pytest.mark.parametrize(("case", "owner", "expected"), OWNERS, ids=[row[0] for row in OWNERS])
def test_owners_are_ids_of_the_sandbox(
    place: Path,
    idmap: IdMap,
    case: str,
    owner: Callable[[IdMap], tuple[int, int]],
    expected: tuple[int, int],
) -> None:
    tree = fill(place / "tree", {"file": b""})
    if idmap.count == 1:
        expected = (0, 0)  # The single id cannot give anything away.
    else:
        call_mapped(idmap, lambda: os.chown(tree / "file", *owner(idmap)))
    data = packed(tree, idmap)
    member = members(data)["file"]
    assert (member.uid, member.gid, member.uname, member.gname) == (*expected, "", "")

    def back() -> tuple[int, int]:
        unpack(io.BytesIO(data), place / "copy", idmap=idmap)
        status = (place / "copy/file").lstat()
        if idmap.sees_inside:
            return status.st_uid, status.st_gid
        return idmap.inside_uid(status.st_uid), idmap.inside_gid(status.st_gid)

    assert call_mapped(idmap, back) == expected


def test_files_of_the_host_belong_to_root_inside(idmap: IdMap) -> None:
    """Their owner is not in the map; they pack the same for everybody."""
    found = members(packed(Path("/etc/skel"), idmap))
    assert {(member.uid, member.gid) for member in found.values()} == {(0, 0)}
