"""What programs see of their limits, and what the caller is told of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput
from minisandbox.idmap import IdMap
from minisandbox.sandbox import Limits, Profile
from minisandbox.sandbox.limits import ledger, usage

MIB = 1 << 20


def limited(start, *, upper: str = "disk", **limits: float | None):
    return start(profile=Profile(limits=Limits(**limits), upper=upper))


def test_each_limit_has_a_word(start, idmap: IdMap) -> None:
    words = start().limits
    assert list(words) == ["memory", "cpus", "processes", "disk", "inodes", "open_files", "time"]
    assert words["time"] == "none"  # the one that a profile does not have by itself
    assert words["open_files"] == "enforced"
    assert words["disk"] == words["inodes"] == "watched"
    assert {words["memory"], words["cpus"], words["processes"]} <= {"enforced", "watched"}
    if idmap.count == 1:
        assert words["processes"] == "enforced"  # by the kernel's count of the only id


def test_what_is_not_limited_is_said_to_be(start) -> None:
    unlimited = dict.fromkeys(ledger.LIMITS)
    box = limited(start, **unlimited)
    assert set(box.limits.values()) == {"none"}
    allowed = len(os.sched_getaffinity(0))
    assert int(box.run(["nproc"]).stdout) == allowed


PROCESSORS = """
nproc
python3 -c 'import os, multiprocessing as m; print(os.cpu_count(), m.cpu_count())'
python3 -c 'import os; print(len(os.sched_getaffinity(0)))'
getconf _NPROCESSORS_ONLN
"""


@pytest.mark.parametrize("cpus", [1, 1000])
def test_programs_see_the_processors_that_are_theirs(start, cpus: int) -> None:
    seen = limited(start, cpus=cpus).run(PROCESSORS).stdout.split()
    assert set(map(int, seen)) == {min(cpus, len(os.sched_getaffinity(0)))}
    assert len(seen) == 5


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_a_program_that_takes_all_processors_does_not_keep_them(start) -> None:
    box = limited(start, cpus=1)
    if box.limits["cpus"] == "enforced":
        assert box.run("cat /proc/self/cgroup").ok  # by a quota, which no affinity changes
        return
    program = (
        "import os, time\n"
        "mine = os.sched_getaffinity(0)\n"
        "os.sched_setaffinity(0, range(os.sysconf('SC_NPROCESSORS_CONF') + 64))\n"
        "end = time.monotonic() + 30\n"
        "while os.sched_getaffinity(0) != mine and time.monotonic() < end:\n"
        "    time.sleep(0.05)\n"
        "print(len(mine), os.sched_getaffinity(0) == mine)\n"
    )
    assert box.run(["/usr/bin/python3", "-c", program]).stdout == b"1 True\n"


def test_sandboxes_are_spread_over_the_processors(start) -> None:
    allowed = os.sched_getaffinity(0)
    boxes = [limited(start, cpus=1) for _ in allowed]
    taken = [next(iter(os.sched_getaffinity(box.pid))) for box in boxes]
    assert sorted(taken) == sorted(allowed) or len(allowed) > 16
    assert set(taken) <= allowed


def test_limits_of_a_process(start) -> None:
    box = limited(start, open_files=500, processes=50)
    result = box.run("ulimit -Hn; ulimit -Sn; ulimit -Hu; ulimit -c; ulimit -v; ulimit -Hu 60")
    assert result.stdout.split() == [b"500", b"500", b"50", b"0", b"unlimited"]
    assert result.exit_code == 1  # and cannot be raised again


def test_the_least_of_open_files_is_enough_to_work(start, idmap: IdMap, tmp_path: Path) -> None:
    box = limited(start, open_files=32)
    assert box.run("ulimit -n").stdout == b"32\n"
    assert box.run("ulimit -n", user=0, stdin=b"x").stdout == b"32\n"
    if idmap.count > 1:
        assert box.run("ulimit -n", user=65534).stdout == b"32\n"
    with box.popen("read x; echo $x", stdin="pipe") as process:
        process.stdin.write(b"told\n")
        assert process.stdout.read() == b"told\n"
    with box.session() as session:
        assert session.run("ulimit -n").stdout == b"32\n"
    box.write_file("/root/d/x", b"x")
    box.download("/root/d", tmp_path / "d")
    box.upload(tmp_path / "d", "/root/e")
    assert box.read_file("/root/e/x") == b"x"
    box.snapshot().close()


def test_the_kernel_would_end_commands_before_anything_else(start) -> None:
    box = start()
    scores = "cat /proc/self/oom_score_adj /proc/1/oom_score_adj"
    command, init = map(int, box.run(scores).stdout.split())
    assert command == 1000
    assert init <= 0 or init == int(Path("/proc/self/oom_score_adj").read_text())
    assert not box.run("echo -500 > /proc/self/oom_score_adj").ok


def test_memory_file_systems_are_smaller_than_the_memory(start) -> None:
    sizes = "df --output=size -B1 /dev/shm / | tail -n +2"
    assert int(limited(start, memory=512 * MIB).run(sizes).stdout.split()[0]) == 128 * MIB
    box = limited(start, memory=512 * MIB, upper="memory")
    assert sum(map(int, box.run(sizes).stdout.split())) < 512 * MIB


def test_an_upper_directory_in_memory_is_an_overlay_like_any(start, make_layer) -> None:
    layer = make_layer({"testbed/low": "x", "testbed/gone": "x", "testbed/dir/a": "x"})
    box = start(layer, profile=Profile(upper="memory"))
    script = (
        "cd /testbed && echo x >> low && rm gone && test ! -e gone && rm -r dir && mkdir dir && "
        'test -z "$(ls -A dir)" && chmod 0 low && echo done'
    )
    assert box.run(script).stdout == b"done\n"
    assert (layer / "testbed" / "low").read_bytes() == b"x"
    for refused in (box.seal, box.snapshot, box.fork):
        with pytest.raises(InvalidInput, match="in memory"):
            refused()
    assert box.alive


def test_what_a_sandbox_uses_is_measured_from_outside(start) -> None:
    box = start()
    started = "sleep 60 & while ! grep -q sleep /proc/$!/comm; do :; done"
    assert box.run(f"head -c 15M /dev/zero > /dev/shm/x; {started}").ok
    assert usage.files_in_memory(box.pid, upper=False) == 15 * MIB
    sample = usage.below(box.pid)
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in sample.processes]
    assert "sleep" in names
    anonymous, _ = usage.proportional(sample)
    assert 0 < anonymous <= usage.resident(sample) < 200 * MIB


def test_limits_are_part_of_what_a_profile_is() -> None:
    profiles = [
        Profile(),
        Profile(limits=Limits(memory=4 << 30)),
        Profile(limits=Limits(time=10)),
        Profile(upper="memory"),
    ]
    assert len({profile.digest() for profile in profiles}) == 4
    with pytest.raises(InvalidInput, match="use 'disk' or 'memory'"):
        Profile(upper="tape")  # pyright: ignore[reportArgumentType]
