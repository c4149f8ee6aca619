"""Limits as data, the places for control groups on hosts of each kind, and what is measured of a
tree. That the kernel keeps them is in tests/sandbox/test_limits.py.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minisandbox.errors import InvalidInput
from minisandbox.sandbox import Profile
from minisandbox.sandbox.limits import capacity, cgroups, ledger, processors
from minisandbox.sandbox.limits.declared import Limits, loosest, memory_file_systems
from minisandbox.sandbox.limits.footprint import measure
from minisandbox.sandbox.limits.keeper import Account, Keeper, Reservation

GIB = 1 << 30
ALL = {"memory": GIB, "processes": 100, "cpus": 2}

REFUSED = [
    ({"memory": 1}, "memory is 1"),
    ({"cpus": 0}, "cpus is 0"),
    ({"cpus": 1.5}, "whole number"),
    ({"processes": True}, "whole number"),
    ({"disk": -1}, "disk is -1"),
    ({"time": 0}, "time is 0"),
    ({"time": float("nan")}, "time is nan"),
    ({"time": float("inf")}, "null. for no limit"),
    ({"time": "1h"}, "time is '1h'"),
    ({"time": True}, "time is True"),
    ({"inodes": 1 << 62}, f"use {1 << 53} at most"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_limits_that_make_no_sense_are_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Limits(**values)


def test_every_limit_is_part_of_the_identity_and_has_a_word() -> None:
    assert list(Limits().identity()) == list(ledger.LIMITS)
    for name, value in Limits().identity().items():
        changed = replace(Limits(), **{name: (value or 0) + 1})
        assert changed.identity() != Limits().identity()


def test_the_loosest_of_several_has_room_for_each() -> None:
    several = [Limits(memory=GIB, time=60), Limits(cpus=8, time=5), Limits(disk=None, time=60.5)]
    assert loosest(several) == Limits(memory=8 * GIB, cpus=8, disk=None, time=60.5)
    assert loosest([Limits(memory=GIB, time=60)]) == Limits(memory=GIB, time=60)
    assert loosest([Limits(time=60), Limits()]) == Limits()


@pytest.mark.parametrize("memory", [64 << 20, GIB, 8 * GIB, 64 * GIB, None])
@pytest.mark.parametrize("in_memory", [False, True])
def test_files_alone_cannot_fill_the_memory_of_a_sandbox(
    memory: int | None, in_memory: bool
) -> None:
    limits = Limits(memory=memory, disk=None)
    sizes = memory_file_systems(limits, upper_in_memory=in_memory)
    assert sizes["shm"] <= GIB
    if memory is not None:
        assert sum(sizes.values()) < memory
        assert bool(sizes["upper"]) == in_memory


# Control groups: what is decided from the texts of /proc and a tree of files. The trees stand for
# hosts of the kinds; the one that these tests run on has one kind only.

MOUNTS_V1 = """\
24 1 0:22 / {top} rw - tmpfs tmpfs rw,mode=755
25 24 0:23 / {top}/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
26 24 0:24 {root} {top}/memory rw,relatime shared:9 - cgroup cgroup rw,memory
27 24 0:25 / {top}/pids rw,relatime - cgroup cgroup rw,pids
28 24 0:26 / {top}/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
"""
MOUNTS_V2 = "30 1 0:28 / {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def fill(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def v2_group(folder: Path, on: str, **files: str) -> Path:
    whole = {"cgroup__subtree_control": on, "cgroup__procs": "", **files}
    return fill(folder, **whole)


def make_v2(directory: str) -> None:
    """mkdir(2) as a cgroup file system of version 2 does it."""
    Path(directory).mkdir()
    v2_group(Path(directory), "", memory__max="max", memory__swap__max="", pids__max="max")
    fill(Path(directory), memory__oom__group="0", cpu__max="max 100000", memory__events="")


def make_v1(directory: str) -> None:
    Path(directory).mkdir()
    fill(Path(directory), cgroup__procs="", memory__limit_in_bytes="", pids__max="")


def test_with_version_1_the_place_is_the_callers_own_group(tmp_path: Path) -> None:
    own = fill(tmp_path / "memory" / "job 7")
    (tmp_path / "pids").mkdir()
    text = "8:pids:/\n4:memory:/slurm/job 7\n1:cpu,cpuacct:/\n0::/\n"
    mounts = MOUNTS_V1.format(top=tmp_path, root="/slurm")
    places = cgroups.find(text, mounts)
    found = {place.controllers: place.directory for place in places}
    assert found == {("memory",): str(own), ("pids",): str(tmp_path / "pids")}
    group = cgroups.Groups(places, make_v1).make("1", ALL)
    assert group.controllers == {"memory", "pids"}
    memory, pids = (Path(path) for path in sorted(group.directories))
    assert memory.parent.parent == own
    assert (memory / "memory.limit_in_bytes").read_text() == str(GIB)
    assert int((pids / "pids.max").read_text()) > 100


@pytest.mark.parametrize(
    ("path", "root"), [("/other", "/slurm"), ("/slurm/../x", "/"), ("/slurm-2", "/slurm")]
)
def test_a_group_that_is_not_mounted_here_is_no_place(tmp_path: Path, path: str, root: str) -> None:
    for name in ("memory", "x", "memory-2"):
        (tmp_path / name).mkdir()
    assert cgroups.find(f"4:memory:{path}\n", MOUNTS_V1.format(top=tmp_path, root=root)) == []


def user_session(top: Path, **limits: str) -> list[cgroups.Place]:
    """A scope of a user's systemd, whose slice is the user's and has controllers on."""
    v2_group(top / "app.slice", "memory pids")
    v2_group(top / "app.slice" / "run-1.scope", "", **limits)
    return cgroups.find("0::/app.slice/run-1.scope\n", MOUNTS_V2.format(top=top))


def test_with_version_2_the_place_is_above_a_group_without_limits(tmp_path: Path) -> None:
    v2_group(tmp_path, "memory pids cpu")
    places = user_session(tmp_path, memory__max="max\n", cpu__max="max 100000\n", io__max="")
    assert [place.directory for place in places] == [str(tmp_path / "app.slice")]
    assert places[0].controllers == ("memory", "pids")
    groups = cgroups.Groups(places, make_v2)
    group = groups.make("1", ALL)
    (directory,) = group.directories
    assert group.controllers == {"memory", "pids"}
    assert group.events == f"{directory}/memory.events"
    server = Path(directory).parent
    assert (server / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (Path(directory) / "memory.max").read_text() == str(GIB)
    assert (Path(directory) / "memory.swap.max").read_text() == "0"
    assert (Path(directory) / "memory.oom.group").read_text() == "0"


@pytest.mark.parametrize(
    ("name", "text"),
    [("memory__max", "1000\n"), ("pids__max", "9\n"), ("cpu__max", "5 9\n"), ("cpuset__cpus", "0")],
)
def test_no_sandbox_escapes_a_limit_of_the_callers_own_group(
    tmp_path: Path, name: str, text: str
) -> None:
    v2_group(tmp_path, "memory pids cpu")
    assert user_session(tmp_path, **{name: text}) == []


def test_the_root_of_a_container_is_not_left(tmp_path: Path) -> None:
    v2_group(tmp_path, "memory pids")
    v2_group(tmp_path / "container", "")
    mounts = MOUNTS_V2.replace("/ {top}", "/container {top}/container").format(top=tmp_path)
    assert cgroups.find("0::/container\n", mounts) == []


def test_version_2_with_its_own_controllers_and_cpu(tmp_path: Path) -> None:
    v2_group(tmp_path, "cpuset cpu io memory pids")
    v2_group(tmp_path / "leaf", "")
    places = cgroups.find("0::/leaf\n", MOUNTS_V2.format(top=tmp_path))
    group = cgroups.Groups(places, make_v2).make("1", {**ALL, "processes": None})
    assert group.controllers == {"memory", "cpu"}
    assert Path(group.directories[0], "cpu.max").read_text() == "200000 100000"
    assert Path(group.directories[0], "pids.max").read_text() == "max"


def test_groups_shown_read_only_are_no_place_and_no_error(tmp_path: Path) -> None:
    v2_group(tmp_path, "memory pids")
    v2_group(tmp_path / "leaf", "")
    places = cgroups.find("0::/leaf\n", MOUNTS_V2.format(top=tmp_path))

    def refuse(directory: str) -> None:
        raise OSError(30, "Read-only file system", directory)

    group = cgroups.Groups(places, refuse).make("1", ALL)
    assert (group.directories, group.controllers, group.events) == ([], frozenset(), "")
    assert group.remove()


def test_limits_of_an_ordinary_user_are_kept_out_of_its_sandboxes_sight(tmp_path: Path) -> None:
    """A program that mounts the files of its groups sees what it is in, and what is below."""
    (tmp_path / "memory").mkdir()
    places = [cgroups.Place(1, str(tmp_path / "memory"), ("memory",))]
    group = cgroups.Groups(places, make_v1, apart=True).make("1", ALL)
    (limited,), (entered,) = group.directories, group.entered
    assert Path(entered).parent == Path(limited)
    assert (Path(limited) / "memory.limit_in_bytes").read_text() == str(GIB)
    assert (Path(entered) / "memory.limit_in_bytes").read_text() == ""
    assert group.events == f"{entered}/memory.oom_control"
    v2_group(tmp_path / "v2", "memory")
    group = cgroups.Groups(
        [cgroups.Place(2, str(tmp_path / "v2"), ("memory",))], make_v2, apart=True
    )
    made = group.make("1", ALL)
    assert made.events == f"{made.directories[0]}/memory.events"
    assert Path(made.entered[0]).is_dir()


def test_groups_that_programs_made_are_removed_too(tmp_path: Path) -> None:
    made = tmp_path / "1"
    (made / "inside" / "of" / "a program").mkdir(parents=True)
    place = cgroups.Place(1, str(tmp_path), ("memory",))
    assert cgroups.Group([place], [str(made)], "inside").remove()
    assert not made.exists()


def test_what_the_host_is_short_of_costs_no_sandbox_its_limits(tmp_path: Path) -> None:
    for name in ("memory", "pids"):
        (tmp_path / name).mkdir()
    places = [cgroups.Place(1, str(tmp_path / name), (name,)) for name in ("memory", "pids")]
    short = False

    def make(directory: str) -> None:
        if short and "/pids/" in directory:
            raise OSError(28, "No space left on device", directory)
        make_v1(directory)

    groups = cgroups.Groups(places, make)
    short = True
    with pytest.raises(cgroups.GroupsRefused, match="No space left"):
        groups.make("1", ALL)
    with pytest.raises(cgroups.GroupsRefused, match="No space left"):
        cgroups.Groups(places, make)
    short = False
    assert groups.make("2", ALL).controllers == {"memory", "pids"}


def test_more_processors_than_any_host_has_are_no_error(tmp_path: Path) -> None:
    v2_group(tmp_path, "cpu")
    v2_group(tmp_path / "leaf", "")
    places = cgroups.find("0::/leaf\n", MOUNTS_V2.format(top=tmp_path))
    group = cgroups.Groups(places, make_v2).make("1", {**ALL, "cpus": 1 << 53})
    assert Path(group.directories[0], "cpu.max").read_text() == "6553600000 100000"


def test_nothing_mounted_is_no_place(tmp_path: Path) -> None:
    assert cgroups.find("4:memory:/\n0::/\n", "24 1 0:22 / / rw - ext4 /dev/a rw\n") == []


def test_the_next_server_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    # Real cgroup directories are removed by rmdir with the files in them; these have none.
    place = cgroups.Place(1, str(tmp_path), ("memory",))
    for name in ("minisandbox-dead/1", "minisandbox-dead/2", "minisandbox-alive/1", "other"):
        (tmp_path / name).mkdir(parents=True)
    lock = os.open(tmp_path / "minisandbox-alive", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    groups = cgroups.Groups([place], os.mkdir)
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"minisandbox-alive", "other"}
    assert "minisandbox-dead" not in names
    assert len(names) == 3  # and the server's own
    groups.close()
    os.close(lock)
    assert {path.name for path in tmp_path.iterdir()} == {"minisandbox-alive", "other"}


def test_kills_are_read_from_either_version(tmp_path: Path) -> None:
    (tmp_path / "v1").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (tmp_path / "v2").write_text("low 0\nhigh 0\nmax 25\noom 2\noom_kill 2\noom_group_kill 0\n")
    assert [cgroups.kills(str(tmp_path / name)) for name in ("v1", "v2", "gone")] == [3, 2, 0]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"nested": "false"}, "profile: nested is 'false'; use True or False"),
        ({"watch": 1}, "profile: watch is 1; use True or False"),
        ({"limits": {"memory": GIB}}, r"profile: limits is \{'memory': .*\}; use Limits"),
    ],
)
def test_a_profile_takes_no_word_for_a_truth(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        Profile(**given)


# What is measured, and what is told of it.


def test_a_tree_is_counted_once_and_no_link_is_followed(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    for folder in (tree / "a" / "b", outside):
        folder.mkdir(parents=True)
    (outside / "large").write_bytes(b"x" * 1_000_000)
    (tree / "a" / "file").write_bytes(b"x" * 100_000)
    os.link(tree / "a" / "file", tree / "a" / "b" / "again")
    (tree / "link").symlink_to(outside)
    with open(tree / "sparse", "wb") as sparse:
        sparse.truncate(GIB)
    size, inodes = measure(str(tree), most_bytes=GIB, most_inodes=1000)
    assert 100_000 <= size < 200_000
    assert inodes == 5  # a, b, file, link, sparse


def test_a_tree_of_any_depth_is_measured_with_few_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minisandbox.sandbox.limits.footprint._LEVELS", 4)
    deep = tmp_path.joinpath(*["d"] * 50)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"x" * 100_000)
    before = len(os.listdir("/proc/self/fd"))
    size, inodes = measure(str(tmp_path), most_bytes=GIB, most_inodes=10_000)
    assert inodes == 51
    assert size > 100_000
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tree_too_deep_and_wide_to_measure_counts_as_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minisandbox.sandbox.limits.footprint._LEVELS", 2)
    monkeypatch.setattr("minisandbox.sandbox.limits.footprint._MOST_PUT_OFF", 3)
    for number in range(8):
        (tmp_path / "a" / "b" / "c" / f"{number}").mkdir(parents=True)
    assert measure(str(tmp_path), most_bytes=GIB, most_inodes=100)[1] > 100


def test_measuring_ends_where_a_limit_is_exceeded(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "x").touch()
    assert measure(str(tmp_path), most_bytes=GIB, most_inodes=10)[1] == 11


def test_processors_are_spread_and_given_back() -> None:
    spread = processors.Spread(set(range(8)))
    first, second = spread.take(4), spread.take(4)
    assert set(first) | set(second) == set(range(8))
    assert set(spread.take(None)) == set(range(8))
    assert len(spread.take(100)) == 8
    spread.give_back(first)
    assert set(spread.take(4)) == set(first)


def test_a_sandbox_without_a_directory_has_no_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the caller has of that name where it works."""
    (tmp_path / ledger.NAME).mkdir()
    monkeypatch.chdir(tmp_path)
    assert ledger.Ledger("").mark() == (0, 0)


def test_a_ledger_tells_what_was_ended_since(tmp_path: Path) -> None:
    words = dict.fromkeys(ledger.LIMITS, ledger.WATCHED)
    events = tmp_path / "events"
    events.write_text("oom_kill 0\n")
    ledger.begin(str(tmp_path), words, str(events))
    book = ledger.Ledger(str(tmp_path))
    assert book.words == words
    mark = book.mark()
    assert book.since(mark) == ""
    events.write_text("oom_kill 1\n")
    assert book.since(mark) == "memory"
    assert book.since(book.mark()) == ""
    ledger.note(str(tmp_path), "stopped", "disk", "it wrote too much")
    assert book.since(mark) == "disk"
    assert book.cause_of_death() == ("", "")
    ledger.note(str(tmp_path), "died", "time", "its time was over")
    died = ledger.Ledger(str(tmp_path)).cause_of_death()
    assert died == ("time", "its time was over")
    (tmp_path / ledger.NAME).unlink()
    assert book.since(mark) == "disk"  # what was read last
    assert ledger.Ledger(str(tmp_path)).words == dict.fromkeys(ledger.LIMITS, ledger.NONE)


JUDGED = [
    ([(64 << 20, 100)], ""),  # as much as allowed
    ([(65 << 20, 100)], "stopped disk"),
    ([(1 << 20, 501)], "stopped inodes"),
    ([(65 << 20, 100), (65 << 20, 100)], "stopped disk"),  # what is there already is tolerated
    ([(65 << 20, 100), (66 << 20, 100)], "stopped disk"),  # written until its writers ended
    ([(65 << 20, 100), (66 << 20, 100), (67 << 20, 100)], "stopped disk stopped disk"),
    ([(65 << 20, 100), (65 << 20, 100), (66 << 20, 100)], "stopped disk stopped disk"),
    ([(65 << 20, 100), (10 << 20, 100), (65 << 20, 100)], "stopped disk stopped disk"),
    ([(5 << 30, 100)], "died disk"),
    ([(1 << 20, 100_501)], "died inodes"),
]


@pytest.mark.parametrize(("found", "ended"), JUDGED)
def test_what_becomes_of_who_writes_too_much(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: list[tuple[int, int]],
    ended: str,
) -> None:
    limits = Limits(disk=64 << 20, inodes=500).identity()
    spec = {"limits": limits, "kind": "root", "ids": 65536, "upper": "disk"}
    account = Account("1", spec, str(tmp_path), Reservation(cgroups.Group([], []), [0]))
    account.init = 4711
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    keeper = Keeper(lambda child, finish: 0)
    for size, inodes in found:
        keeper._judge(account, size, inodes)
    lines = (tmp_path / ledger.NAME).read_text().splitlines() if ended else []
    assert " ".join(" ".join(line.split()[:2]) for line in lines) == ended
    assert killed == [4711] * len(lines)


@pytest.mark.parametrize("kind", ["root", "single"])
def test_a_walk_finds_a_sandbox_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    spec = {"limits": Limits().identity(), "kind": kind, "ids": 1, "upper": "disk"}
    gone = str(tmp_path / "gone")
    account = Account("1", spec, gone, Reservation(cgroups.Group([], []), [0]))
    account.init = (1 << 22) + 1  # no process has that number (proc(5), pid_max)
    monkeypatch.setattr(os, "nice", lambda _: 0)

    def fork(
        child: Callable[[], None], finish: Callable[[int], None], *, keep: Sequence[int]
    ) -> int:
        assert len(keep) == 1
        child()  # would be in the log, where clients read why sandboxes end
        finish(0)
        return 0

    keeper = Keeper(fork)
    keeper._accounts["1"] = account
    keeper._walk(account)
    assert account.next_walk > 0


def test_the_doctor_names_what_keeps_each_limit() -> None:
    words = dict.fromkeys(ledger.LIMITS, "enforced")
    texts = capacity.mechanisms(words, Limits(time=60), events="x/memory.oom_control", ids=65_536)
    assert texts["memory"] == "8 GiB, enforced: by a control group (version 1)"
    assert texts["time"] == "60, enforced: by the server's clock"
    words = dict.fromkeys(ledger.LIMITS, "watched") | {
        "time": "none",
        "processes": "enforced",
        "open_files": "enforced",
    }
    texts = capacity.mechanisms(words, Limits(), events="", ids=1)
    assert "no control group" in texts["memory"]
    assert texts["processes"] == "4,096, enforced: by RLIMIT_NPROC"
    assert "time" not in texts
