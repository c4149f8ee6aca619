"""What runs away in a sandbox ends there: memory, processes, disk, files (hazards E17, E18, E19).

Each bomb has an end of its own, far beyond the limit, and is only lit after the sandbox has said
that the limit holds. As root the limits are the kernel's where there are control groups, so all of
it runs a second time where none can be made, as for most ordinary users.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from minisandbox.errors import SandboxDied, SandboxFileError
from minisandbox.idmap import IdMap
from minisandbox.sandbox import Limits, Profile, Sandbox
from minisandbox.sandbox.limits import cgroups
from waiting import eventually

MIB = 1 << 20
SIMULATE = Path(__file__).parents[1] / "hosts/simulate.py"

#: Set in the second run: the word that memory and processes must have there.
WORD = os.environ.get("MINISANDBOX_TEST_LIMITS_ARE", "")

ALLOCATE = """
import mmap, os, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        block = mmap.mmap(-1, int(sys.argv[2]) << 20, flags=int(sys.argv[3]))
        for at in range(0, len(block), 4096):
            block[at] = 1
        time.sleep(60)
        os._exit(0)
while True:
    pid, status = os.wait()
    if status:
        sys.exit(9)
"""
PRIVATE, SHARED = 0x02, 0x01

#: What it is, the limits, the arguments of ALLOCATE.
MEMORY_BOMBS = [
    ("one process", 1, 1024, PRIVATE),
    ("several processes", 8, 128, PRIVATE),
    ("shared memory of several", 8, 128, SHARED),
]


@pytest.fixture
def bounded(start):
    """Start a sandbox with limits that hold."""

    def start_bounded(*, upper: str = "disk", name: str = "", **limits: float) -> Sandbox:
        box = start(profile=Profile(limits=Limits(**limits), upper=upper), name=name)
        words = box.limits
        assert {words[limit] for limit in limits} <= {"enforced", "watched"}
        if WORD:
            assert words["memory"] == WORD
        return box

    return start_bounded


@pytest.mark.parametrize(
    ("count", "size", "kind"), [bomb[1:] for bomb in MEMORY_BOMBS], ids=[b[0] for b in MEMORY_BOMBS]
)
def test_memory(bounded, count: int, size: int, kind: int) -> None:
    box = bounded(memory=256 * MIB)
    # exec: the shell would go on when one of its children is killed.
    result = box.run(
        ["/usr/bin/python3", "-c", ALLOCATE, str(count), str(size), str(kind)], timeout=40
    )
    assert not result.timed_out
    assert result.exit_code in (9, 137)
    assert result.oom
    assert result.limit == "memory"
    after = box.run("echo still here")
    assert after.stdout == b"still here\n"
    assert count > 1 or not after.oom  # others of several may still grow


@pytest.mark.parametrize("place", ["/dev/shm", "/root"])
def test_files_in_memory_count_and_cannot_fill_it(bounded, place: str) -> None:
    box = bounded(memory=256 * MIB, upper="memory" if place == "/root" else "disk")
    full = box.run(f"head -c 400M /dev/zero > {place}/x", timeout=40)
    assert b"No space left on device" in full.stderr
    assert not full.oom
    # Nothing of what was written is freed by ending a process, and the sandbox has room all the
    # same. What is left is less than the limit.
    result = box.run(["/usr/bin/python3", "-c", ALLOCATE, "1", "240", str(PRIVATE)], timeout=40)
    assert result.oom
    assert box.run(f"rm {place}/x && echo freed").stdout == b"freed\n"


def test_pages_shared_by_forks_are_counted_once(bounded) -> None:
    box = bounded(memory=256 * MIB)
    program = (
        "import os, time\n"
        "block = bytearray(os.urandom(1 << 20)) * 100\n"
        "children = [os.fork() for _ in range(4)]\n"
        "time.sleep(1.5)\n"
    )
    result = box.run(["/usr/bin/python3", "-c", program], timeout=40)
    assert (result.exit_code, result.limit) == (0, "")


FORK = """
import os, time
made = 0
while made < 3000:
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    except BlockingIOError:
        break
    made += 1
print(made, flush=True)
time.sleep(60)
"""


def test_processes(bounded) -> None:
    box = bounded(processes=100, memory=512 * MIB)
    result = box.run(["/usr/bin/python3", "-c", FORK], timeout=2)
    assert result.timed_out
    assert 50 < int(result.stdout) <= 100
    # The timeout could end them all, though no process more could be started.
    assert box.run("ls -d /proc/[0-9]* | wc -l").stdout.strip() < b"9"


def test_one_process_too_many_is_a_sentence(bounded, idmap: IdMap) -> None:
    box = bounded(processes=20)
    box.run("for i in $(seq 40); do sleep 1000 2>/dev/null & done", timeout=20)
    for user in (None, "nobody") if idmap.count > 1 else (None,):
        for pty in (False, True):
            with box.popen("true", user=user, pty=pty, merge_stderr=True) as process:
                assert b"the limit on processes is reached" in process.stdout.read()
                assert process.wait(20) == 126
        result = box.run("true", user=user)
        assert (result.exit_code, result.stdout) == (126, b"")
        assert result.stderr_text.startswith("minisandbox: cannot ")
        assert result.stderr_text.endswith(": the limit on processes is reached\n")
        with pytest.raises(SandboxFileError, match="bash in the sandbox: the limit on processes"):
            box.session(user=user)


def test_processes_of_several_users_together(bounded, idmap: IdMap) -> None:
    if idmap.count == 1:
        assert bounded(processes=100).limits["processes"] == "enforced"
        return  # there is one user only
    box = bounded(processes=100, memory=512 * MIB)
    program = "import os, sys\nos.setuid(int(sys.argv[1]))\n" + FORK
    whole = f"""
program=$(cat <<'END'
{program}
END
)
for id in 1001 1002 1003 1004; do python3 -c "$program" $id & done
wait
"""
    result = box.run(whole, timeout=4 if box.limits["processes"] == "enforced" else 40)
    made = sum(int(line) for line in result.stdout.split())
    if box.limits["processes"] == "enforced":
        assert made <= 120
    else:
        assert result.limit == "processes"
        assert result.exit_code == 137
    assert box.run("echo still here").stdout == b"still here\n"


@pytest.mark.parametrize("bomb", ["disk", "inodes"])
def test_what_is_written_to_disk(bounded, bomb: str) -> None:
    box = bounded(disk=64 * MIB, inodes=500)
    script = {
        "disk": "head -c 200M /dev/zero > /root/large; sleep 60",
        "inodes": "mkdir /root/d; cd /root/d; touch $(seq 1000); chmod 0 /root/d; sleep 60",
    }[bomb]
    result = box.run(script, timeout=40)
    assert (result.exit_code, result.limit, result.timed_out) == (137, bomb, False)
    # What is there is tolerated, or nobody could look at it or remove it.
    assert box.run("sleep 2; rm -r /root/*; echo clean").stdout == b"clean\n"
    assert box.run("sleep 1.5; echo on").limit == ""


def test_an_upper_directory_in_memory_has_the_size_of_its_limits(bounded) -> None:
    box = bounded(upper="memory", disk=64 * MIB, inodes=500)
    assert box.limits["disk"] == box.limits["inodes"] == "enforced"
    for script in (
        "head -c 200M /dev/zero > /root/large",
        "rm /root/*; cd /root; touch $(seq 999)",
    ):
        result = box.run(script)
        assert b"No space left on device" in result.stderr
        assert result.limit == ""
    assert box.run("rm -r /root/* && echo clean").stdout == b"clean\n"


def test_descriptors(bounded) -> None:
    program = (
        "import os\nmade = 0\n"
        "try:\n    while made < 20_000:\n        os.dup(0)\n        made += 1\n"
        "except OSError:\n    pass\nprint(made)\n"
    )
    made = bounded(open_files=1000).run(["/usr/bin/python3", "-c", program])
    assert 900 < int(made.stdout) < 1000
    # Tests that open thousands pass by default, as far as the caller's own hard limit goes.
    allowed = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 16_384)
    assert allowed - 20 < int(bounded().run(["/usr/bin/python3", "-c", program]).stdout) < allowed


def test_one_of_four_ends_alone(bounded) -> None:
    boxes = [bounded(memory=256 * MIB) for _ in range(4)]
    results = {}

    def work(number: int) -> None:
        results[number] = boxes[number].run("for i in 1 2 3 4 5; do sleep 0.5; done; echo x")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    bomb = boxes[3].run(["/usr/bin/python3", "-c", ALLOCATE, "4", "256", str(PRIVATE)], timeout=40)
    for thread in threads:
        thread.join()
    assert bomb.oom
    assert [(r.stdout, r.exit_code, r.limit) for r in results.values()] == [(b"x\n", 0, "")] * 3
    assert [box.run("echo on").stdout for box in boxes] == [b"on\n"] * 4


def test_time(bounded) -> None:
    box = bounded(time=1.0, name="old")
    with pytest.raises(SandboxDied, match="old is gone: its time of 1 s was over"):
        box.run("sleep 60", timeout=50)
    with pytest.raises(SandboxDied, match="its time of 1 s was over"):
        box.run("echo too late")


def mounted() -> list[str]:
    rows = [row.split() for row in Path("/proc/self/mounts").read_text().splitlines()]
    return [row[1] for row in rows if row[2] in ("cgroup", "cgroup2")]


@pytest.mark.root
@pytest.mark.timeout(180)
def test_the_same_where_no_control_group_can_be_made(tmp_path: Path) -> None:
    host = [f"read-only={path}" for path in mounted()]
    tests = "test_memory or files_in_memory or shared_by_forks or several_users or one_of_four"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", tests]
    place = f"--basetemp={tmp_path / 'base'}"
    done = subprocess.run(
        [sys.executable, str(SIMULATE), *host, "--", *command, place, __file__],
        env={**os.environ, "MINISANDBOX_TEST_LIMITS_ARE": "watched"},
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_a_killed_server_leaves_no_control_group_for_long(
    start, fresh_server: None, idmap: IdMap
) -> None:
    texts = [Path("/proc/self", name).read_text() for name in ("cgroup", "mountinfo")]
    places = [Path(place.directory) for place in cgroups.find(*texts)]

    def there() -> set[str]:
        return {path.name for place in places for path in place.glob("minisandbox-*")}

    def members() -> str:
        groups = [place / name for place in places for name in mine]
        return "".join(
            path.read_text() for group in groups for path in group.glob("*/cgroup.procs")
        )

    box = start()
    # Not what came since before: other servers start at any time.
    memberships = Path(f"/proc/{box.pid}/cgroup").read_text()
    mine = set(re.findall(r"/(minisandbox-[0-9a-f]+)/", memberships))
    assert bool(mine) == (box.limits["memory"] == "enforced")
    assert mine <= there()
    box._link.server.process.kill()
    box._link.server.process.wait()
    assert eventually(lambda: not members())
    again = start()
    assert not mine & there()
    again.close()
