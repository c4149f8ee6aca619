"""Inspect AI's own conformance suite for sandbox providers, and what it leaves open."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest
from inspect_ai.util import (
    ComposeConfig,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.events import SandboxEnvironmentProxy
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from minisandbox.errors import InstanceUnknown, InvalidInput
from minisandbox.idmap import IdMap, current, single
from minisandbox.integrations.inspect_ai import MiniSandboxConfig, MiniSandboxEnvironment
from minisandbox.sandbox import Limits, Profile, Sandbox
from minisandbox.store import NodeStore, default_node_root, unpacked

pytestmark = pytest.mark.anyio

#: Every map this caller can use: an ordinary user with a range of ids has two.
IDMAPS = [current()] if current().kind in ("root", "single") else [current(), single()]

#: The one check that needs a second id: it adds an account, whose home cannot be given to an id
#: that does not exist, and becomes it, which nobody can.
NEEDS_IDS = "test_exec_as_user"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=IDMAPS, ids=lambda idmap: idmap.kind)
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[IdMap]:
    """The id map of all sandboxes, and a node store of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpacked, "current", lambda: request.param)
        patch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path_factory.mktemp("node")))
        yield request.param


@pytest.fixture(scope="module")
def environment(node: IdMap) -> Iterator[MiniSandboxEnvironment]:
    provider = registry_find_sandboxenv("minisandbox")
    assert provider is MiniSandboxEnvironment
    environments = anyio.run(provider.sample_init, "task", None, {})
    yield environments["default"]
    anyio.run(provider.sample_cleanup, "task", None, environments, False)
    assert not environments["default"].box.alive


@pytest.fixture
def sandbox_env(
    request: pytest.FixtureRequest, node: IdMap, environment: MiniSandboxEnvironment
) -> SandboxEnvironment:
    if request.node.originalname == NEEDS_IDS and node.count == 1:
        request.applymarker(pytest.mark.xfail(raises=AssertionError, strict=True))
    return environment


def test_the_suite_is_the_one_that_was_read() -> None:
    assert len(self_check.__all__) == 44
    assert NEEDS_IDS in self_check.__all__


async def test_who_works_where(environment: MiniSandboxEnvironment, node: IdMap) -> None:
    said = await environment.exec(["sh", "-c", "id -un; pwd; echo $HOME; stat -c %U ."])
    if node.count == 1:
        assert said.stdout == "root\n/root\n/root\nroot\n"
        return
    assert said.stdout == "agent\n/home/agent\n/home/agent\nagent\n"
    as_root = await environment.exec(["sh", "-c", "id -un; pwd; echo $HOME"], user="root")
    assert as_root.stdout == "root\n/home/agent\n/root\n"
    await environment.write_file("script", "#!/bin/sh\necho mine\n")
    assert (await environment.exec(["sh", "-c", "chmod +x script; stat -c %U script"])).success
    await environment.write_file("script", "#!/bin/sh\necho still\n")
    assert (await environment.exec(["./script"])).stdout == "still\n"


async def test_only_users_that_can_be_are_tried(
    environment: MiniSandboxEnvironment, node: IdMap
) -> None:
    stranger = await environment.exec(["true"], user="stranger")
    assert (stranger.success, stranger.returncode) == (False, 126)
    assert "stranger" in stranger.stderr
    if node.count == 1:
        with pytest.raises(SandboxUserUnsupportedError, match="nobody"):
            await environment.exec(["true"], user="nobody")
    else:
        assert (await environment.exec(["id", "-un"], user="nobody")).stdout == "nobody\n"


async def test_a_timeout_keeps_the_output_and_is_not_tried_again(
    environment: MiniSandboxEnvironment,
) -> None:
    script = "echo once >> tries; echo partial; sleep 1000"
    with pytest.raises(TimeoutError) as caught:
        await environment.exec(["sh", "-c", script], timeout=1, timeout_retry=True)
    assert vars(caught.value)["truncated_output"] == "partial\n"
    assert await environment.read_file("tries") == "once\n"


@pytest.mark.parametrize("concurrency", [True, False])
async def test_a_call_that_is_cancelled_ends_its_command(
    environment: MiniSandboxEnvironment, concurrency: bool
) -> None:
    script = "trap '' TERM; setsid sleep 1000.25 & touch begun; sleep 1000.25"
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                partial(environment.exec, ["sh", "-c", script], concurrency=concurrency)
            )
            while not (await environment.exec(["rm", "begun"], concurrency=False)).success:
                await anyio.sleep(0.02)
            scope.cancel()
    count = ["sh", "-c", "ps -eo args | grep -c '^sleep 1000[.]25$'"]
    with anyio.fail_after(20):
        while (await environment.exec(count)).stdout != "0\n":
            await anyio.sleep(0.02)


async def test_output_beyond_the_limit_raises_with_both_ends(
    environment: MiniSandboxEnvironment,
) -> None:
    with override_max_exec_output_size(1024):
        assert len((await environment.exec(["sh", "-c", "yes | head -c 1024"])).stdout) == 1024
        with pytest.raises(OutputLimitExceededError, match="limit of 1 KiB") as caught:
            await environment.exec(["sh", "-c", "echo begin; yes | head -c 1024; echo end"])
    kept = caught.value.truncated_output
    assert kept is not None
    assert kept.startswith("begin\n")
    assert kept.endswith("end\n")


async def test_a_command_that_a_limit_ended_says_so(node: IdMap) -> None:
    store = NodeStore(default_node_root())
    profile = Profile(limits=Limits(memory=128 << 20))
    with Sandbox.start([], scratch=store.scratch, idmap=node, profile=profile) as box:
        bounded = MiniSandboxEnvironment(box, user="root", file_user=None)
        bomb = await bounded.exec(["/usr/bin/python3", "-c", "print(len(b'x' * (1 << 29)))"])
        assert not bomb.success
        assert bomb.stderr.endswith("the sandbox reached its limit of memory\n")
        assert (await bounded.exec(["echo", "alive"])).stderr == ""


async def test_files_that_are_not_what_was_asked_for(
    environment: MiniSandboxEnvironment,
) -> None:
    await environment.write_file("latin", b"\xe9")
    with pytest.raises(UnicodeDecodeError):
        await environment.read_file("latin")
    await environment.write_file("lines", "a\r\nb")
    assert await environment.read_file("lines") == "a\r\nb"
    for name in ("latin/x", "x" * 300):
        with pytest.raises(FileNotFoundError):
            await environment.read_file(name)
    with pytest.raises(OSError, match="Invalid argument"):
        await environment.read_file("/dev/null")


async def test_programs_that_are_missing_or_fail_are_results(
    environment: MiniSandboxEnvironment,
) -> None:
    missing = await environment.exec(["no-such-program"])
    assert (missing.success, missing.returncode) == (False, 127)
    assert "no-such-program" in missing.stderr
    nowhere = await environment.exec(["true"], cwd="nowhere")
    assert (nowhere.success, nowhere.returncode) == (False, 126)


async def test_commands_beyond_the_processors_wait_unless_told_otherwise(
    environment: MiniSandboxEnvironment,
) -> None:
    count = 2 * len(os.sched_getaffinity(0)) + 1
    running = 0
    most = 0

    async def run(number: int, **options: bool) -> None:
        nonlocal running, most
        await environment.exec(["sh", "-c", f"echo {number} >> meeting"], **options)
        running += 1
        while running < count and not options.get("concurrency", True):
            await anyio.sleep(0.01)
        most = max(most, running)

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(lambda number=number: run(number, concurrency=False))
    assert most == count
    lines = (await environment.read_file("meeting")).split()
    assert sorted(lines) == sorted(map(str, range(count)))


# Of Inspect's own call of tenacity.
@pytest.mark.filterwarnings("ignore:The 'initial' parameter:DeprecationWarning")
async def test_tools_that_inspect_injects_run(environment: MiniSandboxEnvironment) -> None:
    result = await SandboxEnvironmentProxy(environment).exec_remote(
        ["sh", "-c", "echo out; echo err >&2; exit 3"], stream=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (3, "out\n", "err\n")


async def test_a_sandbox_that_is_gone_is_unavailable(node: IdMap) -> None:
    environments = await MiniSandboxEnvironment.sample_init("task", None, {})
    gone = environments["default"].as_type(MiniSandboxEnvironment)
    os.kill(gone.box.pid, signal.SIGKILL)
    with pytest.raises(SandboxUnavailableError, match="inspect"):
        await gone.exec(["true"])
    with pytest.raises(SandboxUnavailableError):
        await gone.read_file("x")
    with pytest.raises(SandboxUnavailableError):
        await gone.write_file("x", "")
    await MiniSandboxEnvironment.sample_cleanup("task", None, environments, True)


async def test_what_no_sample_can_use_is_refused_when_the_task_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds no manifest\.jsonl"):
        await MiniSandboxEnvironment.task_init("task", str(tmp_path))
    with pytest.raises(InvalidInput, match="has a configuration of the type"):
        await MiniSandboxEnvironment.task_init("task", ComposeConfig(services={}))
    (tmp_path / "manifest.jsonl").write_text("")
    named = MiniSandboxConfig(cache=str(tmp_path), instance="some")
    with pytest.raises(InstanceUnknown, match="'some'"):
        await MiniSandboxEnvironment.task_init("task", named)
    with pytest.raises(InvalidInput, match="names no instance"):
        await MiniSandboxEnvironment.sample_init("task", str(tmp_path), {})
    for metadata in ({"instance_id": "one", "__sample_id__": "two"}, {"__sample_id__": "one"}):
        with pytest.raises(InstanceUnknown, match="'one'"):
            await MiniSandboxEnvironment.sample_init("task", str(tmp_path), metadata)


def test_a_config_survives_the_log() -> None:
    spec = SandboxEnvironmentSpec("minisandbox", MiniSandboxConfig(cache="c", instance="i"))
    assert SandboxEnvironmentSpec.model_validate(spec.model_dump(serialize_as_any=True)) == spec
