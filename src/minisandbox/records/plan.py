"""What the plan stage decides, cut into one file per job, so that a change reruns only what it
touches.

A stage reads its own shard and the records of the stages before it, nothing else: no config file,
no dataset. Paths are as the config gives them, relative to the workflow's working directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PLAN_SCHEMA = 1

Network = Literal["none", "host"]
History = str  # "none", "full" or a number of commits


@dataclass(frozen=True)
class Recipe:
    """How the instances of one repository are installed and tested.

    ``python`` is a minor version (``3.11``) or a version specifier (``>=3.11``). ``date``
    (``YYYY-MM-DD``, or empty) bounds the upload time of every package. Commands are shell text, run
    in the repository with the environment active.
    """

    name: str
    repo: str
    python: str
    test: str
    packages: tuple[str, ...] = ()
    date: str = ""
    installer: Literal["uv", "pip"] = "uv"
    pre_install: tuple[str, ...] = ()
    install: str = "python -m pip install --no-deps -e ."
    rebuild: str = ""
    imports: tuple[str, ...] = ()
    parser: str = "pytest"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout: int = 1800
    test_paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class RepositoryPlan:
    """One repository to mirror: from a git URL, or made of source releases of a project.

    ``revisions`` is a digest of the base commits in use: new rows make the clone stage look for
    them.
    """

    slug: str
    repo: str
    mirror: str
    kind: Literal["git", "release-pairs"]
    url: str = ""
    revisions: tuple[str, ...] = ()
    project: str = ""
    versions: tuple[str, ...] = ()
    downloads: str = ""


@dataclass(frozen=True)
class InterpreterPlan:
    """One request for a CPython and the places to look for it, in order."""

    slug: str
    python: str
    places: tuple[str, ...]
    store: str


@dataclass(frozen=True)
class EnvironmentPlan:
    """One virtual environment; ``key`` is the digest of everything that decides its content."""

    slug: str
    key: str
    python: str
    date: str
    installer: Literal["uv", "pip"]
    packages: tuple[str, ...]
    pre_install: tuple[str, ...]
    env: Mapping[str, str]
    base: Mapping[str, Any]
    network: Network
    timeout: int
    store: str
    tools: str


@dataclass(frozen=True)
class ReleasePair:
    """Two versions of one project: the earlier is the base, their difference the patches."""

    project: str
    before: str
    after: str


@dataclass(frozen=True)
class InstancePlan:
    """One task row, normalised: text as in the dataset, test lists as tuples or ``None`` if it has
    none.
    """

    instance_id: str
    dataset: str
    repo: str
    base_commit: str = ""
    version: str = ""
    patch: str = ""
    test_patch: str = ""
    problem_statement: str = ""
    hints_text: str = ""
    fail_to_pass: tuple[str, ...] | None = None
    pass_to_pass: tuple[str, ...] | None = None
    release: ReleasePair | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class BatchPlan:
    """The instances that one job builds, and one job validates, on one environment."""

    slug: str
    environment: str
    recipe: Recipe
    instances: tuple[InstancePlan, ...]
    history: History
    network: Network
    timeout: int
    store: str


@dataclass(frozen=True)
class Unplanned:
    """A row that cannot be built, with the reason; it ends in the manifest as a failed row."""

    instance: InstancePlan
    kind: str
    message: str


@dataclass(frozen=True)
class BatchEntry:
    """What the workflow must know of a batch: which mirrors it needs."""

    repos: tuple[str, ...]
    instances: int


@dataclass(frozen=True)
class EnvironmentEntry:
    """What the workflow must know of an environment: its interpreter and its batches."""

    python: str
    batches: Mapping[str, BatchEntry]


@dataclass(frozen=True)
class PlanIndex:
    """The table of contents of the plan; ``digest`` covers everything that was read to make it."""

    schema: int
    digest: str
    store: str
    repos: tuple[str, ...]
    pythons: tuple[str, ...]
    environments: Mapping[str, EnvironmentEntry]
    instances: int
    unplanned: int
