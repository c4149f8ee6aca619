"""Directories that are whole or absent: what a killed process was filling is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from minisandbox import atomic

KILLED = """\
import os, signal, sys
from pathlib import Path
from minisandbox import atomic

def fill(work):
    (work / "sub").mkdir(parents=True)
    (work / "sub/file").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)

target = Path(sys.argv[1])
atomic.ensure_directory(target, target.with_name(".lock"), fill)
"""


def fill(work: Path) -> None:
    work.mkdir()
    (work / "file").write_text("whole")


def test_what_a_killed_process_was_filling_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "tool-1.0"
    killed = subprocess.run([sys.executable, "-c", KILLED, target], check=False)
    assert killed.returncode == -9
    assert len(list(tmp_path.glob(".tool-1.0.*.tmp"))) == 1
    assert atomic.ensure_directory(target, tmp_path / ".lock", fill)
    assert sorted(os.listdir(tmp_path)) == [".lock", "tool-1.0"]
    assert (target / "file").read_text() == "whole"


def test_what_others_are_filling_stays(tmp_path: Path) -> None:
    # Their locks are others: of a longer name, of a name that ends otherwise, of no directory.
    kept = [".tool.more.abcdefgh.tmp", ".tool2.abcdefgh.tmp", ".tool.abcdefgh.tmp.x", ".tool.a.tmp"]
    for name in kept:
        (tmp_path / name).mkdir()
    (tmp_path / ".tool.abcd_f9h.tmp").mkdir()
    assert atomic.ensure_directory(tmp_path / "tool", tmp_path / ".lock", fill)
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, ".lock", "tool"])
    assert not atomic.ensure_directory(tmp_path / "tool", tmp_path / ".lock", fill)
