"""The two stores as their callers see them."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput, LayerMissing, UnpackableTree
from minisandbox.idmap import IdMap, single
from minisandbox.store import Finding, NodeStore, Store, default_node_root

DATE = 1_600_000_000
ABSENT = "sha256:" + "0" * 64


@pytest.fixture
def tree(place: Path) -> Path:
    root = place / "tree"
    (root / "opt/bin").mkdir(parents=True)
    (root / "opt/bin/tool").write_bytes(b"#!/bin/sh\n")
    (root / "opt/bin/tool").chmod(0o755)
    (root / "opt/data").write_bytes(os.urandom(100_000))
    (root / "opt/link").symlink_to("bin/tool")
    return root


def test_added_layer_is_found_under_its_digest(place: Path, tree: Path, idmap: IdMap) -> None:
    store = Store(place / "store")
    ref = store.add("environment", tree, date=DATE, idmap=idmap)
    path = store.path(ref.digest)
    value = ref.digest.removeprefix("sha256:")
    assert path == place / "store/layers/sha256" / value[:2] / f"{value}.tar.zst"
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert (ref.kind, ref.size, ref.files) == ("environment", path.stat().st_size, 2)
    assert ref.unpacked_size == 100_010
    assert store.has(ref.digest)
    assert not store.has(ABSENT)
    assert list(store.digests()) == [ref.digest]


def test_packed_file_is_plain_zstd_and_tar(place: Path, tree: Path, idmap: IdMap) -> None:
    store = Store(place / "store")
    ref = store.add("environment", tree, date=DATE, idmap=idmap)
    with store.open(ref.digest) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        assert archive.getnames() == [
            *("opt", "opt/bin", "opt/bin/tool", "opt/data", "opt/link"),
        ]


def test_same_content_is_kept_once(place: Path, tree: Path, idmap: IdMap) -> None:
    store = Store(place / "store")
    first = store.add("environment", tree, date=DATE, idmap=idmap)
    inode = store.path(first.digest).stat().st_ino
    other = Store(place / "store", level=1)
    assert other.add("environment", tree, date=DATE, idmap=idmap) == first
    assert store.path(first.digest).stat().st_ino == inode
    assert list((place / "store/incoming").iterdir()) == []


def test_level_does_not_enter_the_digest(place: Path, tree: Path, idmap: IdMap) -> None:
    refs = [
        Store(place / f"store-{level}", level=level).add("instance", tree, date=DATE, idmap=idmap)
        for level in (1, 19)
    ]
    assert refs[0].digest == refs[1].digest


def test_options_reach_the_packer(place: Path, tree: Path, idmap: IdMap) -> None:
    store = Store(place / "store")
    ref = store.add(
        "source",
        tree,
        date=DATE,
        idmap=idmap,
        exclude=lambda path: path == "opt/data",
        newer=frozenset({"opt/link"}),
    )
    with store.open(ref.digest) as stream:
        data = io.BytesIO(stream.read())
    with tarfile.open(fileobj=data) as archive:
        assert "opt/data" not in archive.getnames()
        assert archive.getmember("opt/link").mtime == DATE + 1


def test_refused_tree_leaves_nothing(place: Path, tree: Path, idmap: IdMap) -> None:
    (tree / "opt/.wh.x").touch()
    store = Store(place / "store")
    with pytest.raises(UnpackableTree, match=r"opt/\.wh\.x") as caught:
        store.add("environment", tree, date=DATE, idmap=idmap)
    assert caught.value.path == "opt/.wh.x"
    assert [path for path in (place / "store").rglob("*") if path.is_file()] == []


def test_tree_that_cannot_be_read_is_not_blamed_on_the_store(place: Path, idmap: IdMap) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Store(place / "store").add("environment", place / "nowhere", date=DATE, idmap=idmap)


def test_absent_layer(place: Path, idmap: IdMap) -> None:
    store = Store(place / "store")
    assert list(store.digests()) == []
    with pytest.raises(LayerMissing):
        with store.open(ABSENT):
            pass
    with pytest.raises(LayerMissing) as caught:
        NodeStore(place / "node", idmap).ensure(store, ABSENT)
    assert caught.value.digest == ABSENT
    assert list(store.verify([ABSENT])) == [Finding(ABSENT, store.path(ABSENT), 0, "it is missing")]


@pytest.mark.parametrize("text", ["sha256:../../../etc/passwd", "md5:abc", "", "sha256:ABC"])
def test_what_is_no_digest_never_becomes_a_path(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="not a sha256 digest"):
        Store(tmp_path).path(text)
    with pytest.raises(ValueError, match="not a sha256 digest"):
        NodeStore(tmp_path, single()).path(text)


def test_digests_ignores_what_is_not_a_layer(place: Path, tree: Path, idmap: IdMap) -> None:
    store = Store(place / "store")
    ref = store.add("environment", tree, date=DATE, idmap=idmap)
    directory = store.path(ref.digest).parent
    (directory / "README.tar.zst").touch()
    (directory / ("0" * 64 + ".tar.zst")).touch()
    assert list(store.digests()) == [ref.digest]


def test_ensure_unpacks_once(place: Path, tree: Path, idmap: IdMap) -> None:
    store, node = Store(place / "store"), NodeStore(place / "node", idmap)
    ref = store.add("environment", tree, date=DATE, idmap=idmap)
    path = node.ensure(store, ref.digest)
    assert path == place / "node" / idmap.key / "layers" / ref.digest.removeprefix("sha256:")
    assert (path / "opt/data").read_bytes() == (tree / "opt/data").read_bytes()
    assert (path / "opt/bin/tool").lstat().st_mtime == DATE
    inode = path.stat().st_ino
    assert NodeStore(place / "node", idmap).ensure(store, ref.digest) == path
    assert path.stat().st_ino == inode
    assert store.add("environment", path, date=DATE, idmap=idmap).digest == ref.digest


def test_layers_of_one_map_belong_to_it(place: Path, tree: Path, idmap: IdMap) -> None:
    store, node = Store(place / "store"), NodeStore(place / "node", idmap)
    ref = store.add("environment", tree, date=DATE, idmap=idmap)
    status = (node.ensure(store, ref.digest) / "opt/data").stat()
    assert (status.st_uid, status.st_gid) == (idmap.host_uid(0), idmap.host_gid(0))


def test_unpacked_layer_needs_the_store_no_more(place: Path, tree: Path, idmap: IdMap) -> None:
    store, node = Store(place / "store"), NodeStore(place / "node", idmap)
    ref = store.add("environment", tree, date=DATE, idmap=idmap)
    path = node.ensure(store, ref.digest)
    assert node.ensure(Store(place / "elsewhere"), ref.digest) == path


def test_directories_are_passable_whatever_the_umask(place: Path, tree: Path, idmap: IdMap) -> None:
    """Sandboxes of root run as ids that own none of these."""
    store = Store(place / "store")
    ref = store.add("environment", tree, date=DATE, idmap=idmap)
    before = os.umask(0o077)
    try:
        node = NodeStore(place / "deep" / "node", idmap)
        path = node.ensure(store, ref.digest)
        scratch = node.scratch
    finally:
        os.umask(before)
    assert scratch == place / "deep" / "node" / idmap.key / "scratch"
    for directory in (scratch, path, *path.parents[:4]):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o755


def test_work_of_one_layer_with_a_long_path(place: Path, tree: Path, idmap: IdMap) -> None:
    root = place / ("r" * 200) / ("s" * 200)
    store, node = Store(root / "store"), NodeStore(root / "node", idmap)
    ref = store.add("environment", tree, date=DATE, idmap=idmap)
    assert (node.ensure(store, ref.digest) / "opt/data").is_file()


@pytest.mark.parametrize("text", ["0", "-1", "two", "1 parsec"])
@pytest.mark.parametrize("name", ["MINISANDBOX_IO_BUDGET", "MINISANDBOX_NODE_STORE_SIZE"])
def test_sizes_of_the_environment_are_checked(
    place: Path, tree: Path, idmap: IdMap, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    store, node = Store(place / "store"), NodeStore(place / "node", idmap)
    ref = store.add("environment", tree, date=DATE, idmap=idmap)
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidInput, match=name):
        node.ensure(store, ref.digest)


def test_default_node_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "chosen"))
    assert default_node_root() == tmp_path / "chosen"
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", "")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_node_root() == Path("/var/lib/minisandbox")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_node_root() == Path("/cache/minisandbox")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_node_root() == Path("/home/somebody/.cache/minisandbox")
