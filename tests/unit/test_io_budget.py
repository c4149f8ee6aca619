"""Bytes that are unpacked at once by all processes of a node."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput
from minisandbox.sizes import parse_size
from minisandbox.store import budget, calibrating
from minisandbox.store.budget import DEFAULT_BUDGET, granted, io_budget
from minisandbox.store.calibrating import Level, enough


class Load:
    """What is granted at each moment, and the most that it was."""

    def __init__(self, folder: Path, total: int) -> None:
        self.folder, self.total = folder, total
        self.now = self.most = 0
        self.done: list[int] = []
        self.lock = threading.Lock()

    def take(self, size: int, seconds: float) -> None:
        with granted(self.folder, self.total, size):
            with self.lock:
                self.now += size
                self.most = max(self.most, self.now)
            time.sleep(seconds)
            with self.lock:
                self.now -= size
                self.done.append(size)


def run(load: Load, sizes: list[int], seconds: float) -> None:
    threads = [threading.Thread(target=load.take, args=(size, seconds)) for size in sizes]
    for thread in threads:
        thread.start()
        time.sleep(0.01)  # in this order
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_no_more_than_the_budget_is_granted(tmp_path: Path) -> None:
    load = Load(tmp_path, 3200)
    run(load, [100, 1500, 1700, 900, 100, 100, 3200, 800, 400] * 2, 0.01)
    assert len(load.done) == 18
    assert load.most <= 3200


def test_small_ones_go_together(tmp_path: Path) -> None:
    load = Load(tmp_path, 3200)
    run(load, [100] * 12, 0.5)
    assert load.most > 400


def test_what_is_larger_than_the_budget_goes_alone(tmp_path: Path) -> None:
    load = Load(tmp_path, 100)
    run(load, [1000, 1, 1000, 1], 0.02)
    assert load.most == 1000


def test_a_large_one_does_not_wait_for_small_ones_that_came_later(tmp_path: Path) -> None:
    load = Load(tmp_path, 3200)
    run(load, [1600, 3200] + [100] * 20, 0.1)
    assert load.done[:2] == [1600, 3200]


def test_a_killed_process_gives_back_what_it_held(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with granted(tmp_path, 100, 100):
                os.write(write_end, b"x")
                time.sleep(60)
        finally:
            os._exit(1)
    os.read(read_end, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with granted(tmp_path, 100, 100):
        pass
    os.close(read_end)
    os.close(write_end)


def test_the_budget_is_the_variables_or_the_measured_or_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(budget.VARIABLE, raising=False)
    assert io_budget(tmp_path) == DEFAULT_BUDGET
    path = tmp_path / budget.CALIBRATION
    path.write_text(json.dumps({"devices": {budget.device_of(tmp_path): {"budget": 123}}}))
    assert io_budget(tmp_path) == 123
    path.write_text(json.dumps({"devices": {"0:0 other": {"budget": 123}}}))
    assert io_budget(tmp_path) == DEFAULT_BUDGET, "of another device"
    path.write_text("{")
    assert io_budget(tmp_path) == DEFAULT_BUDGET
    monkeypatch.setenv(budget.VARIABLE, "2 GiB")
    assert io_budget(tmp_path) == 2 << 30


def test_as_few_unpackers_as_nearly_bring_the_most() -> None:
    assert enough([Level(1, 100), Level(2, 180), Level(4, 195), Level(8, 190)]) == 2
    assert enough([Level(1, 100), Level(2, 90), Level(4, 80), Level(8, 60)]) == 1
    assert enough([Level(1, 100), Level(2, 200), Level(4, 400), Level(8, 800)]) == 8


def test_a_device_is_measured_and_what_follows_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(budget.VARIABLE, raising=False)
    for name, value in (("_SMALL", 20), ("_LARGE", 1), ("_LARGE_SIZE", 64 << 10), ("UNIT", 1)):
        monkeypatch.setattr(calibrating, name, value)
    said: list[str] = []
    left = tmp_path / "node/.calibration-abcdefgh/1-1"  # of one that was killed
    left.mkdir(parents=True)
    found = calibrating.calibrate(tmp_path / "node", said.append)
    assert not left.parent.exists()
    assert [level.unpackers for level in found.levels] == [1, 2, 4, 8]
    assert found.budget == enough(found.levels) * DEFAULT_BUDGET // 2
    assert io_budget(tmp_path / "node") == found.budget
    assert list(calibrating.calibrations(tmp_path / "node")) == [found]
    assert len(said) == 8
    assert not [*(tmp_path / "node").glob(".calibration-*")]


@pytest.mark.parametrize(
    "devices",
    [
        [],
        "x",
        {"0:1 ext4": {"budget": 5}},
        {"0:1 ext4": 7},
        {"0:1 ext4": {"budget": 5, "date": "x", "levels": []}},
        {"0:1 ext4": {"budget": 5, "date": 6, "levels": [{"unpackers": 1}]}},
    ],
)
def test_a_calibration_of_another_form_is_none(tmp_path: Path, devices: object) -> None:
    whole = {"budget": 7, "date": 8, "levels": [{"unpackers": 1, "rate": 2, "more": 3}]}
    if isinstance(devices, dict):
        devices = {**devices, "0:2 xfs": whole}
    (tmp_path / budget.CALIBRATION).write_text(json.dumps({"devices": devices}))
    known = [calibrating.Calibration("0:2 xfs", 8, [Level(1, 2)], 7)]
    assert calibrating.calibrations(tmp_path) == (known if isinstance(devices, dict) else [])


@pytest.mark.parametrize(
    ("text", "size"),
    [("80GB", 80 * 10**9), ("1.5 T", 15 * 10**11), ("512MiB", 1 << 29), ("7", 7), (" 2 kb ", 2000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size("here", text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "1 mile", "1,5GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InvalidInput, match="here: is"):
        parse_size("here", text)
