"""The same on an event loop: names, results, cancellation, many at once."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from minisandbox.errors import SandboxDied, SandboxFileError, SessionDied
from minisandbox.runtime.aio import AsyncInstance
from minisandbox.runtime.instance import Instance
from minisandbox.sandbox import Process, Sandbox, Session
from minisandbox.sandbox.aio import AsyncProcess, AsyncSandbox, AsyncSession

PAIRS = [
    (Sandbox, AsyncSandbox),
    (Process, AsyncProcess),
    (Session, AsyncSession),
    (Instance, AsyncInstance),
]
#: What only the package itself calls.
INTERNAL = {"forget", "note", "open"}


def public(kind: type) -> dict[str, Any]:
    return {
        name: getattr(kind, name)
        for name in dir(kind)
        if not name.startswith("_") and name not in INTERNAL
    }


@pytest.mark.parametrize(("blocking", "awaiting"), PAIRS)
def test_names_and_arguments_are_the_same(blocking: type, awaiting: type) -> None:
    ours, theirs = public(blocking), public(awaiting)
    # The blocking classes have these as attributes of their instances.
    assert set(theirs) - {"take_over", "name", "pid"} == set(ours) - {"pid"}
    for name, method in ours.items():
        if inspect.isfunction(method):
            counterpart = theirs[name]
            assert inspect.signature(counterpart).parameters == (
                inspect.signature(method).parameters
            ), name
            assert inspect.iscoroutinefunction(counterpart) or inspect.iscoroutinefunction(
                counterpart.__wrapped__
            ), name


@pytest.fixture
def in_loop(box: Sandbox) -> Callable[[Callable[[AsyncSandbox], Coroutine[Any, Any, None]]], None]:
    """Run a test on a loop, which leaves neither descriptors nor processes behind."""

    def run(test: Callable[[AsyncSandbox], Coroutine[Any, Any, None]]) -> None:
        async def bounded() -> None:
            before = len(os.listdir("/proc/self/fd"))
            await asyncio.wait_for(test(AsyncSandbox(box)), 50)
            await asyncio.sleep(0)
            assert len(os.listdir("/proc/self/fd")) <= before

        asyncio.run(bounded())
        assert b"sleep" not in box.run("ps -eo args").stdout.replace(b"ps -eo args", b"")

    return run


def test_commands(in_loop, tmp_path: Path) -> None:
    async def test(box: AsyncSandbox) -> None:
        result = await box.run("cat; echo err >&2; exit 3", stdin=b"in")
        assert (result.stdout, result.stderr, result.exit_code) == (b"in", b"err\n", 3)
        assert (await box.run("echo begun; sleep 1000", timeout=0.3)).stdout == b"begun\n"
        whole = await box.run("seq 100000", max_output=100, stdout_file=tmp_path / "out")
        assert whole.truncated
        assert (tmp_path / "out").read_bytes().endswith(b"\n100000\n")
        with pytest.raises(SandboxFileError, match="nosuchuser"):
            await box.run("true", user="nosuchuser")

    in_loop(test)


def test_many_at_once_need_no_threads(in_loop) -> None:
    async def test(box: AsyncSandbox) -> None:
        before = threading.active_count()
        tasks = [asyncio.create_task(box.run(f"sleep 0.5; echo {n}")) for n in range(200)]
        await asyncio.sleep(0.3)
        assert threading.active_count() == before
        results = await asyncio.gather(*tasks)
        assert [int(result.stdout) for result in results] == list(range(200))

    in_loop(test)


def test_a_sandbox_that_is_being_copied_does_not_stop_the_loop(in_loop) -> None:
    async def test(box: AsyncSandbox) -> None:
        lock = box.blocking._lock  # held while a snapshot is copied
        lock.acquire()
        task = asyncio.create_task(box.run("echo x"))
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert not task.done()
        lock.release()
        assert (await task).stdout == b"x\n"

    in_loop(test)


def test_files(in_loop, tmp_path: Path) -> None:
    async def test(box: AsyncSandbox) -> None:
        data = os.urandom(3_000_000)
        await asyncio.gather(*(box.write_file(f"/tmp/f{n}", data) for n in range(50)))
        assert set(await asyncio.gather(*(box.read_file(f"/tmp/f{n}") for n in range(50)))) == {
            data
        }
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree/file").write_bytes(data)
        await box.upload(tmp_path / "tree", "/tmp/tree")
        await box.download("/tmp/tree", tmp_path / "back")
        assert (tmp_path / "back/file").read_bytes() == data

    in_loop(test)


STUBBORN = "trap '' TERM INT; setsid sleep 998 & sleep 999; sleep 1000"


def test_a_cancelled_command_is_over_when_its_task_is(in_loop) -> None:
    async def test(box: AsyncSandbox) -> None:
        for delay in (0, 0.001, 0.01, 0.3):
            task = asyncio.create_task(box.run(STUBBORN))
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if delay == 0.3:
                assert b"sleep" not in (await box.run(["ps", "-eo", "comm"])).stdout
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await box.run(STUBBORN)
        assert b"sleep" not in (await box.run(["ps", "-eo", "comm"])).stdout

    in_loop(test)


def test_cancelled_transfers_are_over_too(in_loop, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(200_000_000))

    async def test(box: AsyncSandbox) -> None:
        task = asyncio.create_task(box.upload(tmp_path / "big", "/tmp/big"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        size = (await box.run("du -s /tmp")).stdout
        await asyncio.sleep(0.2)
        assert (await box.run("du -s /tmp")).stdout == size

    in_loop(test)


def test_a_cancelled_download_leaves_nothing(in_loop, tmp_path: Path) -> None:
    async def test(box: AsyncSandbox) -> None:
        await box.run("mkdir /tmp/t; echo x > /tmp/t/a; truncate -s 10G /tmp/t/sparse")
        task = asyncio.create_task(box.download("/tmp/t", tmp_path / "t"))
        while not list(tmp_path.glob(".minisandbox-*/content/.minisandbox-*")):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not [*tmp_path.iterdir()]
        await box.run("rm -r /tmp/t")

    in_loop(test)


def test_services(in_loop) -> None:
    async def test(box: AsyncSandbox) -> None:
        async with await box.popen(["cat"], stdin="pipe") as process:
            assert process.stdin is not None
            for line in (b"one\n", b"two\n"):
                process.stdin.write(line)
                await process.stdin.drain()
                assert await process.stdout.readline() == line
            assert await process.wait(0) is None
            waits = [asyncio.create_task(process.wait()) for _ in range(3)]
            process.stdin.close()
            assert await asyncio.gather(*waits) == [0, 0, 0]
            assert await process.stdout.read() == b""
        async with await box.popen("sleep 1000") as process:
            await process.terminate()
            assert await process.wait() == 143
        process = await box.popen("sleep 1000")
        await process.kill()
        assert await process.poll() == 137
        await process.close()

    in_loop(test)


def test_sessions(in_loop) -> None:
    async def test(box: AsyncSandbox) -> None:
        async with await box.session() as session:
            await session.run("x=kept; cd /usr")
            task = asyncio.create_task(session.run("sleep 1000; echo not"))
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await session.run("echo $x $PWD")).stdout == b"kept /usr\n"
            task = asyncio.create_task(session.run("sleep 1000; echo not"))
            await asyncio.sleep(0.2)
            await session.interrupt()
            assert (await task).exit_code == 130
            assert (await session.run("exit 4")).shell_ended
            with pytest.raises(SessionDied):
                await session.run("true")
            await session.reopen()
            assert (await session.run("echo again")).stdout == b"again\n"

    in_loop(test)


def test_starting_forking_and_dying(scratch: Path, idmap) -> None:
    async def test() -> None:
        async with await AsyncSandbox.start([], scratch=scratch, idmap=idmap) as box:
            await box.run("echo x > /root/file")
            async with await box.fork() as other:
                assert await other.read_file("/root/file") == b"x\n"
            service = await box.popen("sleep 1000")
            await box.reset()
            assert await service.wait() == 137
            await service.close()
            assert not (await box.run("cat /root/file")).ok
            running = asyncio.create_task(box.run("sleep 1000"))
            await asyncio.sleep(0.2)
            os.kill(box.pid, 9)
            with pytest.raises(SandboxDied):
                await running
        with pytest.raises(SandboxDied, match="closed"):
            await box.run("true")

    asyncio.run(asyncio.wait_for(test(), 50))


def test_a_cancelled_start_leaves_nothing(scratch: Path, idmap) -> None:
    async def test() -> None:
        (await AsyncSandbox.start([], scratch=scratch, idmap=idmap)).blocking.close()
        before = len(os.listdir("/proc/self/fd"))
        for delay in (0, 0.001, 0.005, 0.02):
            task = asyncio.create_task(AsyncSandbox.start([], scratch=scratch, idmap=idmap))
            await asyncio.sleep(delay)
            task.cancel()
            try:
                await (await task).close()  # it was quicker
            except asyncio.CancelledError:
                pass
        assert len(os.listdir("/proc/self/fd")) <= before

    asyncio.run(asyncio.wait_for(test(), 50))
