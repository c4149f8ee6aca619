"""Which paths a patch touches, compared with what git itself says of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from minisandbox.evaluate.patches import patched_paths


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *words],
        cwd=folder,
        capture_output=True,
        check=True,
    )
    return done.stdout.decode("utf-8", "surrogateescape")


def test_every_kind_of_change_is_seen(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", ".")
    (tmp_path / "changed.py").write_text("-- a/looks/like.py\n+++ b/a/header.py\nx\n")
    (tmp_path / "removed.py").write_text("gone\n")
    (tmp_path / "moved.py").write_text("a\nb\nc\nd\n")
    (tmp_path / "mode.sh").write_text("#!/bin/sh\n")
    (tmp_path / "binary").write_bytes(b"\0\1\2")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    (tmp_path / "changed.py").write_text("x\ny\n")
    (tmp_path / "removed.py").unlink()
    (tmp_path / "moved.py").rename(tmp_path / "to here.py")
    (tmp_path / "mode.sh").chmod(0o755)
    (tmp_path / "binary").write_bytes(b"\0\1\3")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / 'quo"ted\tü.py').write_text("new\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/nested.py").write_text("no newline at end")
    git(tmp_path, "add", "-A")
    for flags in ((), ("--no-renames",), ("--binary", "--full-index", "-M")):
        patch = git(tmp_path, "diff", "--cached", *flags)
        names = git(tmp_path, "diff", "--cached", "--no-renames", "--name-only", "-z")
        assert set(patched_paths(patch)) == set(names.split("\0")) - {""}


def test_a_plain_diff_without_git_headers() -> None:
    patch = "--- a/x.py\t2024-01-01\n+++ b/x.py\t2024-01-02\n@@ -1 +1 @@\n-a\n+b\n"
    assert patched_paths(patch) == ("x.py",)


@pytest.mark.parametrize("character", ["\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_only_line_feeds_end_lines(character: str) -> None:
    patch = f"--- a/x.py\n+++ b/x.py\n@@ -1 +1,2 @@\n-a\n+a{character}--- a/not/this.py\n+b\n"
    assert patched_paths(patch + patch.replace("x.py", "y.py")) == ("x.py", "y.py")


def test_carriage_returns_of_a_patch_are_not_part_of_names() -> None:
    patch = "--- a/x.py\r\n+++ b/x.py\r\n@@ -1 +1 @@\r\n-a\r\n+b\r\n"
    assert patched_paths(patch) == ("x.py",)


def test_nothing_is_nothing() -> None:
    assert patched_paths("") == ()
    assert patched_paths("prose\nthat is no patch\n") == ()
