"""Instances for asyncio: what ``Instance`` has, by the same names; methods are coroutines.

async with await materialize(cache, "sqlparse-0.4.4") as instance:
    print((await instance.run("python -m pytest -q", timeout=60)).text)
"""

from __future__ import annotations

from minisandbox.runtime.cache import Cache
from minisandbox.runtime.forwarding import of_sandbox
from minisandbox.runtime.instance import Instance
from minisandbox.sandbox.aio import AsyncSandbox, Closing, awaited, identity, opened, opening


async def _instance(instance: Instance) -> AsyncInstance:
    return AsyncInstance(instance)


class AsyncInstance(Closing):
    """``Instance`` for asyncio, made by :func:`materialize`, or around one that is there already,
    which is its ``blocking``. Any number of tasks may use it at once.
    """

    def __init__(self, instance: Instance) -> None:
        self.blocking = instance
        self.sandbox = AsyncSandbox(instance.sandbox)

    run = of_sandbox(AsyncSandbox.run)
    popen = of_sandbox(AsyncSandbox.popen)
    session = of_sandbox(AsyncSandbox.session)
    read_file = of_sandbox(AsyncSandbox.read_file)
    write_file = of_sandbox(AsyncSandbox.write_file)
    upload = of_sandbox(AsyncSandbox.upload)
    download = of_sandbox(AsyncSandbox.download)
    diff = awaited(Instance.diff)
    apply_patch = awaited(Instance.apply_patch)
    restore = awaited(Instance.restore)
    reset = awaited(Instance.reset)
    snapshot = opened(Instance.snapshot, identity)
    start_from = opened(Instance.start_from, _instance)
    fork = opened(Instance.fork, _instance)
    checkpoint = awaited(Instance.checkpoint)
    open_shell = awaited(Instance.open_shell)
    close = awaited(Instance.close)


#: ``Cache.materialize`` for asyncio: its first argument is the cache.
materialize = opening(Cache.materialize, _instance)
