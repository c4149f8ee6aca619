"""What sandboxes of one caller take from each other, because the kernel counts it by user.

    python benchmarks/shared_counts.py

One sandbox takes as much as it gets of each thing and keeps it; then a second one tries, and then
a third whose neighbours are gone. Where the second gets as much as the third, it is not shared.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from minisandbox import idmap
from minisandbox.sandbox import Sandbox

#: Each prints how much it got, at most MOST.
PROGRAMS = {
    "inotify instances": "while got < MOST and libc.inotify_init1(0) >= 0: got += 1",
    "KiB of pipes beyond 8 each": (
        "try:\n"
        "    while got < MOST:\n"
        "        size = fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)  # F_SETPIPE_SZ\n"
        "        got += size - 8192 >> 10\n"
        "except OSError: pass"
    ),
    "pending signals": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])\n"
        "while got < MOST and libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0: got += 1"
    ),
    "KiB of locked memory": (
        "area = mmap.mmap(-1, MOST << 10)\n"
        "start = ctypes.addressof(ctypes.c_char.from_buffer(area))\n"
        "lock = lambda: libc.mlock(ctypes.c_void_p(start + (got << 10)), 65536)\n"
        "while got < MOST and lock() == 0: got += 64"
    ),
    "POSIX message queues": (
        "flags = os.O_CREAT | os.O_RDWR\n"
        "while got < MOST and libc.mq_open(b'/queue-%d' % got, flags, 0o600, None) >= 0: got += 1"
    ),
    "pseudo-terminals": (
        "try:\n"
        "    while got < MOST:\n"
        "        os.open('/dev/ptmx', os.O_RDWR)\n"
        "        got += 1\n"
        "except OSError: pass"
    ),
}
#: Enough to find the kernel's bound, and no more than a machine bears.
MOST = 200_000
_FRAME = f"""\
import ctypes, fcntl, mmap, os, resource, signal, sys, time
libc = ctypes.CDLL(None)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
MOST, got = {MOST}, 0
{{program}}
print(got, flush=True)
"""


def measure(scratch: Path, program: str) -> list[str]:
    """What the three sandboxes got."""
    whole = _FRAME.format(program=program)
    run = ["/usr/bin/python3", "-I", "-c"]
    start = partial(Sandbox.start, [], scratch=scratch)
    with start() as other:
        with ExitStack() as stack:
            first = stack.enter_context(start())
            holder = f"cat > /tmp/program; {run[0]} -I /tmp/program > /tmp/said 2>&1 &"
            wait = "until [ -s /tmp/said ]; do sleep 0.05; done"
            keeps = f"{whole}time.sleep(1000)\n".encode()
            first.run(f"{holder} {wait}", stdin=keeps, timeout=60)
            got = [first.read_file("/tmp/said").decode().strip()]
            got.append(other.run([*run, whole], timeout=60).stdout_text.strip())
    with start() as alone:
        got.append(alone.run([*run, whole], timeout=60).stdout_text.strip())
    return got


def main() -> None:
    """Print one Markdown table."""
    print(f"Id map: {idmap.current().kind}; {MOST} were asked for at most.\n")
    print("| what | first | second, meanwhile | alone |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="shared-") as folder:
        for name, program in PROGRAMS.items():
            print(f"| {name} | " + " | ".join(measure(Path(folder), program)) + " |", flush=True)


if __name__ == "__main__":
    main()
