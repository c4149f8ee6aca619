"""Running a stage so that it always ends in a record: made, reused, failed, or (if trying again may
help) not yet.

Each stage holds a lock beside its record. A second process that was asked for the same record, an
orphan of a killed run included, waits and then finds it finished. A record whose ``inputs`` digest
and layers still hold is reused, so that interrupted runs and touched files cost nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from minisandbox import atomic
from minisandbox.build.dropping import spare
from minisandbox.build.system_packages import missing_hint
from minisandbox.errors import (
    EXIT_OK,
    EXIT_TRANSIENT,
    HostUnsupported,
    InvalidInput,
    LayerDamaged,
    LayerMissing,
    MiniSandboxError,
    SandboxDied,
    StageFailed,
    facts_of,
)
from minisandbox.records import codec
from minisandbox.records.layer import LayerRef
from minisandbox.records.stages import (
    INFRASTRUCTURE,
    RECORD_SCHEMA,
    BaseRecord,
    Failure,
    NetworkUse,
    Record,
)
from minisandbox.store import Store, StoreUnusable

R = TypeVar("R", bound=Record)

#: How many attempts a stage gets; the rules set ``retries`` to one less.
ATTEMPTS = 3

_TAIL_LINES = 12

#: Failures that the same inputs need not end in again: a limit was raised, a server answers again,
#: a disk has room now.
_PASSING = frozenset(
    {"index", "timeout", "limit", "incomplete", "grader", "sandbox", "store", "internal"}
)

#: What helps where a sandbox was held to a limit.
RAISE_LIMITS = "raise it in 'limits' of the recipe or the configuration"


@dataclass(frozen=True)
class Attempt:
    """Which attempt this is, counted from 1, and of how many."""

    number: int = 1
    of: int = ATTEMPTS

    @property
    def last(self) -> bool:
        return self.number >= self.of


@dataclass(frozen=True)
class Ended:
    """How a stage ended, for the command line to print and exit with."""

    exit_code: int
    line: str


def failure_of(error: BaseException, log: Path) -> Failure:
    """Any error of a stage as data, with the last lines of its log."""
    kind, message, hint = (
        "internal",
        f"{type(error).__name__}: {error}",
        "please report this with its log",
    )
    if isinstance(error, StageFailed):
        kind, message, hint = error.kind, error.message, error.hint
    elif isinstance(error, LayerMissing | LayerDamaged | StoreUnusable):
        kind, message, hint = "store", str(error), ""
    elif isinstance(error, HostUnsupported):
        kind, message, hint = "sandbox", str(error), "run `minisandbox doctor`"
    elif isinstance(error, SandboxDied) and error.limit:
        message = f"the sandbox was ended at its limit on {error.limit}: {error.reason}"
        kind, hint = "limit", RAISE_LIMITS
    elif isinstance(error, SandboxDied):
        kind, message, hint = (
            "sandbox",
            str(error),
            "was it killed, by the kernel for want of memory?",
        )
    elif isinstance(error, MiniSandboxError):
        kind, message, hint = "internal", str(error), ""
    elif isinstance(error, OSError) and not isinstance(error, ChildProcessError):
        kind, message, hint = "store", str(error), "check free space and permissions"
    missing = missing_hint(facts_of(error).get("missing_packages", ()))
    hint = "; ".join(filter(None, (hint, missing)))
    lines = error.lines if isinstance(error, StageFailed) else ""
    return Failure(kind=kind, message=message, hint=hint, log_tail=lines or tail(log))


def base_inputs(base: BaseRecord | None) -> dict[str, Any]:
    """What of the record of a packed base decides what is built on it."""
    if base is None:
        return {}
    failure = base.failure.message if base.failure else ""
    return {"base": [[layer.digest for layer in base.layers], failure]}


def refuse_failed_base(base: BaseRecord | None) -> None:
    """Pass a failure of the base on; one of this machine or its network stays one of these."""
    if base is not None and (failure := base.failure) is not None:
        kind = failure.kind if failure.kind in INFRASTRUCTURE else "base"
        raise StageFailed(kind, failure.message, hint=failure.hint)


def tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log, decoded with replacement; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.strip().splitlines()[-lines:])


class Clock:
    """Start time as ISO 8601 UTC, seconds since."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._start, 3)


def make(
    cls: type[R],
    *,
    stage: str,
    key: str,
    inputs: str,
    log: Path,
    work: Callable[[], R],
    attempt: Attempt,
) -> R:
    """Do ``work``; whatever it raises becomes a failed record of the same class.

    Raises the error itself if it is transient and attempts are left, and for ``KeyboardInterrupt``.
    This is the one place below the command line that catches everything: a bug in one stage must
    not stop the rest.
    """
    clock = Clock()
    try:
        record = work()
        outcome: dict[str, Any] = {"status": record.status, "failure": record.failure}
    except Exception as error:
        if is_transient(error) and not attempt.last:
            raise
        log.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(error, MiniSandboxError):
            with log.open("a", encoding="utf-8") as file:
                traceback.print_exc(file=file)
        record = cls(
            schema=RECORD_SCHEMA,
            stage=stage,
            key=key,
            status="failed",
            inputs=inputs,
            started="",
            seconds=0,
            log="",
            **_found_out(cls, error),
        )
        outcome = {"status": "failed", "failure": failure_of(error, log)}
    return replace(
        record,
        schema=RECORD_SCHEMA,
        stage=stage,
        key=key,
        inputs=inputs,
        started=clock.started,
        seconds=clock.seconds,
        log=str(log),
        **outcome,
    )


def _found_out(cls: type[Record], error: BaseException) -> Mapping[str, Any]:
    """What a failed record says besides its failure: the facts that the error brought along."""
    names = {item.name for item in dataclasses.fields(cls)}
    facts = {name: value for name, value in facts_of(error).items() if name in names}
    if "network" in names and "network" not in facts:
        # An empty record of the network would say that the build was watched and tried nothing.
        facts["network"] = NetworkUse(unwatched="the stage failed outside of its build")
    return facts


def is_transient(error: BaseException) -> bool:
    """Whether the same stage may succeed when tried again."""
    if isinstance(error, SandboxDied):
        # It dies when the kernel wants memory, which it may have the next time; a limit stays.
        return not error.limit
    return isinstance(error, StageFailed) and error.transient


def run_stage(
    cls: type[R],
    path: Path,
    *,
    stage: str,
    key: str,
    inputs: str,
    log: Path,
    work: Callable[[], R],
    attempt: Attempt,
    store: Store | None = None,
) -> Ended:
    """Make or reuse the record at ``path``."""
    with atomic.locked(path.with_name(f".{path.name}.lock")):
        for place in (path, spare(path)):
            if reusable(cls, place, inputs=inputs, store=store) is not None:
                os.utime(place)  # newer than its inputs, or Snakemake would come again for ever
                _link(place, path)
                return Ended(EXIT_OK, f"{stage} {key}: nothing has changed")
        try:
            record = make(
                cls, stage=stage, key=key, inputs=inputs, log=log, work=work, attempt=attempt
            )
        except (StageFailed, SandboxDied) as error:
            said = f"{stage} {key}: {error} (attempt {attempt.number} of {attempt.of})"
            return Ended(EXIT_TRANSIENT, said)
        codec.write(path, record)
        _link(path, spare(path))
    return Ended(EXIT_OK, summary(record))


def _link(source: Path, target: Path) -> None:
    """Give a record its other name, replacing what bears it."""
    if target.exists() and target.samefile(source):
        return
    temporary = target.with_name(f".{target.name}.link")
    temporary.unlink(missing_ok=True)
    os.link(source, temporary)
    temporary.replace(target)


def reusable(cls: type[R], path: Path, *, inputs: str, store: Store | None) -> R | None:
    """The record at ``path`` if it was made from the same inputs and its layers are still there."""
    try:
        record = codec.read(cls, path)
    except (FileNotFoundError, InvalidInput):
        return None
    return record if holds(record, inputs=inputs, store=store) else None


def holds(record: Record, *, inputs: str, store: Store | None) -> bool:
    """Whether a record still stands: same inputs, layers there, and no failure that was the
    machine's or the clock's.
    """
    if record.schema != RECORD_SCHEMA or record.inputs != inputs:
        return False
    members: tuple[Record, ...] = getattr(record, "instances", ())
    for member in (record, *members):
        if member.failure is not None and member.failure.kind in _PASSING:
            return False
    return store is None or all(store.has(layer.digest) for layer in layers_of(record))


def layers_of(record: Any) -> list[LayerRef]:
    """Every layer a record names."""
    layers: list[LayerRef] = list(getattr(record, "layers", ()))
    if (layer := getattr(record, "layer", None)) is not None:
        layers.append(layer)
    for inner in getattr(record, "instances", ()):
        layers += layers_of(inner)
    return layers


def summary(record: Record) -> str:
    """One line for the log: what, how it ended, how long."""
    line = f"{record.stage} {record.key}: {record.status} in {record.seconds:.1f} s"
    members: tuple[Record, ...] | None = getattr(record, "instances", None)
    if members is not None:
        ok = sum(member.status == "ok" for member in members)
        line = (
            f"{record.stage} {record.key}: {len(members)} instances, {ok} ok, "
            f"{len(members) - ok} failed in {record.seconds:.1f} s"
        )
    if record.failure is not None:
        line += f" [{record.failure.kind}] {record.failure.message}"
    return line


def versions(names: Iterable[str]) -> Mapping[str, str]:
    """Versions of the distributions that made a record."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def new(cls: type[R], **fields: Any) -> R:
    """A successful record; ``make`` fills in what all records share."""
    return cls(
        schema=RECORD_SCHEMA,
        stage="",
        key="",
        status="ok",
        inputs="",
        started="",
        seconds=0.0,
        log="",
        **fields,
    )


def with_failure(record: R, error: StageFailed | None) -> R:
    """``record`` as it is, or failed for the reason given while what it measured is kept."""
    if error is None:
        return record
    failure = Failure(error.kind, error.message, error.hint, error.lines)
    return replace(record, status="failed", failure=failure)
