"""One test run in a fresh sandbox: patch, trusted test files, rebuild, tests, log captured outside.

The order is that of the official harness: the patch under test first, then the test files, so that
what a patch did to the tests is undone before they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minisandbox import atomic
from minisandbox.errors import InvalidInput, PatchFailed, RebuildFailed
from minisandbox.evaluate.patches import patched_paths
from minisandbox.runtime import Instance

#: What a runner may leave behind for a log; more is cut in the middle of nothing a parser needs.
MAX_LOG_BYTES = 64 * 2**20


@dataclass(frozen=True)
class TestSpec:
    """How the tests of an instance run. ``timeout`` is in seconds and bounds the test command
    alone.
    """

    test_command: str
    parser: str
    test_patch: str
    rebuild_command: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout: float = 1800.0


@dataclass(frozen=True)
class TestOutput:
    """What came out of a run; ``log`` is the runner's output, decoded with replacement.

    ``nonce`` is what the shell's traces in the log bear after their ``+``, and what no program that
    it started was told; empty where nothing was traced.
    """

    log: str
    exit_code: int
    timed_out: bool
    truncated: bool
    seconds: float
    nonce: str = ""


def run_tests(instance: Instance, spec: TestSpec, *, patch: str, log_path: Path) -> TestOutput:
    """Run the tests of ``instance`` with ``patch`` applied; the instance must be fresh.

    Raises ``PatchFailed`` if the patch or the test patch does not apply, and ``RebuildFailed``. The
    log is written to ``log_path`` byte for byte.
    """
    if patch.strip():
        instance.apply_patch(patch, name="patch")
    if spec.test_patch.strip():
        try:
            instance.restore(patched_paths(spec.test_patch))
        except InvalidInput as error:
            raise PatchFailed("test patch", error.problem) from None
        instance.apply_patch(spec.test_patch, name="test patch")
    if spec.rebuild_command:
        rebuilt = instance.run(
            spec.rebuild_command,
            env=spec.env,
            timeout=spec.timeout,
            merge_stderr=True,
            max_output=MAX_LOG_BYTES,
        )
        if rebuilt.exit_code != 0:
            atomic.write_bytes(log_path, rebuilt.stdout)
            raise RebuildFailed(spec.rebuild_command, rebuilt.exit_code, log_path)
    return capture(
        instance, spec.test_command, env=spec.env, timeout=spec.timeout, log_path=log_path
    )


def capture(
    instance: Instance,
    command: str | Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    log_path: Path,
    user: int | None = None,
    nonce: str = "",
) -> TestOutput:
    """Run a command, and keep what it prints at ``log_path``, byte for byte.

    ``timeout`` is in seconds.
    """
    result = instance.run(
        command,
        env=env,
        user=user,
        timeout=timeout,
        merge_stderr=True,
        max_output=MAX_LOG_BYTES,
    )
    atomic.write_bytes(log_path, result.stdout)
    return TestOutput(
        log=result.stdout.decode("utf-8", "replace"),
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        truncated=result.truncated,
        seconds=result.duration,
        nonce=nonce,
    )
