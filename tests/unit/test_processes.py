"""Processes as /proc lists them, while they come and go."""

from __future__ import annotations

import os
import subprocess

import pytest

from minisandbox.sandbox import processes


def test_what_is_forked_during_a_look_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork bomb got away where its parent had ended before it was read."""
    real = os.listdir
    with subprocess.Popen(["sleep", "100"]) as child:
        listings = iter([[name for name in real("/proc") if name != str(child.pid)]])
        monkeypatch.setattr(os, "listdir", lambda path: next(listings, None) or real(path))
        try:
            assert child.pid in processes.descendants(os.getpid())
        finally:
            child.kill()


def test_a_look_ends_where_new_ones_come_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(10**8, 10**9))  # above what pids can be
    monkeypatch.setattr(os, "listdir", lambda _: [str(os.getpid()), str(next(numbers))])
    assert processes.descendants(os.getppid()) == [os.getpid()]
