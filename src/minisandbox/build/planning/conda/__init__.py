"""Environments that are described in conda's language, as what pip can install.

A plain virtual environment is built from the package index, so a conda export, a list of conda
specifications or an ``environment.yml`` becomes requirements, and what the index cannot give is
listed with its reason. Pure functions: no network, no files. Imports ``errors`` alone of the
project.
"""

from __future__ import annotations

from minisandbox.build.planning.conda.convert import (
    PipEnvironment,
    from_environment_yml,
    from_export,
    from_packages,
)
from minisandbox.build.planning.conda.requirements import from_requirements

__all__ = [
    "PipEnvironment",
    "from_environment_yml",
    "from_export",
    "from_packages",
    "from_requirements",
]
