"""Acting as the ids of a sandbox, and removing whatever one leaves."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from minisandbox import removal
from minisandbox.idmap import COUNT, ROOT_BASE, IdMap, call_mapped, remove_tree

MAPS = [
    IdMap("root", ROOT_BASE, ROOT_BASE, COUNT),
    IdMap("subid", 1000, 1001, COUNT, 100_000, 200_000),
    IdMap("single", 1000, 1001, 1),
]


@pytest.mark.parametrize("mapped", MAPS, ids=lambda mapped: mapped.kind)
def test_maps_are_bijections(mapped: IdMap) -> None:
    for inside in {0, min(1, mapped.count - 1), mapped.count - 1}:
        assert mapped.inside_uid(mapped.host_uid(inside)) == inside
        assert mapped.inside_gid(mapped.host_gid(inside)) == inside
    for outside in (mapped.count, -1):
        with pytest.raises(ValueError, match="does not exist"):
            mapped.host_uid(outside)
    with pytest.raises(ValueError, match="not mapped"):
        mapped.inside_uid(0)
    assert mapped.host_uid(0) == mapped.uid_base
    assert sum(count for _, _, count in mapped.uid_extents) == mapped.count


def test_keys_are_path_components_of_their_own() -> None:
    assert [mapped.key for mapped in MAPS] == [
        "root-1879048192",
        "subid-1000-100000",
        "single-1000",
    ]


def test_functions_run_as_the_inside_root(idmap: IdMap, tmp_path: Path) -> None:
    captured = tmp_path / "file"

    def write() -> tuple[int, int]:
        captured.write_text("x")
        if idmap.count > 1:
            uid = 33 if idmap.sees_inside else idmap.host_uid(33)
            os.chown(captured, uid, -1)
        return os.getuid(), captured.stat().st_uid

    me, owner = call_mapped(idmap, write)
    assert me == 0
    assert captured.stat().st_uid == idmap.host_uid(33 if idmap.count > 1 else 0)
    assert owner == ((33 if idmap.count > 1 else 0) if idmap.sees_inside else idmap.host_uid(33))
    remove_tree(captured, idmap)
    assert not captured.exists()


class Odd(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


def test_errors_come_back(idmap: IdMap) -> None:
    def fail() -> None:
        raise FileNotFoundError(2, "no such thing", "name")

    with pytest.raises(FileNotFoundError) as caught:
        call_mapped(idmap, fail)
    assert caught.value.filename == "name"

    def fail_oddly() -> None:
        raise Odd(1, 2)

    with pytest.raises((Odd, ChildProcessError), match="1 2"):
        call_mapped(idmap, fail_oddly)


def test_a_child_that_dies_is_an_error(idmap: IdMap) -> None:
    if not idmap.sees_inside:
        return  # there is no child
    with pytest.raises(ChildProcessError, match="died with 3"):
        call_mapped(idmap, lambda: os._exit(3))


def test_large_results_and_other_threads(idmap: IdMap) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert len(call_mapped(idmap, lambda: b"x" * 5_000_000)) == 5_000_000
    finally:
        stop.set()
        thread.join()


def test_no_descriptor_is_left(idmap: IdMap) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        call_mapped(idmap, os.getpid)
    assert os.listdir("/proc/self/fd") == before


def test_removal_copes_with_depth_modes_and_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    victim = tmp_path / "victim"
    victim.mkdir()
    os.symlink(outside, victim / "link")
    (victim / "closed").mkdir()
    (victim / "closed" / "file").write_text("x")
    (victim / "closed").chmod(0)
    fd = os.open(victim, os.O_RDONLY)
    for _ in range(3000):  # far beyond PATH_MAX and the recursion limit
        os.mkdir("deep-directory", dir_fd=fd)
        inner = os.open("deep-directory", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    removal.remove(str(victim))
    assert not victim.exists()
    assert (outside / "kept").exists()
    removal.remove(str(victim))
    os.symlink(outside, tmp_path / "link")
    removal.remove(str(tmp_path / "link"))
    assert (outside / "kept").exists()
