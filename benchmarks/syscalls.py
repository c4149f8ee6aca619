"""What the filter of system calls costs: a call below it and without it, and its installation.

    python benchmarks/syscalls.py

A C program (gcc is needed) makes one call again and again and takes the fastest of 2,000 rounds,
which a busy machine disturbs little. `read` and `ioctl` are given a descriptor that is not open, so
that the kernel does next to nothing.
"""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from minisandbox import linux
from minisandbox.sandbox.seccomp import notify, numbers, policy

LOOP = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int count, char **words) {
    long number = atol(words[1]), first = atol(words[2]), second = atol(words[3]);
    double best = 1e9;
    for (int round = 0; round < 2000; round++) {
        double start = now();
        for (int i = 0; i < 1000; i++)
            syscall(number, first, second, 0);
        double each = (now() - start) / 1000;
        if (each < best)
            best = each;
    }
    printf("%.0f\n", best);
    return 0;
}
"""
MACHINE = platform.machine()
CALLS = {"getppid": (0, 0), "read": (-1, 0), "ioctl": (-1, 0x5401), "unshare": (0, 0)}


def in_child(action: Callable[[], None]) -> str:
    """What ``action`` prints in a fork that may install filters."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(theirs, 1)
        linux.forbid_new_privileges()
        action()
        os._exit(0)
    os.close(theirs)
    with open(ours) as said:
        text = said.read()
    assert os.waitpid(pid, 0)[1] == 0
    return text


def call_below(program: str, words: Sequence[str], filters: int) -> float:
    """Nanoseconds of one call below none, the policy, or the policy and the reporting filter."""

    def action() -> None:
        if filters:
            linux.install_filter(policy.compiled(MACHINE))
        if filters > 1:
            linux.install_reporting_filter(notify.report_connections(MACHINE))
        os.execv(program, [program, *words])

    return float(in_child(action))


def install() -> float:
    """Microseconds of one installation, in a process that has made such a call before."""

    def action() -> None:
        try:
            linux.install_filter(b"")
        except OSError:
            pass  # an empty filter is refused
        start = time.perf_counter()
        linux.install_filter(policy.compiled(MACHINE))
        os.write(1, str((time.perf_counter() - start) * 1e6).encode())

    return float(in_child(action))


def main() -> None:
    """Print both tables."""
    policy.compiled(MACHINE)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "loop")
        build = ["gcc", "-O2", "-x", "c", "-", "-o", program]
        subprocess.run(build, input=LOOP, text=True, check=True, stderr=subprocess.DEVNULL)
        print(f"{'nanoseconds a call':20}{'no filter':>12}{'policy':>12}{'and record':>12}")
        for name, arguments in CALLS.items():
            words = [str(word) for word in (numbers.NUMBERS[MACHINE][name], *arguments)]
            best = [1e9] * 3
            for _ in range(3):
                best = [min(best[n], call_below(str(program), words, n)) for n in range(3)]
            print(f"{name:20}" + "".join(f"{each:12.0f}" for each in best))
    times = sorted(install() for _ in range(100))
    print(f"installation: fastest {times[0]:.0f}, median {times[50]:.0f} microseconds")
    print(f"{len(policy.compiled(MACHINE)) // 8} instructions")


if __name__ == "__main__":
    main()
