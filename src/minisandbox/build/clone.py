"""The clone stage: a bare mirror of one repository, which every checkout comes from.

From a git URL with GitPython, or made of source releases. The mirror is cloned beside and renamed;
an existing one is brought up to date.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import git
from tqdm import tqdm

from minisandbox import atomic, keys, process
from minisandbox.build import stage
from minisandbox.build.checkouts.releases import Index, build_repository, find_release
from minisandbox.build.checkouts.submodules import Submodule, source_of, submodules_at
from minisandbox.build.dropping import spare
from minisandbox.errors import InvalidInput, StageFailed
from minisandbox.records import codec
from minisandbox.records.plan import RepositoryPlan
from minisandbox.records.stages import CloneRecord

#: Git reads nobody's configuration, never asks, and never runs a helper that a URL could name.
GIT_ENV = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
}
_GIT_CONFIG = {"safe.directory": "*"}

_GONE = (
    "not found",
    "does not exist",
    "not appear to be a git repository",
    "could not read username",
    "403",
    "404",
)


def run(plan_path: Path, record_path: Path, attempt: stage.Attempt) -> stage.Ended:
    """``minisandbox build clone``."""
    plan = codec.read(RepositoryPlan, plan_path)
    log = record_path.with_suffix(".log")
    inputs = keys.digest_of({"plan": codec.encode(plan)})
    if not _is_complete(plan) or not _has_submodules(plan, record_path):
        # Somebody removed the mirror that the record speaks of, or rows ask for newer commits.
        record_path.unlink(missing_ok=True)
        spare(record_path).unlink(missing_ok=True)

    def work() -> CloneRecord:
        return _from_releases(plan) if plan.kind == "release-pairs" else _from_git(plan)

    return stage.run_stage(
        CloneRecord,
        record_path,
        stage="clone",
        key=plan.slug,
        inputs=inputs,
        log=log,
        work=work,
        attempt=attempt,
    )


def _is_complete(plan: RepositoryPlan) -> bool:
    """Whether there is a mirror that holds every base commit in use."""
    mirror = Path(plan.mirror)
    if not (mirror / "HEAD").exists():
        return False
    listing = "".join(f"{revision}\n" for revision in plan.revisions).encode()
    argv = ["git", "-C", mirror, "cat-file", "--batch-check"]
    found = process.run(argv, stdin=listing, env={**os.environ, **_environment()}, check=False)
    lines = found.stdout.decode("utf-8", "replace").splitlines()
    return found.returncode == 0 and not any(line.endswith(" missing") for line in lines)


def _has_submodules(plan: RepositoryPlan, record_path: Path) -> bool:
    if not plan.submodules:
        return True
    try:
        record = codec.read(CloneRecord, record_path)
    except (FileNotFoundError, InvalidInput):
        return True  # there is nothing to be taken back
    return all(Path(mirror, "HEAD").exists() for mirror in record.submodules.values())


def _from_git(plan: RepositoryPlan) -> CloneRecord:
    mirror = Path(plan.mirror)
    if mirror.exists():
        _update(plan, mirror)
    else:
        mirror.parent.mkdir(parents=True, exist_ok=True)
        for abandoned in mirror.parent.glob(f".{mirror.name}.*.tmp"):
            shutil.rmtree(abandoned, ignore_errors=True)  # of a killed clone; we hold the lock
        temporary = Path(
            tempfile.mkdtemp(prefix=f".{mirror.name}.", suffix=".tmp", dir=mirror.parent)
        )
        progress = _Progress(f"clone {plan.repo}")
        try:
            with progress:
                git.Repo.clone_from(
                    plan.url,
                    temporary / "mirror",
                    # As an object it keeps git's errors; annotated is a callable only.
                    progress=cast("Any", progress),
                    env=_environment(),
                    mirror=True,
                    multi_options=["--no-hardlinks"],
                    allow_unsafe_protocols=False,
                )
            _finish(temporary / "mirror", mirror)
        except git.GitCommandError as error:
            # What git wrote of it went to the progress.
            raise _clone_failed(plan, error, progress.error_lines) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    mirrors, missing = _mirror_submodules(plan)
    return stage.new(
        CloneRecord,
        repo=plan.repo,
        mirror=plan.mirror,
        url=plan.url,
        submodules=mirrors,
        missing=missing,
        tools=stage.versions(["gitpython"]),
    )


def _mirror_submodules(plan: RepositoryPlan) -> tuple[dict[str, str], dict[str, str]]:
    """Mirrors of the submodules that the base commits name, by their URLs, and why others have
    none: that costs the instances that need them, not all of the repository.
    """
    folder = Path(plan.mirror).with_suffix(".submodules")
    mirrors: dict[str, str] = {}
    missing: dict[str, str] = {}
    commits: dict[str, set[str]] = defaultdict(set)
    sources: dict[str, Submodule] = {}
    # One by one: recipes of several environments want them, and not every commit has them all.
    for revision, wanted in itertools.product(plan.revisions, plan.submodules):
        try:
            found = submodules_at(Path(plan.mirror), revision, [wanted])
        except StageFailed:
            continue  # what it lacks is for the instance to say
        for submodule in found:
            sources.setdefault(submodule.url, submodule)
            commits[submodule.url].add(submodule.commit)
    for url, submodule in sources.items():
        mirror = folder / f"{submodule.slug}.git"
        try:
            part = RepositoryPlan(
                slug=submodule.slug,
                repo=f"{plan.repo}: {submodule.path}",
                mirror=str(mirror),
                kind="git",
                url=source_of(submodule, parent=plan.url, git_url=plan.git_url),
                revisions=tuple(sorted(commits[url])),
            )
            if not _is_complete(part):
                _from_git(part)
        except StageFailed as error:
            if error.transient:
                raise
            missing[url] = str(error)
        else:
            mirrors[url] = str(mirror)
    return mirrors, missing


def _update(plan: RepositoryPlan, mirror: Path) -> None:
    repo = git.Repo(mirror)
    try:
        repo.git.update_environment(**_environment())
        repo.git.remote("set-url", "origin", plan.url)
        with _Progress(f"fetch {plan.repo}") as progress:
            repo.remote("origin").fetch(progress=progress, prune=True)
    except git.GitCommandError as error:
        raise _clone_failed(plan, error) from None
    finally:
        repo.close()


def _finish(made: Path, mirror: Path) -> None:
    """Give the mirror its name; other ids of this machine may read it (sandboxes run as such)."""
    for folder, _, files in os.walk(made):
        os.chmod(folder, 0o755)
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o444 if path.suffix in (".pack", ".idx", ".rev") else 0o644)
    os.rename(made, mirror)
    atomic.fsync_directory(mirror.parent)


def _environment() -> dict[str, str]:
    configured = {"GIT_CONFIG_COUNT": str(len(_GIT_CONFIG))}
    for number, (key, value) in enumerate(_GIT_CONFIG.items()):
        configured |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return {**GIT_ENV, **configured}


def _clone_failed(
    plan: RepositoryPlan, error: git.GitCommandError, lines: Sequence[str] = ()
) -> StageFailed:
    written = " ".join([str(error.stderr).replace("stderr:", " "), *lines])
    said = " ".join(written.split()).strip("' ")
    gone = any(sign in said.lower() for sign in _GONE)
    return StageFailed(
        "clone",
        f"cannot clone {plan.repo} from {plan.url}: {said[-300:] or 'git gave no reason'}",
        hint="check the row's 'repo' and the dataset's 'git_url'"
        if gone
        else "check the network, then run again",
        transient=not gone,
    )


def _from_releases(plan: RepositoryPlan) -> CloneRecord:
    """One missing version costs the pairs that need it, not the others of its project."""
    index = Index.of_this_machine()
    missing: dict[str, str] = {}
    for version in plan.versions:
        try:
            find_release(plan.project, version, index=index)
        except StageFailed as error:
            if error.transient or len(missing) == len(plan.versions) - 1:
                raise
            missing[version] = str(error)
    present = [version for version in plan.versions if version not in missing]
    commits = build_repository(
        plan.project, present, Path(plan.mirror), cache=Path(plan.downloads), index=index
    )
    return stage.new(
        CloneRecord,
        repo=plan.repo,
        mirror=plan.mirror,
        url=f"releases of {plan.project} on the package index",
        commits=commits,
        missing=missing,
        tools=stage.versions(["gitpython", "requests", "packaging"]),
    )


class _Progress(git.RemoteProgress):
    """A tqdm bar over git's own progress."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._bar = tqdm(desc=title, unit="obj", mininterval=1.0, leave=False)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(
        self,
        op_code: int,  # noqa: ARG002 - the signature is GitPython's
        cur_count: str | float,
        max_count: str | float | None = None,
        message: str = "",  # noqa: ARG002
    ) -> None:
        """Called by GitPython for each line of progress."""
        if max_count:
            self._bar.total = int(float(max_count))
        self._bar.n = int(float(cur_count))
        self._bar.refresh()
