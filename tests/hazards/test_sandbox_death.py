"""E9, E12, E14, E16, G5: who dies of what, and that nothing is left behind."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from minisandbox.errors import HostUnsupported, InvalidInput, SandboxDied, SandboxFileError
from minisandbox.idmap import IdMap, remove_tree
from minisandbox.sandbox import Limits, Profile, Sandbox, connection, processes, wire
from waiting import eventually

SOURCE = Path(connection.__file__).parents[2]


def gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def boxes(scratch: Path) -> list[Path]:
    return [path for path in scratch.iterdir() if not path.name.startswith(("base-", ".base"))]


def test_killing_everything_inside_spares_neighbours_and_the_sandbox(start) -> None:
    one, other = start(), start()
    other.run("sleep 1000 &")
    result = one.run("sleep 1000 & kill -9 -1; sleep 1; echo still here")
    assert result.exit_code in (0, 137)
    for script in (
        "pkill -9 -f .",
        "kill -9 1; kill -TERM 1; kill -INT 1; kill -HUP 1",
        "kill -9 $PPID",
    ):
        one.run(script)
    assert one.run("echo again").stdout == b"again\n"
    assert other.run("ps -eo comm | grep -c sleep").stdout == b"1\n"


@pytest.mark.parametrize("served", [True, False])
def test_a_copy_of_the_socket_of_a_dead_pid_1_is_no_sandbox(start, served: bool) -> None:
    """A process that PID 1 was just forking holds one, for as long as it takes the kernel to end
    it: a command that was killed with the sandbox would be one that failed.
    """
    link = start()._link
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control, link.control = link.control, ours

    def hold() -> None:
        with theirs:
            fields, fds = wire.receive(theirs)
            assert fields == ["ping"]
            with socket.socket(fileno=fds[0]) as channel:
                if served:
                    wire.send(channel, "here")

    holder = threading.Thread(target=hold)
    holder.start()
    with ours:
        assert link.alive()
        assert link.serves() == served
        holder.join()
        assert not link.serves()
    link.control = control
    assert link.serves()


@pytest.mark.parametrize("victim", ["init", "server"])
def test_a_dead_sandbox_is_an_error_of_its_own(start, victim: str) -> None:
    box = start(name="victim")
    server = box._link.server.process.pid
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(box.run("sleep 1000"))
        except SandboxDied as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    os.kill(box.pid if victim == "init" else server, signal.SIGKILL)
    thread.join(20)
    assert [type(result) for result in outcome] == [SandboxDied]
    assert eventually(lambda: not box.alive)
    with pytest.raises(SandboxDied, match="victim"):
        box.run("true")
    with pytest.raises(SandboxDied):
        box.read_file("/etc/passwd")
    assert eventually(lambda: gone(box.pid))
    box.close()


def test_what_a_killed_server_left_is_removed_by_the_next_start(start, scratch: Path) -> None:
    first = start()
    first.run("mkdir -p /root/a/b; chmod 0 /root/a")
    box = first._link.box
    os.kill(first._link.server.process.pid, signal.SIGKILL)
    assert eventually(lambda: gone(first.pid))
    assert box.exists()
    living = start()
    assert eventually(lambda: not box.exists())
    assert living.run("echo unharmed").stdout == b"unharmed\n"


def test_a_dead_server_is_told_also_after_another_has_taken_its_place(start, fresh_server) -> None:
    box = start(name="victim")
    os.kill(box._link.server.process.pid, signal.SIGKILL)
    assert eventually(lambda: gone(box.pid))
    start()
    assert not box.alive
    actions = (lambda: box.run("true"), lambda: box.read_file("/x"), box.seal, box.snapshot)
    for action in actions:
        with pytest.raises(SandboxDied, match=r"victim .* the server of sandboxes was killed"):
            action()
    assert box.reset().way == "restarted"
    assert box.run("echo again").stdout == b"again\n"


def test_a_snapshot_is_never_started_from_while_it_is_removed(start, fresh_server) -> None:
    box = start()
    box.run("echo x > /root/x")
    snapshot = box.snapshot()
    os.kill(box._link.server.process.pid, signal.SIGKILL)
    assert eventually(lambda: gone(box.pid))
    for _ in range(2):
        with pytest.raises(InvalidInput, match="snapshot: is gone with the server"):
            box.start_from(snapshot)
        start()  # whose server removes what was left
    snapshot.close()


def test_a_forked_child_takes_no_part_of_its_parents_sandboxes(start) -> None:
    box = start()
    snapshot = box.snapshot()
    refused: list[str] = []
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            actions = (box.reset, box.snapshot, box.seal, lambda: box.start_from(snapshot))
            for action in actions:
                try:
                    action()
                except InvalidInput as error:
                    refused.append(error.where)
            snapshot.close()
            box.close()
            os.write(write_end, " ".join(refused).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end) as told:
        assert told.read() == "reset snapshot seal snapshot"
    os.waitpid(pid, 0)
    box.run("echo x > /root/x")
    with box.start_from(snapshot) as other:
        assert other.run("ls /root").stdout == b""
    assert box.read_file("/root/x") == b"x\n"
    snapshot.close()


def test_an_interpreter_that_is_none_is_named(
    start, fresh_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(sys, "executable", "/no/python")
    with pytest.raises(HostUnsupported, match=r"the server of sandboxes .* /no/python cannot be"):
        start()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_removed_scratch_directory_harms_no_other_sandbox(
    start, fresh_server, scratch: Path, idmap: IdMap
) -> None:
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir()
    box, other = start(scratch=elsewhere), start()
    remove_tree(elsewhere, idmap)
    box.close()
    assert start()._link.server is other._link.server
    assert other.run("echo unharmed").stdout == b"unharmed\n"


def test_a_limit_holds_where_it_cannot_be_noted(
    start, fresh_server, scratch: Path, idmap: IdMap
) -> None:
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir()
    other = start()
    box = start(scratch=elsewhere, profile=Profile(limits=Limits(time=1)))
    remove_tree(elsewhere, idmap)
    assert eventually(lambda: gone(box.pid))
    assert not box.alive
    assert start()._link.server is other._link.server


def test_a_sandbox_that_is_forgotten_is_removed(start, scratch: Path, idmap: IdMap) -> None:
    box = Sandbox.start([], scratch=scratch, idmap=idmap)
    box.run("mkdir -m 0 /root/x; sleep 1000 &")
    place, pid = box._link.box, box.pid
    held = [box]
    del box
    with pytest.warns(ResourceWarning):
        held.clear()  # no cycle keeps it
    assert eventually(lambda: gone(pid) and not place.exists())


def test_a_copy_that_fails_leaves_nothing_and_says_why(start, fresh_server) -> None:
    box = start()
    box.run("head -c 5M /dev/zero > /root/x; sleep 1000 &")
    home = box._link.box.parent
    # As a full disk would: the copy is of the server's forks, and cannot become so large.
    resource.prlimit(box._link.server.process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with pytest.raises(OSError, match=r"cannot be copied: .*cp: .*File too large"):
        box.snapshot()
    assert eventually(lambda: sorted(os.listdir(home)) == ["1"])
    assert box.run("pgrep -c sleep").stdout == b"1\n"


def test_too_few_descriptors_of_the_server_stop_no_sandbox(start, fresh_server) -> None:
    boxes = [start()]
    server = boxes[0]._link.server.process.pid
    soft, hard = resource.prlimit(server, resource.RLIMIT_NOFILE)
    assert soft == hard
    most, refused = len(os.listdir(f"/proc/{server}/fd")), set[bool]()
    for limit in range(most, most + 12):
        resource.prlimit(server, resource.RLIMIT_NOFILE, (limit, hard))
        try:
            boxes.append(start())
        except HostUnsupported as error:
            refused.add("too many open files" in str(error).lower())
        assert [box.run("echo x").stdout for box in boxes] == [b"x\n"] * len(boxes)
    assert refused == {True}
    assert len(boxes) > 1


def test_a_client_without_descriptors_still_closes(start, fresh_server) -> None:
    box, other = start(), start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        box.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert eventually(lambda: not box._link.box.exists())
    assert other.run("echo x").stdout == b"x\n"


def test_a_client_that_runs_out_of_descriptors_is_told_so(start, fresh_server) -> None:
    """Wherever in a start or a snapshot that is; and the sandbox it has lives on."""
    box = start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes = set[str]()
    with ExitStack() as stack:
        stack.enter_context(box.popen("sleep 100"))
        # So many that those which are free come after all others.
        highest = max(map(int, os.listdir("/proc/self/fd")))
        while (filler := os.dup(0)) <= highest:
            stack.callback(os.close, filler)
        os.close(filler)
        for limit in range(filler, filler + 8):
            for attempt in (start, box.snapshot):
                try:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
                    made = attempt()
                except (HostUnsupported, SandboxFileError, OSError) as error:
                    assert "too many open files" in str(error).lower()  # noqa: PT017 - some pass
                    outcomes.add(type(error).__name__)
                else:
                    made.close()
                    outcomes.add(type(made).__name__)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert outcomes >= {"HostUnsupported", "OSError", "Sandbox", "Snapshot"}
    assert box.run("echo x").stdout == b"x\n"


def test_a_start_tells_of_limits_of_the_client(scratch: Path, idmap: IdMap) -> None:
    program = """
import resource, sys
from pathlib import Path
from minisandbox.idmap import current, single
from minisandbox.errors import HostUnsupported
from minisandbox.sandbox import Sandbox
idmap = single() if sys.argv[2] == "single" else current()
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    Sandbox.start([], scratch=Path(sys.argv[1]), idmap=idmap)
except HostUnsupported as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(scratch), idmap.kind],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert "File too large; raise the limit on the size of files (`ulimit -f`)" in done.stdout


def test_a_client_that_does_not_wait_for_an_answer_kills_nothing(start) -> None:
    box = start()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    with theirs:
        wire.send(box._link.control, "idle", fds=[theirs.fileno()])
    assert box.run("echo x").stdout == b"x\n"


PROGRAM = """
import sys, time
from pathlib import Path
from minisandbox.idmap import current, single
from minisandbox.sandbox import Sandbox
idmap = single() if sys.argv[2] == "single" else current()
box = Sandbox.start([], scratch=Path(sys.argv[1]), idmap=idmap)
box.run("setsid sleep 1000 & echo x > /root/file")
print(box.pid, box._link.server.process.pid, flush=True)
time.sleep(float(sys.argv[3]))
box.run("sleep 1000")
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("busy", [False, True])
def test_nothing_is_left_of_a_client_that_was_killed(
    scratch: Path, idmap: IdMap, number: int, busy: bool
) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    command = [sys.executable, "-c", PROGRAM, str(scratch), idmap.kind, "0" if busy else "1000"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    ) as client:
        assert client.stdout is not None
        pids = [int(text) for text in client.stdout.readline().split()]
        assert len(pids) == 2
        time.sleep(0.1)
        client.send_signal(number)
        try:
            client.wait(5)
        except subprocess.TimeoutExpired:
            # One that comes between Python's last look and the call that sleeps waits for the next.
            client.send_signal(number)
            client.wait()
    assert eventually(lambda: all(gone(pid) for pid in pids))
    assert boxes(scratch) == []
    assert Path("/proc/self/mounts").read_text() == mounts


def test_clients_killed_while_starting(scratch: Path, idmap: IdMap) -> None:
    command = [sys.executable, "-c", PROGRAM, str(scratch), idmap.kind, "1000"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    for number in range(12):
        client = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        )
        time.sleep(0.02 * number)
        client.kill()
        client.wait()
    assert eventually(lambda: boxes(scratch) == [])


def test_starting_and_closing_leaks_nothing(start, scratch: Path) -> None:
    start().close()  # whatever is opened once for the process
    gc.collect()  # servers of other tests
    before = os.listdir("/proc/self/fd"), Path("/proc/self/mounts").read_text()
    for _ in range(50):
        box = start()
        assert box.run(["true"]).exit_code == 0
        box.close()
        assert gone(box.pid)
    assert boxes(scratch) == []
    after = os.listdir("/proc/self/fd"), Path("/proc/self/mounts").read_text()
    assert after == before


def test_close_can_be_repeated_and_ends_everything(start) -> None:
    box = start()
    box.run("setsid sleep 1000 &")
    box.close()
    box.close()
    assert not box.alive
    with pytest.raises(SandboxDied, match="closed"):
        box.run("true")


def test_a_start_that_fails_leaves_nothing(start, make_layer, scratch: Path) -> None:
    layer = make_layer({"x": "1"})
    os.symlink("/etc", layer / "dev")
    start().close()  # the server is started once, and stays
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Exception, match="replaces"):
        start(layer)
    assert boxes(scratch) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_server_that_cannot_even_begin_says_why(
    start, monkeypatch: pytest.MonkeyPatch, scratch: Path, fresh_server: None
) -> None:
    monkeypatch.setattr(
        connection, "_BOOTSTRAP", "import time; print('x'); raise SystemExit('no luck')"
    )
    with pytest.raises(HostUnsupported, match="no luck"):
        start()
    monkeypatch.setattr(connection, "_BOOTSTRAP", "import time; time.sleep(1000)")
    with pytest.raises(HostUnsupported, match=r"not ready after 0\.5 s"):
        start(start_timeout=0.5)
    assert boxes(scratch) == []


@pytest.mark.parametrize(
    ("place", "slow"),
    [
        ("rootfs._mount_overlay", "an overlay of the layers"),
        ("rootfs.stage_binds", "bind mounts of host directories"),
        ("rootfs._mount_dev", "a private /dev"),
        ("cgroups.enter", "control groups and namespaces"),
    ],
)
def test_a_start_that_takes_too_long_leaves_nothing(
    start,
    monkeypatch: pytest.MonkeyPatch,
    scratch: Path,
    fresh_server: None,
    place: str,
    slow: str,
) -> None:
    program = f"""
import time
from minisandbox.sandbox import rootfs
from minisandbox.sandbox.limits import cgroups
{place} = lambda *_: time.sleep(1000)
"""
    whole = connection._BOOTSTRAP.replace("from minisandbox", program + "from minisandbox")
    monkeypatch.setattr(connection, "_BOOTSTRAP", whole)
    with pytest.raises(HostUnsupported, match=rf"not ready after 0\.5 s; .* was {slow}"):
        start(start_timeout=0.5)
    assert boxes(scratch) == []


def test_a_server_that_was_killed_a_moment_ago_is_replaced(
    start, monkeypatch: pytest.MonkeyPatch, fresh_server: None
) -> None:
    """A fork of it may hold its socket for a moment, and then nobody can see that it is gone."""
    program = """
import time
from minisandbox.sandbox import processes
real = processes.ChildWakeup.close
def close(self):
    time.sleep(0.5)
    real(self)
processes.ChildWakeup.close = close
"""
    whole = connection._BOOTSTRAP.replace("from minisandbox", program + "from minisandbox")
    monkeypatch.setattr(connection, "_BOOTSTRAP", whole)
    server = start()._link.server
    assert eventually(lambda: len(processes.children(server.process.pid) or ()) > 1)
    server.process.kill()
    server.process.wait()
    assert server.alive, "a fork of it holds the socket"
    assert start().run("echo fine").stdout == b"fine\n"


def test_a_removal_that_goes_on_keeps_nobody_waiting_for_a_killed_server(
    start, monkeypatch: pytest.MonkeyPatch, scratch: Path, fresh_server: None
) -> None:
    program = """
import time
from minisandbox.sandbox import cleanup
real = cleanup.remove
def remove(*args):
    time.sleep(3)
    real(*args)
cleanup.remove = remove
"""
    whole = connection._BOOTSTRAP.replace("from minisandbox", program + "from minisandbox")
    monkeypatch.setattr(connection, "_BOOTSTRAP", whole)
    several = [start(), start()]
    for box in several:
        assert box.run("echo something > /written").ok
    closing = [threading.Thread(target=box.close) for box in several]
    for number, thread in enumerate(closing):
        thread.start()
        assert eventually(lambda: gone(several[number].pid))  # noqa: B023 - called in this round
    time.sleep(0.2)  # each directory is being removed
    several[0]._link.server.process.kill()
    for thread in closing:
        thread.join(1.5)
        assert not thread.is_alive()
    assert eventually(lambda: not any(os.listdir(home) for home in boxes(scratch)))


@pytest.mark.parametrize("upper", ["disk", "memory"])
def test_a_directory_in_which_nothing_was_written_takes_no_process_to_remove(
    start,
    monkeypatch: pytest.MonkeyPatch,
    scratch: Path,
    fresh_server: None,
    upper: Literal["disk", "memory"],
) -> None:
    program = """
import os
from minisandbox.sandbox import cleanup
cleanup.remove = lambda *_: os._exit(1)
"""
    whole = connection._BOOTSTRAP.replace("from minisandbox", program + "from minisandbox")
    monkeypatch.setattr(connection, "_BOOTSTRAP", whole)
    box = start(profile=Profile(upper=upper))
    assert box.run("echo $((6 * 7))").stdout == b"42\n"
    box.close()
    assert boxes(scratch) == []


def test_a_fork_of_the_client_harms_no_sandbox(start, scratch: Path, idmap: IdMap) -> None:
    box = start()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with Sandbox.start([], scratch=scratch, idmap=idmap) as own:
                os.write(write_end, own.run("echo own").stdout)
            os.write(write_end, box.run("echo shared").stdout)
            box.close()
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        assert pipe.read() == b"own\nshared\n"
    os.waitpid(pid, 0)
    assert box.run("echo unharmed").stdout == b"unharmed\n"


def test_many_at_once(start, scratch: Path) -> None:
    started: list[Sandbox] = []
    threads = [threading.Thread(target=lambda: started.append(start())) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 24
    assert {box.run("echo x").stdout for box in started} == {b"x\n"}


def test_a_scratch_directory_that_was_removed_and_made_again_is_used(
    start, scratch: Path, idmap: IdMap
) -> None:
    one = start()
    remove_tree(scratch, idmap)
    scratch.mkdir()
    with start() as other:
        assert other.run("echo fine").stdout == b"fine\n"
    one.close()
    assert start().run("echo fine").stdout == b"fine\n"
