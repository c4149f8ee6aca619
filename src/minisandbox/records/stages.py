"""How a stage ended: one JSON file each, whether it went well or not.

A failed stage is data. Its record has ``status: failed`` and a ``failure``; the stages after it
read that and write failed records of their own, so that the manifest can list every instance with a
reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from minisandbox.records.layer import LayerRef
from minisandbox.records.lock import IndexFile
from minisandbox.records.plan import Network

RECORD_SCHEMA = 2

Status = Literal["ok", "failed"]

#: What a failure can be called; ``docs/formats.md`` says what each means and what to do.
FAILURE_KINDS = (
    "format",
    "language",
    "recipe",
    "clone",
    "lock",
    "commit",
    "base",
    "interpreter",
    "environment",
    "install",
    "index",
    "smoke",
    "patch",
    "derive",
    "collection",
    "program",
    "network",
    "time",
    "flaky",
    "gold-unresolved",
    "empty-resolved",
    "grader",
    "incomplete",
    "suspect",
    "timeout",
    "limit",
    "sandbox",
    "store",
    "internal",
)


#: Those that say nothing of the instance: the machine, the index, a limit or a grader was at fault.
INFRASTRUCTURE = frozenset(
    {"index", "grader", "incomplete", "timeout", "limit", "sandbox", "store", "internal"}
)


@dataclass(frozen=True)
class Failure:
    """Why a stage failed: a kind to group by, a sentence, what to do, and the decisive last log
    lines.
    """

    kind: str
    message: str
    hint: str = ""
    log_tail: str = ""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every record says. ``inputs`` is the digest of all that decided the result; seconds are
    wall time.
    """

    schema: int
    stage: str
    key: str
    status: Status
    inputs: str
    started: str
    seconds: float
    log: str
    failure: Failure | None = None
    tools: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class FoundRow:
    """What the mirror told of a row that lacks it, of a release pair or a bug: fields that other
    datasets bring along. An empty ``patch`` or ``problem_statement`` is the plan's own, as a bug
    has it. ``trusted_files`` are as in ``InstancePlan``.
    """

    base_commit: str
    patch: str
    test_patch: str
    problem_statement: str
    trusted_files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CloneRecord(Record):
    """A bare mirror. Where it was made of releases, ``commits`` maps their versions to commits, and
    ``missing`` those that the index does not have to the reason. ``submodules`` maps the URLs of
    submodules to mirrors of them, and ``missing`` those that cannot be had to the reason.
    """

    repo: str = ""
    mirror: str = ""
    url: str = ""
    commits: Mapping[str, str] = field(default_factory=dict[str, str])
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    submodules: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class BaseRecord(Record):
    """A packed base, bottom first: the files of its packages, and what their configuration wrote; a
    variant has those of its base below. ``packages`` are those of its own layers,
    ``name=version``.
    """

    base: Mapping[str, Any] = field(default_factory=dict[str, Any])
    packages: tuple[str, ...] = ()
    layers: tuple[LayerRef, ...] = ()
    stage_seconds: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, kw_only=True)
class InterpreterRecord(Record):
    """A packed CPython; ``prefix`` is its path inside, ``source`` the place and path it came
    from.
    """

    python: str = ""
    prefix: str = ""
    source: str = ""
    looked_in: tuple[str, ...] = ()
    layer: LayerRef | None = None


@dataclass(frozen=True)
class NetworkUse:
    """What a build asked of the network, whether it went well or not.

    ``files`` are those that the package index served, build requirements included: the lock that a
    rebuild is held to. ``refused`` are requests that it had no answer to. ``tried`` are the
    addresses of all other connections that programs attempted with connect(2) and sendto(2): those
    to the build's own servers inside, which answer, and all others, which nothing does. The first
    100; a last entry says how many more. ``undated`` counts the files that do not exist at the
    build's date because the index gives no upload time for them. ``unwatched`` says why ``tried``
    is not known.
    """

    files: tuple[IndexFile, ...] = ()
    refused: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    undated: int = 0
    unwatched: str = ""


@dataclass(frozen=True, kw_only=True)
class SandboxedRecord(Record):
    """A record of what was done in sandboxes: the digest of their profile, and the limits in it (by
    the names of ``sandbox.Limits``), which are that of the run that made the record, whatever the
    plan says since.
    """

    profile: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class EnvironmentRecord(SandboxedRecord):
    """A packed virtual environment on its interpreter. ``packages`` is what was resolved,
    ``name==version`` sorted; ``dropped`` is what was asked for and the package index cannot have.
    ``reach`` is what of the network the build could reach, ``lock_key`` as in the plan.
    ``missing_packages`` are the system packages that the recipe asks for and the base lacks.
    """

    lock_key: str = ""
    reach: Network = "none"

    python: str = ""
    prefix: str = ""
    base: Mapping[str, Any] = field(default_factory=dict[str, Any])
    packages: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    missing_packages: tuple[str, ...] = ()
    network: NetworkUse = NetworkUse()
    layers: tuple[LayerRef, ...] = ()
    stage_seconds: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, kw_only=True)
class InstanceRecord(SandboxedRecord):
    """An installed checkout: all layers bottom first, and the commit and tree that changes are told
    against. ``env`` are variables that every process of it gets: versions that come from tags.
    ``reach`` is what of the network the install could reach, ``missing_packages`` as in its
    environment.
    """

    reach: Network = "none"

    base_commit: str = ""
    head_commit: str = ""
    head_tree: str = ""
    layers: tuple[LayerRef, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    missing_packages: tuple[str, ...] = ()
    network: NetworkUse = NetworkUse()
    found: FoundRow | None = None
    stage_seconds: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, kw_only=True)
class InstancesRecord(Record):
    """One batch: an entry an instance, in the order of the plan."""

    environment: str = ""
    instances: tuple[InstanceRecord, ...] = ()


@dataclass(frozen=True)
class TestRun:
    """One run of an instance's tests: with which patch, how it ended, and how it was graded.

    ``outcome`` is ``resolved``, ``unresolved``, or the kind of failure for which there is no
    verdict. ``fail_to_pass`` and ``pass_to_pass`` are ``(passed, total)``; ``failing`` names what
    did not pass (the first 100), ``passed``/``failed`` count everything the log reported.
    ``limit`` is the one that the sandbox reached while they ran, if any.
    """

    patch: Literal["empty", "gold"]
    resolved: bool
    exit_code: int
    timed_out: bool
    seconds: float
    passed: int
    failed: int
    fail_to_pass: tuple[int, ...]
    pass_to_pass: tuple[int, ...]
    failing: tuple[str, ...]
    log: str
    outcome: str = ""
    limit: str = ""


@dataclass(frozen=True)
class FlakyTest:
    """A test that decides and that was seen both to pass and not to, with the same patch in the
    same layers: ``(passed, runs)`` with the gold patch, and without one.
    """

    test: str
    gold: tuple[int, ...]
    empty: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ValidationRecord(SandboxedRecord):
    """What the tests said, materialized from the packed layers, with network ``none``; ``nested``
    says whether they might make user namespaces.

    ``runs`` is how often they ran with the gold patch, and how often without one. ``gold`` and
    ``empty`` are the runs that decided: one that is no verdict or that went wrong, else the first;
    ``repeats`` are the others. A test that decides and is not ``flaky`` came out the same each
    time, which says something from two runs on.

    ``grader`` is ``log`` or the name of an official one, whose ``test_spec`` (JSON text) is all it
    needs to grade again. ``dated`` is a run with the gold patch and the clock at ``dated_at``, and
    ``again`` one without after it, made where the gold patch leaves tests failing for no reason
    that the log shows.
    """

    tests_source: Literal["", "dataset", "derived"] = ""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    runs: int = 0
    empty: TestRun | None = None
    gold: TestRun | None = None
    repeats: tuple[TestRun, ...] = ()
    flaky: tuple[FlakyTest, ...] = ()
    dated_at: str = ""
    dated: TestRun | None = None
    again: TestRun | None = None
    grader: str = ""
    test_spec: str = ""
    nested: bool = False
    blackhole: bool = False


@dataclass(frozen=True, kw_only=True)
class ValidationsRecord(Record):
    """One batch of validations, in the order of the plan."""

    environment: str = ""
    instances: tuple[ValidationRecord, ...] = ()
