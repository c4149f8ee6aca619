"""The plan stage: rows, recipes and release pairs become shards, one a job.

Called while the Snakefile is parsed, so it is keyed by a digest of everything it reads: with an
unchanged digest it only reads ``plan/index.json``. Shards are written only if their content
changed, because their modification time is what makes Snakemake run a job again.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple, cast

from minisandbox import atomic, keys
from minisandbox.build.bases.selection import Base, base_files, base_plans, selected_base
from minisandbox.build.planning.account import Account
from minisandbox.build.planning.config import Config, DatasetConfig, parse_config
from minisandbox.build.planning.dataset import (
    dataset_file,
    read_dataset_config,
    read_rows,
    with_others,
)
from minisandbox.build.planning.recipes import limits_of, read_recipes, recipe_files
from minisandbox.build.planning.resolving import resolve_recipes
from minisandbox.build.planning.rows import Row
from minisandbox.build.planning.sourced import SourcedRecipe
from minisandbox.build.planning.specifications import environment_commit, export_files
from minisandbox.build.services import service
from minisandbox.errors import InstanceUnknown, InvalidInput
from minisandbox.evaluate.official.pins import PINS, SPECIFYING
from minisandbox.records import codec
from minisandbox.records.plan import (
    PLAN_SCHEMA,
    BatchEntry,
    BatchPlan,
    EnvironmentEntry,
    EnvironmentPlan,
    InstancePlan,
    InterpreterPlan,
    PlanIndex,
    Recipe,
    RepositoryPlan,
    Unplanned,
)
from minisandbox.sandbox import Limits
from minisandbox.sandbox.limits.declared import loosest

#: Files up to this many bytes are digested by content, larger ones by size and modification time.
_DIGEST_CONTENT_UP_TO = 256 * 2**20
#: What of this package decides how rows are read, which recipes they get, and keys of environments.
_DECIDING = {
    "minisandbox.build": ("planning", "services", "bases"),
    "minisandbox.evaluate": ("patches.py", "reversal.py", "official"),
}


def ensure_plan(
    config: Mapping[str, Any], config_files: Sequence[str] = (), *, read_only: bool = False
) -> PlanIndex:
    """The plan of this configuration, made anew only if something it depends on changed.

    ``read_only`` is for the jobs of a run, which parse the Snakefile again, perhaps on a machine
    with another base: they take the plan that the run was started with.

    Raises ``InvalidInput`` for anything a person got wrong; nothing is written then.
    """
    where = ", ".join(config_files) or "config"
    parsed = parse_config(config, where=where)
    folder = Path(parsed.results) / "plan"
    if read_only:
        return codec.read(PlanIndex, folder / "index.json")
    base = selected_base(parsed)
    digest = _digest(parsed, base)
    index_path = folder / "index.json"
    if (current := _current(index_path, digest)) is not None:
        return current
    shards, index = make_plan(parsed, base=base, digest=digest, where=where)
    with atomic.locked(folder / ".lock"):
        _write(folder, shards)
        codec.write(index_path, index)
    return index


def _current(index_path: Path, digest: str) -> PlanIndex | None:
    try:
        if json.loads(index_path.read_text(encoding="utf-8")).get("digest") != digest:
            return None
        return codec.read(PlanIndex, index_path)
    except (FileNotFoundError, ValueError, InvalidInput, AttributeError):
        return None


def _digest(config: Config, base: Base) -> str:
    files: dict[str, str] = {}
    for name in config.datasets:
        path = Path(name)
        dataset = read_dataset_config(path)
        files[name] = _file_digest(path)
        if (local := dataset_file(dataset, path)) is not None:
            files[str(local)] = _file_digest(local)
        for export in export_files(dataset, path):
            files[str(export)] = _file_digest(export)
    for path in (*recipe_files(Path(config.recipes)), *base_files(config)):
        files[str(path)] = _file_digest(path)
    return keys.digest_of(
        {
            "schema": PLAN_SCHEMA,
            "code": _code_digest(),
            "config": codec.encode(config),
            "base": dict(base.identity()),
            "files": files,
        }
    )


def _code_digest() -> str:
    """What of this package decides how rows are read, and recipes that nobody wrote: pins and
    tables change with it.
    """
    parts = [
        part
        for package, names in _DECIDING.items()
        for name in names
        for part in _files_below(resources.files(package) / name)
    ]
    return keys.digest_of(
        {
            "pins": {name: pin.digest for name, pin in PINS.items()},
            "code": [hashlib.sha256(part.read_bytes()).hexdigest() for part in parts],
        }
    )


def _files_below(part: Traversable) -> list[Traversable]:
    if part.is_file():
        return [part]
    inside = sorted(part.iterdir(), key=lambda item: item.name)
    return [file for item in inside if item.name != "__pycache__" for file in _files_below(item)]


def _file_digest(path: Path) -> str:
    if path.is_dir():
        inside = [item.relative_to(path) for item in sorted(path.rglob("*")) if item.is_file()]
        # Not what tools keep there for themselves: .git of a clone, .cache of a download.
        shown = [item for item in inside if not any(part[0] == "." for part in item.parts)]
        return keys.digest_of([[str(path / item), _file_digest(path / item)] for item in shown])
    try:
        stat = path.stat()
        if stat.st_size > _DIGEST_CONTENT_UP_TO:
            return f"{stat.st_size}-{stat.st_mtime_ns}"
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise InvalidInput(str(path), "does not exist") from None
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read ({error.strerror})") from None


def make_plan(
    config: Config, *, base: Base, digest: str, where: str
) -> tuple[dict[str, Any], PlanIndex]:
    """All shards by path below the plan folder, and their index."""
    files = read_recipes(Path(config.recipes))
    datasets = read_datasets(config, where)
    urls = {dataset.name: dataset.git_url or config.git_url for dataset, *_ in datasets}
    planned: list[tuple[InstancePlan, Recipe]] = []
    unplanned: list[Unplanned] = []
    formats: Counter[str] = Counter()
    for dataset, path, rows in datasets:
        for row, found in resolve_recipes(dataset, path, rows, files, config):
            wanted = _selected(row.instance.instance_id, config.instances)
            formats[row.format.name] += wanted
            if isinstance(found, SourcedRecipe):
                planned.append((row.instance, found.recipe))
            elif wanted:
                unplanned.append(found)
    selected = [item for item, _ in planned if _selected(item.instance_id, config.instances)]
    shards: dict[str, Any] = {}
    # Before the selection: which versions a release repository has decides its commits.
    repos = _plan_repositories(planned, urls, config, where)
    used = {keys.slug(instance.repo) for instance in selected}
    shards.update({f"repos/{slug}.json": repo for slug, repo in repos.items() if slug in used})
    whole = [file.sourced.recipe for file in files.values() if not file.amends]
    every_recipe = [*whole, *(recipe for _, recipe in planned)]
    shared = _share_environments(every_recipe, base, config)
    environments, entries = _plan_environments(planned, shared, base, config)
    shards.update(environments)
    asked = {shard.python for shard in environments.values() if isinstance(shard, EnvironmentPlan)}
    pythons = {python_slug(python): python for python in asked}
    for slug, python in pythons.items():
        shards[f"interpreters/{slug}.json"] = InterpreterPlan(
            slug, python, config.interpreters, config.store_path, base.slug()
        )
    asked_of_base = (
        shard.system_packages
        for shard in environments.values()
        if isinstance(shard, EnvironmentPlan)
    )
    bases = base_plans(base, asked_of_base, config)
    shards.update({f"bases/{slug}.json": plan for slug, plan in bases.items()})
    shards["unplanned.json"] = unplanned
    index = PlanIndex(
        schema=PLAN_SCHEMA,
        digest=digest,
        store=config.store_path,
        repos=tuple(sorted(used)),
        pythons=tuple(sorted(pythons)),
        environments=entries,
        instances=len(selected),
        unplanned=len(unplanned),
        reasons=dict(Counter(item.kind for item in unplanned).most_common()),
        formats=dict((+formats).most_common()),
        base=base.slug(),
        bases={slug: plan.above for slug, plan in bases.items()},
    )
    return shards, index


def account_of(config: Mapping[str, Any], config_files: Sequence[str], instance_id: str) -> Account:
    """What this configuration builds an instance with, whether it selects it or not; nothing is
    written.

    Raises ``InstanceUnknown``, and ``InvalidInput`` where no recipe builds it.
    """
    where = ", ".join(config_files) or "config"
    parsed = parse_config(config, where=where)
    base = selected_base(parsed)
    files = read_recipes(Path(parsed.recipes))
    found: dict[str, tuple[str, SourcedRecipe | Unplanned]] = {}
    for dataset, path, rows in read_datasets(replace(parsed, instances=()), where):
        source = dataset.path or dataset.hub or "pairs"
        for row, sourced in resolve_recipes(dataset, path, rows, files, parsed):
            place = f"{row.place} of {source} (dataset {dataset.name}, {path})"
            found[row.instance.instance_id] = (place, sourced)
    if instance_id not in found:
        nearest = difflib.get_close_matches(instance_id, found, n=3)
        raise InstanceUnknown(instance_id, nearest, place=f"the datasets of {where}")
    place, sourced = found[instance_id]
    if isinstance(sourced, Unplanned):
        raise InvalidInput(f"{instance_id} ({place})", f"is not built: {sourced.message}")
    recipes = [item.recipe for _, item in found.values() if isinstance(item, SourcedRecipe)]
    whole = [file.sourced.recipe for file in files.values() if not file.amends]
    shared = _share_environments([*whole, *recipes], base, parsed)
    return Account(
        instance_id=instance_id,
        row=place,
        environment=shared[environment_plan(sourced.recipe, base, parsed).key].slug,
        sourced=sourced,
        run=codec.encode(parsed),
        said=frozenset([*config, *(f"limits.{name}" for name in config.get("limits", ()))]),
        config_file=where,
    )


def read_datasets(config: Config, where: str) -> list[tuple[DatasetConfig, Path, list[Row]]]:
    """Every dataset with its file and all its rows; ids are unique over all of them."""
    found: list[tuple[DatasetConfig, Path, list[Row]]] = []
    seen: dict[str, str] = {}
    repeated: dict[str, InvalidInput] = {}
    for name in config.datasets:
        dataset = read_dataset_config(Path(name))
        if any(dataset.name == other.name for other, *_ in found):
            raise InvalidInput(
                f"{name}: key 'name'", f"is {dataset.name!r}, as in another dataset file"
            )
        source = dataset.path or dataset.hub or "pairs"
        rows = read_rows(dataset, Path(name))
        for row in rows:
            instance_id = row.instance.instance_id
            place = f"{name} ({source}, {row.place})"
            if instance_id in seen:
                repeated[place] = InvalidInput(
                    f"{place}: key 'instance_id'",
                    f"{instance_id!r} was used before, in {seen[instance_id]}",
                    "every id has to be unique over all datasets of a run",
                )
            seen.setdefault(instance_id, place)
        found.append((dataset, Path(name), rows))
    if repeated:
        first, *others = repeated
        raise with_others(repeated[first], others)
    if not any(_selected(instance_id, config.instances) for instance_id in seen):
        raise InvalidInput(
            f"{where}: key 'instances'",
            f"{', '.join(config.instances)} matches none of {len(seen)} instances",
        )
    return found


def _selected(instance_id: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(instance_id, pattern) for pattern in patterns)


def _plan_repositories(
    planned: Iterable[tuple[InstancePlan, Recipe]],
    urls: Mapping[str, str],
    config: Config,
    where: str,
) -> dict[str, RepositoryPlan]:
    repos: dict[str, RepositoryPlan] = {}
    versions: dict[str, list[str]] = defaultdict(list)
    commits: dict[str, set[str]] = defaultdict(set)
    submodules: dict[str, set[str]] = defaultdict(set)
    for instance, recipe in planned:
        slug = keys.slug(instance.repo)
        mirror = f"{config.results}/mirrors/{slug}.git"
        if instance.release is not None:
            versions[slug] += [instance.release.before, instance.release.after]
            repo = RepositoryPlan(
                slug,
                instance.repo,
                mirror,
                "release-pairs",
                project=instance.release.project,
                downloads=f"{config.results}/downloads",
            )
        else:
            template = urls[instance.dataset]
            url = template.format(repo=instance.repo, slug=slug)
            submodules[slug] |= set(recipe.submodules)
            commits[slug].add(instance.base_commit)
            if recipe.grader in SPECIFYING or recipe.requirement_file is not None:
                # Files are read there.
                commits[slug].add(environment_commit(instance))
            if recipe.requirement_file is not None:
                commits[slug].add(recipe.requirement_file.commit)
            repo = RepositoryPlan(slug, instance.repo, mirror, "git", url=url, git_url=template)
        other = repos.setdefault(slug, repo)
        if other != repo:
            raise InvalidInput(
                f"{where}: key 'datasets'",
                f"repository {instance.repo} comes from {other.url or other.kind} in one, from "
                f"{repo.url or repo.kind} in another dataset",
                "build them in two runs with two 'results' folders",
            )
    return {
        slug: replace(
            repo,
            versions=_ordered(versions[slug]),
            revisions=tuple(sorted(commits[slug])),
            submodules=tuple(sorted(submodules[slug])),
            git_url=repo.git_url if submodules[slug] else "",
        )
        for slug, repo in repos.items()
    }


def _ordered(versions: Iterable[str]) -> tuple[str, ...]:
    from packaging.version import InvalidVersion, Version

    def order(text: str) -> tuple[int, Any]:
        try:
            return (1, Version(text))
        except InvalidVersion:
            return (0, text)

    return tuple(sorted(set(versions), key=order))


def python_slug(python: str) -> str:
    """A python request as a file name: ``>=3.11`` becomes ``ge3.11``."""
    for sign, word in (
        (">=", "ge"),
        ("<=", "le"),
        ("==", "eq"),
        ("!=", "ne"),
        ("~=", "compat"),
        (">", "gt"),
        ("<", "lt"),
    ):
        python = python.replace(sign, word)
    return keys.slug(python.replace(" ", ""))


def environment_plan(recipe: Recipe, base: Base, config: Config) -> EnvironmentPlan:
    """The environment a recipe asks for; equal content means equal key, whatever the recipe is
    called.
    """
    listed = recipe.requirement_file
    asked: dict[str, Any] = {
        "python": recipe.python,
        "installer": recipe.installer,
        "packages": list(recipe.packages),
        "complete": recipe.complete,
        "requirement_file": listed and codec.encode(listed),
        "pip_packages": list(recipe.pip_packages),
        "pre_install": list(recipe.pre_install),
        "env": dict(recipe.env) if recipe.pre_install else {},
    }
    if recipe.services:  # their files come from the index too
        asked["services"] = [service(name).digest for name in sorted(set(recipe.services))]
    content: dict[str, Any] = {
        **asked,
        "schema": PLAN_SCHEMA,
        "date": recipe.date,
        "base": dict(base.identity(recipe.system_packages)),
        "network": config.network,
    }
    if recipe.system_packages:
        content["system_packages"] = sorted(set(recipe.system_packages))
    key = keys.digest_of(content)
    slug = f"{keys.slug(recipe.repo)}-py{python_slug(recipe.python)}-{keys.short(key)}"
    return EnvironmentPlan(
        slug=slug,
        key=key,
        lock_key=keys.digest_of(asked),
        python=recipe.python,
        date=recipe.date,
        installer=recipe.installer,
        packages=recipe.packages,
        complete=recipe.complete,
        dropped=recipe.dropped,
        requirement_file=listed,
        pip_packages=recipe.pip_packages,
        pre_install=recipe.pre_install,
        env=content["env"],
        base=content["base"],
        network=config.network,
        timeout=config.timeout,
        store=config.store_path,
        tools=config.tools_path,
        index_cache=config.index_cache_path,
        lock=config.from_lock,
        system_packages=tuple(sorted(set(recipe.system_packages))),
        services=tuple(sorted(set(recipe.services))),
    )


class _Shared(NamedTuple):
    """What recipes of equal content have in common, whichever instances are selected this time:
    the slug of the first of them all, and limits that are enough for each.
    """

    slug: str
    limits: Mapping[str, Any]


def _share_environments(
    recipes: Iterable[Recipe], base: Base, config: Config
) -> dict[str, _Shared]:
    """What the recipes of each environment share, by its key."""
    slugs: dict[str, str] = {}
    limits: dict[str, list[Limits]] = defaultdict(list)
    # Tens of thousands of rows have a few hundred recipes, each one object.
    for recipe in {id(recipe): recipe for recipe in recipes}.values():
        environment = environment_plan(recipe, base, config)
        slugs.setdefault(environment.key, environment.slug)
        limits[environment.key].append(limits_of(recipe, config))
    return {key: _Shared(slug, loosest(limits[key]).identity()) for key, slug in slugs.items()}


def _plan_environments(
    planned: Sequence[tuple[InstancePlan, Recipe]],
    shared: Mapping[str, _Shared],
    base: Base,
    config: Config,
) -> tuple[dict[str, Any], dict[str, EnvironmentEntry]]:
    """Group instances by environment and recipe, cut the groups into batches, then select.

    Cut before the selection, so that a narrower run finds its instances in the batches they are in.
    """
    shards: dict[str, Any] = {}
    groups: dict[str, list[tuple[InstancePlan, Recipe]]] = defaultdict(list)
    for instance, recipe in planned:
        groups[recipe.name].append((instance, recipe))
    batches: dict[str, dict[str, BatchEntry]] = defaultdict(dict)
    commits: dict[str, dict[str, BatchEntry]] = defaultdict(dict)
    for name, members in groups.items():
        recipe = members[0][1]
        for instance, other in members:
            if other != recipe:
                raise InvalidInput(
                    f"{instance.dataset}: {instance.instance_id}",
                    f"its recipe {name} differs from that of {members[0][0].instance_id} "
                    f"({members[0][0].dataset})",
                    "give both datasets the same date and specifications, or build them apart",
                )
        environment = environment_plan(recipe, base, config)
        common = shared[environment.key]
        environment = replace(environment, slug=common.slug, limits=common.limits)
        for chunk in range(0, len(members), config.batch_size):
            instances = tuple(
                instance
                for instance, _ in members[chunk : chunk + config.batch_size]
                if _selected(instance.instance_id, config.instances)
            )
            if not instances:
                continue
            batch = f"{keys.slug(name)}-{chunk // config.batch_size:04d}"
            healthy = _healthy(name, instances)
            shards[f"environments/{environment.slug}.json"] = environment
            plan = BatchPlan(
                slug=batch,
                environment=environment.slug,
                recipe=recipe,
                instances=instances,
                history=config.history,
                network=config.network,
                timeout=config.timeout,
                store=config.store_path,
                tools=config.tools_path,
                index_cache=config.index_cache_path,
                files_cache=config.files_cache_path,
                lock=config.from_lock,
                limits=limits_of(recipe, config).identity(),
                validate_runs=config.validate_runs,
            )
            shards[f"batches/{environment.slug}/{batch}.json"] = plan
            for slug, instance in healthy.items():
                shards[f"batches/{environment.slug}/{slug}.json"] = replace(
                    plan, slug=slug, instances=(instance,), history="none"
                )
                commits[environment.slug][slug] = BatchEntry((keys.slug(instance.repo),), 1)
            used = sorted({keys.slug(instance.repo) for instance in instances})
            batches[environment.slug][batch] = BatchEntry(
                tuple(used), len(instances), tuple(healthy)
            )
    entries: dict[str, EnvironmentEntry] = {}
    for slug, members in batches.items():
        environment: EnvironmentPlan = shards[f"environments/{slug}.json"]
        listed = environment.requirement_file
        entries[slug] = EnvironmentEntry(
            python_slug(environment.python),
            members,
            repos=(keys.slug(listed.repo),) if listed else (),
            base=base.slug(environment.system_packages),
            commits=commits[slug],
        )
    return shards, entries


def _healthy(recipe: str, instances: Iterable[InstancePlan]) -> dict[str, InstancePlan]:
    """The healthy commits that bugs are put into, as instances without a bug, by the name of the
    batch that each is alone.
    """
    found: dict[str, InstancePlan] = {}
    for instance in instances:
        if instance.bug:
            commit = instance.base_commit
            name = f"{keys.slug(recipe)}-at-{commit[:8]}"
            found[name] = InstancePlan(
                instance.healthy, instance.dataset, instance.repo, commit, instance.version
            )
    return found


def _write(folder: Path, shards: Mapping[str, Any]) -> None:
    """Write what changed and remove shards of an earlier plan, whose jobs no longer exist."""
    for name, shard in shards.items():
        many = cast("list[Any]", shard) if isinstance(shard, list) else None
        value = codec.encode(shard) if many is None else [codec.encode(item) for item in many]
        text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
        atomic.write_if_changed(folder / name, text.encode("utf-8"))
    for old in folder.rglob("*.json"):
        if str(old.relative_to(folder)) not in shards and old.name != "index.json":
            old.unlink()
