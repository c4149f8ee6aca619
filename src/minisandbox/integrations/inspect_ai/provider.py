"""Inspect AI's sandbox provider ``minisandbox``: one sandbox a sample, ``default``.

Inspect finds this module by the entry point group ``inspect_ai``. The contract is that of
``inspect_ai.util.SandboxEnvironment``; what it leaves open is decided here:

- A bare sandbox works as the account ``agent`` (uid 1000) in ``/home/agent``, an instance of a
  cache as root in ``/testbed``, because its files are root's, as in the field's images. Where the
  host gives the caller a single id, there is nobody but root; the files of a bare sandbox are then
  read and written with root's permissions, but without the capabilities that pass over them.
- A timeout is one of the command, whose tree has been ended: it is never tried again, whatever
  ``timeout_retry`` says, since the first try may have had effects.
- Output beyond the limit raises, with both of its ends; it is never cut in silence.
- A call that is cancelled has ended what it began, with all that that started.
- Sandboxes end with this process, however it ends; ``inspect sandbox cleanup`` has nothing to do.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from inspect_ai.util import concurrency as at_most
from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from minisandbox.errors import InvalidInput, SandboxDied, SandboxFileError
from minisandbox.runtime import Cache, Instance, open_cache
from minisandbox.runtime.cache import MANIFEST_NAME
from minisandbox.sandbox import Result, Sandbox
from minisandbox.sandbox.aio import AsyncSandbox, in_thread
from minisandbox.store import NodeStore, default_node_root

#: Who works in a bare sandbox: an account of its own, with an id that is nobody's in the base.
AGENT = "agent"
_HOME = f"/home/{AGENT}"
_ADD_AGENT = f"""\
set -e
echo '{AGENT}:x:1000:1000::{_HOME}:/bin/bash' >> /etc/passwd
echo '{AGENT}:x:1000:' >> /etc/group
echo '{AGENT}:*:19000:0:99999:7:::' >> /etc/shadow
mkdir -m 755 {_HOME}
chown 1000:1000 {_HOME}
"""

#: Keys of a sample's metadata that may name its instance: what datasets of the field call it, and
#: what Inspect adds.
_INSTANCE_KEYS = ("instance_id", "__sample_id__")
_CANNOT_EXECUTE = 126
#: What a path can be wrong about, where the contract knows only that there is no such file.
_NO_SUCH_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


class CommandTimedOut(TimeoutError):
    """A command was ended by its timeout; ``truncated_output`` is what it printed until then."""

    def __init__(self, seconds: float, output: str) -> None:
        self.truncated_output = output
        super().__init__(f"Command timed out after {seconds} seconds")


class MiniSandboxConfig(BaseModel):
    """What is in the sandbox: ``SandboxEnvironmentSpec("minisandbox", MiniSandboxConfig(...))``.

    Without a ``cache`` it is bare: the host's /usr and an empty home. With one, ``instance`` names
    the instance; where that is empty it is the sample's ``metadata["instance_id"]``, or its id.
    ``user`` is who works in it unless a call says otherwise. A string in place of a config is its
    ``cache``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    cache: str = ""
    instance: str = ""
    user: str = ""


@sandboxenv(name="minisandbox")  # pyright: ignore[reportUntypedClassDecorator] - Inspect's own
class MiniSandboxEnvironment(SandboxEnvironment):
    """A running sandbox of one sample.

    ``user`` runs commands that name nobody; ``file_user`` is whose permissions decide over files,
    None for those of root, who may everything. ``instance`` is what was materialized, if anything
    was.
    """

    def __init__(
        self,
        box: Sandbox,
        *,
        user: str,
        file_user: str | None,
        instance: Instance | None = None,
    ) -> None:
        super().__init__()
        self.box = box
        self._box = AsyncSandbox(box)
        self.user = user
        self.file_user = file_user
        self.instance = instance

    @override
    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Refuse at once what no sample could use: a cache that is none, an unknown instance."""
        settings = _settings(config)
        if settings.cache:
            cache = await in_thread(lambda: cache_in(settings.cache))
            if settings.instance:
                cache.row(settings.instance)

    @override
    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        """Start the sandbox; raises what ``Cache.materialize`` and ``Sandbox.start`` do."""
        settings = _settings(config)
        started = await in_thread(lambda: _start(settings, metadata), undo=_stop)
        return {"default": started}

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End the sandbox at once, after an interruption too: it takes milliseconds."""
        with anyio.CancelScope(shield=True):
            for environment in environments.values():
                await in_thread(partial(_stop, environment))

    @override
    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return MiniSandboxConfig.model_validate(config)

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        run_as = user or self.user
        run = partial(
            self._box.run,
            cmd,
            stdin=input.encode() if isinstance(input, str) else input,
            cwd=cwd,
            env=env,
            user=run_as,
            timeout=timeout,
            max_output=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
        )
        try:
            if concurrency:
                async with at_most("minisandbox", len(os.sched_getaffinity(0))):
                    result = await run()
            else:
                result = await run()
        except SandboxDied as error:
            raise SandboxUnavailableError(str(error)) from error
        except SandboxFileError as error:
            return _without_user(error, run_as)
        _raise_for(result, cmd, timeout)
        told = f"minisandbox: the sandbox reached its limit of {result.limit}\n"
        errors = result.stderr_text + (told if result.limit else "")
        return ExecResult(result.ok, result.exit_code, result.stdout_text, errors)

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        try:
            await self._box.write_file(file, contents, user=self.file_user)
        except SandboxDied as error:
            raise SandboxUnavailableError(str(error)) from error
        except SandboxFileError as error:
            # Python makes the subclass that the contract names of the number.
            raise OSError(error.errno, error.reason, file) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self._box.read_file(file, max_bytes=limit, user=self.file_user)
        except SandboxDied as error:
            raise SandboxUnavailableError(str(error)) from error
        except SandboxFileError as error:
            if error.errno == errno.EFBIG:
                raise OutputLimitExceededError(
                    SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, truncated_output=None
                ) from error
            number = errno.ENOENT if error.errno in _NO_SUCH_FILE else error.errno
            raise OSError(number, error.reason, file) from error
        return data.decode("utf-8") if text else data

    @override
    def default_polling_interval(self) -> float:
        return 0.2  # a command takes milliseconds here


def _settings(config: SandboxEnvironmentConfigType | None) -> MiniSandboxConfig:
    if config is None:
        return MiniSandboxConfig()
    if isinstance(config, str):
        return MiniSandboxConfig(cache=config)
    if isinstance(config, MiniSandboxConfig):
        return config
    raise InvalidInput(
        "sandbox of the task",
        f"has a configuration of the type {type(config).__name__}",
        "give the folder of a cache, or a MiniSandboxConfig",
    )


def _start(settings: MiniSandboxConfig, metadata: Mapping[str, Any]) -> MiniSandboxEnvironment:
    if settings.cache:
        instance = cache_in(settings.cache).materialize(_instance_id(settings, metadata))
        user = settings.user or "root"
        return MiniSandboxEnvironment(
            instance.sandbox,
            user=user,
            file_user=None if user == "root" else user,
            instance=instance,
        )
    node = NodeStore(default_node_root())
    only_root = node.idmap.count == 1
    user = settings.user or ("root" if only_root else AGENT)
    cwd = _HOME if user == AGENT else "/root" if user == "root" else "/tmp"
    box = Sandbox.start([], scratch=node.scratch, idmap=node.idmap, cwd=cwd, name="inspect")
    try:
        if user == AGENT:
            added = box.run(_ADD_AGENT, cwd="/")
            if not added.ok:
                raise SandboxFileError("add an account to", "/etc/passwd", errno.EIO, added.text)
    except BaseException:
        box.close()
        raise
    free = user == "root" and not only_root
    return MiniSandboxEnvironment(box, user=user, file_user=None if free else user)


def cache_in(folder: str) -> Cache:
    """The cache in ``folder``: read once, and again when it was rebuilt."""
    path = Path(folder).absolute()
    try:
        made = (path / MANIFEST_NAME).stat()
    except OSError:
        return open_cache(path)  # says what is wrong
    return _read(path, made.st_ino, made.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _read(path: Path, _inode: int, _time: int) -> Cache:
    return open_cache(path)


def _stop(environment: SandboxEnvironment) -> None:
    environment.as_type(MiniSandboxEnvironment).box.close()


def _instance_id(settings: MiniSandboxConfig, metadata: Mapping[str, Any]) -> str:
    if settings.instance:
        return settings.instance
    for key in _INSTANCE_KEYS:
        if metadata.get(key):
            return str(metadata[key])
    raise InvalidInput(
        "sandbox of the sample",
        "names no instance",
        "set metadata['instance_id'] or MiniSandboxConfig(instance=...)",
    )


def _without_user(error: SandboxFileError, user: str) -> ExecResult[str]:
    """What a command comes to whose user cannot run it; raises for all other errors."""
    if error.path != user:
        raise error
    if error.errno == errno.ENOENT:
        return ExecResult(False, _CANNOT_EXECUTE, "", f"unable to find user {user}\n")
    raise SandboxUserUnsupportedError(str(error)) from error


def _raise_for(result: Result, cmd: list[str], timeout: int | None) -> None:
    """Raise for what the contract does not have as an ``ExecResult``."""
    if result.timed_out:
        raise CommandTimedOut(timeout or 0, result.text)
    if result.truncated:
        raise OutputLimitExceededError(
            SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, truncated_output=result.text
        )
    denied = f"minisandbox: cannot execute {cmd[0]}: {os.strerror(errno.EACCES)}"
    if result.exit_code == _CANNOT_EXECUTE and result.stderr_text.startswith(denied):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), cmd[0])
