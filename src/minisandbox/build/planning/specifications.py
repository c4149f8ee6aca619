"""Recipes out of what others have written down: the specifications of an official package, and
pinned exports of environments.

A dataset's file names the package; a (repository, version) pair finds its entry there. Where the
dataset has pinned exports as well, the export says what is installed, and the entry how.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from minisandbox import keys
from minisandbox.build.planning import conda, debian
from minisandbox.build.planning.config import DatasetConfig, check_date
from minisandbox.build.planning.sourced import SourcedRecipe
from minisandbox.errors import InvalidInput
from minisandbox.evaluate import judging
from minisandbox.evaluate.official.tool import OfficialTool, Specification
from minisandbox.records.plan import InstancePlan, Recipe, RequirementFile

#: Which export is whose, in the folder of the exports: ``instance_id<tab>file``.
INSTANCES_FILE = "instances.tsv"
#: Exports without such a file are those of healthy commits, which have this in their names.
_OF_A_COMMIT = re.compile(r"(?:sweenv_)?(?P<commit>.+__.+\.[0-9a-f]{8})")

#: What an entry's ``packages`` says where a file of the repository lists them.
_FILES = ("requirements.txt", "environment.yml")


class _Source(NamedTuple):
    """What decides the environment of an instance: ``commit`` only where a file is read there."""

    repo: str
    version: str
    commit: str
    export: Path | None


def specified_recipes(
    dataset: DatasetConfig, dataset_path: Path, instances: Sequence[InstancePlan], tools: Path
) -> dict[str, SourcedRecipe]:
    """The recipe of each instance that the dataset's package knows, by instance id.

    Raises ``InvalidInput`` for an export that cannot be read, and what making the tool raises.
    """
    pairs = sorted({(instance.repo, instance.version) for instance in instances})
    entries = OfficialTool(dataset.specifications, tools).specifications(pairs)
    exports = read_exports(dataset, dataset_path)
    groups: dict[_Source, list[InstancePlan]] = defaultdict(list)
    for instance in instances:
        specification = entries[instance.repo, instance.version]
        # The package specifies projects in other languages too, with entries that name no Python.
        if specification is None or "python" not in specification.entry:
            continue
        export = exports.get(export_name(instance))
        reads_file = export is None and specification.entry.get("packages") in _FILES
        commit = environment_commit(instance) if reads_file else ""
        groups[_Source(instance.repo, instance.version, commit, export)].append(instance)
    recipes: dict[str, SourcedRecipe] = {}
    for source, members in groups.items():
        specification = entries[source.repo, source.version]
        assert specification is not None
        recipe = _recipe(source, specification, dataset, date=newest_day(dataset, members))
        recipes |= {instance.instance_id: recipe for instance in members}
    return recipes


def environment_commit(instance: InstancePlan) -> str:
    """Where the requirement files of an instance are read, as SWE-bench has it."""
    return judging.environment_commit(instance.extra) or instance.base_commit


def export_files(dataset: DatasetConfig, dataset_path: Path) -> list[Path]:
    """Every file that the pinned exports of a dataset are read from; raises ``InvalidInput``."""
    if not dataset.pinned_environments:
        return []
    folder = dataset_path.parent / dataset.pinned_environments
    exports = sorted(folder.glob("*.yml"))
    listing = folder / INSTANCES_FILE
    if listing.is_file():
        return [listing, *exports]
    if not any(_OF_A_COMMIT.fullmatch(path.stem) for path in exports):
        raise InvalidInput(
            f"{dataset_path}: key 'pinned_environments'",
            f"{folder} has no {INSTANCES_FILE}, and no export is named after a commit",
            "the file lists instance_id and file, with tabs between; exports for all bugs of a "
            "commit are called owner__name.<8 digits of it>.yml",
        )
    return exports


def export_name(instance: InstancePlan) -> str:
    """By what the export of an instance is found."""
    return instance.healthy if instance.bug else instance.instance_id


def read_exports(dataset: DatasetConfig, dataset_path: Path) -> dict[str, Path]:
    """The pinned export of each instance that has one, by its id, or for all bugs of a healthy
    commit, by that of the commit; raises ``InvalidInput``.
    """
    files = export_files(dataset, dataset_path)
    if not files:
        return {}
    listing = files[0]
    if listing.name != INSTANCES_FILE:
        named = ((_OF_A_COMMIT.fullmatch(path.stem), path) for path in files)
        return {name["commit"]: path for name, path in named if name is not None}
    found: dict[str, Path] = {}
    for number, row in enumerate(csv.reader(io.StringIO(read_text(listing)), delimiter="\t"), 1):
        if number == 1 or not row:
            continue
        path = listing.parent / row[-1]
        if len(row) != 2 or path not in files:
            raise InvalidInput(f"{listing}: line {number}", "names no file of its folder")
        found[row[0]] = path
    return found


def read_text(path: Path) -> str:
    """The text of an export; raises ``InvalidInput``."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            str(path), f"is not UTF-8 (byte {error.start})", "convert it, for instance with iconv"
        ) from None


def newest_day(dataset: DatasetConfig, members: Sequence[InstancePlan]) -> str:
    """The date that bounds uploads: the dataset's, or that of the newest of its rows."""
    if dataset.date != "created_at":
        return dataset.date
    dates = [str(instance.extra.get("created_at", ""))[:10] for instance in members]
    for instance, date in zip(members, dates, strict=True):
        where = f"{dataset.name}: {instance.instance_id}"
        if not date:
            raise InvalidInput(where, "has no 'created_at'", "give the dataset's file a 'date'")
        check_date(date, where=f"{where}: key 'created_at'")
    return max(dates)


def date_origin(dataset: DatasetConfig) -> str:
    """Whose date that is, for people."""
    if dataset.date == "created_at":
        return "dataset rows: the newest created_at"
    return "dataset file: date"


def _recipe(
    source: _Source, specification: Specification, dataset: DatasetConfig, *, date: str
) -> SourcedRecipe:
    entry = specification.entry
    where = f"{dataset.specifications}: {source.repo} {source.version}"
    python, asked = str(entry["python"]), str(entry.get("packages") or "")
    name = f"{keys.slug(source.repo)}-{source.version}"
    requirement_file: RequirementFile | None = None
    pip_packages = tuple(map(str, entry.get("pip_packages", ())))
    if source.export is not None:
        found = conda.from_export(read_text(source.export), where=str(source.export))
        name += f"-{source.export.stem}"
        python, pip_packages = found.python, ()
    elif asked in _FILES:
        found = conda.PipEnvironment(python, "", (), complete=False, dropped=())
        requirement_file = RequirementFile(
            dataset.specifications, source.repo, source.version, source.commit, asked
        )
        name += f"-{source.commit[:8]}"
    else:
        found = conda.from_packages(asked, python=python, where=where)
    commands = [specification.install_first, *entry.get("pre_install", ()), entry.get("install")]
    parts = debian.take_apart(str(command) for command in commands if command)
    recipe = Recipe(
        name=name,
        repo=source.repo,
        python=python,
        test=str(entry["test_cmd"]),
        packages=found.requirements,
        complete=found.complete,
        dropped=(*found.dropped, *parts.dropped),
        system_packages=parts.packages,
        requirement_file=requirement_file,
        pip_packages=pip_packages,
        date=date,
        # pip builds source releases with the environment's own setuptools, as the export was made.
        installer="uv" if source.export is None else "pip",
        install="\n".join(["set -eu", *parts.kept]) if parts.kept else "",
        grader=dataset.specifications,
    )
    return SourcedRecipe(recipe, _origins(source, recipe, dataset, where=where))


def _origins(
    source: _Source, recipe: Recipe, dataset: DatasetConfig, *, where: str
) -> dict[str, str]:
    """Where each value of a specified recipe comes from."""
    commands = f"{where}: pre_install, install"
    origins = {
        "repo": "dataset row: repo",
        "python": f"{where}: python",
        "test": f"{where}: test_cmd",
        "packages": f"{where}: packages",
        "pip_packages": f"{where}: pip_packages",
        "install": commands,
        "grader": "dataset file: specifications",
    }
    if recipe.system_packages:
        origins["system_packages"] = commands
    if recipe.dropped:
        origins["dropped"] = commands
    if dataset.date:
        origins["date"] = date_origin(dataset)
    if recipe.requirement_file:
        origins["requirement_file"] = f"{where}: packages; dataset row: environment_setup_commit"
        del origins["packages"]
    if source.export is not None:
        of_export = ("python", "packages", "complete", "installer")
        origins |= dict.fromkeys(of_export, f"pinned export {source.export}")
        del origins["pip_packages"]
        if recipe.dropped:
            origins["dropped"] = f"pinned export {source.export}; {commands}"
    return origins
