"""The workflow's configuration: what ``config/config.yaml`` may say. ``config/README.md`` explains
each key.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from minisandbox.errors import InvalidInput
from minisandbox.records import codec
from minisandbox.records.plan import Network
from minisandbox.sandbox import Limits

_NUMBER = re.compile(r"-?\d+(\.\d+)?|null")


@dataclass(frozen=True)
class Config:
    """Every key with its default; only ``datasets`` must be given. Relative paths are from the
    working directory.

    ``timeout`` (seconds) bounds the build of one environment and the install of one instance;
    ``instances`` are shell patterns on instance ids, none meaning all. ``limits`` hold each sandbox
    in which environments and instances are built, tested and validated; a recipe may have others.
    ``validate_runs`` is how often the tests of an instance run with the gold patch, and how often
    without one.
    """

    datasets: tuple[str, ...]
    results: str = "results"
    store: str = ""
    pack: bool = True
    recipes: str = "envs/recipes"
    git_url: str = "https://github.com/{repo}.git"
    instances: tuple[str, ...] = ()
    base: str = "host"
    bases: str = "envs/bases"
    interpreters: tuple[str, ...] = ("uv", "pyenv", "conda", "system")
    network: Network = "index"
    timeout: int = 1800
    history: str = "none"
    batch_size: int = 20
    validate_runs: int = 1
    from_lock: str = ""
    index_cache: str = ""
    limits: Limits = field(default_factory=Limits)

    @property
    def store_path(self) -> str:
        """Where packed layers go: ``store``, or a folder of the results."""
        return self.store or f"{self.results}/store"

    @property
    def tools_path(self) -> str:
        """Where tools of the pipeline that have environments of their own go."""
        return f"{self.results}/tools"

    @property
    def index_cache_path(self) -> str:
        """Where files of the package index are kept: ``index_cache``, or with the results that they
        are for; a rebuild from a lock uses what the build before it kept.
        """
        return self.index_cache or f"{self.from_lock or self.results}/downloads/index"

    @property
    def files_cache_path(self) -> str:
        """Where files that recipes name are kept; as above, those of the build before."""
        return f"{self.from_lock or self.results}/downloads/files"


@dataclass(frozen=True)
class Pair:
    """One entry of a ``release-pairs`` dataset."""

    project: str
    before: str
    after: str
    recipe: str = ""


@dataclass(frozen=True)
class DatasetConfig:
    """One file of ``config/datasets``: where rows come from, or which release pairs to make rows
    of.
    """

    name: str
    kind: str
    path: str = ""
    hub: str = ""
    split: str = "test"
    git_url: str = ""
    recipe: str = ""
    specifications: str = ""
    pinned_environments: str = ""
    date: str = ""
    pairs: tuple[Pair, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict[str, str])


def parse_config(values: Mapping[str, Any], *, where: str) -> Config:
    """Check the configuration of a run; raises ``InvalidInput`` that names file and key."""
    data = dict(values)
    for key in ("datasets", "instances", "interpreters"):
        if isinstance(
            data.get(key), str
        ):  # `--config instances=...` on the command line gives text
            data[key] = [part for part in data[key].split(",") if part]
    if isinstance(data.get("history"), int) and not isinstance(data["history"], bool):
        data["history"] = str(data["history"])
    if isinstance(data.get("limits"), dict):
        data["limits"] = _numbers(cast("dict[Any, Any]", data["limits"]))
    config = codec.decode(Config, data, where=where)
    if not config.datasets:
        raise InvalidInput(
            f"{where}: key 'datasets'", "is empty", "name at least one file of config/datasets"
        )
    if config.history not in ("none", "full") and not config.history.isdecimal():
        raise InvalidInput(
            f"{where}: key 'history'",
            f"is {config.history!r}",
            "expected none, full or a number of commits",
        )
    for key in ("timeout", "batch_size", "validate_runs"):
        if getattr(config, key) < 1:
            raise InvalidInput(
                f"{where}: key {key!r}", f"is {getattr(config, key)}", "expected 1 or more"
            )
    if config.from_lock:
        _check_lock(config, where)
    check_git_url(config.git_url, where=f"{where}: key 'git_url'")
    return config


def _numbers(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Limits as a file has them: ``--config 'limits={cpus: 8}'`` gives text."""
    return {
        key: yaml.safe_load(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
        for key, value in values.items()
    }


def _check_lock(config: Config, where: str) -> None:
    place = f"{where}: key 'from_lock'"
    if not Path(config.from_lock, "environments").is_dir():
        raise InvalidInput(
            place,
            f"{config.from_lock} holds no environments",
            "name the results folder of an earlier build",
        )
    if Path(config.from_lock).resolve() == Path(config.results).resolve():
        raise InvalidInput(
            place,
            f"{config.from_lock} is where this build goes",
            "name another folder in 'results'",
        )
    if config.network != "index":
        raise InvalidInput(
            place, f"needs network 'index', not {config.network!r}", "a lock is a list of its files"
        )


def check_date(text: str, *, where: str, other: str = "") -> None:
    """A date is YYYY-MM-DD; ``other`` says what else it may be."""
    try:
        # It is compared as text later, and fromisoformat() also takes 20240101.
        if datetime.date.fromisoformat(text).isoformat() != text:
            raise ValueError(text)
    except ValueError:
        raise InvalidInput(where, f"is {text!r}", f"expected YYYY-MM-DD{other}") from None


def check_git_url(template: str, *, where: str) -> None:
    """A git URL template has ``{repo}`` (or ``{slug}``) and no other field."""
    try:
        filled = template.format(repo="owner/name", slug="owner__name")
    except (KeyError, IndexError, ValueError) as error:
        raise InvalidInput(
            where, f"has a field that is not known ({error})", "use {repo} or {slug}"
        ) from None
    if filled.startswith("-") or "ext::" in filled:
        raise InvalidInput(where, f"is {template!r}", "give a URL or a path")
