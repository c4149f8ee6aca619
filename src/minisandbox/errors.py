"""The error tree of the project.

Each class keeps the facts as attributes and builds its own sentence: what failed, on what, what to
do. The library raises; only ``minisandbox.cli`` prints and exits. Kernel refusals that no one can
add a fact to stay ``OSError``. Imports nothing of the project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Exit codes of the command line (``sysexits.h`` where it has one).
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_TRANSIENT = 75


class MiniSandboxError(Exception):
    """Root of every error this project raises on purpose."""

    exit_code: int = EXIT_FAILED


class InvalidInput(MiniSandboxError):
    """Something a person wrote (config, dataset, recipe, argument) cannot be used.

    ``where`` names file, row and key; ``problem`` is a clause; ``remedy`` tells what to write
    instead.
    """

    exit_code = EXIT_USAGE

    def __init__(self, where: str, problem: str, remedy: str = "") -> None:
        self.where = where
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{where}: {problem}" + (f"; {remedy}" if remedy else ""))


class HostUnsupported(MiniSandboxError):
    """This host refuses a mechanism the sandbox cannot do without."""

    def __init__(self, mechanism: str, reason: str, remedy: str) -> None:
        self.mechanism = mechanism
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{mechanism} cannot be used on this host: {reason}; {remedy}")


class SandboxDied(MiniSandboxError):
    """The sandbox's process tree is gone; nothing more can be run in it. ``limit`` names the limit
    that it was ended for, if it was.
    """

    def __init__(self, name: str, reason: str, *, limit: str = "") -> None:
        self.name = name
        self.reason = reason
        self.limit = limit
        super().__init__(f"sandbox {name} is gone: {reason}; materialize the instance again")


class SessionDied(MiniSandboxError):
    """The shell of a session is gone; its sandbox goes on."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"a session in sandbox {name} is over: {reason}; reopen it")


class SandboxFileError(MiniSandboxError):
    """A file operation inside a sandbox failed; ``errno`` is the kernel's."""

    def __init__(self, operation: str, path: str, errno: int, reason: str) -> None:
        self.operation = operation
        self.path = path
        self.errno = errno
        self.reason = reason
        what = f"{operation} {path}" if path else operation  # not all is done to a file
        super().__init__(f"cannot {what} in the sandbox: {reason}")


class ProcessFailed(MiniSandboxError):
    """A program of the host that the pipeline needs ended with an error."""

    def __init__(self, argv: Sequence[str], returncode: int, output: str) -> None:
        self.argv = list(argv)
        self.returncode = returncode
        self.output = output
        tail = "\n".join(output.strip().splitlines()[-5:])
        super().__init__(f"`{' '.join(self.argv)}` ended with {returncode}: {tail or 'no output'}")


class UnsafeArchive(MiniSandboxError):
    """An archive holds a member that must never be unpacked."""

    def __init__(self, archive: str, member: str, reason: str) -> None:
        self.archive = archive
        self.member = member
        self.reason = reason
        super().__init__(f"{archive}: member {member!r} refused: {reason}")


class ImageRefused(MiniSandboxError):
    """An image that others made is broken, hostile, or nothing that can be run here; ``reason`` is
    a clause.
    """

    def __init__(self, image: str, reason: str) -> None:
        self.image = image
        self.reason = reason
        super().__init__(f"{image} cannot be imported: {reason}")


class UnpackableTree(MiniSandboxError):
    """A tree holds something that a layer cannot carry."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path} cannot be packed into a layer: {reason}")


class LayerMissing(MiniSandboxError):
    """A record names a layer that the store does not hold."""

    def __init__(self, digest: str, store: Path) -> None:
        self.digest = digest
        self.store = store
        super().__init__(f"layer {digest} is not in {store}; build it again with `snakemake`")


class LayerDamaged(MiniSandboxError):
    """A stored layer does not have the content its name promises."""

    def __init__(self, digest: str, path: Path, reason: str) -> None:
        self.digest = digest
        self.path = path
        self.reason = reason
        super().__init__(
            f"{path} is damaged: {reason}; drop the records that name it with "
            "`minisandbox records drop --damaged`, and run `snakemake` again"
        )


class InstanceUnknown(MiniSandboxError):
    """No row of the manifest (or of another ``place``) has this instance id."""

    def __init__(
        self, instance_id: str, nearest: Sequence[str], *, place: str = "the manifest"
    ) -> None:
        self.instance_id = instance_id
        self.nearest = list(nearest)
        hint = f"; did you mean {', '.join(self.nearest)}?" if self.nearest else ""
        super().__init__(f"no instance {instance_id!r} in {place}{hint}")


class InstanceUnavailable(MiniSandboxError):
    """The manifest lists the instance, but its build failed, so there is nothing to materialize."""

    def __init__(self, instance_id: str, reason: str) -> None:
        self.instance_id = instance_id
        self.reason = reason
        super().__init__(f"instance {instance_id} was not built: {reason}")


class PatchFailed(MiniSandboxError):
    """A patch does not apply; the tree is as it was before."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        super().__init__(f"{name} does not apply: {reason}")


class RebuildFailed(MiniSandboxError):
    """The patches apply, but the command that builds the project again ended with an error."""

    def __init__(self, command: str, exit_code: int, log: Path) -> None:
        self.command = command
        self.exit_code = exit_code
        self.log = log
        super().__init__(f"rebuilding with `{command}` ended with {exit_code}; see {log}")


class StageFailed(MiniSandboxError):
    """A pipeline stage cannot produce its result; it ends as a failed record, not as an exit code.

    ``kind`` is one of ``minisandbox.records.stages.FAILURE_KINDS``. ``transient`` says that trying
    again may help, and makes every attempt but the last exit with 75 instead of writing the record.
    ``lines`` are those of a log that decided, where they are not the last ones of the stage's own.
    """

    def __init__(
        self, kind: str, message: str, *, hint: str = "", transient: bool = False, lines: str = ""
    ) -> None:
        self.kind = kind
        self.message = message
        self.hint = hint
        self.transient = transient
        self.lines = lines
        super().__init__(message + (f"; {hint}" if hint else ""))

    def with_hint(self, hint: str) -> StageFailed:
        """The same failure, and one more hint if there is one."""
        hints = "; ".join(filter(None, (self.hint, hint)))
        return StageFailed(
            self.kind, self.message, hint=hints, transient=self.transient, lines=self.lines
        )


_FACTS = "_minisandbox_facts"


def keep_facts(error: BaseException, **facts: object) -> None:
    """Hang onto any error, on its way to the record of its stage, what was found out before it.

    Names are those of the record's fields. What the innermost place said stays.
    """
    error.__dict__[_FACTS] = {**facts, **facts_of(error)}


def facts_of(error: BaseException) -> Mapping[str, Any]:
    """What :func:`keep_facts` hung onto an error; nothing if it was not called."""
    return error.__dict__.get(_FACTS, {})
