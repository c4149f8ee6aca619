"""Recipes of rows that bring their own evaluation: what the row says of its test, and from the row
itself or from beside it what is installed.

In this order: what the row pins itself (the ``environment.yml`` of a task, the ``install_config``
of SWE-rebench), the pinned environment of the dataset, the Dockerfile of the task, the entry of an
official package. Of a pinned environment, which does not say it, the next of them says how the
project is installed. A recipe file goes before all, and is not looked for here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from minisandbox import keys
from minisandbox.build.planning import conda, debian, dockerfile, install_config
from minisandbox.build.planning.config import DatasetConfig
from minisandbox.build.planning.formats import Refusal
from minisandbox.build.planning.rows import Row
from minisandbox.build.planning.sourced import SourcedRecipe
from minisandbox.build.planning.specifications import (
    date_origin,
    newest_day,
    read_exports,
    read_text,
)
from minisandbox.errors import InvalidInput
from minisandbox.evaluate.judging import evaluation_of
from minisandbox.evaluate.official.eval_script import EvalScript, NotUnderstood
from minisandbox.evaluate.official.row_grader import LOG_PARSERS, test_command, understood
from minisandbox.records import codec
from minisandbox.records.plan import InstancePlan, Recipe

GRADER = "swebench-5"

#: What a specification says of packages, where it is a pinned environment that does.
_OF_FILES = ("requirement_file", "pip_packages", "packages", "dropped")

_EGG = re.compile(r"^-e .*[#&]egg=(?P<name>[A-Za-z0-9._-]+)", re.MULTILINE)


def row_recipes(
    dataset: DatasetConfig,
    dataset_path: Path,
    rows: Sequence[Row],
    specified: Mapping[str, SourcedRecipe],
) -> dict[str, SourcedRecipe | Refusal]:
    """The recipe of each of ``rows``, or why there is none, by instance id; ``specified`` are those
    of an official package. Rows with equal recipes get the same object.

    Raises ``InvalidInput`` for an export that cannot be read.
    """
    named = read_exports(dataset, dataset_path) if rows else {}
    used = {named[item] for row in rows if (item := row.instance.instance_id) in named}
    # Hundreds of rows share a few.
    exports = {path: _Pinned.read(path) for path in used}
    found: dict[str, SourcedRecipe | Refusal] = {}
    members: dict[str, list[InstancePlan]] = defaultdict(list)
    for row in rows:
        item = row.instance
        path = named.get(item.instance_id)
        made = _recipe(item, exports[path] if path else None, specified.get(item.instance_id))
        found[item.instance_id] = made
        if isinstance(made, SourcedRecipe):
            members[made.recipe.name].append(item)
    for name, instances in members.items():
        first = found[instances[0].instance_id]
        assert isinstance(first, SourcedRecipe), name
        dated = _dated(first, dataset, instances)
        found |= dict.fromkeys((item.instance_id for item in instances), dated)
    return found


@dataclass(frozen=True)
class _Pinned:
    """An export, and how it is named as the origin of what it says."""

    environment: conda.PipEnvironment
    origin: str

    @classmethod
    def read(cls, path: Path) -> _Pinned:
        text = read_text(path)
        return cls(conda.from_export(text, where=str(path)), f"pinned export {path}")


def _dated(
    sourced: SourcedRecipe, dataset: DatasetConfig, instances: Sequence[InstancePlan]
) -> SourcedRecipe:
    """What shares an environment has one date, that of the newest of its rows."""
    date = sourced.recipe.date or newest_day(dataset, instances)
    if not date:
        return sourced
    origins = {"date": date_origin(dataset), **sourced.origins}
    return SourcedRecipe(replace(sourced.recipe, date=date), origins)


def _recipe(
    instance: InstancePlan, export: _Pinned | None, specified: SourcedRecipe | None
) -> SourcedRecipe | Refusal:
    said = instance.extra.get("install_config")
    try:
        config = None if said is None else install_config.read_install_config(said)
    except install_config.NotUnderstood as error:
        return Refusal("recipe", f"its install_config {error}")
    evaluation = evaluation_of(instance.extra)
    try:
        script = understood(evaluation)
    except NotUnderstood as error:
        return Refusal("format", f"the row {error}")
    parser = str(evaluation["log_parser"])
    if parser not in LOG_PARSERS:
        return Refusal("format", f"its log is read by {parser!r}, which {GRADER} does not have")
    try:
        if config is not None:
            below = _of_install_config(instance, config)
        else:
            below = _of_environment(instance, export, specified)
    except InvalidInput as error:
        return Refusal("recipe", str(error))
    if isinstance(below, Refusal):
        return below
    return _evaluated(below, instance, script, parser)


def _evaluated(
    below: SourcedRecipe, instance: InstancePlan, script: EvalScript, parser: str
) -> SourcedRecipe:
    """The recipe with what the row says of its evaluation, under a name that no recipe of another
    content has.
    """
    install = _with_installs(below.recipe.install, script)
    recipe = replace(
        below.recipe,
        name="",
        test=test_command(script, instance.test_patch),
        install=install,
        parser=parser,
        grader=GRADER,
    )
    origins = {
        **below.origins,
        "test": "dataset row: eval_script",
        "parser": "dataset row: log_parser",
        "grader": "dataset row: eval_script",
    }
    if install != below.recipe.install:
        origins["install"] = " and ".join(
            dict.fromkeys([*filter(None, [below.origins.get("install")]), origins["test"]])
        )
    digest = keys.digest_of(codec.encode(recipe))
    parts = [keys.slug(instance.repo), instance.version, keys.short(digest)]
    return SourcedRecipe(replace(recipe, name="-".join(filter(None, parts))), origins)


def _with_installs(install: str, script: EvalScript) -> str:
    """``install``, and what else the script installs before the tests: without a network that finds
    only what was there when the instance was built.
    """
    lines = install.split("\n") if install else ["set -eu"]
    lines += [line for line in script.installs if line not in lines]
    return "\n".join(lines) if len(lines) > 1 else ""


def _of_environment(
    instance: InstancePlan, export: _Pinned | None, specified: SourcedRecipe | None
) -> SourcedRecipe | Refusal:
    own: object = instance.extra.get("environment_export")
    if isinstance(own, str) and own:
        where = f"{instance.instance_id}: environment.yml"
        export = _Pinned(conda.from_export(own, where=where), "dataset row: environment.yml")
    text: object = instance.extra.get("dockerfile")
    docker: SourcedRecipe | None = None
    unknown = ""
    if isinstance(text, str) and text:
        try:
            docker = _of_dockerfile(instance, text)
        except dockerfile.NotUnderstood as error:
            unknown = f"its Dockerfile is not understood ({error}), and "
    if export is not None:
        return _of_export(instance, export, docker or specified)
    if docker is not None:
        return docker
    if specified is not None:
        return specified
    return Refusal(
        "recipe",
        f"{unknown}nothing else says how {instance.repo} is installed: add a recipe file for it, "
        "or name 'pinned_environments' or 'specifications' in the dataset's file",
    )


def _of_export(instance: InstancePlan, export: _Pinned, how: SourcedRecipe | None) -> SourcedRecipe:
    """A pinned environment says what is there, and the next source how the project is installed;
    without one that is left to the row's own script.
    """
    found = export.environment
    blank = Recipe("", instance.repo, found.python, "", install="")
    how = how or SourcedRecipe(blank, {"repo": "dataset row: repo"})
    recipe = replace(
        how.recipe,
        python=found.python,
        packages=found.requirements,
        complete=True,
        dropped=(
            *found.dropped,
            *(item for item in how.recipe.dropped if item not in found.dropped),
        ),
        requirement_file=None,
        pip_packages=(),
        installer="pip",
    )
    kept = {key: how.origins[key] for key in how.origins if key not in _OF_FILES}
    said = ("python", "packages", "complete", "installer", *(["dropped"] if recipe.dropped else []))
    return SourcedRecipe(recipe, {**kept, **dict.fromkeys(said, export.origin)})


def _of_dockerfile(instance: InstancePlan, text: str) -> SourcedRecipe:
    """Raises ``dockerfile.NotUnderstood``."""
    found = dockerfile.read_dockerfile(text, instance)
    recipe = Recipe(
        name="",
        repo=instance.repo,
        python=found.python,
        test="",
        packages=found.packages,
        complete=found.complete,
        dropped=found.dropped,
        system_packages=found.system_packages,
        pip_packages=found.pip_packages,
        installer="pip" if found.complete else "uv",
        install="\n".join(["set -eu", *found.install]) if found.install else "",
        env=found.env,
    )
    return SourcedRecipe.of(recipe, "dataset row: Dockerfile")


def _of_install_config(
    instance: InstancePlan, config: install_config.InstallConfig
) -> SourcedRecipe | Refusal:
    found = _frozen(instance, config)
    origin, of_packages = "dataset row: install_config", "dataset row: environment, requirements"
    pip_packages: tuple[str, ...] = ()
    if found is None:
        if config.files:
            return Refusal(
                "recipe",
                f"its install_config installs {', '.join(config.files)} of the repository, and the "
                "row says in no 'environment' or 'requirements' what that came to: add a recipe "
                f"file for {instance.repo}",
            )
        where = f"{instance.instance_id}: install_config"
        found = conda.from_packages(config.packages, python=config.python, where=where)
        pip_packages, of_packages = config.pip_packages, origin
    parts = debian.take_apart((*config.pre_install, *config.install))
    recipe = Recipe(
        name="",
        repo=instance.repo,
        python=found.python,
        test="",
        packages=found.requirements,
        complete=found.complete,
        dropped=(*found.dropped, *parts.dropped),
        system_packages=parts.packages,
        pip_packages=pip_packages,
        installer="pip" if found.complete else "uv",
        install="\n".join(["set -eu", *parts.kept]) if parts.kept else "",
        env=config.env,
    )
    sourced = SourcedRecipe.of(recipe, origin)
    said = {"packages": of_packages, "complete": of_packages, "installer": of_packages}
    origins = {key: said.get(key, value) for key, value in sourced.origins.items()}
    return SourcedRecipe(recipe, origins)


def _frozen(
    instance: InstancePlan, config: install_config.InstallConfig
) -> conda.PipEnvironment | None:
    """What was installed, in the columns beside ``install_config``: an export of the conda
    environment, else what pip listed; ``None`` where neither can be had.

    The project itself is left out: the install command brings it.
    """
    listed = instance.extra.get("requirements")
    listed = listed if isinstance(listed, str) else ""
    own = {canonicalize_name(found["name"]) for found in _EGG.finditer(listed)}
    own.add(canonicalize_name(instance.repo.rpartition("/")[2]))
    where = f"{instance.instance_id}: key"
    export = instance.extra.get("environment")
    if isinstance(export, str) and export.strip():
        try:
            return _without(conda.from_export(export, where=f"{where} 'environment'"), own)
        except InvalidInput:
            if not listed.strip():
                raise
    if not listed.strip():
        return None
    lines = [line for line in listed.splitlines() if not line.startswith("-e ")]
    packages, dropped = conda.from_requirements("\n".join(lines), where=f"{where} 'requirements'")
    python = conda.from_packages("", python=config.python, where=where).python
    return _without(conda.PipEnvironment(python, "", packages, True, dropped), own)


def _without(found: conda.PipEnvironment, own: Collection[str]) -> conda.PipEnvironment:
    def is_own(line: str) -> bool:
        try:
            return canonicalize_name(Requirement(line).name) in own
        except InvalidRequirement:
            return False

    kept = tuple(line for line in found.requirements if not is_own(line))
    lost = [f"{line} (the project itself)" for line in found.requirements if is_own(line)]
    return replace(found, requirements=kept, dropped=(*found.dropped, *lost))
