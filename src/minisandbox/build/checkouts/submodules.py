"""The submodules of a commit, as its tree and its ``.gitmodules`` name them, read from a mirror.

Invariant: what a repository says of where its submodules come from is not trusted. It may name
servers, and never a path of this machine or a helper program; whoever configures the build may send
the name of a GitHub repository elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

from minisandbox import keys, process
from minisandbox.build.planning.recipes import ALL_SUBMODULES as ALL
from minisandbox.errors import StageFailed
from minisandbox.records.stages import CloneRecord

_GITHUB = re.compile(
    r"(?:(?:https?|git|ssh)://(?:git@)?github\.com/|git@github\.com:)"
    r"(?P<repo>[\w.-]+/[\w.-]+?)(?:\.git)?/?"
)
_SERVER = re.compile(r"(?:https?|git|ssh)://[^\s-]\S*")
_GITLINK = "160000"
_ENVIRONMENT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True)
class Submodule:
    """One submodule of a commit: ``url`` as the repository has it, ``commit`` as its tree has."""

    name: str
    path: str
    url: str
    commit: str

    @property
    def slug(self) -> str:
        """A file name for its mirror."""
        return f"{keys.slug(self.url.removesuffix('.git'))[-80:]}-{keys.short(self._digest)}"

    @property
    def _digest(self) -> str:
        return keys.digest_of(self.url)


def submodules_at(mirror: Path, revision: str, wanted: Sequence[str]) -> list[Submodule]:
    """The submodules of a commit that ``wanted`` names by path, or all; raises ``StageFailed`` of
    kind ``commit`` for a path that is none.
    """
    if not wanted:
        return []
    links = _links(mirror, revision)
    if unknown := sorted(set(wanted) - {ALL} - links.keys()):
        raise StageFailed(
            "commit",
            f"{revision[:12]} has no submodule at {', '.join(unknown)}",
            hint="see 'submodules' in the recipe",
        )
    described = _described(mirror, revision) if links else {}
    found: list[Submodule] = []
    for path, commit in links.items():
        if path not in wanted and ALL not in wanted:
            continue
        if path not in described:
            raise StageFailed("commit", f"{revision[:12]} does not say where {path} comes from")
        name, url = described[path]
        found.append(Submodule(name, path, url, commit))
    return found


def source_of(submodule: Submodule, *, parent: str, git_url: str) -> str:
    """Where a submodule is cloned from: ``git_url`` (a template) for a repository of GitHub.

    ``parent`` is the URL of the repository itself, for relative ones. Raises ``StageFailed`` of
    kind ``clone``.
    """
    url = submodule.url
    if url.startswith(("./", "../")):
        url = urljoin(f"{parent.rstrip('/')}/", url)
    if (known := _GITHUB.fullmatch(url)) is not None:
        return git_url.format(repo=known["repo"], slug=keys.slug(known["repo"]))
    if not _SERVER.fullmatch(url):
        raise StageFailed(
            "clone",
            f"submodule {submodule.path} names {url!r}, which is no server's address",
            hint="leave it out of 'submodules' in the recipe",
        )
    return url


def mirrored(submodules: Sequence[Submodule], clone: CloneRecord) -> list[tuple[Submodule, Path]]:
    """Each with its mirror; raises ``StageFailed`` of kind ``clone`` for one that has none."""
    found: list[tuple[Submodule, Path]] = []
    for submodule in submodules:
        mirror = clone.submodules.get(submodule.url)
        if mirror is None:
            reason = clone.missing.get(submodule.url, f"there is no mirror of {submodule.url}")
            raise StageFailed(
                "clone",
                f"submodule {submodule.path} cannot be had: {reason}",
                hint="leave it out of 'submodules' in the recipe, or see to its repository and "
                "drop the record of the clone",
            )
        found.append((submodule, Path(mirror)))
    return found


def _links(mirror: Path, revision: str) -> dict[str, str]:
    """Commits of submodules by path, in the tree of ``revision``."""
    listed = _git(mirror, "ls-tree", "-r", "-z", "--full-tree", revision)
    found: dict[str, str] = {}
    for entry in listed.split("\0"):
        about, _, path = entry.partition("\t")
        if about.startswith(_GITLINK):
            found[path] = about.split()[2]
    return found


def _described(mirror: Path, revision: str) -> dict[str, tuple[str, str]]:
    """Name and URL of each submodule by its path."""
    blob = f"{revision}:.gitmodules"
    listed = _git(mirror, "config", "--blob", blob, "-z", "--get-regexp", r"^submodule\.")
    said: dict[str, dict[str, str]] = {}
    for entry in listed.split("\0"):
        key, _, value = entry.partition("\n")
        name, _, last = key.removeprefix("submodule.").rpartition(".")
        said.setdefault(name, {})[last] = value
    return {
        values["path"]: (name, values["url"])
        for name, values in said.items()
        if values.keys() >= {"path", "url"}
    }


def _git(mirror: Path, *words: str) -> str:
    environment: Mapping[str, str] = {**os.environ, **_ENVIRONMENT}
    argv = ["git", "-c", "safe.directory=*", "-C", mirror, *words]
    done = process.run(argv, env=environment, check=False)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise StageFailed("commit", f"the submodules of {mirror} cannot be read: {said[-200:]}")
    return done.stdout.decode("utf-8", "surrogateescape")
