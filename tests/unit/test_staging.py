"""Where downloads come together: on the destination's file system, and gone afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from minisandbox.sandbox.staging import Staging


def make(path: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)


def files(path: Path) -> dict[str, str]:
    return {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}


def put(
    content: dict[str, str], destination: Path, and_then: Callable[[Path], None] = lambda _: None
) -> None:
    """Make ``content``, of which a file alone has no name, and have it put at ``destination``."""
    with Staging(str(destination)) as staging:
        for name, text in content.items():
            make(Path(staging.path), {name: text}) if name else Path(staging.path).write_text(text)
        and_then(Path(staging.path))
        staging.put_in_place()


@pytest.mark.parametrize("destination", [".", "a", "a/b", "to-b", "to-nothing", "x/y/z"])
def test_the_place_is_never_left_behind(tmp_path: Path, destination: str) -> None:
    make(tmp_path, {"a/b/old": "old", "a/b/f": "old"})
    os.symlink("a/b", tmp_path / "to-b")
    os.symlink("a/nothing", tmp_path / "to-nothing")
    before = files(tmp_path)

    def interrupt(content: Path) -> None:
        (content / "n").chmod(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put({"f": "new", "n/g": "new"}, tmp_path / destination, interrupt)
    assert files(tmp_path) == before
    put({"f": "new", "n/g": "new"}, tmp_path / destination)
    target = (tmp_path / destination).resolve()
    assert (files(target)["f"], files(target)["n/g"]) == ("new", "new")
    assert files(tmp_path)["a/b/old"] == "old"
    assert not [path for path in tmp_path.rglob("*") if "minisandbox" in path.name]


MISFITS = [
    ({"t": "file"}, {"f": "x"}),
    ({"t/f/g": "directory"}, {"f": "x"}),
    ({"t/f": "file"}, {"f/g": "x"}),
    ({"t/f": "directory"}, {"": "x"}),
    ({"t/d/f": "old", "t/z/g": "directory"}, {"d/f": "new", "z": "x"}),
]


@pytest.mark.parametrize(("there", "comes"), MISFITS)
def test_a_file_and_a_directory_do_not_replace_each_other(
    tmp_path: Path, there: dict[str, str], comes: dict[str, str]
) -> None:
    make(tmp_path, there)
    with pytest.raises(OSError, match="directory"):
        put(comes, tmp_path / "t")
    assert files(tmp_path) == there


def test_a_link_at_the_destination_is_not_written_through(tmp_path: Path) -> None:
    make(tmp_path, {"elsewhere/f": "old", "t/g": "old"})
    os.symlink(tmp_path / "elsewhere", tmp_path / "t/d")
    os.symlink(tmp_path / "elsewhere/f", tmp_path / "t/l")
    put({"l": "new"}, tmp_path / "t")
    with pytest.raises(OSError, match="directory"):
        put({"d/f": "new"}, tmp_path / "t")
    assert (tmp_path / "t/l").read_text() == "new"
    assert files(tmp_path / "elsewhere") == {"f": "old"}


def test_where_nothing_can_be_made_the_destination_is_named(tmp_path: Path) -> None:
    make(tmp_path, {"file": ""})
    with pytest.raises(NotADirectoryError) as caught:
        Staging(str(tmp_path / "file/below/it"))
    assert caught.value.filename == str(tmp_path / "file/below/it")


def test_what_is_mounted_below_the_destination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, {"t/mount/f": "old", "t/mount/old": "old"})
    rename = os.rename

    def refuse(source: str, target: str) -> None:
        if source.startswith(str(tmp_path / "t/mount")) != target.startswith(
            str(tmp_path / "t/mount")
        ):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target)

    def prepare(content: Path) -> None:
        os.symlink("dangling", content / "mount/l")
        (content / "mount/n").chmod(0o555)
        os.utime(content / "mount/f", (1e9, 1e9))

    monkeypatch.setattr(os, "rename", refuse)
    put({"mount/f": "new", "mount/n/g": "new", "h": "new"}, tmp_path / "t", prepare)
    assert files(tmp_path / "t") == {
        "mount/f": "new",
        "mount/old": "old",
        "mount/n/g": "new",
        "h": "new",
    }
    assert os.readlink(tmp_path / "t/mount/l") == "dangling"
    assert (tmp_path / "t/mount/f").stat().st_mtime == 1e9
    assert (tmp_path / "t/mount/n").stat().st_mode & 0o777 == 0o555
    assert {path.name for path in (tmp_path / "t").iterdir()} == {"mount", "h"}
    (tmp_path / "t/mount/n").chmod(0o755)
