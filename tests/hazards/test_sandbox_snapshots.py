"""Programs that do not want to be stopped while their files are copied.

They are stopped by signals. What the kernel does not stop by them, or lets go on, is known; and a
tree that changes while it is copied must never lead the copy to files of the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minisandbox.sandbox import Sandbox
from minisandbox.sandbox.launch import Link
from minisandbox.sandbox.snapshots import Kept

#: Its first thread ends; it shows as a zombie, and writes on.
ZOMBIE = """
import ctypes, os, sys, threading, time
def work():
    while True:
        with open(sys.argv[1], "a") as beats:
            beats.write(".")
        time.sleep(0.002)
threading.Thread(target=work).start()
time.sleep(0.05)
ctypes.CDLL(None).pthread_exit(None)
"""

#: Makes /data/d a link to the directory it is given, and back, whenever it sees that its child was
#: stopped: a timer that sends SIGCONT keeps it going.
EXCHANGE = """
import ctypes, os, random, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs("/data/d")
for number in range(1000):
    with open(f"/data/d/{number}", "w") as file:
        file.write("inside")
os.symlink(sys.argv[1], "/data/link")
child = os.fork()
if not child:
    while True:
        time.sleep(1)
signal.signal(signal.SIGCONT, lambda *_: None)
timer, event = ctypes.c_void_p(), ctypes.create_string_buffer(64)
event[8] = signal.SIGCONT
assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
every = (ctypes.c_long * 4)(0, 5_000_000, 0, 5_000_000)
assert libc.timer_settime(timer, 0, every, None) == 0
def stopped():
    with open(f"/proc/{child}/stat") as stat:
        return stat.read().split()[2] == "T"
def exchange():
    assert libc.renameat2(-100, b"/data/d", -100, b"/data/link", 2) == 0
open("/ready", "w").close()
while True:
    while not stopped():
        time.sleep(0.0005)
    time.sleep(random.random() * 0.06)
    exchange()
    while stopped():
        time.sleep(0.001)
    exchange()
"""

#: Of each child, it waits in the kernel until that has become another program (vfork).
SPAWNING = """
import subprocess
while True:
    subprocess.run(["/bin/true"], close_fds=False)
"""


def background(box: Sandbox, program: str, argument: str = "") -> None:
    box.write_file("/program.py", program)
    box.run(f"setsid python3 /program.py {argument} >/dev/null 2>&1 &", timeout=30)


def test_a_copy_never_leaves_the_tree(start, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for number in range(1000):
        (outside / str(number)).write_text("secret")
    box = start()
    background(box, EXCHANGE, str(outside))
    assert box.run("until [ -e /ready ]; do sleep 0.01; done", timeout=50).ok
    copies = 0
    for _ in range(300):
        try:
            fork = box.fork()
        except OSError:
            continue  # cp saw that something changed
        with fork:
            copies += 1
            assert fork.run("grep -rl secret /data").stdout == b""
        if copies == 3:
            return
    raise AssertionError("no copy was made")


def test_a_program_without_its_first_thread_is_stopped(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = start()
    background(box, ZOMBIE, "/beats")
    assert box.run("until [ -e /beats ]; do sleep 0.01; done; sleep 0.2", timeout=30).ok
    sizes: list[int] = []

    def copy(link: Link, really: Callable[[Link], Kept] = Link.copy) -> Kept:
        for _ in range(2):
            sizes.append((link.box / "upper/beats").stat().st_size)
            time.sleep(0.2)
        return really(link)

    monkeypatch.setattr(Link, "copy", copy)
    before = len(box.read_file("/beats"))
    box.snapshot().close()
    assert before <= sizes[0] == sizes[1]
    time.sleep(0.2)
    assert len(box.read_file("/beats")) > sizes[1]


def test_programs_that_wait_for_a_stopped_child_count_as_stopped(start) -> None:
    box = start()
    for _ in range(3):
        background(box, SPAWNING)
    assert box.run("sleep 0.3", timeout=30).ok
    for _ in range(15):
        box.snapshot().close()
