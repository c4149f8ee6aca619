"""Unpacks and compiles ahead of use what instances stand on, in several processes."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from minisandbox.errors import InstanceUnavailable, MiniSandboxError
from minisandbox.records.layer import LayerRef
from minisandbox.runtime.cache import Cache
from minisandbox.runtime.stack import stack, unpacked


@dataclass(frozen=True)
class Prefetched:
    """One instance whose layers are on this node now, and the bytes of those that were unpacked
    for it or beside it, each told once; ``problem`` is why they are not, or empty.
    """

    instance_id: str
    size: int
    problem: str


@dataclass(frozen=True)
class _Done:
    """What a process did: ``made`` are sizes of layers by digest."""

    instance_id: str
    made: Mapping[str, int]
    problem: str


class PrefetchBroken(MiniSandboxError):
    """Somebody, or the kernel for want of memory, ended a process that unpacked."""

    def __init__(self) -> None:
        super().__init__(
            "one of the processes that unpack was killed, as the kernel does where memory runs "
            "out; begin again, with fewer jobs: what is unpacked is not unpacked twice"
        )


def prefetch(cache: Cache, instance_ids: Iterable[str], *, jobs: int) -> Iterator[Prefetched]:
    """Have the layers of instances unpacked and compiled, by ``jobs`` processes; yields each as it
    is done.

    What fails is said and holds no other up. It can be ended at any moment and be called again:
    what is there is not made twice. Raises ``PrefetchBroken``.
    """
    counted: set[str] = set()
    for done in _all(cache, spread(cache, instance_ids), jobs):
        # Two that wait for one layer both found it lacking, and one of them unpacked it.
        new = done.made.keys() - counted
        counted |= new
        yield Prefetched(done.instance_id, sum(done.made[digest] for digest in new), done.problem)


def _all(cache: Cache, ordered: Sequence[str], jobs: int) -> Iterator[_Done]:
    jobs = max(1, min(jobs, len(ordered)))
    if jobs == 1:
        yield from (_prefetch(cache, instance_id) for instance_id in ordered)
        return
    # Not forks of this process, which may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _open, (cache,)) as pool:
        remaining = iter(ordered)
        running: set[Future[_Done]] = set()
        try:
            while True:
                while len(running) < 2 * jobs and (name := next(remaining, None)) is not None:
                    running.add(pool.submit(_prefetch_here, name))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BrokenProcessPool:
            raise PrefetchBroken from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def spread(cache: Cache, instance_ids: Iterable[str]) -> Sequence[str]:
    """Instances in an order in which neighbours share little, so that processes do not wait for
    each other's layers: the first of each environment, the second of each, ...

    Raises ``InstanceUnknown``.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for instance_id in dict.fromkeys(instance_ids):
        row = cache.row(instance_id)
        shared = [layer.digest for layer in row.layers if layer.kind == "environment"]
        groups["".join(shared)].append(instance_id)
    places = [(place, name) for group in groups.values() for place, name in enumerate(group)]
    return [name for _, name in sorted(places, key=lambda pair: pair[0])]


_cache: Cache | None = None


def _open(cache: Cache) -> None:
    global _cache
    _cache = cache


def _prefetch_here(instance_id: str) -> _Done:
    assert _cache is not None
    return _prefetch(_cache, instance_id)


def _prefetch(cache: Cache, instance_id: str) -> _Done:
    lacking: list[LayerRef] = []
    problem = ""
    try:
        row = cache.row(instance_id)
        if not row.layers:
            raise InstanceUnavailable(instance_id, row.reason)
        lacking = [layer for layer in row.layers if not unpacked(layer, cache.node)]
        with stack(row.layers, store=cache.store, node=cache.node):
            pass
    except (MiniSandboxError, OSError) as error:
        problem = str(error)
    made = {layer.digest: layer.unpacked_size for layer in lacking if unpacked(layer, cache.node)}
    return _Done(instance_id, made, problem)
