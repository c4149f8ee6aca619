"""Finds out how many unpackers at once a device serves best, by unpacking to it.

What is written is like layers: many small files and some large ones, each unpacker's put on disk
with one ``syncfs``, as the node store does. Where more unpackers bring hardly more, they only make
each other wait.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from minisandbox import atomic
from minisandbox.store.budget import CALIBRATION, DEFAULT_BUDGET, device_of
from minisandbox.store.directories import make_passable, sync_file_system
from minisandbox.store.faults import explained

#: How many unpackers are tried at once.
LEVELS = (1, 2, 4, 8)
#: Bytes of a usual environment: what the budget has for each unpacker.
_LAYER = DEFAULT_BUDGET // 2
#: A number of unpackers is enough if it brings this part of what any number does.
_ENOUGH = 0.9

#: What an unpacker writes, and how often at each level, so that all levels write the same.
_SMALL, _SMALL_SIZE = 400, 8 << 10
_LARGE, _LARGE_SIZE = 2, 4 << 20
_UNITS = max(LEVELS)
UNIT = _SMALL * _SMALL_SIZE + _LARGE * _LARGE_SIZE
#: The better of so many tries counts: other programs write too.
_TRIES = 2


@dataclass(frozen=True)
class Level:
    """Bytes a second that so many unpackers wrote together."""

    unpackers: int
    rate: int


@dataclass(frozen=True)
class Calibration:
    """What was measured of a device, and the budget that follows."""

    device: str
    date: int
    levels: Sequence[Level]
    budget: int


def calibrate(root: Path, report: Callable[[str], None]) -> Calibration:
    """Measure the device of the node store ``root`` and keep what follows, for all that unpack
    there from now on. Writes about 750 MB. Raises ``StoreUnusable``.
    """
    with explained("measure the device of the node store", root):
        make_passable(root)
        with atomic.locked(root / "calibration.lock"):
            for left in root.glob(".calibration-*"):  # of one that was killed
                shutil.rmtree(left, ignore_errors=True)
            work = Path(tempfile.mkdtemp(prefix=".calibration-", dir=root))
            try:
                levels = _measured(work, report)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            found = Calibration(device_of(root), int(time.time()), levels, enough(levels) * _LAYER)
            _keep(root, found)
    return found


def enough(levels: Sequence[Level]) -> int:
    """The smallest number of unpackers that nearly brings what any number does."""
    best = max(level.rate for level in levels)
    return next(level.unpackers for level in levels if level.rate >= best * _ENOUGH)


def calibrations(root: Path) -> Sequence[Calibration]:
    """What is kept for the devices that ``root`` was on; what cannot be read is nothing."""
    found: list[Calibration] = []
    for device, data in _read(root).items():
        try:
            levels = [Level(int(item["unpackers"]), int(item["rate"])) for item in data["levels"]]
            found.append(Calibration(device, int(data["date"]), levels, int(data["budget"])))
        except (KeyError, TypeError, ValueError):
            pass  # of another form: then it is as if nobody had measured
    return found


def _keep(root: Path, found: Calibration) -> None:
    known = {item.device: item for item in calibrations(root)} | {found.device: found}
    devices = {
        device: {name: value for name, value in asdict(item).items() if name != "device"}
        for device, item in sorted(known.items())
    }
    text = json.dumps({"schema": 1, "devices": devices}, indent=1)
    atomic.write_text(root / CALIBRATION, text + "\n")


def _read(root: Path) -> Mapping[str, Any]:
    try:
        devices: Any = json.loads((root / CALIBRATION).read_bytes())["devices"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return cast("dict[str, Any]", devices) if isinstance(devices, dict) else {}


def _measured(work: Path, report: Callable[[str], None]) -> Sequence[Level]:
    best = dict.fromkeys(LEVELS, 0.0)
    for number in range(1, _TRIES + 1):
        for count in LEVELS:  # in turn, for what else the device does changes with time
            report(f"try {number} of {_TRIES}, unpackers at once: {count}")
            best[count] = max(best[count], _rate(work / f"{count}-{number}", count))
    return [Level(count, int(rate)) for count, rate in best.items()]


def _rate(folder: Path, count: int) -> float:
    folder.mkdir()
    sync_file_system(folder)  # or this would wait for what was written and removed before
    started = time.monotonic()
    _at_once([_unit_writer(folder, one, count) for one in range(count)])
    seconds = time.monotonic() - started
    shutil.rmtree(folder)
    return _UNITS * UNIT / seconds


def _unit_writer(folder: Path, number: int, count: int) -> Callable[[], None]:
    def write() -> None:
        for unit in range(number, _UNITS, count):
            _write_unit(folder / str(unit))

    return write


def _write_unit(folder: Path) -> None:
    content = os.urandom(_LARGE_SIZE)  # or a file system that compresses would be praised for it
    for number in range(_SMALL):
        path = folder / str(number % 20)
        if number < 20:
            path.mkdir(parents=True)
        start = number * _SMALL_SIZE % (_LARGE_SIZE - _SMALL_SIZE)
        (path / str(number)).write_bytes(content[start : start + _SMALL_SIZE])
    for number in range(_LARGE):
        (folder / f"large-{number}").write_bytes(content)
    sync_file_system(folder)


def _at_once(functions: Sequence[Callable[[], None]]) -> None:
    """Call each in a process of its own; raises ``OSError`` if one fails."""
    pids: list[int] = []
    for function in functions:
        pid = os.fork()
        if pid == 0:
            code = 255
            try:
                function()
                code = 0
            except OSError as error:
                code = min(error.errno or 255, 255)
            finally:
                os._exit(code)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    for code in codes:
        if code:
            raise OSError(code, os.strerror(code) if 0 < code < 255 else "a writer died")
