"""What is bound from the host: never what a layer points at, and never what a removal may reach."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from minisandbox import removal
from minisandbox.errors import InvalidInput, MiniSandboxError
from minisandbox.idmap import IdMap, call_mapped, remove_tree
from minisandbox.runtime import start_instance
from minisandbox.sandbox import Bind, Profile, connection
from minisandbox.store import NodeStore, Store

TARGET = "/run/minisandbox/base/source"


def link(at: Path, to: str) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(to)


def of_layer(layer: Path) -> Profile:
    return Profile(binds=(Bind(layer, TARGET, beneath="testbed/.git"),))


def test_a_directory_of_a_layer_is_bound_alone_and_read_only(start, make_layer) -> None:
    layer = make_layer({"testbed/.git/index": "content"})
    box = start(layer, profile=of_layer(layer))
    assert box.run(f"cat {TARGET}/index").stdout == b"content"
    assert box.run(f"echo x > {TARGET}/index").exit_code != 0
    assert (layer / "testbed/.git/index").read_text() == "content"


@pytest.mark.parametrize("to", ["/", "{secret}", "..", "../..", ".", "real"])
@pytest.mark.parametrize("at", ["testbed/.git", "testbed"])
def test_no_link_of_a_layer_is_followed(
    start, make_layer, idmap: IdMap, scratch: Path, tmp_path: Path, at: str, to: str
) -> None:
    secret = tmp_path / "secret"
    (secret / ".git").mkdir(parents=True)
    layer = make_layer({"real/.git/x": "1", "testbed.d/x": "1"})
    call_mapped(idmap, partial(link, layer / at, to.format(secret=secret)))
    with pytest.raises(InvalidInput, match="no link there is followed") as caught:
        start(layer, profile=of_layer(layer))
    assert "testbed/.git" in str(caught.value)
    assert str(layer) in str(caught.value)
    assert list(scratch.glob("box-*")) == []


@pytest.mark.parametrize("files", [{"testbed/x": "1"}, {"testbed/.git": "gitdir: /etc"}])
def test_what_is_no_directory_of_a_layer_is_refused(start, make_layer, files) -> None:
    layer = make_layer(files)
    with pytest.raises(InvalidInput, match="is no directory of its own"):
        start(layer, profile=of_layer(layer))


def test_an_instance_does_not_show_what_its_source_layer_points_at(
    make_layer, idmap: IdMap, tmp_path: Path
) -> None:
    tree = make_layer({"testbed/x": "1"})
    call_mapped(idmap, partial(link, tree / "testbed/.git", "/"))
    store, node = Store(tmp_path / "store"), NodeStore(tmp_path / "node", idmap)
    layer = store.add("source", tree, date=1_600_000_000, idmap=idmap)
    try:
        with pytest.raises(InvalidInput, match="no link there is followed"):
            start_instance([layer], head_tree="", store=store, node=node, name="hostile")
    finally:
        remove_tree(node.root, idmap)


def test_a_callers_own_links_are_followed(start, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "real/file").write_text("content")
    os.symlink("real", tmp_path / "link")
    box = start(profile=Profile(binds=(Bind(tmp_path / "link", "/mnt/given"),)))
    assert box.run("cat /mnt/given/file").stdout == b"content"


def test_a_directory_of_a_layer_is_never_writable(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be writable"):
        Bind(tmp_path, "/mnt/x", writable=True, beneath="testbed")


def precious(place: Path, count: int) -> Profile:
    """Writable binds of directories with a file in each, and of one file."""
    binds: list[Bind] = []
    for number in range(count):
        folder = place / f"precious-{number}"
        (folder / "deep/er").mkdir(parents=True)
        (folder / "deep/er/file").write_text("kept")
        binds.append(Bind(folder, f"/mnt/{number}", writable=True))
    (place / "file").write_text("kept")
    return Profile(binds=(*binds, Bind(place / "file", "/mnt/file", writable=True)))


def check_kept(place: Path, count: int) -> None:
    files = [place / f"precious-{number}/deep/er/file" for number in range(count)]
    assert [file.read_text() for file in (*files, place / "file")] == ["kept"] * (count + 1)


def break_start(monkeypatch: pytest.MonkeyPatch, seam: str, answer: str) -> None:
    """Let one function of the server answer otherwise: ``None``, or ``refused()``."""
    program = f"""
from minisandbox import linux
from minisandbox.sandbox import rootfs
def refused():
    raise PermissionError(1, "refused")
{seam} = lambda *_, **__: {answer}
"""
    whole = connection._BOOTSTRAP.replace("from minisandbox", program + "from minisandbox")
    monkeypatch.setattr(connection, "_BOOTSTRAP", whole)


@pytest.mark.parametrize("name", ["plain", "bücher", "a b\tc\\134", "日本\n"])
@pytest.mark.parametrize("fails", ["not", "while staging", "at the namespaces", "inside"])
def test_writable_binds_are_never_emptied(
    start,
    make_layer,
    scratch: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh_server: None,
    name: str,
    fails: str,
) -> None:
    place = scratch / name
    place.mkdir()
    layer = make_layer({"x": "1"})
    profile = precious(tmp_path, 3)
    if fails == "not":
        start(layer, scratch=place, profile=profile).close()
    else:
        if fails == "while staging":
            more = Bind(layer, "/mnt/x", beneath="missing")
            profile = Profile(binds=(*profile.binds, more))
        elif fails == "at the namespaces":
            break_start(monkeypatch, "linux.clone_mapped", "refused()")
        else:
            os.symlink("/etc", layer / "dev")
        with pytest.raises(MiniSandboxError, match=r"refused|replaces|no directory of its own"):
            start(layer, scratch=place, profile=profile)
    check_kept(tmp_path, 3)
    assert list(place.glob("box-*")) == []


MOUNTED = """
import os, sys
from minisandbox import linux, removal
tree, kept = sys.argv[1:]
linux.mount(kept, tree + "/a/mount", "", linux.MS_BIND)
linux.mount(kept + "/file", tree + "/a/file", "", linux.MS_BIND)
for name in ("", "/a", "/a/mount", "/a/file"):
    try:
        removal.remove(tree + name)
    except OSError as error:
        print(error.errno)
"""


def test_removal_stops_at_mounts_of_the_same_file_system(tmp_path: Path) -> None:
    tree, kept = tmp_path / "tree", tmp_path / "kept"
    for place in (tree / "a/mount", kept):
        place.mkdir(parents=True)
    for file in (tree / "a/file", kept / "file"):
        file.write_text("kept")
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]
    done = subprocess.run(
        [*unshare, sys.executable, "-c", MOUNTED, str(tree), str(kept)],
        env={**os.environ, "PYTHONPATH": str(Path(connection.__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [str(errno.EBUSY)] * 4, done.stderr
    assert (kept / "file").read_text() == "kept"
    removal.remove(str(tree))
    assert not tree.exists()
