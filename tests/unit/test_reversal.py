"""Patches the other way round, held against what git itself makes of them."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from minisandbox.evaluate.reversal import reverse


def git(folder: Path, *words: str, stdin: bytes = b"") -> bytes:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.autocrlf=false"]
    command = ["git", *identity, *words]
    return subprocess.run(command, cwd=folder, input=stdin, capture_output=True, check=True).stdout


def tree(folder: Path) -> str:
    git(folder, "add", "-A")
    return git(folder, "write-tree").decode().strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", ".")
    return tmp_path


def there_and_back(folder: Path, before: str, after: str, *flags: str) -> str:
    """The reverse of the difference of two trees, after it was tried both ways."""
    diff = git(folder, "diff", *flags, before, after).decode("utf-8", "surrogateescape")
    back = reverse(diff)
    assert reverse(back) == diff
    for start, patch, end in ((before, diff, after), (after, back, before)):
        git(folder, "read-tree", "--reset", start)
        git(folder, "apply", "--cached", "-", stdin=patch.encode("utf-8", "surrogateescape"))
        assert git(folder, "write-tree").decode().strip() == end
    return back


def test_every_kind_of_change_goes_back(repository: Path) -> None:
    (repository / "changed.py").write_text("-- a/looks/like.py\n+++ b/a/header.py\nx\n")
    (repository / "removed.py").write_text("gone\n")
    (repository / "moved.py").write_text("a\nb\nc\nd\n")
    (repository / "moved and changed.py").write_text("".join(f"{n}\n" for n in range(40)))
    (repository / "mode.sh").write_text("#!/bin/sh\n")
    (repository / "binary").write_bytes(b"\0\1\2")
    (repository / "end").write_text("one\ntwo")
    (repository / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    before = tree(repository)
    (repository / "changed.py").write_text("x\n@@ -1 +1 @@\n--- y\ny\n")
    (repository / "removed.py").unlink()
    (repository / "moved.py").rename(repository / 'to "here" ü.py')
    (repository / "moved and changed.py").unlink()
    (repository / "moved too.py").write_text("".join(f"{n}\n" for n in range(1, 41)))
    (repository / "mode.sh").chmod(0o755)
    (repository / "binary").write_bytes(b"\0\1\3")
    (repository / "empty.py").write_text("")
    (repository / "end").write_text("one\ntwo\nthree\n")
    (repository / "crlf.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (repository / "link").symlink_to("end")
    after = tree(repository)
    for flags in (
        ("--binary",),
        ("--binary", "--no-renames"),
        ("--binary", "-U0", "-M"),
        ("--binary", "--full-index"),
    ):
        if "-U0" not in flags:  # git applies such patches only when told to
            there_and_back(repository, before, after, *flags)


def test_random_changes_go_back(repository: Path) -> None:
    chance = random.Random(7)
    lines = [f"line {chance.randrange(9)}\n" for _ in range(60)]
    for _ in range(30):
        (repository / "f").write_text("".join(lines))
        before = tree(repository)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(lines))
            lines[at : at + chance.randrange(3)] = [f"new {chance.randrange(9)}\n"] * (
                chance.randrange(3)
            )
        (repository / "f").write_text("".join(lines))
        if (after := tree(repository)) != before:
            there_and_back(repository, before, after)


def test_what_goes_comes_before_what_comes() -> None:
    patch = "--- a/x\t1\n+++ b/x\t2\n@@ -1,2 +1 @@ f\n-a\n-b\n+c\n"
    assert reverse(patch) == "--- a/x\t2\n+++ b/x\t1\n@@ -1 +1,2 @@ f\n-c\n+a\n+b\n"


def test_a_file_that_comes_goes() -> None:
    patch = (
        "diff --git a/x b/x\nnew file mode 100644\nindex 0000000..e69de29\n"
        "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n\\ No newline at end of file\n"
    )
    assert reverse(patch) == (
        "diff --git a/x b/x\ndeleted file mode 100644\nindex e69de29..0000000\n"
        "--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n\\ No newline at end of file\n"
    )


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("", "no unified diff"),
        ("prose\n", "no unified diff"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", "not how"),
        ("diff --git a/x b/y\ncopy from x\ncopy to y\n", "copies"),
        ("diff --git a/x b/x\nGIT binary patch\nliteral 1\nIcmZQz\n\n", "taken back"),
        ("--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n-a\n+b\n", "shorter"),
    ],
)
def test_what_has_no_reverse_is_told(patch: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        reverse(patch)
