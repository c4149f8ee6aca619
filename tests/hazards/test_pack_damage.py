"""H1: a damaged pack gives nothing wrong, `verify` names what is lost, a re-run repairs it."""

from __future__ import annotations

import hashlib
import os
import random
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from minisandbox.errors import LayerDamaged, LayerMissing, MiniSandboxError
from minisandbox.idmap import current, remove_tree
from minisandbox.store import NodeStore, Store, StoreUnusable
from minisandbox.store.packs.consolidation import consolidate
from minisandbox.store.packs.layout import HEADER_SIZE, Index

DATE = 1_600_000_000
IDMAP = current()


@dataclass
class Packed:
    """A store of three layers in one pack, the bytes of the pack, and the tars that it holds."""

    store: Store
    pack: Path
    data: bytes
    index: Index
    tars: dict[str, bytes]
    trees: dict[str, Path]

    def damage(self, data: bytes) -> None:
        self.pack.chmod(0o644)
        self.pack.write_bytes(data)

    def fresh(self) -> Store:
        return Store(self.store.root)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.iterdir():
        remove_tree(path, IDMAP)


def make_tree(tree: Path, version: int) -> Path:
    (tree / "d").mkdir(parents=True)
    source = random.Random(0)
    for number in range(6):
        (tree / f"d/random-{number}").write_bytes(source.randbytes(3000))
        (tree / f"d/text-{number}").write_bytes(b"line of text\n" * 300)
    (tree / "only").write_bytes(random.Random(version).randbytes(5000))
    os.symlink("d", tree / "link")
    return tree


@pytest.fixture
def packed(place: Path) -> Packed:
    store = Store(place / "store", level=1)
    tars: dict[str, bytes] = {}
    trees: dict[str, Path] = {}
    for version in range(3):
        tree = make_tree(place / f"tree-{version}", version)
        ref = store.add("source", tree, date=DATE, idmap=IDMAP)
        trees[ref.digest] = tree
        with store.open(ref.digest) as stream:
            tars[ref.digest] = stream.read()
    done = consolidate(store, level=1)
    assert done.pack is not None
    (pack,) = store.catalogue.packs()
    return Packed(store, done.pack, done.pack.read_bytes(), pack.index, tars, trees)


def read_all(packed: Packed) -> set[str]:
    """Read every layer in every way; returns those that could not be had, checks the others."""
    store = packed.fresh()
    lost: set[str] = set()
    for digest, tar in packed.tars.items():
        try:
            with store.open(digest) as stream:
                assert stream.read() == tar
        except (LayerDamaged, LayerMissing):
            lost.add(digest)
        try:
            listing = store.listing(digest)
            assert listing is not None
            wanted = {entry.content for entry in listing.entries if entry.content}
            for sha256, data in store.contents(digest, wanted):
                assert hashlib.sha256(data).hexdigest() == sha256
        except (LayerDamaged, LayerMissing):
            lost.add(digest)
    return lost


def check_named(packed: Packed, lost: set[str]) -> None:
    """``verify`` names what is lost, and no other."""
    store = packed.fresh()
    found = {one.digest: one.problem for one in store.verify(sorted(packed.tars))}
    named = {digest for digest, problem in found.items() if problem is not None}
    assert named == lost
    if any(problem == "it is missing" for problem in found.values()):
        assert list(store.unreadable()) == [packed.pack]


def repair(packed: Packed) -> None:
    """What ``records drop --damaged``, a run of the pipeline and ``store pack`` do."""
    store = packed.fresh()
    for one in list(store.verify(sorted(packed.tars))):
        if one.problem is not None:
            store.discard(one.digest)
    store.set_aside_unreadable()
    store = packed.fresh()
    for digest, tree in packed.trees.items():
        if not store.has(digest):
            assert store.add("source", tree, date=DATE, idmap=IDMAP).digest == digest
    assert read_loose_or_packed(store, packed)
    consolidate(packed.fresh(), level=1)
    store = packed.fresh()
    assert list(store.loose()) == []
    assert [one.problem for one in store.verify()] == [None] * 3
    assert store.unreadable() == {}
    assert read_all(packed) == set()


def read_loose_or_packed(store: Store, packed: Packed) -> bool:
    for digest, tar in packed.tars.items():
        with store.open(digest) as stream:
            assert stream.read() == tar
    return True


def regions(packed: Packed) -> dict[str, tuple[int, int]]:
    index = packed.index
    layers = min(layer.frame for layer in index.layers.values())
    spans = index.frames
    last = spans[layers - 1]
    return {
        "header": (0, HEADER_SIZE),
        "index": (HEADER_SIZE, index.directory),
        "directory": (index.directory, spans[0].offset),
        "contents": (spans[0].offset, last.offset + last.packed),
        "skeletons": (spans[layers].offset, len(packed.data)),
    }


@pytest.mark.parametrize("region", ["header", "index", "directory", "contents", "skeletons"])
def test_flipped_bits(packed: Packed, region: str) -> None:
    start, end = regions(packed)[region]
    chance = random.Random(region)
    harmed = 0
    for _ in range(12):
        changed = bytearray(packed.data)
        position = chance.randrange(start * 8, end * 8)
        changed[position // 8] ^= 1 << position % 8
        packed.damage(bytes(changed))
        lost = read_all(packed)
        check_named(packed, lost)
        harmed += bool(lost)
    assert harmed >= 10  # zstd has bits that mean nothing
    repair(packed)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_truncated_pack(packed: Packed, share: float) -> None:
    packed.damage(packed.data[: int(len(packed.data) * share)])
    lost = read_all(packed)
    assert lost
    check_named(packed, lost)
    repair(packed)


def test_damage_is_told_by_pack_and_place(packed: Packed) -> None:
    start, end = regions(packed)["contents"]
    changed = bytearray(packed.data)
    changed[start:end] = bytes(end - start)
    packed.damage(bytes(changed))
    digest = next(iter(packed.tars))
    with pytest.raises(LayerDamaged) as caught, packed.fresh().open(digest) as stream:
        stream.read()
    assert (caught.value.digest, caught.value.path) == (digest, packed.pack)
    assert caught.value.reason.startswith("of frame 0 zstd says")


def test_nothing_of_a_damaged_pack_is_unpacked(place: Path, packed: Packed) -> None:
    start, _ = regions(packed)["contents"]
    changed = bytearray(packed.data)
    changed[start + 40] ^= 1
    packed.damage(bytes(changed))
    node = NodeStore(place / "node", IDMAP)
    for digest in read_all(packed):
        with pytest.raises(LayerDamaged):
            node.ensure(packed.fresh(), digest)
        assert list(node.path(digest).parent.iterdir()) == []


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_damage_in_the_pack_that_another_refers_to(place: Path, packed: Packed, how: str) -> None:
    tree = make_tree(place / "late", 9)
    late = packed.store.add("source", tree, date=DATE, idmap=IDMAP)
    with packed.store.open(late.digest) as stream:
        tar = stream.read()
    consolidate(packed.fresh(), level=1)
    if how == "gone":
        packed.pack.rename(place / "elsewhere.pack")
    else:
        start, end = regions(packed)["contents"]
        packed.damage(packed.data[:start] + bytes(end - start) + packed.data[end:])
    with pytest.raises(LayerDamaged, match=packed.pack.name):
        with packed.fresh().open(late.digest) as stream:
            stream.read()
    packed.tars[late.digest], packed.trees[late.digest] = tar, tree
    found = {one.digest: one.problem for one in packed.fresh().verify(list(packed.tars))}
    assert packed.pack.name in str(found[late.digest])
    for digest in packed.tars:
        packed.fresh().discard(digest)
        packed.fresh().add("source", packed.trees[digest], date=DATE, idmap=IDMAP)
    consolidate(packed.fresh(), level=1)
    assert read_all(packed) == set()
    assert [one.problem for one in packed.fresh().verify()] == [None] * 4


def test_a_pack_with_damage_stays_when_all_is_packed_anew(place: Path, packed: Packed) -> None:
    """And so does the pack that it refers to; what can be read is in the new one."""
    tree = make_tree(place / "late", 9)
    late = packed.store.add("source", tree, date=DATE, idmap=IDMAP)
    consolidate(packed.fresh(), level=1)
    newest = packed.fresh().pack_of(late.digest)
    assert newest is not None
    data = bytearray(newest.path.read_bytes())
    data[newest.index.frames[0].offset + 20] ^= 1
    newest.path.chmod(0o644)
    newest.path.write_bytes(data)
    done = consolidate(packed.fresh(), level=1, anew=True)
    assert done.damaged.keys() == {late.digest}
    assert sorted(done.layers) == sorted(packed.tars)
    assert done.replaced == []
    assert {newest.path, packed.pack} <= set(packed.store.catalogue.folder.iterdir())
    packed.fresh().discard(late.digest)
    packed.fresh().add("source", tree, date=DATE, idmap=IDMAP)
    done = consolidate(packed.fresh(), level=1, anew=True)
    assert not done.damaged
    assert list(packed.store.catalogue.folder.iterdir()) == [done.pack]
    assert [one.problem for one in packed.fresh().verify()] == [None] * 4


@pytest.mark.parametrize("kind", ["pipe", "directory", "device"])
def test_what_is_no_file_is_not_waited_for(packed: Packed, kind: str) -> None:
    packed.pack.unlink()
    if kind == "pipe":
        os.mkfifo(packed.pack)
    elif kind == "directory":
        packed.pack.mkdir()
    else:
        packed.pack.symlink_to("/dev/zero")
    assert read_all(packed) == set(packed.tars)
    assert packed.fresh().unreadable() == {packed.pack: "it is not a regular file"}


def test_a_pack_under_the_name_of_another(packed: Packed) -> None:
    other = packed.pack.with_name("0" * 64 + ".pack")
    packed.pack.rename(other)
    (reason,) = packed.fresh().unreadable().values()
    assert reason == f"its index is that of {packed.index.name[:12]}"
    assert read_all(packed) == set(packed.tars)


def test_a_pack_of_a_later_format_is_not_set_aside(packed: Packed) -> None:
    changed = bytearray(packed.data)
    changed[8] = 9
    packed.damage(bytes(changed))
    store = packed.fresh()
    assert store.unreadable() == {packed.pack: "it has format 9, this release reads 1"}
    assert store.set_aside_unreadable() == []
    assert packed.pack.exists()


def test_a_damaged_loose_layer_stays_out_of_packs(place: Path, packed: Packed) -> None:
    store = packed.fresh()
    ref = store.add("source", make_tree(place / "late", 9), date=DATE, idmap=IDMAP)
    path = store.path(ref.digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-100])
    done = consolidate(store, level=1)
    assert list(done.damaged) == [ref.digest]
    assert done.pack is None
    assert path.exists()


def test_errors_are_sentences(packed: Packed) -> None:
    packed.damage(b"")
    with pytest.raises(MiniSandboxError, match=r"is not in .*; build it again"):
        with packed.fresh().open(next(iter(packed.tars))):
            pass


def test_what_is_built_again_does_not_go_for_what_was_given_up(packed: Packed) -> None:
    """A pack that is sound, but was marked after a read error that passed, still counts for
    nothing: the layer that took its place must stay.
    """
    digest, tree = next(iter(packed.trees.items()))
    store = packed.fresh()
    store.discard(digest)
    assert not store.has(digest)
    assert store.add("environment", tree, date=DATE, idmap=IDMAP).digest == digest
    for _ in range(2):
        consolidate(store, threads=1)
        with packed.fresh().open(digest) as stream:
            assert stream.read() == packed.tars[digest]


def test_too_few_descriptors_damage_nothing(place: Path) -> None:
    """A pack that refers to many others needs each open; what is sound is not named as damaged."""
    store = Store(place / "store", level=1)
    tree = place / "tree"
    tree.mkdir()
    for number in range(20):
        (tree / f"file-{number}").write_bytes(b"%d" % number)
        ref = store.add("source", tree, date=DATE, idmap=IDMAP)
        consolidate(store, level=1, threads=1)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    tenth = [number for number in range(len(used) + 10) if number not in used][9]
    resource.setrlimit(resource.RLIMIT_NOFILE, (tenth + 1, allowed[1]))
    try:
        with pytest.raises(StoreUnusable, match=r"Too many open files; allow more .*pack --all"):
            list(Store(store.root).verify())
        with pytest.raises(StoreUnusable, match="allow more open files"):
            Store(store.root).stored(ref.digest)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
    assert {one.problem for one in Store(store.root).verify()} == {None}
