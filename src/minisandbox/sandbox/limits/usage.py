"""Memory and processes of a sandbox, measured from outside.

What is measured of memory: the anonymous pages of its processes, each shared page divided by those
who share it (Pss), and the files in its memory file systems. What is not: memory files and System V
segments that no process has mapped, buffers of sockets and pipes, page tables. Program text and the
page cache are not counted: the kernel takes them back when it needs to.
"""

from __future__ import annotations

import os

from minisandbox.sandbox import processes

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Missing where the kernel was built without CONFIG_PROC_CHILDREN.
_LISTED = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


class Sample:
    """Host ids of processes and threads below a PID 1, itself left out; and of the processes that
    were not to be counted.
    """

    def __init__(self) -> None:
        self.processes: list[int] = []
        self.threads: list[int] = []
        self.left_out: set[int] = set()


def children(process: int, thread: int) -> list[int]:
    """The children that ``thread`` of ``process`` forked; none where it is gone.

    Where the kernel does not list them, all descendants of ``process``, found among all processes.
    """
    if not _LISTED:
        return processes.descendants(process)
    try:
        with open(f"/proc/{process}/task/{thread}/children", "rb", buffering=0) as file:
            return [int(number) for number in file.readall().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def below(init: int, leave_out: set[int] | None = None) -> Sample:
    """All that runs below ``init``, but for the processes to ``leave_out``: every process of a pid
    namespace is a descendant of its PID 1.

    A process that ends meanwhile may take its siblings out of one sample (proc(5)); the next one
    has them.
    """
    sample = Sample()
    found = children(init, init)
    for process in found:  # grows as it is walked, where the kernel lists children
        try:
            threads = [int(name) for name in os.listdir(f"/proc/{process}/task")]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if leave_out and process in leave_out:
            sample.left_out.add(process)
        else:
            sample.processes.append(process)
            sample.threads.extend(threads)
        for thread in threads if _LISTED else ():
            found.extend(children(process, thread))
    return sample


def files_in_memory(init: int, *, upper: bool) -> int:
    """Bytes in the memory file systems of the sandbox of ``init``; with ``upper`` its upper
    directory is one.
    """
    total = 0
    for name in ("dev/shm", "") if upper else ("dev/shm",):
        try:
            # No way out of the sandbox: these are mounts, which nothing inside can move. An overlay
            # answers for the file system of its upper directory.
            found = os.statvfs(f"/proc/{init}/root/{name}")
        except OSError:  # it has ended
            return 0
        total += (found.f_blocks - found.f_bfree) * found.f_frsize
    return total


def resident(sample: Sample) -> int:
    """An upper bound on the memory of the processes that is quick to get: what several map is
    counted for each.
    """
    total = 0
    for process in sample.processes:
        try:
            with open(f"/proc/{process}/statm", "rb", buffering=0) as file:
                fields = file.readall().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += int(fields[1]) * _PAGE
    return total


def proportional(sample: Sample) -> tuple[int, int]:
    """Anonymous and shared memory of the processes, each page divided by those who map it.

    Walks their page tables: milliseconds a gigabyte.
    """
    anonymous = shared = 0
    for process in sample.processes:
        try:
            with open(f"/proc/{process}/smaps_rollup", "rb", buffering=0) as file:
                lines = file.readall().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended; a zombie has no memory, and says ESRCH
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"Pss_Anon":
                anonymous += int(value.split()[0]) << 10
            elif name == b"Pss_Shmem":
                shared += int(value.split()[0]) << 10
    return anonymous, shared


def exceeds(init: int, sample: Sample, limit: int, *, upper: bool) -> bool:
    """Whether the sandbox uses more than ``limit`` bytes of memory; ``upper`` as above."""
    files = files_in_memory(init, upper=upper)
    if resident(sample) + files <= limit:
        return False
    anonymous, shared = proportional(sample)
    # A mapped file of a memory file system is in both of these.
    return anonymous + max(shared, files) > limit
