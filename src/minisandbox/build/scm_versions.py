"""Versions that come from git tags, fixed as variables.

Setuptools_scm asks git for the last tag. An instance has no history, so when an evaluation script
installs it again it would become 0.1.dev, and projects that check their own version refuse to run.
The version that the install arrived at, with the history lent, is handed in instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

from packaging.version import InvalidVersion, Version

from minisandbox.build.workshop import Workshop
from minisandbox.records.lock import IndexFile
from minisandbox.runtime.instance import TESTBED

#: From here on setuptools_scm knows the project's name in time to look for the variable that is for
#: this project alone. Before, setup.py projects need the one that is for all.
_KNOWS_NAMES = Version("7.0")


def pretended_versions(
    shop: Workshop, *, served: Sequence[IndexFile], installed: Sequence[str]
) -> dict[str, str]:
    """Variables for every process of the instance; none for projects that do not ask git.

    ``served`` are the index files of the install, ``installed`` the ``name==version`` lines of the
    environment: they tell which setuptools_scm will read the variables.
    """
    script = resources.files("minisandbox.build") / "scripts" / "scm_version.py"
    found = shop.run(
        ["python", "-"],
        stdin=script.read_bytes(),
        failure="install",
        what="asking for the version",
        purpose="smoke",
        cwd=TESTBED,
        timeout=120,
        quiet=True,
    )
    versions = dict(line.split(" ", 1) for line in found.text.splitlines() if " " in line)
    variables = {
        f"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_{re.sub(r'[-_.]+', '_', name).upper()}": version
        for name, version in versions.items()
    }
    if len(versions) == 1 and not _knows_names(served, installed):
        variables["SETUPTOOLS_SCM_PRETEND_VERSION"] = next(iter(versions.values()))
    return variables


def _knows_names(served: Sequence[IndexFile], installed: Sequence[str]) -> bool:
    texts = [file.version for file in served if file.project == "setuptools-scm"]
    for line in installed:
        name, _, version = line.partition("==")
        if re.sub(r"[-_.]+", "-", name).lower() == "setuptools-scm":
            texts.append(version)
    try:
        return bool(texts) and min(map(Version, texts)) >= _KNOWS_NAMES
    except InvalidVersion:
        return False
