"""What the plan stage decides, cut into one file per job, so that a change reruns only what it
touches.

A stage reads its own shard and the records of the stages before it, nothing else: no config file,
no dataset. Paths are as the config gives them, relative to the workflow's working directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from minisandbox import keys

PLAN_SCHEMA = 2

#: ``index``: nothing but the index proxy is reachable; ``none``: nothing at all; ``host``: all that
#: the host can reach, for trusted code only.
Network = Literal["index", "none", "host"]
History = str  # "none", "full" or a number of commits


@dataclass(frozen=True)
class RequirementFile:
    """Requirements that a repository lists in a file of its own.

    ``tool`` knows which file that is for ``version``; it is read from the mirror at ``commit`` when
    the environment is built.
    """

    tool: str
    repo: str
    version: str
    commit: str
    format: Literal["requirements.txt", "environment.yml"]


@dataclass(frozen=True)
class BuildFile:
    """A file that a build needs and that the package index does not have: ``url`` (http, https or
    file) is where it comes from, ``sha256`` which one it is, ``path`` its place in the sandbox.
    """

    url: str
    sha256: str
    path: str


@dataclass(frozen=True)
class Recipe:
    """How the instances of one repository are installed and tested.

    ``python`` is a minor version (``3.11``) or a version specifier (``>=3.11``). ``date``
    (``YYYY-MM-DD``, or empty) bounds the upload time of every package. Commands are shell text, run
    in the repository with the environment active. ``complete`` says that ``packages`` name
    everything, so that no dependency is resolved, and ``pip_packages`` are installed after them in
    a step of their own; ``dropped`` is what their source names and a
    virtual environment cannot have. ``grader`` is ``log`` (``parser`` reads the output of ``test``)
    or the name of an official grader, which brings its own test command. ``limits`` are those of
    its sandboxes that are not the configuration's, by the names of ``sandbox.Limits``. ``nested``
    lets its tests make user namespaces. ``system_packages`` are the packages of Debian that the
    base has to have. ``submodules`` are checked out too, by path (``*``: all). ``blackhole`` lets
    what its tests send to addresses outside vanish, instead of being refused. ``services`` are
    local ones that its tests talk to, by name. ``files`` are there when ``install`` runs.
    """

    name: str
    repo: str
    python: str
    test: str
    packages: tuple[str, ...] = ()
    complete: bool = False
    dropped: tuple[str, ...] = ()
    requirement_file: RequirementFile | None = None
    pip_packages: tuple[str, ...] = ()
    date: str = ""
    installer: Literal["uv", "pip"] = "uv"
    pre_install: tuple[str, ...] = ()
    install: str = "python -m pip install --no-deps -e ."
    rebuild: str = ""
    imports: tuple[str, ...] = ()
    parser: str = "pytest"
    grader: str = "log"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout: int = 1800
    test_paths: tuple[str, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    nested: bool = False
    blackhole: bool = False
    submodules: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    system_packages: tuple[str, ...] = ()
    files: tuple[BuildFile, ...] = ()


@dataclass(frozen=True)
class RepositoryPlan:
    """One repository to mirror: from a git URL, or made of source releases of a project.

    ``revisions`` are the base commits in use: new rows make the clone stage look for them.
    ``submodules`` of theirs are mirrored too, as in ``Recipe``; those on GitHub from ``git_url``, a
    template.
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
    submodules: tuple[str, ...] = ()
    git_url: str = ""


@dataclass(frozen=True)
class DebianPackage:
    """One binary package of a distribution's archive: ``archive`` and ``path`` make its address,
    ``size`` is in bytes.
    """

    name: str
    version: str
    archive: str
    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class BasePlan:
    """One packed base, or a variant of it: what it has more lies ``above`` the base of that slug.

    ``packages`` are those of its own layers; ``unknown`` are names that recipes ask for and no lock
    has. ``identity`` is what goes into the keys of environments.
    """

    slug: str
    above: str
    identity: Mapping[str, Any]
    packages: tuple[DebianPackage, ...]
    unknown: tuple[str, ...]
    mirrors: tuple[str, ...]
    date: str
    downloads: str
    store: str


@dataclass(frozen=True)
class InterpreterPlan:
    """One request for a CPython and the places to look for it, in order. On the packed base with
    the slug ``base`` it has to run, where there is one.
    """

    slug: str
    python: str
    places: tuple[str, ...]
    store: str
    base: str = ""


@dataclass(frozen=True)
class EnvironmentPlan:
    """One virtual environment; ``key`` is the digest of everything that decides its content.

    ``lock_key`` is the digest of what is asked for, whatever day and machine it is built on: by it
    an earlier build is found again. ``lock`` is a results folder, or one record, whose index files
    are to be used, or empty; ``index_cache`` is where files of the package index are kept.
    ``limits`` (as in ``sandbox.Limits``) are no part of the key: they decide whether it can be
    built, not what comes out.
    """

    slug: str
    key: str
    lock_key: str
    python: str
    date: str
    installer: Literal["uv", "pip"]
    packages: tuple[str, ...]
    complete: bool
    dropped: tuple[str, ...]
    requirement_file: RequirementFile | None
    pip_packages: tuple[str, ...]
    pre_install: tuple[str, ...]
    env: Mapping[str, str]
    base: Mapping[str, Any]
    network: Network
    timeout: int
    store: str
    tools: str
    index_cache: str
    lock: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    system_packages: tuple[str, ...] = ()
    services: tuple[str, ...] = ()


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

    ``bug`` is a patch that puts a bug into the base commit, which then is healthy, and is installed
    once for all bugs of it; ``patch`` takes it out. ``trusted_files`` are test files that are put
    back before tests run, whatever a patch did to them; what is built of a row says which.
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
    bug: str = ""
    trusted_files: tuple[str, ...] = ()

    @property
    def healthy(self) -> str:
        """The id of the healthy commit that a bug is put into: an instance of its own, which is
        no row.
        """
        return f"{keys.slug(self.repo)}.{self.base_commit[:8]}"


@dataclass(frozen=True)
class BatchPlan:
    """The instances that one job builds, and one job validates, on one environment.

    ``lock`` and ``index_cache`` are as in ``EnvironmentPlan``; ``files_cache`` is where files of
    recipes are kept; ``tools`` holds the tools of the
    pipeline that have environments of their own. ``limits`` are those of each sandbox, whatever the
    recipe leaves open. ``validate_runs`` is how often the tests run with the gold patch, and how
    often without one.
    """

    slug: str
    environment: str
    recipe: Recipe
    instances: tuple[InstancePlan, ...]
    history: History
    network: Network
    timeout: int
    store: str
    tools: str
    index_cache: str
    files_cache: str
    lock: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    validate_runs: int = 1


@dataclass(frozen=True)
class Unplanned:
    """A row that cannot be built, with the reason; it ends in the manifest as a failed row."""

    instance: InstancePlan
    kind: str
    message: str


@dataclass(frozen=True)
class BatchEntry:
    """What the workflow must know of a batch: which mirrors it needs, and which ``commits`` of its
    environment have to be installed before.
    """

    repos: tuple[str, ...]
    instances: int
    commits: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnvironmentEntry:
    """What the workflow must know of an environment: its interpreter, the mirrors that its
    requirements are read from, and its batches. ``commits`` are batches too, of one healthy commit
    each, that bugs of other batches are put into; they are no rows.
    """

    python: str
    batches: Mapping[str, BatchEntry]
    repos: tuple[str, ...] = ()
    base: str = ""
    commits: Mapping[str, BatchEntry] = field(default_factory=dict[str, BatchEntry])


@dataclass(frozen=True)
class PlanIndex:
    """The table of contents of the plan; ``digest`` covers everything that was read to make it.

    ``base`` is the packed base of the interpreters, or empty; ``bases`` are it and its variants,
    each with what it lies above. ``formats`` counts all selected rows, ``reasons`` the unplanned
    ones by kind of failure.
    """

    schema: int
    digest: str
    store: str
    repos: tuple[str, ...]
    pythons: tuple[str, ...]
    environments: Mapping[str, EnvironmentEntry]
    instances: int
    unplanned: int
    reasons: Mapping[str, int] = field(default_factory=dict[str, int])
    formats: Mapping[str, int] = field(default_factory=dict[str, int])
    base: str = ""
    bases: Mapping[str, str] = field(default_factory=dict[str, str])
