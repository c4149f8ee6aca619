"""H1: a damaged layer never becomes a tree, and is named."""

from __future__ import annotations

import hashlib
import io
import os
import random
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from minisandbox.errors import LayerDamaged, UnsafeArchive
from minisandbox.idmap import call_mapped, current, remove_tree
from minisandbox.records.layer import LayerRef
from minisandbox.store import NodeStore, Store

DATE = 1_600_000_000
IDMAP = current()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.iterdir():
        remove_tree(path, IDMAP)


@pytest.fixture
def layer(place: Path) -> tuple[Store, LayerRef]:
    tree = place / "tree"
    (tree / "d").mkdir(parents=True)
    source = random.Random(0)
    for number in range(8):
        (tree / "d" / f"random-{number}").write_bytes(source.randbytes(4000))
        (tree / "d" / f"text-{number}").write_bytes(b"line of text\n" * 3000)
    os.symlink("d", tree / "link")
    store = Store(place / "store")
    return store, store.add("environment", tree, date=DATE, idmap=IDMAP)


def rewrite(store: Store, digest: str, data: bytes) -> None:
    path = store.path(digest)
    path.chmod(0o644)
    path.write_bytes(data)


def files_in(tree: Path) -> dict[str, bytes]:
    return call_mapped(
        IDMAP,
        lambda: {
            str(path.relative_to(tree)): path.read_bytes() if path.is_file() else b""
            for path in tree.rglob("*")
        },
    )


def check_refused(store: Store, node: NodeStore, digest: str) -> None:
    """Neither store lets the damage through, both name the file."""
    path = store.path(digest)
    with pytest.raises(LayerDamaged) as caught:
        node.ensure(store, digest)
    assert caught.value.digest == digest
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert not node.path(digest).exists()
    assert list(node.path(digest).parent.iterdir()) == []
    finding = next(store.verify([digest]))
    assert finding.problem is not None
    assert (finding.path, finding.size) == (path, path.stat().st_size)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_truncated_layer(place: Path, layer: tuple[Store, LayerRef], share: float) -> None:
    store, ref = layer
    data = store.path(ref.digest).read_bytes()
    rewrite(store, ref.digest, data[: int(len(data) * share)])
    check_refused(store, NodeStore(place / "node", IDMAP), ref.digest)


@pytest.mark.parametrize("missing", [1, 2, 4, 5])
def test_layer_without_its_last_bytes(
    place: Path, layer: tuple[Store, LayerRef], missing: int
) -> None:
    """Content complete but the checksum is not: the bytes are right, so either answer is honest."""
    store, ref = layer
    rewrite(store, ref.digest, store.path(ref.digest).read_bytes()[:-missing])
    node = NodeStore(place / "node", IDMAP)
    try:
        tree = node.ensure(store, ref.digest)
    except LayerDamaged:
        check_refused(store, node, ref.digest)
    else:
        assert files_in(tree) == files_in(place / "tree")


def test_flipped_bits(place: Path, layer: tuple[Store, LayerRef]) -> None:
    store, ref = layer
    data = store.path(ref.digest).read_bytes()
    expected = files_in(place / "tree")
    node = NodeStore(place / "node", IDMAP)
    chance = random.Random(3)
    refused = 0
    for _ in range(40):
        position = chance.randrange(len(data) * 8)
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        rewrite(store, ref.digest, bytes(changed))
        try:
            tree = node.ensure(store, ref.digest)
        except LayerDamaged:
            refused += 1
        else:
            assert files_in(tree) == expected  # A bit that means nothing, as some of zstd do.
            remove_tree(tree, IDMAP)
    assert refused >= 35
    rewrite(store, ref.digest, data)
    assert files_in(node.ensure(store, ref.digest)) == expected


@pytest.mark.parametrize("garbage", [b"", b"text", bytes(5000), b"\x28\xb5\x2f\xfd", b"\x1f\x8b"])
def test_file_that_is_no_zstd(place: Path, layer: tuple[Store, LayerRef], garbage: bytes) -> None:
    store, ref = layer
    rewrite(store, ref.digest, garbage)
    check_refused(store, NodeStore(place / "node", IDMAP), ref.digest)


def test_garbage_after_the_layer(place: Path, layer: tuple[Store, LayerRef]) -> None:
    store, ref = layer
    rewrite(store, ref.digest, store.path(ref.digest).read_bytes() + b"garbage")
    check_refused(store, NodeStore(place / "node", IDMAP), ref.digest)


def test_other_layer_under_this_name(place: Path, layer: tuple[Store, LayerRef]) -> None:
    """Whole, and well formed, but not what the name promises."""
    store, ref = layer
    (place / "tree" / "d" / "text-0").write_bytes(b"changed")
    other = store.add("environment", place / "tree", date=DATE, idmap=IDMAP)
    rewrite(store, ref.digest, store.path(other.digest).read_bytes())
    check_refused(store, NodeStore(place / "node", IDMAP), ref.digest)
    problems = {found.digest: found.problem for found in store.verify()}
    assert problems[other.digest] is None
    assert problems[ref.digest] == f"its content has the digest {other.digest}"


def put(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            parent = os.open(path.parent, os.O_PATH)  # the name of a socket is short
            try:
                listener.bind(f"/proc/self/fd/{parent}/{path.name}")
            finally:
                os.close(parent)


@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "socket"])
def test_what_is_no_file_is_neither_waited_for_nor_read(
    place: Path, layer: tuple[Store, LayerRef], kind: str
) -> None:
    store, ref = layer
    put(store.path(ref.digest), kind)
    check_refused(store, NodeStore(place / "node", IDMAP), ref.digest)
    finding = next(store.verify([ref.digest]))
    assert finding.problem == "it is not a regular file"


def test_a_pipe_among_what_is_written_is_not_waited_for(
    place: Path, layer: tuple[Store, LayerRef]
) -> None:
    store, ref = layer
    os.mkfifo(store.root / "incoming/left.tmp", 0o444)
    assert store.add("environment", place / "tree", date=DATE, idmap=IDMAP) == ref


def test_adding_again_heals(place: Path, layer: tuple[Store, LayerRef]) -> None:
    store, ref = layer
    rewrite(store, ref.digest, b"broken")
    assert store.add("environment", place / "tree", date=DATE, idmap=IDMAP) == ref
    assert [found.problem for found in store.verify()] == [None]


def test_reader_that_stops_early_is_still_checked(layer: tuple[Store, LayerRef]) -> None:
    store, ref = layer
    data = bytearray(store.path(ref.digest).read_bytes())
    data[-10] ^= 1
    rewrite(store, ref.digest, bytes(data))
    with pytest.raises(LayerDamaged), store.open(ref.digest) as stream:
        assert len(stream.read(10)) == 10


def test_error_of_the_reader_is_not_hidden(layer: tuple[Store, LayerRef]) -> None:
    store, ref = layer
    with pytest.raises(ZeroDivisionError), store.open(ref.digest) as stream:
        assert len(stream.read(10)) / 0


def test_hostile_layer_is_not_called_damaged(place: Path, layer: tuple[Store, LayerRef]) -> None:
    """A hostile layer of the right digest is refused for what it is, and leaves nothing."""
    store, _ = layer
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("good"))
        archive.addfile(tarfile.TarInfo("../evil"))
    digest = "sha256:" + hashlib.sha256(out.getvalue()).hexdigest()
    store.path(digest).parent.mkdir(parents=True, exist_ok=True)
    store.path(digest).write_bytes(zstandard.ZstdCompressor().compress(out.getvalue()))
    node = NodeStore(place / "node", IDMAP)
    with pytest.raises(UnsafeArchive, match=r"member '\.\./evil' refused: .* goes up"):
        node.ensure(store, digest)
    assert list(node.path(digest).parent.iterdir()) == []
    assert next(store.verify([digest])).problem is None
