"""Which paths a patch touches, compared with what git itself says of it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from minisandbox.evaluate.patches import (
    created_paths,
    patched_paths,
    remaining_paths,
)
from minisandbox.runtime.patchnames import is_for_git_alone


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


def new_file(name: str, *lines: str) -> str:
    body = "".join(f"+{line}\n" for line in lines or ("x",))
    return f"--- /dev/null\n+++ {name}\n@@ -0,0 +1,{len(lines) or 1} @@\n{body}"


HOOK = ".git/hooks/post-checkout"
FIX = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"
LINK = "diff --git a/way b/way\nnew file mode 120000\n" + new_file("b/way", ".git")
#: It ends with a line that looks like a header, and is one of content.
CONTEXT = "*** a/x\n--- b/x\n***************\n*** 1 ****\n  a\n--- 1,2 ----\n  a\n+++ y\n"


@pytest.mark.parametrize(
    "patch",
    [
        new_file(f"b/{HOOK}"),
        FIX + new_file(f"b/{HOOK}"),
        new_file("b/.GIT/config"),
        new_file("b/sub/.git/config"),
        new_file("b/.git/../x.py"),
        new_file("b/.git"),
        new_file('"b/.git/hooks/\\303\\274"'),
        new_file('"b/\\056git/config"'),
        f"diff --git a/{HOOK} b/{HOOK}\nnew file mode 100755\n",
        "diff --git a/x b/.git/x\nsimilarity index 100%\nrename from x\nrename to .git/x\n",
        "diff --git a/.git/x b/x\nsimilarity index 100%\ncopy from .git/x\ncopy to x\n",
        f"Index: {HOOK}\n" + FIX,
        f"*** /dev/null\n--- b/{HOOK}\n***************\n*** 0 ****\n--- 1 ----\n+ x\n",
        "".join(f"  {line}\n" for line in new_file(f"b/{HOOK}").splitlines()),
        "@@ -1,9 +1,9 @@ no hunk, for want of a header\n" + new_file(f"b/{HOOK}"),
        FIX + "\\ No newline at end of file\n" + new_file(f"b/{HOOK}"),
        "--- a/y\n+++ b/y\n@@ -1,2 +1,2 @@\n\t\n-a\n+b\n" + new_file(f"b/{HOOK}"),
        new_file(f"b/{HOOK}").replace("\n", "\r\n"),
        f"Index:{HOOK}\n" + FIX,
        f"XX--- a/y\nXX+++ b/{HOOK}\nXX@@ -0,0 +1 @@\nXX+x\n",
        f"- --- a/{HOOK}\n+++ b/y\n@@ -1 +1 @@\n-x\n+y\n",
        CONTEXT + "@@ -1,9999 +1,9999 @@\n" + new_file(f"b/{HOOK}"),
        LINK,
        LINK + new_file("b/way/hooks/post-checkout"),
        "@@ -1,9999 +1,9999 @@\n" + LINK,
        LINK.replace("120000", "120777"),
        LINK.replace("120000", " 00120000"),
        LINK.replace("new file mode", "old mode 100644\nnew mode"),
        LINK.replace("new file mode", "index 0123456..789abcd"),
        LINK.replace("new file mode", "  new file mode"),
    ],
)
def test_what_may_write_to_a_repository_of_git_is_for_git_alone(patch: str) -> None:
    assert is_for_git_alone(patch)


@pytest.mark.parametrize(
    "patch",
    [
        "",
        FIX,
        FIX.replace("--- a", "index 0123456..789abcd 100644\n--- a"),
        "diff --git a/sub b/sub\nindex 0123456..789abcd 160000\n",
        "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n",
        new_file("b/.gitignore", ".git/"),
        new_file("b/.github/x.yml"),
        new_file("b/x.git/y"),
        new_file("b/a.diff", f"--- a/{HOOK}", f"+++ b/{HOOK}"),
    ],
)
def test_a_patch_of_the_work_tree_is_for_other_programs_too(patch: str) -> None:
    assert not is_for_git_alone(patch)


@pytest.mark.parametrize(
    "line", ["-" * 10**6, " X" * 10**6, "index" + " " * 10**6, '--- "' + '\\"' * 10**6]
)
def test_a_long_line_is_read_once(line: str) -> None:
    started = time.process_time()
    is_for_git_alone(line)
    assert time.process_time() - started < 10


def test_made_files_are_those_without_an_old_side() -> None:
    patch = (
        "diff --git a/new.py b/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/new.py\n"
        "@@ -0,0 +1 @@\n+--- /dev/null\n"
        "diff --git a/empty.py b/empty.py\nnew file mode 100644\nindex 000..e69\n"
        "diff --git a/old.py b/old.py\n--- a/old.py\n+++ b/old.py\n@@ -1 +1 @@\n-1\n+2\n"
        "diff --git a/gone.py b/gone.py\ndeleted file mode 100644\n--- a/gone.py\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-1\n"
        "--- /dev/null\n+++ b/plain.py\n@@ -0,0 +1 @@\n+1\n"
    )
    assert created_paths(patch) == ("new.py", "empty.py", "plain.py")


def test_a_renamed_or_copied_file_is_made_and_its_old_side_does_not_remain() -> None:
    patch = (
        "diff --git a/old.py b/new name.py\nsimilarity index 90%\nrename from old.py\n"
        "rename to new name.py\n--- a/old.py\n+++ b/new name.py\n@@ -1 +1 @@\n-1\n+2\n"
        "diff --git a/from.py b/to.py\nsimilarity index 100%\ncopy from from.py\ncopy to to.py\n"
        "diff --git a/gone.py b/gone.py\ndeleted file mode 100644\n--- a/gone.py\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n-1\n"
    )
    assert created_paths(patch) == ("new name.py", "to.py")
    assert remaining_paths(patch) == ("new name.py", "to.py")
