"""The starter that a server holds ready: used where it fits, and nobody's trouble where it does
not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox.errors import HostUnsupported, SandboxDied
from minisandbox.idmap import IdMap
from minisandbox.sandbox import Limits, Profile, Sandbox, connection, wire
from minisandbox.sandbox.processes import descendants
from waiting import eventually

SOURCE = Path(__file__).resolve().parents[2] / "src"
DEFAULT = Profile()


def status(pid: int) -> dict[str, str]:
    """What /proc says of a process; nothing when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def spares(server: int) -> list[int]:
    """The process ids of every PID 1 whose starter waits, or works."""
    found: list[int] = []
    for pid in descendants(server):
        said = status(pid)
        if said and said["NSpid"].split()[-1] == "1" and int(said["PPid"]) != server:
            found.append(pid)
    return found


def ready(server: int) -> list[int]:
    """The spares of a server, once they are as many as it keeps."""
    assert eventually(lambda: len(spares(server)) == 2)
    return spares(server)


def server_of(box: Sandbox) -> int:
    return box._link.server.process.pid


def test_the_next_sandbox_is_the_one_that_was_prepared(start, fresh_server: None) -> None:
    one = start()
    prepared = ready(server_of(one))
    others = [start(), start()]
    assert {other.pid for other in others} == set(prepared)
    for other in others:
        assert one.run("hostname").stdout == other.run("hostname").stdout
    assert not set(ready(server_of(one))) & {one.pid, *prepared}


@pytest.mark.parametrize(
    ("before", "after", "look"),
    [
        (DEFAULT, replace(DEFAULT, network="host"), "readlink /proc/self/ns/net"),
        (replace(DEFAULT, limits=Limits(cpus=1)), DEFAULT, "nproc"),
        (DEFAULT, replace(DEFAULT, limits=Limits(processes=40)), "cat /proc/self/cgroup"),
        (DEFAULT, replace(DEFAULT, limits=Limits(memory=64 << 20)), "cat /proc/self/cgroup"),
    ],
    ids=["network", "cpus", "processes", "memory"],
)
def test_one_of_another_kind_is_not_taken(
    start, fresh_server: None, before: Profile, after: Profile, look: str
) -> None:
    one = start(profile=before)
    prepared = ready(server_of(one))
    other = start(profile=after)
    assert other.pid not in prepared
    if after.network == "host":
        assert other.run(look).stdout.decode().strip() == os.readlink("/proc/self/ns/net")
    elif before.limits.cpus == 1:
        assert one.run(look).stdout == b"1\n"
        assert other.run(look).stdout == b"%d\n" % len(os.sched_getaffinity(0))
    # Who alternates finds one of each kind.
    assert eventually(lambda: len(set(spares(server_of(one))) - set(prepared)) == 1)
    kept = ready(server_of(one))
    assert {start(profile=before).pid, start(profile=after).pid} == set(kept)


def test_what_differs_otherwise_does_not_matter(start, make_layer, fresh_server: None) -> None:
    one = start()
    prepared = ready(server_of(one))
    profile = Profile(hostname="other", listen=(8000,), limits=Limits(disk=1 << 30, open_files=99))
    other = start(make_layer({"etc/x": "of the layer"}), profile=profile)
    assert other.pid in prepared
    assert other.run("hostname; cat /etc/x; ulimit -n").stdout == b"other\nof the layer99\n"


@pytest.mark.parametrize("what", ["starter", "init"])
def test_one_that_somebody_kills_is_replaced(start, fresh_server: None, what: str) -> None:
    one = start()
    prepared = ready(server_of(one))
    starters = [int(status(pid)["PPid"]) for pid in prepared]
    for pid in starters if what == "starter" else prepared:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not any(map(status, [*starters, *prepared])))
    other = start()
    assert other.run("echo fine").stdout == b"fine\n"
    assert not set(ready(server_of(one))) & {other.pid, *prepared}


def test_a_client_that_starts_nothing_keeps_none(
    start, fresh_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "from minisandbox.sandbox import spares; spares._IDLE = 1.0\n"
    whole = connection._BOOTSTRAP.replace("from minisandbox", program + "from minisandbox")
    monkeypatch.setattr(connection, "_BOOTSTRAP", whole)
    one = start()
    prepared = ready(server_of(one))
    assert eventually(lambda: not any(map(status, prepared)))
    assert not spares(server_of(one))
    assert start().run("echo fine").stdout == b"fine\n"
    assert not set(ready(server_of(one))) & set(prepared)


def test_nothing_is_left_where_the_server_is_killed(start, fresh_server: None) -> None:
    box = start()
    server = server_of(box)
    prepared = ready(server)
    starters = [int(status(pid)["PPid"]) for pid in prepared]
    os.kill(server, signal.SIGKILL)
    assert eventually(lambda: not any(map(status, [*prepared, *starters])))


def test_it_ends_with_the_client(scratch: Path, idmap: IdMap) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom minisandbox.idmap import current, single\n"
        "from minisandbox.sandbox import Sandbox\n"
        "idmap = single() if sys.argv[2] == 'single' else current()\n"
        "box = Sandbox.start([], scratch=Path(sys.argv[1]), idmap=idmap)\n"
        "print(box._link.server.process.pid, flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(scratch), idmap.kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    ) as client:
        assert client.stdout is not None
        server = int(client.stdout.readline())
        prepared = ready(server)
        client.kill()
    assert eventually(lambda: not any(map(status, [*prepared, server])))


def with_mounts_of_its_own(program: str) -> None:
    """Run a program that mounts, where nobody else sees it."""
    program = f"""
import subprocess, time
from pathlib import Path
from minisandbox.sandbox import Sandbox
{program}"""
    subprocess.run(
        ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", program],
        check=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_mounts_of_the_host_that_came_after_it_are_seen(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "layer").mkdir()
    with_mounts_of_its_own(f"""
place = Path({str(tmp_path)!r})
def look():
    with Sandbox.start([place / "layer"], scratch=place / "scratch") as box:
        time.sleep(0.5)
        return box.run("cat /x").stdout
assert look() == b""
subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place / "layer"], check=True)
(place / "layer" / "x").write_text("mounted")
assert look() == b"mounted", look()
assert look() == b"mounted"
subprocess.run(["umount", place / "layer"], check=True)
assert look() == b""
""")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_a_proc_that_was_covered_after_it_is_handed_in(tmp_path: Path) -> None:
    with_mounts_of_its_own(f"""
def look():
    with Sandbox.start([], scratch=Path({str(tmp_path)!r})) as box:
        time.sleep(0.5)
        return box.run("cat /proc/1/comm").exit_code
assert look() == 0
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/proc/irq"], check=True)
assert look() == 0
assert look() == 0
subprocess.run(["umount", "/proc/irq"], check=True)
assert look() == 0
""")


@pytest.fixture
def altered(
    fresh_server: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], Path]:
    """Have the server run a text before anything else; ``fails()`` in it says whether the file that
    is returned exists.
    """

    def alter(program: str) -> Path:
        mark = tmp_path / "mark"
        mark.parent.chmod(0o755)
        first = (
            f"import os\nplace = {str(mark)!r}\ndef fails():\n    return os.path.exists(place)\n"
        )
        whole = connection._BOOTSTRAP.replace("main()\n", f"{first}{program}main()\n")
        monkeypatch.setattr(connection, "_BOOTSTRAP", whole)
        return mark

    return alter


NO_NAMESPACES = """
from minisandbox import linux
real = linux.clone_mapped
def clone_mapped(*args, **kwargs):
    if fails():
        raise linux.NamespacesRefused(11, "Resource temporarily unavailable")
    return real(*args, **kwargs)
linux.clone_mapped = clone_mapped
"""
#: PID 1 itself may not see the file.
NO_LOOPBACK = """
from minisandbox import linux
clone, bring_up, failing = linux.clone_mapped, linux.bring_up_loopback, False
def clone_mapped(*args, **kwargs):
    global failing
    failing = fails()
    return clone(*args, **kwargs)
def bring_up_loopback():
    global failing
    if failing:
        failing = False
        raise OSError(12, "Cannot allocate memory")
    bring_up()
linux.clone_mapped, linux.bring_up_loopback = clone_mapped, bring_up_loopback
"""


@pytest.mark.parametrize("program", [NO_NAMESPACES, NO_LOOPBACK], ids=["namespaces", "loopback"])
def test_what_fails_while_it_is_prepared_is_tried_again(
    start, altered: Callable[[str], Path], program: str
) -> None:
    """The host may have been short of something then."""
    mark = altered(program)
    start()
    mark.touch()
    time.sleep(0.2)
    mark.unlink()
    connect = "(: > /dev/tcp/127.0.0.1/1) 2>&1 | grep -q refused"
    assert start().run(connect).ok


def test_one_that_ends_at_once_is_not_made_again_and_again(
    start, altered: Callable[[str], Path]
) -> None:
    mark = altered("""
from minisandbox.sandbox import starter
real = starter.Starter.start
def begin(self):
    if fails():
        raise OSError(22, "Invalid argument")
    real(self)
starter.Starter.start = begin
""")
    box = start()
    ready(server_of(box))
    mark.touch()
    with pytest.raises(HostUnsupported):
        start(profile=Profile(limits=Limits(cpus=1)))
    time.sleep(0.3)
    tried = len(wire.read_all(box._link.server._log))
    time.sleep(0.3)
    assert len(wire.read_all(box._link.server._log)) == tried
    mark.unlink()
    assert start().run("echo fine").stdout == b"fine\n"


def test_spares_are_let_go_where_there_can_be_no_other(
    start, altered: Callable[[str], Path]
) -> None:
    """They hold some of what the host is short of."""
    mark = altered("""
from minisandbox.sandbox.limits.keeper import Keeper
real = Keeper.reserve
def reserve(self, limits):
    if fails():
        raise OSError(24, "Too many open files")
    return real(self, limits)
Keeper.reserve = reserve
""")
    box = start()
    ready(server_of(box))
    mark.touch()
    with pytest.raises(HostUnsupported, match="Too many open files"):
        start(profile=Profile(limits=Limits(cpus=1)))
    assert eventually(lambda: not spares(server_of(box)))
    mark.unlink()
    assert start().run("echo fine").stdout == b"fine\n"


#: Where there are as many processes below the server as when the mark was made, there are no more.
FULL = """
import errno
from minisandbox import linux
from minisandbox.sandbox import processes
server = os.getpid()
def refuse():
    if fails() and len(processes.descendants(server)) >= int(open(place).read()):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
fork, clone = os.fork, linux.clone_mapped
def counted_fork():
    refuse()
    return fork()
def counted_clone(*args, **kwargs):
    refuse()
    return clone(*args, **kwargs)
"""


@pytest.mark.parametrize("where", ["os.fork = counted_fork", "linux.clone_mapped = counted_clone"])
def test_spares_make_room_for_a_start(start, altered: Callable[[str], Path], where: str) -> None:
    mark = altered(FULL + where + "\n")
    box = start()
    ready(server_of(box))
    below = len(descendants(server_of(box)))
    mark.write_text(str(below))
    other = start(profile=Profile(network="host"))
    assert other.run("echo fine").stdout == b"fine\n"
    mark.write_text("1")
    with pytest.raises(HostUnsupported, match=r"limit on processes is reached: .*`ulimit -u`"):
        _ = [start() for _ in range(20)]  # one that is ready needs no process more


def test_where_processes_are_few_none_is_held_ready(start, altered: Callable[[str], Path]) -> None:
    altered("""
import resource
_, most = resource.getrlimit(resource.RLIMIT_NPROC)
resource.setrlimit(resource.RLIMIT_NPROC, (500, most))
""")
    box = start()
    time.sleep(0.3)
    assert not spares(server_of(box))


def test_nothing_stays_reserved_for_one_that_could_not_be_ordered(
    start, altered: Callable[[str], Path]
) -> None:
    mark = altered("""
from minisandbox.sandbox import spares
real = spares.Start.order
def order(self, *args):
    if fails():
        self.orders.close()
        raise BrokenPipeError(32, "Broken pipe")
    real(self, *args)
spares.Start.order = order
from minisandbox.sandbox.limits.keeper import Keeper
reserve, give_up, held = Keeper.reserve, Keeper.give_up, []
def counted(self, limits):
    held.append(reserve(self, limits))
    return held[-1]
def returned(self, reservation):
    held.remove(reservation)
    os.write(2, b"%d held," % len(held))
    give_up(self, reservation)
Keeper.reserve, Keeper.give_up = counted, returned
""")
    box = start()
    ready(server_of(box))
    mark.touch()
    for _ in range(2):
        with pytest.raises(HostUnsupported, match="starting a sandbox"):
            start()
    # What is left is that of the sandbox, and of spares. Each start was tried twice.
    assert eventually(lambda: wire.read_all(box._link.server._log).count(b"held") == 4)
    mark.unlink()
    ready(server_of(box))
    start().close()
    assert eventually(lambda: wire.read_all(box._link.server._log).count(b"held") == 5)


#: What is to be killed is ``self.pid`` or ``self.init``, once, before or after the orders.
KILLED_ONCE = """
from minisandbox.sandbox import spares
real = spares.Start.order
def order(self, *args):
    pid = self.{process}
    if not fails():
        real(self, *args)
    elif {before}:
        os.remove(place)
        os.kill(pid, 9)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        real(self, *args)
    else:
        os.remove(place)
        real(self, *args)
        os.kill(pid, 9)
spares.Start.order = order
"""


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("process", ["pid", "init"])
def test_a_start_is_tried_again_where_its_spare_was_killed(
    start, altered: Callable[[str], Path], process: str, before: bool
) -> None:
    """Between the look that found it alive, and what it would have said."""
    mark = altered(KILLED_ONCE.format(process=process, before=before))
    box = start()
    ready(server_of(box))
    mark.touch()
    assert start().run("echo fine").stdout == b"fine\n"
    assert not mark.exists()
    assert eventually(lambda: len(list(box._link.box.parent.iterdir())) == 2)


@pytest.mark.parametrize("what", ["starter", "init"])
def test_a_spare_that_is_stopped_keeps_no_start_waiting(
    start, fresh_server: None, what: str
) -> None:
    box = start()
    prepared = ready(server_of(box))
    for pid in prepared:
        os.kill(int(status(pid)["PPid"]) if what == "starter" else pid, signal.SIGSTOP)
    others = [start(start_timeout=20) for _ in range(2)]
    assert {other.pid for other in others} == set(prepared)
    assert all(other.run("echo fine").ok for other in others)


def test_a_namespace_that_cannot_be_opened_is_a_step_that_failed(
    start, altered: Callable[[str], Path]
) -> None:
    mark = altered("""
real = os.open
def open_(path, *args, **kwargs):
    if str(path).endswith("/ns/user") and fails():
        raise OSError(24, "Too many open files", path)
    return real(path, *args, **kwargs)
os.open = open_
""")
    box = start()
    ready(server_of(box))
    mark.touch()
    with pytest.raises(HostUnsupported, match=r"Too many open files .*ulimit -n") as caught:
        start(profile=Profile(network="host"))
    assert "Traceback" not in str(caught.value)
    mark.unlink()
    assert start(profile=Profile(network="host")).run("echo fine").ok


def test_an_error_quotes_nothing_of_earlier_starts(start, altered: Callable[[str], Path]) -> None:
    mark = altered("""
from minisandbox.sandbox import starter
def begin(self):
    if fails():
        raise OSError(22, "Invalid argument")
    os._exit(1)
starter.Starter.start = begin
""")
    mark.touch()
    with pytest.raises(HostUnsupported, match="Invalid argument"):
        start()
    mark.unlink()
    with pytest.raises(HostUnsupported, match=r"host: its first process was killed; "):
        start()


def test_a_server_that_was_killed_did_not_say_what_starts_said(
    start, altered: Callable[[str], Path]
) -> None:
    mark = altered("""
from minisandbox.sandbox import starter
real = starter.Starter.start
def begin(self):
    if fails():
        raise OSError(22, "Invalid argument")
    real(self)
starter.Starter.start = begin
""")
    box = start()
    ready(server_of(box))
    mark.touch()
    with pytest.raises(HostUnsupported, match="Invalid argument"):
        start(profile=Profile(network="host"))
    os.kill(server_of(box), signal.SIGKILL)
    assert eventually(lambda: not box.alive)
    with pytest.raises(SandboxDied, match=r"gone: the server of sandboxes was killed;"):
        box.run("true")


#: What /proc says of what a process may do.
BOUNDS = ("CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Uid", "Gid")


def bounds(pid: int) -> dict[str, object]:
    """What holds a process: its root and namespaces, rights, and what it has open."""
    folder = Path(f"/proc/{pid}")
    said = status(pid)
    return {
        **{name: said[name] for name in BOUNDS},
        "root": os.stat(folder / "root")[:2],
        "cwd": os.stat(folder / "cwd")[:2],
        "namespaces": sorted(os.readlink(link) for link in (folder / "ns").iterdir()),
        "session": (folder / "sessionid").read_text(),
        "limits": (folder / "limits").read_text(),
        "affinity": said["Cpus_allowed"],
        "command": (folder / "cmdline").read_bytes(),
        "mounts": (folder / "mountinfo").read_bytes(),
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
@pytest.mark.parametrize("watch", [False, True])
def test_the_first_monitor_is_held_like_all_later_ones(
    start, fresh_server: None, watch: bool
) -> None:
    """It was forked before PID 1 had given up anything."""
    box = start(profile=Profile(watch=watch))
    assert box.run("true").ok
    (first,) = descendants(box.pid)
    held = bounds(first)
    opened = sorted(
        os.readlink(fd).partition(":[")[0] for fd in Path(f"/proc/{first}/fd").iterdir()
    )
    os.kill(first, signal.SIGKILL)
    assert box.run("true").ok
    (later,) = descendants(box.pid)
    assert later != first
    assert held == bounds(later)
    # Of files and directories, none but what is inside.
    assert set(opened) - {"/dev/null", "pipe", "socket"} <= {"/memfd:request (deleted)"}
    assert held["Seccomp"] == "2"


def test_the_first_monitor_is_killed_before_it_served(start) -> None:
    box = start()
    (first,) = descendants(box.pid)
    os.kill(first, signal.SIGKILL)
    assert box.run("echo fine").stdout == b"fine\n"


def test_nothing_is_left_of_a_monitor_that_is_not_wanted(start) -> None:
    """Where connections are recorded, the one forked ahead would be without that filter."""
    with start(profile=Profile(watch=True)).snapshot() as snapshot:
        assert snapshot.way == "sealed"


@pytest.mark.parametrize("count", [2, 8])
def test_first_requests_at_once(start, fresh_server: None, count: int) -> None:
    """All but one need a monitor that is forked while the first may still join."""
    for _ in range(5):
        box = start()
        with ThreadPoolExecutor(count) as threads:
            said = threads.map(box.run, [f"echo {number}; id -u" for number in range(count)])
            texts = [b"%d\n0\n" % number for number in range(count)]
            assert [result.stdout for result in said] == texts
        box.close()


def test_a_first_monitor_that_is_stopped_keeps_nobody_waiting(start, fresh_server: None) -> None:
    def stop() -> None:
        while not done:
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGSTOP)
            time.sleep(0.002)

    for _ in range(5):
        done: list[bool] = []
        box = start()
        (first,) = descendants(box.pid)
        with ThreadPoolExecutor(3) as threads:
            stopping = threads.submit(stop)
            said = [threads.submit(box.run, "echo fine", timeout=20) for _ in range(2)]
            time.sleep(0.02)
            done.append(True)
            assert [result.result().stdout for result in said] == [b"fine\n"] * 2
            stopping.result()
        box.close()


@pytest.mark.parametrize("what", ["starter", "init"])
def test_a_spare_that_is_stopped_does_not_keep_the_server(
    start, fresh_server: None, what: str
) -> None:
    box = start()
    server = box._link.server
    for pid in ready(server.process.pid):
        os.kill(int(status(pid)["PPid"]) if what == "starter" else pid, signal.SIGSTOP)
    server.close(20)
    assert server.process.returncode == 0
    assert not status(server.process.pid)
