"""Many sandboxes at once: how long they take to come up, and what memory each of them holds."""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from contenders.ours import answer
from minisandbox.runtime import Instance
from subjects import Subject


@dataclass(frozen=True)
class Crowd:
    """What a number of sandboxes cost."""

    up_s: float
    #: Until all were closed again.
    close_s: float
    #: The sandboxes' processes and the server's, over the number of sandboxes; KiB.
    pss_kib: float
    private_kib: float
    processes: int


def crowd(subject: Subject, count: int, threads: int) -> Crowd:
    """Start ``count`` sandboxes from ``threads`` threads, each answering one command; look at them
    while they idle; close them.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def start(_: int) -> Instance:
        instance = subject.cache.materialize(subject.instance_id)
        answer(instance)
        return instance

    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        instances = list(pool.map(start, range(count)))
        up = time.perf_counter() - started
        time.sleep(1)  # monitors of the last commands end
        processes = _processes({instance.sandbox.pid for instance in instances})
        shares = [_memory(pid) for pid in processes]
        started = time.perf_counter()
        list(pool.map(Instance.close, instances))
        close = time.perf_counter() - started
    pss, private = (sum(parts) / count for parts in zip(*shares, strict=True))
    return Crowd(up, close, pss, private, len(processes))


def _processes(first: set[int]) -> set[int]:
    """The sandboxes' first processes, what is below them, and what started them, which is all that
    lies between them and this program or the host's first process.
    """
    parents: dict[int, int] = {}
    children: dict[int, set[int]] = defaultdict(set)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended
            parent = int(stat.rpartition(")")[2].split()[1])
            parents[int(entry)] = parent
            children[parent].add(int(entry))
    found = set(first)
    for pid in first:
        while parents[pid] not in (os.getpid(), 1):
            pid = parents[pid]
            found.add(pid)
    waiting = list(found)
    while waiting:
        more = children[waiting.pop()] - found
        found |= more
        waiting.extend(more)
    return found


def _memory(pid: int) -> tuple[int, int]:
    """Proportional and private memory of a process in KiB (proc_pid_smaps_rollup, proc(5))."""
    pss = private = 0
    for line in Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        if name == "Pss:":
            pss = int(value)
        elif name in ("Private_Clean:", "Private_Dirty:", "Private_Hugetlb:"):
            private += int(value)
    return pss, private
