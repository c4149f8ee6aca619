"""Where the rows of a dataset lie: files of every kind, folders, the hub. Out come the rows as they
are, each with its place; what a row means is not looked at here.

Local JSONL, JSON and CSV are read by this module itself, so that a mistake is told with its row;
parquet and Arrow go through ``pyarrow``, saved folders and hub names through ``datasets``.
"""

# pyarrow and datasets come without types; what crosses the border is checked by the codec.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from minisandbox.build.planning import task_repository
from minisandbox.errors import InvalidInput

#: Byte order marks, as Excel writes them before CSV, are no part of the first column's name.
_ENCODING = "utf-8-sig"

csv.field_size_limit(2**31 - 1)


class RawRow(NamedTuple):
    """A row as it lies there, and where, counted from 1; or why there is none at that place."""

    place: str
    values: Mapping[str, Any] | InvalidInput


def read_local(path: Path, split: str) -> Iterator[RawRow]:
    """The rows of a file or folder; ``split`` is the one to take where there are several.

    Raises ``InvalidInput`` where the container itself cannot be read.
    """
    if not path.exists():
        raise InvalidInput(str(path), "does not exist")
    try:
        yield from _read_folder(path, split) if path.is_dir() else _read_file(path)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            str(path), f"is not UTF-8 ({error.reason} at byte {error.start})"
        ) from None
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read ({error.strerror or error})") from None


def read_hub(hub: str, split: str, *, where: str) -> Iterator[RawRow]:
    """The rows of a dataset that the ``datasets`` library knows by name."""
    import datasets

    try:
        loaded = datasets.load_dataset(hub, split=split)
    except Exception as error:  # noqa: BLE001 - whatever the hub client raises, the person needs one sentence
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidInput(
            where,
            f"dataset {hub!r} could not be loaded ({reason})",
            "check the name and the network, or give 'path' to a local copy",
        ) from None
    yield from _numbered(cast("Any", loaded).to_list())


def _read_file(path: Path) -> Iterator[RawRow]:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidInput(
            str(path),
            f"has the unknown ending {path.suffix!r}",
            f"expected one of {', '.join(_READERS)}",
        )
    yield from reader(path)


def _read_folder(path: Path, split: str) -> Iterator[RawRow]:
    if task_repository.is_one(path):
        yield from (RawRow(*task) for task in task_repository.read_tasks(path, split))
        return
    tables = _tables_of_split(path, split)
    if not tables:
        yield from _read_saved(path, split)
    for table in tables:
        for place, values in _read_parquet(table):
            yield RawRow(f"{table.relative_to(path)} {place}" if len(tables) > 1 else place, values)


def _tables_of_split(path: Path, split: str) -> list[Path]:
    """The parquet files of a dataset downloaded from the hub: ``data/test-00000-of-00001.parquet``.
    Where no name begins with a split, all are of it.
    """
    tables = sorted([*path.glob("*.parquet"), *path.glob("data/*.parquet")])
    of_split = [table for table in tables if table.name.partition("-")[0] == split]
    if of_split or not any("-of-" in table.name for table in tables):
        return of_split or tables
    found = sorted({table.name.partition("-")[0] for table in tables})
    raise InvalidInput(
        str(path), f"has no split {split!r}", f"name one of {', '.join(found)} in 'split'"
    )


def _row(value: Any, place: str, path: Path) -> RawRow:
    if isinstance(value, dict):
        return RawRow(place, cast("dict[str, Any]", value))
    problem = InvalidInput(
        f"{path}: {place}",
        f"is {type(value).__name__}",
        "expected an object with instance_id, repo, ...",
    )
    return RawRow(place, problem)


def _numbered(rows: list[Any]) -> Iterator[RawRow]:
    yield from (RawRow(f"row {number}", row) for number, row in enumerate(rows, 1))


def _read_jsonl(path: Path) -> Iterator[RawRow]:
    with path.open(encoding=_ENCODING) as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            place = f"row {number}"
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                problem = InvalidInput(f"{path}: {place}", f"is not JSON ({error})")
                yield RawRow(place, problem)
            else:
                yield _row(value, place, path)


def _read_json(path: Path) -> Iterator[RawRow]:
    try:
        values = json.loads(path.read_text(encoding=_ENCODING))
    except json.JSONDecodeError as error:
        if _holds_lines(path):
            yield from _read_jsonl(path)
            return
        raise InvalidInput(f"{path} line {error.lineno}", f"is not JSON ({error.msg})") from None
    except RecursionError:
        raise InvalidInput(str(path), "is not JSON (nested too deeply)") from None
    if isinstance(values, dict) and "instance_id" in values:
        values = [values]
    if not isinstance(values, list):
        raise InvalidInput(
            str(path), f"holds {type(values).__name__}", "expected a JSON array of rows"
        )
    for number, value in enumerate(cast("list[Any]", values), 1):
        yield _row(value, f"row {number}", path)


def _holds_lines(path: Path) -> bool:
    """JSON lines are often called ``.json``, on the hub for instance."""
    with path.open(encoding=_ENCODING) as lines:
        first = next((line for line in lines if line.strip()), "")
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _read_csv(path: Path) -> Iterator[RawRow]:
    with path.open(encoding=_ENCODING, newline="") as lines:
        try:
            for number, row in enumerate(csv.DictReader(lines, strict=True), 1):
                place = f"row {number}"
                # DictReader keeps what is beyond the header under None.
                if cast("dict[str | None, Any]", row).get(None) is None:
                    yield RawRow(place, row)
                else:
                    problem = "has more cells than the header has names"
                    yield RawRow(place, InvalidInput(f"{path}: {place}", problem))
        except csv.Error as error:
            raise InvalidInput(str(path), f"is not CSV ({error})") from None


def _read_parquet(path: Path) -> Iterator[RawRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidInput(
            str(path), f"is not a parquet file ({str(error).splitlines()[0]})"
        ) from None
    yield from _numbered(table.to_pylist())


def _read_arrow(path: Path) -> Iterator[RawRow]:
    """One file of a saved dataset, or of the cache of ``datasets``."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_stream(source).read_all()
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            str(path), f"is not an Arrow stream ({str(error).splitlines()[0]})"
        ) from None
    yield from _numbered(table.to_pylist())


def _read_saved(path: Path, split: str) -> Iterator[RawRow]:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(path))
    except (FileNotFoundError, ValueError) as error:
        raise InvalidInput(
            str(path), f"is not a saved dataset ({str(error).splitlines()[0]})"
        ) from None
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            splits = ", ".join(map(str, loaded))
            raise InvalidInput(
                str(path), f"has no split {split!r}", f"name one of {splits} in 'split'"
            )
        loaded = loaded[split]
    yield from _numbered(loaded.to_list())


_READERS: Mapping[str, Callable[[Path], Iterator[RawRow]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}
