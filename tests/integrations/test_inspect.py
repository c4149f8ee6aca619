"""Inspect AI's own conformance suite for sandbox providers, and what it leaves open."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from minisandbox.idmap import IdMap, current, single
from minisandbox.integrations.inspect_ai import MiniSandboxEnvironment
from minisandbox.store import unpacked

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
