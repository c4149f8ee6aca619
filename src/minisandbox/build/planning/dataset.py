"""Datasets as configured: files of ``config/datasets``, and the rows that they name.

Rows come out in one normal form whatever their container and format; those that nothing can be made
of are told all at once, by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minisandbox.build.planning import containers
from minisandbox.build.planning.config import DatasetConfig, check_date, check_git_url
from minisandbox.build.planning.formats import Format
from minisandbox.build.planning.rows import Row, understand
from minisandbox.build.planning.yamlfile import read_yaml
from minisandbox.errors import InvalidInput
from minisandbox.evaluate.official.pins import SPECIFYING
from minisandbox.records import codec
from minisandbox.records.plan import InstancePlan, ReleasePair

#: Rows that are made here, not read.
_RELEASE_PAIR = Format("release-pair", fits=lambda _: False)
#: So many bad rows, or ranges of them, are named; of more it is said how many.
_NAMED = 20


def read_dataset_config(path: Path) -> DatasetConfig:
    """Read one file of ``config/datasets``; raises ``InvalidInput``."""
    config = codec.decode(DatasetConfig, read_yaml(path), where=str(path))
    if config.kind == "rows":
        if not config.path and not config.hub:
            raise InvalidInput(str(path), "has to have 'path' or 'hub'")
        if config.git_url:
            check_git_url(config.git_url, where=f"{path}: key 'git_url'")
        _check_specifications(config, path)
    elif config.kind == "release-pairs":
        if not config.pairs:
            raise InvalidInput(f"{path}: key 'pairs'", "is empty")
    else:
        raise InvalidInput(
            f"{path}: key 'kind'", f"is {config.kind!r}", "expected 'rows' or 'release-pairs'"
        )
    return config


def _check_specifications(config: DatasetConfig, path: Path) -> None:
    if config.specifications and config.specifications not in SPECIFYING:
        raise InvalidInput(
            f"{path}: key 'specifications'",
            f"is {config.specifications!r}",
            f"expected one of {', '.join(SPECIFYING)}",
        )
    if config.date and config.date != "created_at":
        check_date(config.date, where=f"{path}: key 'date'", other=" or created_at")


def dataset_file(config: DatasetConfig, config_path: Path) -> Path | None:
    """The local file or folder that holds the rows, relative to the dataset's own config file;
    ``None`` where they come from the hub.
    """
    if not config.path:
        return None
    file = config_path.parent / config.path
    return None if config.hub and not file.exists() else file


def read_rows(config: DatasetConfig, config_path: Path) -> list[Row]:
    """All rows of a dataset in order; raises ``InvalidInput`` naming file, row (counted from 1) and
    key.
    """
    if config.kind == "release-pairs":
        return [
            Row(f"pair {number}", instance, _RELEASE_PAIR)
            for number, instance in enumerate(_release_pairs(config), 1)
        ]
    file = dataset_file(config, config_path)
    source = str(file) if file else config.hub
    found = (
        containers.read_local(file, config.split)
        if file
        else containers.read_hub(config.hub, config.split, where=f"{config_path}: key 'hub'")
    )
    rows: list[Row] = []
    bad: dict[str, InvalidInput] = {}
    for place, values in found:
        if isinstance(values, InvalidInput):
            bad[place] = values
            continue
        try:
            row = understand(
                values, place=place, dataset=config.name, columns=config.columns, source=source
            )
        except InvalidInput as error:
            bad[place] = error
        else:
            rows.append(row)
    if bad:
        first, *others = bad
        raise with_others(bad[first], others)
    if not rows:
        raise InvalidInput(source, "has no rows")
    return rows


def with_others(first: InvalidInput, others: Sequence[str]) -> InvalidInput:
    """What is wrong with the first of several places, and where else something is."""
    if not others:
        return first
    listed = _in_ranges(others)
    named = ", ".join(listed[:_NAMED])
    more = ", ..." if len(listed) > _NAMED else ""
    also = f"{len(others)} more cannot be used: {named}{more}"
    return InvalidInput(first.where, first.problem, "; ".join(filter(None, [first.remedy, also])))


def _in_ranges(places: Sequence[str]) -> list[str]:
    """``row 3, row 4, row 5`` as ``row 3-5``, for files of which every row is bad."""
    ranges: list[tuple[str, int, int]] = []
    listed: list[str] = []
    for place in places:
        before, _, number = place.rpartition(" ")
        if not number.isdecimal():
            listed.append(place)
        elif ranges and (ranges[-1][0], ranges[-1][2] + 1) == (before, int(number)):
            ranges[-1] = (before, ranges[-1][1], int(number))
        else:
            ranges.append((before, int(number), int(number)))
    listed += [
        f"{name} {low}-{high}" if low < high else f"{name} {low}" for name, low, high in ranges
    ]
    return listed


def _release_pairs(config: DatasetConfig) -> list[InstancePlan]:
    return [
        InstancePlan(
            instance_id=f"{pair.project}-{pair.after}",
            dataset=config.name,
            repo=f"pypi/{pair.project}",
            version=pair.after,
            release=ReleasePair(pair.project, pair.before, pair.after),
        )
        for pair in config.pairs
    ]
