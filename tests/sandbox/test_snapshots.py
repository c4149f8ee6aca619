"""Reset, snapshot and fork: which files each sees afterwards, and by which way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput, SandboxDied
from minisandbox.sandbox import Bind, Profile, Sandbox, client, launch

LAYER = {"testbed/low": "low", "testbed/gone": "gone", "testbed/dir/a": "a", "testbed/moves/b": "b"}
CHANGE = """
set -e
echo changed > /testbed/low; rm /testbed/gone
rm -r /testbed/dir; mkdir /testbed/dir; echo new > /testbed/dir/new
cp -r /testbed/moves /testbed/moved; rm -r /testbed/moves
mkdir -p /root/hidden; echo x > /root/hidden/x; chmod 0 /root/hidden
echo changed > /testbed/new; ln /testbed/new /testbed/same; ln -s low /testbed/link
echo tmp > /tmp/t; printf '\\377\\0' > /tmp/bytes
"""
LOOK = """
cd /testbed; cat low same link; ls -A . dir moved /tmp; [ new -ef same ] && echo linked
ls gone dir/a moves 2>/dev/null; stat -c '%a %u' /root/hidden
cat /root/hidden/x; sha256sum /tmp/bytes
"""


def look(box: Sandbox) -> bytes:
    return box.run(LOOK).stdout


def nothing_left(scratch: Path) -> bool:
    """What a reset drops is removed while its caller goes on."""
    end = time.monotonic() + 20
    while list(scratch.glob("box-*")) and time.monotonic() < end:
        time.sleep(0.01)
    return not list(scratch.glob("box-*"))


@pytest.mark.parametrize("way", ["sealed", "copied"])
def test_a_fork_sees_the_same_and_then_its_own(start, make_layer, scratch: Path, way: str) -> None:
    box = start(make_layer(LAYER))
    assert box.run(CHANGE).exit_code == 0
    before = look(box)
    assert before.count(b"changed") == 3
    assert b"linked" in before
    if way == "copied":
        box.run("while :; do date >> /var/tmp/log; sleep 0.01; done >/dev/null 2>&1 &")
    with box.snapshot() as snapshot, box.start_from(snapshot) as child:
        assert snapshot.way == way
        assert look(child) == look(box) == before
        assert child.run("ps -eo comm | grep -c date; ls /dev/shm").stdout == b"0\n"
        box.run("echo parent > /testbed/low; rm /testbed/same; rm -rf /testbed/dir")
        child.run("echo child > /testbed/low; chmod 755 /root/hidden; rm /root/hidden/x")
        assert child.read_file("/testbed/same") == b"changed\n"
        assert child.read_file("/testbed/dir/new") == b"new\n"
        assert box.read_file("/testbed/low") == b"parent\n"
        with box.start_from(snapshot) as other:
            assert look(other) == before
    box.close()
    assert nothing_left(scratch)


def test_what_the_parent_writes_later_never_reaches_a_fork(start) -> None:
    box = start()
    writer = (
        "import os, time\nf = open('/root/log', 'ab', 0)\nwhile 1: f.write(b'x'); time.sleep(.001)"
    )
    box.run(["bash", "-c", f'python3 -c "{writer}" >/dev/null 2>&1 & sleep 0.3'])
    with box.fork() as child:
        size = len(child.read_file("/root/log"))
        time.sleep(0.2)
        assert len(child.read_file("/root/log")) == size
        assert len(box.read_file("/root/log")) > size, "the parent goes on"


def test_processes_that_were_stopped_stay_stopped(start) -> None:
    box = start()
    box.run("setsid sleep 1000 & sleep 0.2; kill -STOP $!; setsid sleep 1001 &")
    state = "for p in $(pgrep sleep); do cut -d' ' -f3 /proc/$p/stat; done"
    box.snapshot().close()
    assert box.run(state).stdout == b"T\nS\n"


def test_running_commands_survive_a_snapshot(start) -> None:
    box = start()
    results: list[bytes] = []
    thread = threading.Thread(
        target=lambda: results.append(box.run("sleep 0.5; echo ${X-done}; exit 3").stdout)
    )
    thread.start()
    time.sleep(0.2)
    with box.snapshot() as snapshot:
        assert snapshot.way == "copied"
    thread.join(20)
    assert results == [b"done\n"]


@pytest.mark.parametrize(
    "made",
    ["echo x > /dev/shm/x", "ipcmk -M 100", "ipcmk -Q", "ipcmk -S 1", "sleep 1000 &"],
)
def test_what_would_be_lost_is_not_sealed(start, made: str) -> None:
    box = start()
    assert box.run(made).exit_code == 0
    count = "ls /dev/shm | wc -l; tail -qn +2 /proc/sysvipc/* | wc -l; pgrep -c sleep"
    before = box.run(count).stdout
    with box.snapshot() as snapshot:
        assert snapshot.way == "copied"
    assert box.run(count).stdout == before


def test_reset_drops_everything(start, make_layer, scratch: Path) -> None:
    box = start(make_layer(LAYER))
    fresh = box.run("cd /; find /testbed /tmp /root /run | sort; cat /testbed/low").stdout
    box.run(CHANGE + "echo x > /dev/shm/x; ipcmk -Q; sleep 1000 & hostname other; exit 0")
    first = box.pid
    assert box.reset().way == "restarted"
    assert not os.path.exists(f"/proc/{first}") or box.pid != first
    again = box.run("cd /; find /testbed /tmp /root /run | sort; cat /testbed/low").stdout
    assert again == fresh
    assert box.run("ls /dev/shm; pgrep sleep; tail -qn +2 /proc/sysvipc/msg").stdout == b""
    box.snapshot().close()
    box.run("echo x > /testbed/low")
    box.reset()
    assert box.read_file("/testbed/low") == b"low"
    box.close()
    assert nothing_left(scratch)


def test_forks_of_forks(start) -> None:
    boxes = [start()]
    for number in range(8):
        boxes[-1].run(f"echo {number} >> /root/all")
        boxes.append(boxes[-1].fork())
        boxes[0].run("echo parent >> /root/all")
    try:
        assert boxes[-1].read_file("/root/all").decode().split() == list("01234567")
        boxes[3].close()  # those above it stand on what it left
        assert boxes[4].read_file("/root/all").decode().split() == list("01234")
    finally:
        for box in boxes[1:]:
            box.close()


def test_a_snapshot_outlives_its_sandbox_but_not_its_close(start, scratch: Path) -> None:
    box = start()
    box.run("echo x > /root/x")
    snapshot = box.snapshot()
    box.close()
    assert [path.joinpath("root/x").is_file() for path in snapshot.uppers] == [True]
    child = box.start_from(snapshot)
    snapshot.close()
    snapshot.close()
    assert child.read_file("/root/x") == b"x\n"
    with pytest.raises(InvalidInput, match="closed"):
        box.start_from(snapshot)
    child.close()
    assert nothing_left(scratch)


def test_closed_and_dead_sandboxes_say_so(start) -> None:
    box = start()
    os.kill(box.pid, 9)
    with pytest.raises(SandboxDied):
        box.fork()
    assert box.reset().way == "restarted", "a reset brings a dead sandbox back"
    assert box.run("echo x").stdout == b"x\n"
    box.close()
    for action in (box.reset, box.snapshot, box.fork):
        with pytest.raises(SandboxDied, match="closed"):
            action()


def test_too_many_layers_are_refused_and_the_sandbox_goes_on(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "MAX_LAYERS", 2)
    box = start()
    for number in range(2):
        box.run(f"echo {number} > /root/{number}")
        box.snapshot().close()
    with pytest.raises(InvalidInput, match="3 are too many"):
        box.snapshot()
    assert box.run("cat /root/*").stdout == b"0\n1\n"


def test_two_threads_fork_one_sandbox(start) -> None:
    box = start()
    box.run("echo x > /root/x")
    seen: list[bytes] = []

    def fork() -> None:
        with box.fork() as child:
            seen.append(child.read_file("/root/x"))

    threads = [threading.Thread(target=fork) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [b"x\n"] * 6
    assert box.run("cat /root/x").stdout == b"x\n"


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[None]]:
    """Within it a method does nothing but wait, which another thread calls with ``action``."""

    @contextmanager
    def hold_up(
        owner: object, name: str, action: Callable[[], object]
    ) -> Generator[None, None, None]:
        called, go_on = threading.Event(), threading.Event()
        method = getattr(owner, name)

        def slow(*args: object, **options: object) -> object:
            called.set()
            assert go_on.wait(30)
            return method(*args, **options)

        thread = threading.Thread(target=action)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, slow)
            thread.start()
            try:
                assert called.wait(30)
                yield
            finally:
                go_on.set()
                thread.join()

    return hold_up


def test_others_work_on_while_a_reset_starts_anew_and_removes(start, held_up) -> None:
    box = start(profile=Profile(watch=True))
    box.write_file("/root/f", "before")
    with held_up(client, "launch", box.reset):
        assert box.read_file("/root/f") == b"before"
    box.write_file("/root/f", "between")
    with held_up(launch.Link, "drop", box.reset):
        assert box.run("cat /root/f").exit_code == 1
        process = box.popen(["cat"], stdin="pipe")
    # It was started on what came after: the end of the reset does not touch it.
    process.stdin.write(b"x")
    assert process.stdout.read(1) == b"x"
    process.close()


def test_others_do_not_wait_for_the_removal_of_what_is_closed(start, held_up) -> None:
    box = start()
    with held_up(launch.Link, "close", box.close), pytest.raises(SandboxDied, match="closed"):
        box.read_file("/etc/passwd")


def test_nothing_of_before_a_reset_writes_to_the_callers_files(start, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    box = start(profile=Profile(binds=(Bind(shared, "/shared", writable=True),)))
    beat = "while :; do echo x >> /shared/beats; done"
    for _ in range(5):
        assert box.run(f"for i in 1 2 3; do setsid sh -c '{beat}' & done; sleep 0.1").ok
        box.reset()
        size = (shared / "beats").stat().st_size
        assert size
        time.sleep(0.2)
        assert (shared / "beats").stat().st_size == size
