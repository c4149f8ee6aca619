"""Files that directories share, and whiteouts, which are one inode as far as it takes links."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from minisandbox.store.links import Whiteouts


@pytest.mark.parametrize("most", [1000, 3, 1])
def test_whiteouts_are_one_inode_as_far_as_it_takes_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    real = os.link

    def link(source: str, *words: object, src_dir_fd: int, **options: object) -> None:
        if os.stat(source, dir_fd=src_dir_fd, follow_symlinks=False).st_nlink >= most:
            raise OSError(errno.EMLINK, "Too many links")
        real(source, *words, src_dir_fd=src_dir_fd, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(os, "link", link)
    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    whiteouts = Whiteouts(root)
    for folder in ("a", "b"):
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=root)
        for number in range(5):
            whiteouts.add(f"gone-{number}", folder, directory)
        os.close(directory)
    os.close(root)
    found = [path.lstat() for path in sorted(tmp_path.glob("*/*"))]
    assert len(found) == 10
    assert all(stat.S_ISCHR(status.st_mode) and status.st_rdev == 0 for status in found)
    assert len({status.st_ino for status in found}) == -(-10 // most)


def test_another_error_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    root = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        whiteouts = Whiteouts(root)
        whiteouts.add("first", ".", root)
        monkeypatch.setattr(os, "link", full)
        with pytest.raises(OSError, match="No space"):
            whiteouts.add("second", ".", root)
    finally:
        os.close(root)
