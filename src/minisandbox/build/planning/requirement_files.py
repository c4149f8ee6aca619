"""Requirements that a repository lists itself, read from its mirror at the environment's commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from minisandbox import keys
from minisandbox.build.planning import conda
from minisandbox.errors import InvalidInput, StageFailed
from minisandbox.evaluate.grading import GraderUnavailable
from minisandbox.evaluate.official.tool import OfficialTool, RequirementsAt
from minisandbox.records.plan import EnvironmentPlan
from minisandbox.records.stages import CloneRecord


@dataclass(frozen=True)
class Listed:
    """Requirements for pip, and what was left out of the file with the reason."""

    packages: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def requirements_of(plan: EnvironmentPlan, clones: Sequence[CloneRecord]) -> Listed:
    """What the repository's own file asks for; nothing where the plan names no file.

    Raises ``StageFailed``.
    """
    wanted = plan.requirement_file
    if wanted is None:
        return Listed()
    slug = keys.slug(wanted.repo)
    clone = next((clone for clone in clones if clone.key == slug), None)
    if clone is None:
        raise StageFailed("clone", f"the clone record of {wanted.repo} was not given")
    if clone.failure is not None:
        raise StageFailed(clone.failure.kind, clone.failure.message, hint=clone.failure.hint)
    where = f"{wanted.format} of {wanted.repo} at {wanted.commit[:12]}"
    asked = RequirementsAt("", wanted.repo, wanted.version, wanted.commit)
    mirrors = {wanted.repo: Path(clone.mirror)}
    try:
        answer = OfficialTool(wanted.tool, Path(plan.tools)).requirements([asked], mirrors=mirrors)
        if answer[0].error:
            raise StageFailed("environment", f"{where}: {answer[0].error}")
        return _listed(answer[0].text, plan, where)
    except GraderUnavailable as error:
        raise StageFailed("grader", str(error), transient=error.transient) from None
    except InvalidInput as error:
        raise StageFailed("environment", str(error)) from None


def _listed(text: str, plan: EnvironmentPlan, where: str) -> Listed:
    assert plan.requirement_file is not None
    if plan.requirement_file.format == "environment.yml":
        found = conda.from_environment_yml(text, python=plan.python, where=where)
        return Listed(found.requirements, found.dropped)
    packages, dropped = conda.from_requirements(text, where=where)
    if plan.network != "host":
        _check_reachable(packages, where)
    return Listed(packages, dropped)


def _check_reachable(packages: Sequence[str], where: str) -> None:
    for line in packages:
        if _has_address(line):
            raise StageFailed(
                "environment",
                f"{where} asks for {line!r}, and builds reach only the package index",
                hint="write a recipe with 'packages' that the index has, or set network 'host'",
            )


def _has_address(line: str) -> bool:
    """Whether a requirement is had from elsewhere for sure: with a marker it may mean nothing."""
    try:
        requirement = Requirement(line)
    except InvalidRequirement:  # a bare address
        return ";" not in line
    return requirement.url is not None and requirement.marker is None
