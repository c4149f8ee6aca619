"""E2, B15, B16: a timeout ends the whole tree of its command, and nothing but that."""

from __future__ import annotations

import time

import pytest

from minisandbox.errors import SandboxFileError
from minisandbox.sandbox import Sandbox, capture

#: Three levels, each in a session of its own, deaf to SIGTERM, daemonized, with a heartbeat.
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
for level in range(3):
    if os.fork():
        if level:
            os._exit(0)
        time.sleep(1000)
    os.setsid()
while True:
    with open(sys.argv[1], "a") as beat:
        beat.write("x")
    time.sleep(0.05)
"""


def beats(box: Sandbox, path: str) -> int:
    return len(box.run(["cat", path]).stdout)


def test_daemons_that_ignore_signals_end_with_their_command(start) -> None:
    box = start()
    box.write_file("/root/stubborn.py", STUBBORN)
    script = "trap '' TERM; echo begun; python3 /root/stubborn.py /tmp/beat; sleep 1000"
    result = box.run(script, timeout=2)
    assert result.timed_out
    assert result.stdout == b"begun\n"
    assert result.duration < 20
    count = beats(box, "/tmp/beat")
    assert count > 3, "it has to have run, or its end proves nothing"
    time.sleep(0.5)
    assert beats(box, "/tmp/beat") == count


def test_only_that_commands_tree_ends(start) -> None:
    box = start()
    box.write_file("/root/stubborn.py", STUBBORN)
    box.run("setsid python3 /root/stubborn.py /tmp/other & sleep 0.5")
    box.run("sleep 1000", timeout=0.5)
    count = beats(box, "/tmp/other")
    time.sleep(0.5)
    assert beats(box, "/tmp/other") > count > 0


def test_a_fork_bomb_ends(start) -> None:
    box = start()
    result = box.run("f() { sleep 0.05; f & f & }; for i in 1 2 3; do f; done; wait", timeout=0.5)
    assert result.duration < 30
    assert box.run("echo fine", timeout=30).stdout == b"fine\n"


def test_stopped_trees_end_too(start) -> None:
    box = start()
    assert box.run("sleep 1000 & kill -STOP $!; kill -STOP $$", timeout=1).timed_out
    assert b"sleep" not in box.run("ps -eo comm").stdout


def test_a_command_that_stops_its_own_monitor(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "KILL_PATIENCE", 2.0)
    box = start()
    started = time.monotonic()
    result = box.run("kill -STOP $PPID; sleep 1000", timeout=0.5)
    assert result.timed_out
    assert time.monotonic() - started < 40
    assert b"sleep" not in box.run("ps -eo comm").stdout


def test_the_timeout_of_one_thread_is_not_anothers(start) -> None:
    box = start()
    assert box.run("sleep 1000", timeout=0).timed_out
    assert not box.run("sleep 0.3", timeout=30).timed_out


def test_a_program_without_its_first_thread_ends_alone(start) -> None:
    """It shows as a zombie; where it was overlooked, everything in the sandbox was ended for it."""
    box = start()
    box.run("setsid sleep 1000 >/dev/null 2>&1 &")
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    assert box.run(["python3", "-c", code], timeout=1).timed_out
    left = box.run("ps -eo args").stdout
    assert b"sleep 1000" in left
    assert b"defunct" not in left


def test_a_program_that_stops_all_it_sees_holds_nobody_up(start) -> None:
    box = start()
    storm = (
        "import os, signal, time\n"
        "while not os.path.exists('/go'):\n"
        "    time.sleep(0.01)\n"
        "open('/going', 'w').close()\n"
        "while True:\n"
        "    os.kill(-1, signal.SIGSTOP)\n"
        "    time.sleep(0.001)\n"
    )
    box.write_file("/storm.py", storm)
    box.run("setsid python3 /storm.py >/dev/null 2>&1 &", timeout=30)
    box.write_file("/go", b"")
    while True:
        try:
            box.read_file("/going")
            break
        except SandboxFileError:
            continue
    for _ in range(100):
        box.read_file("/etc/passwd")
    with box.fork() as fork:
        assert fork.read_file("/going") == b""
    assert box.read_file("/etc/passwd")
    box.close()
