"""E16, E19, G5: thousands of sandboxes, clients killed at any moment, few descriptors: nothing is
left.

Whatever a killed client leaves becomes this process's descendant, because the tests make it a
subreaper (prctl(2)): so what is below it tells of every process, whoever its parent was.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from minisandbox import linux
from minisandbox.idmap import IdMap, current, remove_tree, single
from minisandbox.sandbox import Sandbox, connection, processes
from waiting import eventually

T = TypeVar("T")

pytestmark = pytest.mark.timeout(600)  # minutes of processor time, where many tests share it

SOURCE = Path(connection.__file__).parents[2]
#: Of scratch directories: what all sandboxes share, and which is kept.
SHARED = ("base-", ".base")
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h


#: Every map this caller can use, which the sandboxes of a test take in turn: an ordinary user with
#: a range of ids has two.
IDMAPS = [current()] if current().kind in ("root", "single") else [current(), single()]


def left_in(*scratches: Path) -> list[str]:
    paths = [path for scratch in scratches for path in scratch.iterdir()]
    return [path.name for path in paths if not path.name.startswith(SHARED)]


def has_more(scratch: Path, names: list[str]) -> bool:
    return bool(set(left_in(scratch)) - set(names))


def has_only(scratch: Path, names: list[str]) -> bool:
    return left_in(scratch) == names


def below(pid: int) -> int:
    """How many processes are below ``pid``, once those that have ended are collected. Their numbers
    differ: a server exchanges the spare processes that it holds ready.
    """
    for child in processes.descendants(pid):
        try:
            os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            pass  # somebody else's child
    return len(processes.descendants(pid))


def held(pid: int, scratch: Path) -> dict[str, list[str]]:
    """What a process holds: descriptors, each by what it is of, mounts in ``scratch``, namespaces.

    Mounts elsewhere come and go with whatever else runs on the machine, other tests included.
    """
    folder = Path(f"/proc/{pid}")
    targets: list[str] = []
    for name in os.listdir(folder / "fd"):
        try:
            targets.append(os.readlink(folder / "fd" / name))
        except FileNotFoundError:
            continue  # the one that this list was read with
    return {
        "descriptors": sorted(target.partition(":[")[0] for target in targets),
        "mounts": [
            line
            for line in (folder / "mountinfo").read_text().splitlines()
            if f" {scratch}/" in line
        ],
        "namespaces": sorted(os.readlink(link) for link in (folder / "ns").iterdir()),
    }


def settled(look: Callable[[], T]) -> T:
    """What ``look`` says when it says the same for a while: the server closes a channel after its
    answer was read, and forks for a moment to measure.
    """
    seen, since = look(), time.monotonic()
    end = since + 20
    while time.monotonic() < min(since + 0.5, end):
        time.sleep(0.05)
        now = look()
        if now != seen:
            seen, since = now, time.monotonic()
    return seen


def parent(pid: int) -> int:
    """The parent of a process as /proc shows it, or 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[Path, IdMap]]:
    """A scratch directory for each map."""
    made = {tmp_path / "scratch" / idmap.kind: idmap for idmap in IDMAPS}
    for scratch, idmap in made.items():
        scratch.mkdir(parents=True)
        Sandbox.start([], scratch=scratch, idmap=idmap).close()  # starts what stays
    yield made
    for scratch, idmap in made.items():
        remove_tree(scratch, idmap)


@pytest.fixture
def reaper(places: dict[Path, IdMap]) -> Iterator[int]:
    """The id of this process, which inherits the children of all that ends below it."""
    linux.become_subreaper()
    yield os.getpid()
    ctypes.CDLL(None).prctl(_SUBREAPER, 0, 0, 0, 0)


def test_two_thousand_sandboxes_leave_nothing(places: dict[Path, IdMap], tmp_path: Path) -> None:
    turns = list(places.items())

    def live(number: int) -> list[str]:
        scratch, idmap = turns[number % len(turns)]
        with Sandbox.start([], scratch=scratch, idmap=idmap) as box:
            groups = Path(f"/proc/{box.pid}/cgroup").read_text().splitlines()
            assert box.run(["echo", str(number)]).stdout == b"%d\n" % number
            return [line.partition(":")[2] for line in groups]

    me = os.getpid()
    with ThreadPoolExecutor(64) as threads:
        list(threads.map(live, range(64)))  # the threads' own stacks and locks
        server = next(iter(connection._servers.values())).process.pid

        def look() -> tuple[int, dict[str, list[str]], dict[str, list[str]]]:
            return below(me), held(me, tmp_path), held(server, tmp_path)

        before = settled(look)
        groups = {group for each in threads.map(live, range(2000)) for group in each}
        assert settled(look) == before
    assert left_in(*places) == []
    assert existing(groups) <= existing(set(own_groups()))


def own_groups() -> list[str]:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return [line.partition(":")[2] for line in lines]


def existing(groups: set[str]) -> set[str]:
    """Those of ``controllers:path`` that are directories of a mounted hierarchy."""
    found: set[str] = set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if not kind.startswith("cgroup"):
            continue
        root, place = fields.split()[3:5]
        for group in groups:
            names, _, path = group.partition(":")
            below_root = path.removeprefix(root.rstrip("/"))
            if os.path.isdir(f"{place}/{below_root}") and set(names.split(",")) <= set(
                kind.replace(" ", ",").split(",")
            ) | {""}:
                found.add(group)
    return found


LOOP = """
import sys
from pathlib import Path
from minisandbox.idmap import current, single
from minisandbox.sandbox import Sandbox
idmap = single() if sys.argv[2] == "single" else current()
print("begun", flush=True)
while True:
    with Sandbox.start([], scratch=Path(sys.argv[1]), idmap=idmap) as box:
        box.run("mkdir -p /root/a/b; setsid sleep 1000 & chmod 0 /root/a")
"""


def start_client(scratch: Path, idmap: IdMap) -> subprocess.Popen[bytes]:
    client = subprocess.Popen(
        [sys.executable, "-c", LOOP, str(scratch), idmap.kind],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert client.stdout is not None
    with client.stdout:
        assert client.stdout.readline() == b"begun\n"
    return client


def test_clients_killed_at_fifty_moments_leave_nothing(
    places: dict[Path, IdMap], tmp_path: Path, reaper: int
) -> None:
    before = settled(lambda: (below(reaper), held(reaper, tmp_path)))
    turns = list(places.items())
    for _ in range(10):
        clients = [start_client(*turns[number % len(turns)]) for number in range(5)]
        for client in clients:
            time.sleep(random.uniform(0, 0.1))
            client.kill()
            client.wait()
        assert eventually(lambda: below(reaper) == before[0])
        assert eventually(lambda: left_in(*places) == [])
    assert held(reaper, tmp_path) == before[1]


def test_what_clients_and_servers_killed_together_leave_is_cleared(
    places: dict[Path, IdMap], tmp_path: Path, reaper: int
) -> None:
    before = settled(lambda: (below(reaper), held(reaper, tmp_path)))
    leftovers = 0
    turns = list(places.items())
    for number in range(10):
        scratch, idmap = turns[number % len(turns)]
        others = left_in(scratch)  # of the client before, which this one's server clears
        client = start_client(scratch, idmap)
        assert eventually(partial(has_more, scratch, others))
        time.sleep(random.uniform(0, 0.1) if number else 0)
        servers = [pid for pid in processes.descendants(client.pid) if parent(pid) == client.pid]
        client.send_signal(signal.SIGSTOP)
        for server in servers:
            os.kill(server, signal.SIGKILL)
        client.kill()
        client.wait()
        assert eventually(lambda: below(reaper) == before[0])
        leftovers += len(left_in(scratch))
    assert leftovers, "no client was killed while it had a sandbox"
    for scratch, idmap in turns:
        with Sandbox.start([], scratch=scratch, idmap=idmap) as box:
            mine = [box._link.box.parent.name]
            assert eventually(partial(has_only, scratch, mine))
            assert box.run(["echo", "unharmed"]).stdout == b"unharmed\n"
    assert left_in(*places) == []
    assert held(reaper, tmp_path) == before[1]


MANY = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from minisandbox import linux
linux.new_session_keyring()  # as a login has one: of further ones, a user may have 200
from minisandbox.idmap import current, single
from minisandbox.sandbox import Sandbox
scratches = [Path(argument) for argument in sys.argv[1:]]
def start(number):
    scratch = scratches[number % len(scratches)]
    idmap = single() if scratch.name == "single" else current()
    return Sandbox.start([], scratch=scratch, idmap=idmap)
with ThreadPoolExecutor(16) as threads:
    boxes = list(threads.map(start, range(300)))
    said = list(threads.map(lambda box: box.run(["sh", "-c", "ulimit -n; echo $$"]), boxes))
    print(len(boxes), {result.exit_code for result in said}, flush=True)
    list(threads.map(Sandbox.close, boxes))
"""


def test_three_hundred_sandboxes_with_few_descriptors(
    places: dict[Path, IdMap], tmp_path: Path, reaper: int
) -> None:
    before = settled(lambda: below(reaper))
    done = subprocess.run(
        [sys.executable, "-c", MANY, *map(str, places)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.stdout == b"300 {0}\n"
    assert done.returncode == 0
    assert eventually(lambda: below(reaper) == before)
    assert left_in(*places) == []
