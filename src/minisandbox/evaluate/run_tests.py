"""One test run in a fresh sandbox: patch, trusted test files, rebuild, tests, log captured outside.

The order is that of the official harness: the patch under test first, then the test files, so that
what a patch did to the tests is undone before they run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minisandbox import atomic
from minisandbox.errors import InvalidInput, MiniSandboxError, PatchFailed, RebuildFailed
from minisandbox.evaluate.patches import patched_paths
from minisandbox.runtime import Instance

#: What a runner may leave behind for a log; more is cut in the middle of nothing a parser needs.
MAX_LOG_BYTES = 64 * 2**20

#: Bytes of free space below which a file system is taken for full: what was to be written did not
#: fit, or only just.
MIN_FREE_BYTES = 2**20

_FREE = re.compile(r"^(\d{1,20}) (\d{1,20}) (\d{1,20}) (\d{1,20})$", re.MULTILINE)


class PreparationFailed(MiniSandboxError):
    """An instance cannot be made ready for its evaluation; says nothing of the patch under test."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{name} cannot be made ready for its evaluation: {reason}")


@dataclass(frozen=True)
class TestSpec:
    """How the tests of an instance run. ``timeout`` is in seconds and bounds the test command
    alone.
    """

    test_command: str
    parser: str
    test_patch: str
    trusted_files: tuple[str, ...] = ()
    rebuild_command: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout: float = 1800.0


@dataclass(frozen=True)
class TestOutput:
    """What came out of a run; ``log`` is the runner's output, decoded with replacement.

    ``nonce`` is what the shell's traces in the log bear after their ``+``, and what no program that
    it started was told; empty where nothing was traced. ``full`` is the folder inside whose file
    system had no room left when the run had ended, or empty. ``limit`` is the limit of the sandbox
    for which something was ended meanwhile, or empty.
    """

    log: str
    exit_code: int
    timed_out: bool
    truncated: bool
    seconds: float
    nonce: str = ""
    full: str = ""
    limit: str = ""


def run_tests(instance: Instance, spec: TestSpec, *, patch: str, log_path: Path) -> TestOutput:
    """Run the tests of ``instance`` with ``patch`` applied; the instance must be fresh.

    Raises ``PatchFailed`` if the patch or the test patch does not apply, ``PreparationFailed`` if
    there was no room to apply the patch, and ``RebuildFailed``. The log is written to ``log_path``
    byte for byte.
    """
    if patch.strip():
        try:
            instance.apply_patch(patch, name="patch")
        except PatchFailed:
            refuse_full(instance)
            raise
    put_tests_back(instance, spec.test_patch, spec.trusted_files)
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


def put_tests_back(instance: Instance, test_patch: str, trusted_files: Sequence[str]) -> None:
    """Have the trusted test files in their places, whatever is there; raises ``PatchFailed``."""
    try:
        instance.restore((*trusted_files, *patched_paths(test_patch)))
    except InvalidInput as error:
        raise PatchFailed("test patch", error.problem) from None
    if test_patch.strip():
        instance.apply_patch(test_patch, name="test patch")


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
        full="" if result.timed_out else full_folder(instance),
        limit=result.limit,
    )


def refuse_full(instance: Instance) -> None:
    """Raise ``PreparationFailed`` if the patch cannot be blamed, because there is no room left."""
    if folder := full_folder(instance):
        raise PreparationFailed(
            instance.sandbox.name, f"the file system of {folder} in it is full; free some space"
        )


def full_folder(instance: Instance) -> str:
    """The first of ``/`` and ``/tmp`` inside with less than ``MIN_FREE_BYTES`` or no inode free;
    empty if both have room.

    Raises ``SandboxDied``. A base without ``stat`` says nothing.
    """
    # Some file systems (btrfs) do not count inodes: they have none at all, and none free.
    words = ["stat", "-f", "-c", "%a %S %c %d", "/", "/tmp"]
    said = instance.run(words, cwd="/", user=0, timeout=60)
    # The tests may have put another `stat` there: what is no account of a file system is nothing.
    for folder, found in zip(("/", "/tmp"), _FREE.finditer(said.stdout_text), strict=False):
        blocks, size, inodes, free = map(int, found.groups())
        if blocks * size < MIN_FREE_BYTES or (inodes > 0 and free == 0):
            return folder
    return ""
