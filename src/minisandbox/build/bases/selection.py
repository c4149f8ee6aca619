"""The base that a configuration names: the host, or a packed one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from minisandbox.build.bases.definition import PackedBase, definition_file, lock_file
from minisandbox.build.planning.config import Config
from minisandbox.records.plan import BasePlan
from minisandbox.sandbox.base import base_identity

HOST = "host"


class Base(Protocol):
    """What the plan asks of a base; ``system_packages`` are a recipe's."""

    def slug(self, system_packages: Sequence[str] = ()) -> str:
        """File name of the base's plan and record; empty where there is nothing to build."""
        ...

    def identity(self, system_packages: Sequence[str] = ()) -> Mapping[str, Any]:
        """What an environment on it is compiled against; goes into its key."""
        ...


class HostBase:
    """The machine's own /usr, which no recipe changes."""

    def __init__(self, identity: Mapping[str, Any] | None = None) -> None:
        self._identity = base_identity() if identity is None else identity

    def slug(self, system_packages: Sequence[str] = ()) -> str:
        """None is built."""
        del system_packages
        return ""

    def identity(self, system_packages: Sequence[str] = ()) -> Mapping[str, Any]:
        """The same whatever is asked for."""
        del system_packages
        return self._identity


def selected_base(config: Config) -> HostBase | PackedBase:
    """Raises ``InvalidInput`` for a base that is not defined, or has no lock."""
    if config.base == HOST:
        return HostBase()
    return PackedBase.read(Path(config.bases), config.base)


def base_files(config: Config) -> list[Path]:
    """The files that say what the base is."""
    if config.base == HOST:
        return []
    folder = Path(config.bases)
    return [definition_file(folder, config.base), lock_file(folder, config.base)]


def base_plans(base: Base, wanted: Iterable[Sequence[str]], config: Config) -> dict[str, BasePlan]:
    """The plans, by slug, of a base and of those variants of it that ``wanted`` lists."""
    if not isinstance(base, PackedBase):
        return {}
    plans = {base.slug(): _plan(base, (), config)}
    for system_packages in wanted:
        plans.setdefault(base.slug(system_packages), _plan(base, system_packages, config))
    return plans


def _plan(base: PackedBase, system_packages: Sequence[str], config: Config) -> BasePlan:
    slug = base.slug(system_packages)
    further, unknown = base.further(system_packages)
    plain = slug == base.slug()
    return BasePlan(
        slug=slug,
        above="" if plain else base.slug(),
        identity=base.identity(system_packages),
        packages=tuple(base.packages[name] for name in (base.lock.base if plain else further)),
        unknown=unknown,
        mirrors=base.definition.mirrors,
        date=base.lock.date,
        downloads=f"{config.results}/downloads/packages",
        store=config.store_path,
    )
