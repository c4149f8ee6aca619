"""Dataset files to ``InstancePlan`` rows: formats in, one normal form out, every bad row named by
number.

Local JSONL, JSON and CSV are read here, so that a mistake is told with its row; parquet, Arrow
folders and hub names go through ``datasets``.
"""

# pyarrow and datasets come without types; what crosses the border is checked by the codec.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import base64
import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from minisandbox.build.planning.config import DatasetConfig, check_date, check_git_url
from minisandbox.build.planning.yamlfile import read_yaml
from minisandbox.errors import InvalidInput
from minisandbox.evaluate.official.pins import PINS
from minisandbox.records import codec
from minisandbox.records.plan import InstancePlan, ReleasePair

_INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
#: A commit hash, full or shortened. A branch or tag could move, and its instance with it.
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_LONGEST_NAME = 200

_TEXT_KEYS = ("version", "patch", "test_patch", "problem_statement", "hints_text")
_KNOWN = {"instance_id", "repo", "base_commit", "FAIL_TO_PASS", "PASS_TO_PASS", *_TEXT_KEYS}

csv.field_size_limit(2**31 - 1)


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
    if config.specifications and config.specifications not in PINS:
        raise InvalidInput(
            f"{path}: key 'specifications'",
            f"is {config.specifications!r}",
            f"expected one of {', '.join(PINS)}",
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


def read_instances(config: DatasetConfig, config_path: Path) -> list[InstancePlan]:
    """All rows of a dataset in order; raises ``InvalidInput`` naming file, row (counted from 1) and
    key.
    """
    if config.kind == "release-pairs":
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
    file = dataset_file(config, config_path)
    source = str(file) if file else config.hub
    rows = _read_local(file) if file else _read_hub(config, config_path)
    instances = [
        normalise_row(
            row, dataset=config.name, columns=config.columns, where=f"{source}: row {number}"
        )
        for number, row in rows
    ]
    if not instances:
        raise InvalidInput(source, "has no rows")
    return instances


def normalise_row(
    row: Mapping[str, Any], *, dataset: str, columns: Mapping[str, str], where: str
) -> InstancePlan:
    """One row in the normal form; ``columns`` maps our names to the dataset's where they differ."""
    data = dict(row)
    for ours, theirs in columns.items():
        if theirs in data:
            data[ours] = data.pop(theirs)
    values: dict[str, Any] = {"dataset": dataset}
    values["instance_id"] = _required(data, "instance_id", _INSTANCE_ID, where)
    values["repo"] = _required(data, "repo", _REPO, where)
    values["base_commit"] = _required(data, "base_commit", _COMMIT, where)
    for key in _TEXT_KEYS:
        values[key] = _text(data.get(key), f"{where}: key {key!r}")
    values["fail_to_pass"] = _test_list(data, "FAIL_TO_PASS", where)
    values["pass_to_pass"] = _test_list(data, "PASS_TO_PASS", where)
    if not values["fail_to_pass"]:
        values["fail_to_pass"] = None
    values["extra"] = {
        _encodable(key, where): _jsonable(data[key], f"{where}: key {key!r}")
        for key in data
        if key not in _KNOWN
    }
    return InstancePlan(**values)


def _required(data: Mapping[str, Any], key: str, pattern: re.Pattern[str], where: str) -> str:
    value = data.get(key)
    if value is None or value == "":
        raise InvalidInput(f"{where}: key {key!r}", "is missing")
    if (
        not isinstance(value, str)
        or len(value) > _LONGEST_NAME
        or not pattern.fullmatch(value)
        or ".." in value
    ):
        shown = repr(value)[:80]
        raise InvalidInput(
            f"{where}: key {key!r}", f"is {shown}", f"expected text like {_example(key)}"
        )
    return value


def _example(key: str) -> str:
    return {"instance_id": "owner__name-123", "repo": "owner/name"}.get(key, "a commit hash")


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InvalidInput(where, f"is {type(value).__name__}", "expected text")
    return _encodable(value, where)


def _encodable(text: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(
            where, f"holds half a surrogate pair at character {error.start}, which is no text"
        ) from None
    return text


def _test_list(data: Mapping[str, Any], key: str, where: str) -> tuple[str, ...] | None:
    """Lists come as lists, arrays, or JSON text of a list; absent is ``None``."""
    value = data.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise InvalidInput(f"{where}: key {key!r}", "is text that is not a JSON list") from None
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise InvalidInput(
            f"{where}: key {key!r}", f"is {type(value).__name__}", "expected a list of tests"
        )
    items = cast("list[Any]", list(value))
    if not all(isinstance(item, str) for item in items):
        raise InvalidInput(f"{where}: key {key!r}", "has an entry that is not text")
    return tuple(_encodable(item, f"{where}: key {key!r}") for item in items)


def _jsonable(value: Any, where: str) -> Any:
    """A further column as JSON: arrays as lists, dates as text, bytes as base64, NaN as null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str):
        return _encodable(value, where)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return {str(key): _jsonable(item, where) for key, item in mapping.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item, where) for item in cast("list[Any]", value)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _read_local(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if not path.exists():
        raise InvalidInput(str(path), "does not exist")
    if path.is_dir():
        yield from _read_arrow_folder(path)
        return
    readers = {
        ".jsonl": _read_jsonl,
        ".json": _read_json,
        ".csv": _read_csv,
        ".parquet": _read_parquet,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InvalidInput(
            str(path),
            f"has the unknown ending {path.suffix!r}",
            f"expected one of {', '.join(readers)}",
        )
    try:
        yield from reader(path)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            str(path), f"is not UTF-8 ({error.reason} at byte {error.start})"
        ) from None
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read ({error.strerror})") from None


def _row(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(
            where, f"is {type(value).__name__}", "expected an object with instance_id, repo, ..."
        )
    return cast("dict[str, Any]", value)


def _read_jsonl(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidInput(f"{path}: row {number}", f"is not JSON ({error})") from None
            yield number, _row(value, f"{path}: row {number}")


def _read_json(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{path} line {error.lineno}", f"is not JSON ({error.msg})") from None
    except RecursionError:
        raise InvalidInput(str(path), "is not JSON (nested too deeply)") from None
    if not isinstance(values, list):
        raise InvalidInput(
            str(path), f"holds {type(values).__name__}", "expected a JSON array of rows"
        )
    for number, value in enumerate(cast("list[Any]", values), 1):
        yield number, _row(value, f"{path}: row {number}")


def _read_csv(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8", newline="") as lines:
        try:
            for number, row in enumerate(csv.DictReader(lines, strict=True), 1):
                yield number, {key: value for key, value in row.items() if key is not None}
        except csv.Error as error:
            raise InvalidInput(str(path), f"is not CSV ({error})") from None


def _read_parquet(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInput(
            str(path), f"is not a parquet file ({str(error).splitlines()[0]})"
        ) from None
    yield from enumerate(table.to_pylist(), 1)


def _read_arrow_folder(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(path))
    except (FileNotFoundError, ValueError) as error:
        raise InvalidInput(
            str(path), f"is not a saved dataset ({str(error).splitlines()[0]})"
        ) from None
    if isinstance(loaded, datasets.DatasetDict):
        raise InvalidInput(
            str(path), f"holds splits {', '.join(map(str, loaded))}", "name the folder of one split"
        )
    yield from enumerate(loaded.to_list(), 1)


def _read_hub(config: DatasetConfig, config_path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import datasets

    try:
        loaded = datasets.load_dataset(config.hub, split=config.split)
    except Exception as error:  # noqa: BLE001 - whatever the hub client raises, the person needs one sentence
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(
            f"{config_path}: key 'hub'",
            f"dataset {config.hub!r} could not be loaded ({reason})",
            "check the name and the network, or give 'path' to a local copy",
        ) from None
    yield from enumerate(cast("Any", loaded).to_list(), 1)
