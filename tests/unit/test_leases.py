"""What is used is locked by one descriptor a process, for as long as somebody there needs it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from minisandbox.store.leases import Lease
from minisandbox.store.usage import in_use


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_one_descriptor_serves_any_number_of_leases(tmp_path: Path) -> None:
    before = descriptors()
    leases = [Lease(tmp_path / "uses") for _ in range(256)]
    for lease in leases:
        for name in ("a", "b", "c"):
            lease.add(name)
            lease.add(name)
    assert descriptors() == before + 3
    for lease in leases[1:]:
        lease.close()
    assert in_use(tmp_path, "a")
    leases[0].close()
    leases[0].close()
    assert descriptors() == before
    assert not in_use(tmp_path, "a")


def test_the_last_who_needs_it_ends_it(tmp_path: Path) -> None:
    with Lease(tmp_path / "uses") as lease:
        lease.add("a")
        lease.retain()
        lease.retain()
    lease.release()
    assert in_use(tmp_path, "a")
    lease.release()
    assert not in_use(tmp_path, "a")


def test_it_dies_with_its_process_and_is_no_programs(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from minisandbox.store.leases import Lease\n"
        "Lease(Path(sys.argv[1]) / 'uses').add('a')\n"
        "import subprocess; subprocess.Popen(['sleep', '60'])\n"
        "print('held', flush=True); time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert in_use(tmp_path, "a")
        process.kill()
        process.wait()
        assert not in_use(tmp_path, "a")  # what it started goes on, without its descriptors
        os.killpg(process.pid, 9)


def test_a_forked_child_holds_nothing_of_it_and_can_hold_its_own(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "uses")
    lease.add("a")
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with Lease(tmp_path / "uses") as own:
                own.add("b")
                assert in_use(tmp_path, "a")
            lease.close()
            assert in_use(tmp_path, "a"), "it is the parent's"
            there.send(b"x")
            there.recv(1)
            code = 0
        finally:
            os._exit(code)
    here.recv(1)
    lease.close()
    assert not in_use(tmp_path, "a"), "whatever the child does"
    here.send(b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    here.close()
    there.close()


def test_uses_are_noted(tmp_path: Path) -> None:
    use = tmp_path / "uses/a"
    for _ in range(2):
        with Lease(tmp_path / "uses") as lease:
            lease.add("a")
            assert abs(use.stat().st_mtime - time.time()) < 5
            os.utime(use, (1, 1))
        assert use.stat().st_mtime == 1, "not noted again within a minute"
    with Lease(tmp_path / "uses") as lease:
        lease.add("a")
        assert use.stat().st_mtime > 1
