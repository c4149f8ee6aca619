"""H2: whatever an archive says, nothing outside of the target is touched, nothing odd inside."""

from __future__ import annotations

import functools
import io
import os
import random
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minisandbox.archive import Limits, pack, unpack
from minisandbox.errors import MiniSandboxError, UnsafeArchive
from minisandbox.idmap import IdMap, call_mapped, current, remove_tree, single
from tars import END, block, directory, entry, file, hard_link, pax, record, symlink, tar

LIMITS = Limits(max_bytes=1 << 20, max_files=50)
IDMAPS = [current()] if current().kind in ("root", "single") else [current(), single()]


@pytest.fixture(params=IDMAPS, ids=[idmap.kind for idmap in IDMAPS])
def idmap(request: pytest.FixtureRequest) -> IdMap:
    return request.param


@pytest.fixture
def place(tmp_path: Path, idmap: IdMap) -> Iterator[Path]:
    (tmp_path / "outside").write_text("untouched")
    yield tmp_path
    for path in tmp_path.iterdir():
        remove_tree(path, idmap)


SIZE, MODE, UID, MTIME = slice(124, 136), slice(100, 108), slice(108, 116), slice(136, 148)

HOSTILE: dict[str, tuple[bytes, str]] = {
    # Out of the directory by name.
    "parent": (tar(file("../outside")), "goes up"),
    "parent-inside": (tar(directory("a"), file("a/../../outside")), "goes up"),
    "parent-that-stays": (tar(directory("a"), file("a/../b")), "goes up"),
    "parent-directory": (tar(directory("../evil")), "goes up"),
    "only-parent": (tar(directory("..")), "goes up"),
    "absolute": (block(b"f", field=slice(0, 20), value=b"/tmp/evil") + END, "absolute"),
    "absolute-double": (block(b"f", field=slice(0, 20), value=b"//tmp/evil") + END, "absolute"),
    "absolute-in-pax": (pax(record(b"path", b"/tmp/evil")) + block() + END, "absolute"),
    "parent-in-pax": (pax(record(b"path", b"a/../../outside")) + block() + END, "goes up"),
    "parent-in-prefix": (block(field=slice(345, 360), value=b"../..") + END, "goes up"),
    "parent-in-gnu-name": (pax(b"../outside\0", b"L") + block() + END, "goes up"),
    "nul-in-pax": (pax(record(b"path", b"a\0b")) + block() + END, "NUL"),
    "nul-in-target": (
        pax(record(b"linkpath", b"a\0b")) + block(field=slice(156, 157), value=b"2") + END,
        "NUL",
    ),
    "nul-in-attribute": (pax(record(b"SCHILY.xattr.user.\0", b"")) + block() + END, "NUL"),
    "no-name": (block(field=slice(0, 100)) + END, "no name"),
    "dot-file": (tar(file(".")), "no name"),
    "whiteout-of-parent": (tar(file(".wh...")), "whiteout of no name"),
    "whiteout-of-here": (tar(file(".wh..")), "whiteout of no name"),
    "whiteout-of-nothing": (tar(file("a/.wh.")), "whiteout of no name"),
    # Out of the directory through a link.
    "through-link": (tar(symlink("l", ".."), file("l/outside")), "no directory|symbolic link"),
    "through-absolute": (tar(symlink("l", "/tmp"), file("l/evil")), "no directory|symbolic link"),
    "through-two": (
        tar(symlink("l", "."), symlink("l/m", ".."), file("l/m/outside")),
        "no directory|symbolic link",
    ),
    "directory-over-link": (tar(symlink("l", ".."), directory("l")), "something else"),
    "file-over-link": (tar(symlink("l", "../outside"), file("l", 3)), "something else"),
    "fifo-over-link": (tar(symlink("l", ".."), entry("l", tarfile.FIFOTYPE)), "something else"),
    "whiteout-through-link": (tar(symlink("l", ".."), file("l/.wh.x")), "no directory|symbolic"),
    "opaque-through-link": (tar(symlink("l", ".."), file("l/.wh..wh..opq")), "no directory|symb"),
    "hard-link-up": (tar(hard_link("h", "../outside")), "goes up"),
    "hard-link-absolute": (
        tar(symlink("s", "x"))[:512] + block(field=slice(156, 170), value=b"1/etc/passwd") + END,
        "absolute",
    ),
    "hard-link-to-symlink": (tar(symlink("s", "../outside"), hard_link("h", "s")), "no file"),
    "hard-link-through-symlink": (
        tar(symlink("s", ".."), hard_link("h", "s/outside")),
        "no directory|symbolic link",
    ),
    "hard-link-to-directory": (tar(directory("d"), hard_link("h", "d")), "no file"),
    "hard-link-to-nothing": (tar(hard_link("h", "later"), file("later")), "does not come before"),
    "hard-link-to-itself": (tar(hard_link("h", "h")), "does not come before"),
    "hard-link-without-target": (tar(hard_link("h", "")), "hard link to nothing"),
    "hard-link-to-whiteout": (tar(file(".wh.w"), hard_link("h", "w")), "no file"),
    "hard-link-with-content": (
        block(field=slice(124, 158), value=b"00000000010\x0000000000000\0        1f") + END,
        "checksum|content",
    ),
    "symlink-to-nothing": (tar(symlink("s", "")), "symbolic link to nothing"),
    "symlink-too-long": (tar(symlink("s", "x" * 5000)), "longer than the kernel allows"),
    # Two members of one name.
    "twice": (tar(file("a"), file("a")), "something else"),
    "twice-by-dots": (tar(file("a/b"), file("./a//./b")), "something else"),
    "file-then-directory": (tar(file("a"), directory("a")), "something else"),
    "directory-then-file": (tar(directory("a"), file("a")), "something else|directory of that"),
    "directory-then-link": (tar(directory("a"), symlink("a", "..")), "something else"),
    "below-a-file": (tar(file("a"), file("a/b")), "no directory"),
    "kept-and-deleted": (tar(file("a"), file(".wh.a")), "something else"),
    "deleted-and-kept": (tar(file(".wh.a"), file("a")), "something else"),
    # What must never exist.
    "character-device": (tar(entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3)), "device"),
    "block-device": (tar(entry("sda", tarfile.BLKTYPE, devmajor=8, devminor=0)), "device"),
    "raw-whiteout": (tar(entry("gone", tarfile.CHRTYPE)), "device"),
    "unknown-type": (block(field=slice(156, 157), value=b"Z") + END, "type is"),
    "gnu-sparse": (block(field=slice(156, 157), value=b"S") + END, "sparse"),
    "pax-sparse": (pax(record(b"GNU.sparse.major", b"1")) + block() + END, "sparse"),
    "redirect": (
        pax(record(b"SCHILY.xattr.user.overlay.redirect", b"/etc")) + block() + END,
        "overlay's own",
    ),
    "trusted-metacopy": (
        pax(record(b"SCHILY.xattr.trusted.overlay.metacopy", b"")) + block() + END,
        "overlay's own",
    ),
    "redirect-of-directory": (
        tar(entry("d", tarfile.DIRTYPE, pax_headers={"SCHILY.xattr.user.overlay.redirect": "/"})),
        "overlay's own",
    ),
    "inside-whiteout": (tar(file(".wh.a/b")), "inside of a whiteout"),
    "whiteout-directory": (tar(directory(".wh.a")), "not an empty file"),
    "whiteout-with-content": (tar(file(".wh.a", 5)), "not an empty file"),
    "whiteout-of-whiteout": (tar(file(".wh..wh.plnk")), "whiteout of no name"),
    # Bombs.
    "large": (tar(file("a", (1 << 20) + 1)), "limit is 1048576 bytes"),
    "large-together": (tar(*(file(f"f{i}", 300_000) for i in range(4))), "limit is 1048576 bytes"),
    "declared-petabytes": (pax(record(b"size", b"9" * 15)) + block() + END, "limit is"),
    "declared-base-256": (block(field=SIZE, value=b"\x80" + b"\x7f" * 11) + END, "limit is"),
    "many": (tar(*(file(f"f{i}") for i in range(51))), "limit is 50 entries"),
    "many-directories": (tar(directory("d/" * 60)), "limit is 50 entries"),
    "long-component": (tar(file("n" * 256)), "longer than the kernel allows"),
    "long-path": (tar(file("n/" * 20_000 + "f")), "longer than 32768"),
    "huge-pax": (pax(b"", size=1 << 32) + block() + END, "extended header of"),
    "huge-gnu-name": (pax(b"", b"L", size=1 << 32) + block() + END, "extended header of"),
    "endless-pax": (pax(record(b"comment", b"x")) * 5 + END, "without a member"),
    "many-records": (
        pax(b"".join(record(b"k%d" % i, b"") for i in range(20_000))) + block() + END,
        "without a member",
    ),
    # Broken.
    "empty": (b"", "in the middle"),
    "half-a-header": (block()[:200], "in the middle"),
    "no-end": (block(), "in the middle"),
    "half-a-file": (tar(file("a", 5000))[:3000], "in the middle"),
    "end-after-pax": (pax(record(b"path", b"a")) + END, "without a member"),
    "checksum": (b"x" + block()[1:] + END, "checksum"),
    "text": (b"this is no archive " * 100, "number belongs|checksum"),
    "gzip": (b"\x1f\x8b" + bytes(2000), "number belongs|checksum"),
    "negative-size": (block(field=SIZE, value=b"\xff" * 12) + END, "bytes of content"),
    "negative-octal": (block(field=SIZE, value=b"-0000000001") + END, "number belongs"),
    "underscored": (block(field=SIZE, value=b"0_0") + END, "number belongs"),
    "size-of-directory": (
        pax(record(b"size", b"600")) + block(field=slice(156, 157), value=b"5") + bytes(1024) + END,
        "bytes of content",
    ),
    "negative-pax-size": (pax(record(b"size", b"-1")) + block() + END, "says size="),
    "endless-number": (pax(record(b"size", b"1" * 5000)) + block() + END, "says size="),
    "not-a-date": (pax(record(b"mtime", b"1e99")) + block() + END, "says mtime="),
    "date-of-doom": (pax(record(b"mtime", b"9" * 19)) + block() + END, "its date is"),
    "base-256-date": (block(field=MTIME, value=b"\x80" + b"\x7f" * 11) + END, "its date is"),
    "pax-length": (pax(b"99 path=a\n") + block() + END, "wrong length"),
    "pax-short-length": (pax(b"3 path=a\n") + block() + END, "wrong length"),
    "pax-zero-length": (pax(b"0 path=a\n") + block() + END, "wrong length"),
    "pax-no-length": (pax(b"path=a\n") + block() + END, "wrong length"),
    "pax-no-equals": (pax(b"7 path\n") + block() + END, "wrong length"),
    "global-path": (pax(record(b"path", b"a"), b"g") + block() + END, "global header"),
    "global-size": (pax(record(b"size", b"1"), b"g") + block() + END, "global header"),
    "second-archive": (tar(file("a")) + tar(file("b")), "after its end mark"),
    "lone-zero-block": (block(b"a") + bytes(512) + block(b"b") + END, "after its end mark"),
}
OWNED = {
    "unmapped-uid": (tar(file("a", uid=65536)), "sandbox has"),
    "unmapped-gid": (tar(file("a", gid=10**6)), "sandbox has"),
    "root-of-the-host": (block(field=UID, value=b"\xff" * 8) + END, "sandbox has"),
}


def outside(place: Path) -> dict[str, tuple[int, int, int]]:
    rows = {path.name: path.lstat() for path in place.iterdir() if path.name != "target"}
    return {name: (row.st_mode, row.st_nlink, row.st_size) for name, row in rows.items()}


def try_unpack(data: bytes, place: Path, idmap: IdMap) -> UnsafeArchive | None:
    """Unpack in the mapped process; only that can tell what class the error is of."""

    def work() -> tuple[str, str, str] | None:
        try:
            unpack(io.BytesIO(data), place / "target", idmap=idmap, limits=LIMITS, archive="a.tar")
        except UnsafeArchive as error:
            return error.archive, error.member, error.reason
        return None

    answer = call_mapped(idmap, work)
    return None if answer is None else UnsafeArchive(*answer)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archive_is_refused(place: Path, idmap: IdMap, case: str) -> None:
    data, reason = HOSTILE[case]
    before = outside(place)
    error = try_unpack(data, place, idmap)
    assert error is not None
    with pytest.raises(UnsafeArchive, match=reason):
        raise error
    assert str(error).startswith("a.tar: member ")
    assert outside(place) == before
    assert (place / "outside").read_text() == "untouched"


@pytest.mark.parametrize("case", OWNED)
def test_owner_that_the_sandbox_does_not_have(place: Path, idmap: IdMap, case: str) -> None:
    data, reason = OWNED[case]
    error = try_unpack(data, place, idmap)
    if idmap.count == 1:
        assert error is None  # There is one id, which everything belongs to.
    else:
        assert error is not None
        assert reason in error.reason


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6777, 0o177777])
def test_setuid_does_not_arrive(place: Path, idmap: IdMap, mode: int) -> None:
    data = tar(file("program", mode=mode), entry("d", tarfile.DIRTYPE, mode=mode & 0o7777))
    assert try_unpack(data, place, idmap) is None
    for name in ("program", "d"):
        assert stat.S_IMODE((place / "target" / name).lstat().st_mode) == mode & 0o1777


def test_capability_does_not_arrive(place: Path, idmap: IdMap) -> None:
    capability = b"\x01\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x00" + bytes(8)
    data = pax(record(b"SCHILY.xattr.security.capability", capability)) + block(b"ping") + END
    assert try_unpack(data, place, idmap) is None
    assert call_mapped(idmap, lambda: os.listxattr(place / "target" / "ping")) == []


def test_target_must_be_new(place: Path, idmap: IdMap) -> None:
    (place / "target").symlink_to(place)
    with pytest.raises(FileExistsError):
        try_unpack(tar(file("evil")), place, idmap)
    assert not (place / "evil").exists()


def mangled(data: bytes, chance: random.Random) -> bytes:
    """``data`` with bytes changed, blocks moved, its end cut; checksums mostly made right again."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        start = chance.randrange(len(changed) // 512) * 512
        action = chance.randrange(4)
        if action == 0:
            changed[start + chance.randrange(512)] = chance.randrange(256)
        elif action == 1:
            other = chance.randrange(len(changed) // 512) * 512
            changed[start : start + 512] = changed[other : other + 512]
        elif action == 2:
            changed[start + 156] = chance.choice(b"0123456789LKxgS\0")
        else:
            del changed[start + chance.randrange(512) :]
            changed.extend(bytes(-len(changed) % 512 + 512))
        if chance.random() < 0.7:
            header = changed[start : start + 512]
            header[148:156] = b" " * 8
            changed[start + 148 : start + 156] = b"%06o\0 " % sum(header)
    return bytes(changed)


def test_mangled_archives_never_escape(place: Path, idmap: IdMap) -> None:
    """Any bytes either unpack or are refused by name; no other error, no trace outside, no hang."""
    tree = place / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d" / ("n" * 200)).write_bytes(b"x" * 700)
    (tree / "link").symlink_to("../" * 40 + "x")
    os.link(tree / "d" / ("n" * 200), tree / "hard")
    os.mkfifo(tree / "fifo")
    before = outside(place)

    def work() -> dict[str, int]:
        out = io.BytesIO()
        pack(tree, out, date=1_600_000_000, idmap=idmap)
        hostile = [data for data, _ in HOSTILE.values() if len(data) >= 1024]
        seeds = [out.getvalue()] * len(hostile) + hostile
        counts = {"unpacked": 0, "refused": 0}
        for number in range(600):
            chance = random.Random(number)
            data = mangled(chance.choice(seeds), chance)
            target = place / "target"
            try:
                unpack(io.BytesIO(data), target, idmap=idmap, limits=LIMITS)
                counts["unpacked"] += 1
            except MiniSandboxError:
                counts["refused"] += 1
            remove_tree(target, idmap)
        return counts

    counts = call_mapped(idmap, work)
    assert min(counts.values()) > 10
    assert outside(place) == before


def test_reading_stops_at_the_limit_and_not_at_the_end(place: Path, idmap: IdMap) -> None:
    class Endless(io.RawIOBase):
        """Begins like an archive and never ends."""

        def __init__(self) -> None:
            self.given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            start = block(field=SIZE, value=b"\x80" + bytes(5) + b"\x7f" * 6)
            chunk = start[self.given :][: len(buffer)] or bytes(len(buffer))
            buffer[: len(chunk)] = chunk
            self.given += len(chunk)
            return len(chunk)

    def work(make: Callable[[], Endless]) -> int:
        source = make()
        with pytest.raises(UnsafeArchive):
            unpack(io.BufferedReader(source), place / "target", idmap=idmap, limits=LIMITS)
        return source.given

    assert call_mapped(idmap, functools.partial(work, Endless)) < 1 << 20
