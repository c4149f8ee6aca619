"""Versions that come from git tags, fixed as variables.

Setuptools_scm asks git for the last tag. An instance has no history, so when an evaluation script
installs it again it would become 0.1.dev, and projects that check their own version refuse to run.
The version that the install arrived at, with the history lent, is handed in instead. Versioneer
reads no such variable: its projects keep their version only until they are installed again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources

from packaging.utils import (
    NormalizedName,
    canonicalize_name,
    canonicalize_version,
    is_normalized_name,
)
from packaging.version import InvalidVersion, Version

from minisandbox.build.workshop import Workshop
from minisandbox.records.lock import IndexFile
from minisandbox.runtime.instance import TESTBED

#: From here on setuptools_scm knows the project's name in time to look for the variable that is for
#: this project alone. Before, setup.py projects need the one that is for all.
_KNOWS_NAMES = Version("7.0")

#: Distributions of one repository, and characters of one's name and version: every process of the
#: instance is started with them.
_MAX_VERSIONS = 20
_MAX_LENGTH = 200

#: A distribution, normalised.
Release = tuple[NormalizedName, str]


def pretended_versions(
    shop: Workshop, *, served: Sequence[IndexFile], installed: Sequence[str]
) -> dict[str, str]:
    """Variables for every process of the instance; none for projects that do not ask git.

    ``served`` are the index files of the install, ``installed`` the ``name==version`` lines of the
    environment: they tell what came from elsewhere, and which setuptools_scm will read the
    variables.
    """
    script = resources.files("minisandbox.build.checkouts") / "scripts" / "scm_version.py"
    found = shop.run(
        # Isolated: else modules are looked for in the repository first.
        ["python", "-I", "-", TESTBED],
        stdin=script.read_bytes(),
        failure="install",
        what="asking for the version",
        purpose="smoke",
        cwd=TESTBED,
        timeout=120,
        quiet=True,
    )
    others = {*releases(installed), *(_release(file.project, file.version) for file in served)}
    # With the host's network, what is new may come from anywhere.
    claimed = own_versions(found.text, others=None if shop.network == "host" else others)
    versions, ignored = usable_versions(claimed)
    with shop.log.open("a", encoding="utf-8", errors="backslashreplace") as log:
        log.writelines(f"{line}\n" for line in ignored)
    variables = {
        f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{name.replace('-', '_').upper()}": version
        for name, version in versions.items()
    }
    if len(versions) == 1 and not _knows_names(others):
        variables["SETUPTOOLS_SCM_PRETEND_VERSION"] = next(iter(versions.values()))
    return variables


def own_versions(listing: str, *, others: Collection[Release] | None) -> dict[NormalizedName, str]:
    """The versions of the repository's own distributions, from what ``scripts/scm_version.py``
    printed.

    Not every installer notes where a distribution comes from (``setup.py install`` and pip before
    20.1 do not). One without a note is the repository's if it is not among ``others``, the releases
    that the environment had and the index served; if those are not known, it is not.
    """
    own: dict[NormalizedName, str] = {}
    unknown: dict[NormalizedName, str] = {}
    for line in listing.splitlines():
        match line.split():
            case ["own", name, version]:
                own[canonicalize_name(name)] = version
            case ["other", name, version]:
                if others is not None and _release(name, version) not in others:
                    unknown[canonicalize_name(name)] = version
            case _:
                continue  # what the interpreter says besides
    return unknown | own


def usable_versions(
    claimed: Mapping[NormalizedName, str],
) -> tuple[dict[NormalizedName, str], list[str]]:
    """Those of ``claimed`` that can be handed in as variables, and a line for each that cannot.

    They come from metadata, in which a build may write anything, and end up in the environment of
    every process of the instance.
    """
    usable: dict[NormalizedName, str] = {}
    ignored: list[str] = []
    for name, version in claimed.items():
        if not is_normalized_name(name):
            reason = "that is no name (PEP 508)"
        elif len(name) + len(version) > _MAX_LENGTH or not _is_version(version):
            reason = "that is no version (PEP 440)"
        elif len(usable) == _MAX_VERSIONS:
            reason = f"there are {_MAX_VERSIONS} others"
        else:
            usable[name] = version
            continue
        ignored.append(f"version {version[:100]!r} of {name[:100]!r} is not kept: {reason}")
    return usable, ignored


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def releases(lines: Iterable[str]) -> set[Release]:
    """The releases that ``name==version`` lines name."""
    parted = (line.partition("==") for line in lines)
    return {_release(name, version) for name, _, version in parted}


def _release(name: str, version: str) -> Release:
    return canonicalize_name(name), canonicalize_version(version)


def _knows_names(others: Collection[Release]) -> bool:
    try:
        versions = [Version(version) for name, version in others if name == "setuptools-scm"]
    except InvalidVersion:
        return False
    return bool(versions) and min(versions) >= _KNOWS_NAMES
