"""Recipes out of what others have written down: the specifications of an official package, and
pinned exports of environments.

A dataset's file names the package; a (repository, version) pair finds its entry there. Where the
dataset has pinned exports as well, the export says what is installed, and the entry how.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from minisandbox import keys
from minisandbox.build import conda
from minisandbox.build.config import DatasetConfig
from minisandbox.errors import InvalidInput
from minisandbox.evaluate.official.tool import OfficialTool, Specification
from minisandbox.records.plan import InstancePlan, Recipe, RequirementFile

#: Which export is whose, in the folder of the exports: ``instance_id<tab>file``.
INSTANCES_FILE = "instances.tsv"

#: Commands that prepare a container's operating system. The base is what it is, and the locale is
#: part of every environment.
_SYSTEM_COMMAND = re.compile(r"apt(-get)? |locale-gen\b|echo '?en_US|yum |dnf |apk ")

#: The key under which rows carry the commit of their environment, as SWE-bench has it.
_COMMIT_KEY = "environment_setup_commit"


def specified_recipes(
    dataset: DatasetConfig, dataset_path: Path, instances: Sequence[InstancePlan], tools: Path
) -> dict[str, Recipe]:
    """The recipe of each instance that the dataset's package knows, by instance id.

    Raises ``InvalidInput`` for an export that cannot be read, and what making the tool raises.
    """
    pairs = sorted({(instance.repo, instance.version) for instance in instances})
    entries = OfficialTool(dataset.specifications, tools).specifications(pairs)
    exports = _read_exports(dataset, dataset_path)
    groups: dict[tuple[str, str, str, str], list[InstancePlan]] = defaultdict(list)
    for instance in instances:
        if entries[instance.repo, instance.version] is not None:
            commit = str(instance.extra.get(_COMMIT_KEY) or instance.base_commit)
            export = exports.get(instance.instance_id)
            place = str(export) if export else ""
            groups[instance.repo, instance.version, commit, place].append(instance)
    recipes: dict[str, Recipe] = {}
    for (repo, version, commit, place), members in groups.items():
        specification = entries[repo, version]
        assert specification is not None
        recipe = _recipe(
            specification,
            dataset=dataset,
            repo=repo,
            version=version,
            commit=commit,
            export=Path(place) if place else None,
            date=_date(dataset, members),
        )
        recipes |= {instance.instance_id: recipe for instance in members}
    return recipes


def export_files(dataset: DatasetConfig, dataset_path: Path) -> list[Path]:
    """Every file that the pinned exports of a dataset are read from; raises ``InvalidInput``."""
    if not dataset.pinned_environments:
        return []
    folder = dataset_path.parent / dataset.pinned_environments
    if not (folder / INSTANCES_FILE).is_file():
        raise InvalidInput(
            f"{dataset_path}: key 'pinned_environments'",
            f"{folder} has no {INSTANCES_FILE}",
            "it lists instance_id and file, with tabs between",
        )
    return [folder / INSTANCES_FILE, *sorted(folder.glob("*.yml"))]


def _read_exports(dataset: DatasetConfig, dataset_path: Path) -> dict[str, Path]:
    files = export_files(dataset, dataset_path)
    if not files:
        return {}
    listing = files[0]
    found: dict[str, Path] = {}
    with listing.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.reader(lines, delimiter="\t"), 1):
            if number == 1 or not row:
                continue
            path = listing.parent / row[-1]
            if len(row) != 2 or path not in files:
                raise InvalidInput(f"{listing}: line {number}", "names no file of its folder")
            found[row[0]] = path
    return found


def _date(dataset: DatasetConfig, members: Sequence[InstancePlan]) -> str:
    """The date that bounds uploads: the dataset's, or that of the newest of its rows."""
    if dataset.date != "created_at":
        return dataset.date
    dates = [str(instance.extra.get("created_at", ""))[:10] for instance in members]
    for instance, date in zip(members, dates, strict=True):
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
            raise InvalidInput(
                f"{dataset.name}: {instance.instance_id}",
                "has no 'created_at' that begins with YYYY-MM-DD",
                "give the dataset's file a 'date'",
            )
    return max(dates)


def _recipe(
    specification: Specification,
    *,
    dataset: DatasetConfig,
    repo: str,
    version: str,
    commit: str,
    export: Path | None,
    date: str,
) -> Recipe:
    where = f"{dataset.specifications}: {repo} {version}"
    entry = specification.entry
    python = str(entry["python"])
    asked = str(entry.get("packages") or "")
    commands = [specification.install_first, *entry.get("pre_install", ()), entry.get("install")]
    name = f"{keys.slug(repo)}-{version}"
    requirement_file: RequirementFile | None = None
    pip_packages = tuple(map(str, entry.get("pip_packages", ())))
    if export is not None:
        found = conda.from_export(export.read_text(encoding="utf-8"), where=str(export))
        name += f"-{export.stem}"
        python, pip_packages = found.python, ()
    elif asked in ("requirements.txt", "environment.yml"):
        found = conda.PipEnvironment(python, "", (), complete=False, dropped=())
        requirement_file = RequirementFile(dataset.specifications, repo, version, commit, asked)
        name += f"-{commit[:8]}"
    else:
        found = conda.from_packages(asked, python=python, where=where)
    commands = [str(command) for command in commands if command]
    kept = [command for command in commands if not _SYSTEM_COMMAND.match(command)]
    left_out = [command for command in commands if _SYSTEM_COMMAND.match(command)]
    return Recipe(
        name=name,
        repo=repo,
        python=python,
        test=str(entry["test_cmd"]),
        packages=found.requirements,
        complete=found.complete,
        dropped=(*found.dropped, *(f"{item} (the base is not changed)" for item in left_out)),
        requirement_file=requirement_file,
        pip_packages=pip_packages,
        date=date,
        # pip builds source releases with the environment's own setuptools, as the export was made.
        installer="uv" if export is None else "pip",
        install="\n".join(["set -eu", *kept]) if kept else "",
        grader=dataset.specifications,
    )
