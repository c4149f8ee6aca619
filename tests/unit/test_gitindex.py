"""An index without traces of the machine, which git still takes for its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from minisandbox.build.checkouts.gitindex import normalise


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, check=True, text=True
    ).stdout


def make(folder: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "-q", ".")
    for key, value in (("trustctime", "false"), ("checkStat", "minimal")):
        git(folder, "config", f"core.{key}", value)
    for name in ("a", "sub/longer-name-of-a-file.py", "ü"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
        os.utime(path, (1700000000, 1700000000))
    git(folder, "add", "-A")
    return folder / ".git/index"


def test_two_checkouts_give_the_same_index(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one"), make(tmp_path / "two")
    assert one.read_bytes() != two.read_bytes()
    assert normalise(one.read_bytes()) == normalise(two.read_bytes())


def test_git_finds_nothing_to_refresh(tmp_path: Path) -> None:
    index = make(tmp_path / "repo")
    index.write_bytes(normalise(index.read_bytes()))
    os.utime(index, (1700000001, 1700000001))
    before = index.read_bytes()
    assert git(tmp_path / "repo", "diff", "--name-only") == ""
    git(tmp_path / "repo", "fsck")
    git(tmp_path / "repo", "status")
    assert index.read_bytes() == before, "git rewrote the index, so it had to look at files again"


def test_an_extended_entry_keeps_its_place(tmp_path: Path) -> None:
    index = make(tmp_path / "repo")
    (tmp_path / "repo/intended").write_text("x")
    git(tmp_path / "repo", "add", "--intent-to-add", "intended")
    index.write_bytes(normalise(index.read_bytes()))
    assert "intended" in git(tmp_path / "repo", "ls-files")


def test_anything_else_is_refused() -> None:
    with pytest.raises(ValueError, match="not a git index"):
        normalise(b"DIRC" + b"\0\0\0\4" + b"\0" * 40)
