"""Collecting, counting and checking what is unpacked, also for a user with a single id."""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from minisandbox.archive import PackStats
from minisandbox.idmap import IdMap, call_mapped, remove_tree
from minisandbox.records.layer import LayerRef
from minisandbox.sizes import LIMIT_VARIABLE
from minisandbox.store import NodeStore, Store, StoreUnusable, derived_name
from minisandbox.store.account import Account
from minisandbox.store.checking import verify_node
from minisandbox.store.collecting import Collected, collect
from minisandbox.store.references import MOST_LAYERS, lies
from minisandbox.store.usage import in_use, survey

DATE = 1_600_000_000


class Place:
    """A store of layers, and a node store for them."""

    def __init__(self, root: Path, idmap: IdMap) -> None:
        self.root, self.idmap = root, idmap
        self.store = Store(root / "store", level=1)
        self.node = NodeStore(root / "node", idmap)

    def pack(self, name: str, files: dict[str, bytes], kind: str = "environment") -> LayerRef:
        tree = self.root / "trees" / name
        for path, content in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        assert kind in ("environment", "source")
        return self.store.add(kind, tree, date=DATE, idmap=self.idmap)

    def layer(self, seed: int, size: int = 200_000) -> LayerRef:
        content = random.Random(seed).randbytes(size)
        return self.pack(f"layer-{seed}", {"opt/data": content, "opt/other": b"x" * 5000})

    def sources(self, count: int) -> list[LayerRef]:
        files = {f"testbed/f{n}": b"%d\n" % n * 2000 for n in range(20)}
        return [
            self.pack(f"source-{n}", files | {"testbed/new": b"%d" % n * 9000}, "source")
            for n in range(count)
        ]

    def files(self, layer: LayerRef) -> dict[str, bytes]:
        """What is in a layer."""
        with self.store.open(layer.digest) as stream:
            content = io.BytesIO(stream.read())
        with tarfile.open(fileobj=content) as tar:
            found = {item.name: tar.extractfile(item) for item in tar if item.isfile()}
            return {name: file.read() for name, file in found.items() if file is not None}

    def chain(self, count: int) -> list[LayerRef]:
        """Sources of which each differs so much from the one before that others can lie on it."""
        files = {f"testbed/f{n}": b"%d\n" % n for n in range(300)}
        made: list[LayerRef] = []
        for step in range(count):
            files |= {f"testbed/f{n}": b"%d in %d\n" % (n, step) for n in range(step, 300, 3)}
            made.append(self.pack(f"chain-{step}", files, "source"))
        return made

    def used(self, path: Path, seconds_ago: float) -> None:
        """Have the item last used so long ago."""
        when = time.time() - seconds_ago
        os.utime(self.node.base / "uses" / path.name, (when, when))

    def on_disk(self) -> int:
        """What `du` counts of the items and the pool."""
        names = ("layers", "sources", "derived", "pool")
        folders = [str(self.node.base / name) for name in names]
        work = partial(
            subprocess.run,
            ["du", "-s", "-c", "-B1", *[folder for folder in folders if os.path.isdir(folder)]],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(work().stdout.splitlines()[-1].split()[0])


@pytest.fixture
def place(tmp_path: Path, idmap: IdMap) -> Iterator[Place]:
    yield Place(tmp_path, idmap)
    for path in tmp_path.iterdir():
        remove_tree(path, idmap)


def names_of(done: Collected) -> list[str]:
    return [item.name for item in done.removed]


def test_every_inode_is_counted_once(place: Place) -> None:
    one = place.pack("one", {"a": b"1" * 50_000, "b": b"2" * 50_000})
    two = place.pack("two", {"a": b"1" * 50_000, "c": b"3" * 50_000})
    for ref in (one, two):
        place.node.ensure(place.store, ref.digest, pool="environment-0")
    found = survey(place.node.base, place.idmap)
    assert sum(item.tree.apparent for item in found.items) == 200_000
    assert sum(item.tree.files for item in found.items) == 4
    # du has the four directories themselves too.
    folders = sum(
        path.stat().st_blocks * 512 for path in (place.node.base / "layers",) if path.is_dir()
    )
    assert found.total == place.on_disk() - folders


def test_a_tree_of_any_depth_is_counted_and_checked(place: Place) -> None:
    stream = io.BytesIO()
    names = [f"{'d' * 60}/" * depth for depth in range(1, 400)]  # beyond what a path can be
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, DATE
            tar.addfile(member)
        member = tarfile.TarInfo(names[-1] + "file")
        member.size, member.mode, member.mtime = 50_000, 0o644, DATE
        tar.addfile(member, io.BytesIO(b"x" * 50_000))
    data = stream.getvalue()

    def write(out: BinaryIO) -> PackStats:
        out.write(data)
        return PackStats(50_000, 1)

    ref = place.store.add_written("environment", write)
    place.node.ensure(place.store, ref.digest)
    (item,) = survey(place.node.base, place.idmap).items
    assert item.tree.apparent == 50_000
    assert [found.problem for found in verify_node(place.node, place.store)] == [None]
    assert names_of(collect(place.node, 1)) == [item.name]


def test_what_was_not_used_for_longest_goes_first(place: Place) -> None:
    refs = [place.layer(seed) for seed in range(4)]
    paths = [place.node.ensure(place.store, ref.digest) for ref in refs]
    for ago, path in zip((400, 100, 300, 200), paths, strict=True):
        place.used(path, ago)
    before = survey(place.node.base, place.idmap)
    limit = before.total // 2 + 10_000
    plan = collect(place.node, limit, dry_run=True)
    assert all(path.is_dir() for path in paths)
    done = collect(place.node, limit)
    assert names_of(plan) == names_of(done) == [paths[0].name, paths[2].name]
    assert [path.is_dir() for path in paths] == [False, True, False, True]
    after = survey(place.node.base, place.idmap)
    assert after.total == done.after == plan.after <= limit
    assert done.before == before.total
    assert sum(item.freed for item in done.removed) == before.total - after.total
    assert not [*(place.node.base / "trash").iterdir()]


def test_without_a_limit_only_what_nobody_uses_any_more_goes(place: Place) -> None:
    ref = place.layer(1)
    path = place.node.ensure(place.store, ref.digest, pool="environment-0")
    other = place.node.ensure(place.store, place.layer(2).digest, pool="environment-0")
    remove_tree(other, place.idmap)  # by hand: its files stay in the pool
    (path.parent / f".{'c' * 40}.abcdefgh.tmp").mkdir()
    (place.node.base / "trash/killed.abc/inner").mkdir(parents=True)
    done = collect(place.node, None)
    assert done.removed == []
    assert done.swept > 200_000
    assert path.is_dir()
    assert not [*path.parent.glob(".*")]
    assert not [*(place.node.base / "trash").iterdir()]
    pooled = [file for file in (place.node.base / "pool").rglob("*") if file.is_file()]
    assert all(file.stat().st_nlink > 1 for file in pooled)
    assert len(pooled) == 2


def test_what_is_in_use_stays_whatever_the_limit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = [place.layer(seed) for seed in range(3)]
    with place.node.lease() as lease:
        held = place.node.ensure(place.store, refs[0].digest, lease=lease)
        rest = [place.node.ensure(place.store, ref.digest) for ref in refs[1:]]
        place.used(held, 10_000)
        done = collect(place.node, 1)
        assert held.is_dir()
        assert not any(path.exists() for path in rest)
        assert 200_000 <= done.used <= done.after
        monkeypatch.setenv(LIMIT_VARIABLE, "300kB")
        with pytest.raises(StoreUnusable, match=r"would exceed its limit of 300\.0 kB") as refused:
            place.node.ensure(place.store, refs[1].digest, size=refs[1].unpacked_size)
        assert f"close sandboxes, or raise {LIMIT_VARIABLE}" in str(refused.value)
        assert held.is_dir()
        assert not place.node.path(refs[1].digest).exists()
    collect(place.node, 1)
    assert not held.exists()


def test_a_reference_stays_as_long_as_a_source_lies_on_it(place: Place) -> None:
    refs = place.sources(3)
    trees = [place.node.ensure_source(place.store, ref.digest, group="g") for ref in refs]
    assert [len(tree) for tree in trees] == [1, 2, 2]
    paths = [tree[-1].parent for tree in trees]
    for ago, path in zip((900, 100, 200), paths, strict=True):
        place.used(path, ago)
    with place.node.lease() as lease:
        place.node.ensure_source(place.store, refs[1].digest, group="g", lease=lease)
        done = collect(place.node, 1)
        assert names_of(done) == [paths[2].name]
    place.used(paths[0], 900)
    # The reference was used with what lies on it, so it is as young, and goes last.
    assert names_of(collect(place.node, 1)) == [paths[1].name, paths[0].name]


def test_what_a_chain_of_sources_lies_on_stays(place: Place) -> None:
    refs = place.chain(4)
    trees = [place.node.ensure_source(place.store, ref.digest, group="g") for ref in refs]
    assert [len(tree) for tree in trees] == [1, 2, 3, 4]
    assert [tree[:-1] for tree in trees[1:]] == [*trees[:-1]]
    for ago, tree in zip((100, 200, 300, 900), trees, strict=True):
        place.used(tree[-1].parent, ago)
    with place.node.lease() as lease:
        place.node.ensure_source(place.store, refs[2].digest, group="g", lease=lease)
        assert names_of(collect(place.node, 1)) == [trees[3][-1].parent.name]
        assert [in_use(place.node.base, tree[-1].parent.name) for tree in trees] == [
            *(True, True, True, False)
        ]
    assert {item.below for item in survey(place.node.base, place.idmap).items} == {
        *("", trees[0][-1].parent.name, trees[1][-1].parent.name)
    }
    place.used(trees[0][-1].parent, 900)
    # Each was used with what lies on it, so all are as young, and the lowest goes last.
    gone = [trees[number][-1].parent.name for number in (2, 1, 0)]
    assert names_of(collect(place.node, 1)) == gone


def test_what_was_computed_of_a_source_keeps_all_young_that_it_lies_on(place: Place) -> None:
    refs = place.chain(3)
    trees = [place.node.ensure_source(place.store, ref.digest, group="g")[-1] for ref in refs]
    name = derived_name("objects", refs[2].digest, refs[2].digest)
    made = place.node.derive(name, lambda work: work.mkdir())
    other = place.node.ensure(place.store, place.layer(1).digest)
    folders = [tree.parent for tree in trees]
    for ago, path in zip((900, 800, 700, 100, 500), (*folders, made, other), strict=True):
        place.used(path, ago)
    sources = [tree.parent.name for tree in reversed(trees)]
    assert names_of(collect(place.node, 1)) == [other.name, name, *sources]


def test_sources_lie_on_one_another_up_to_a_depth(place: Place) -> None:
    refs = place.chain(MOST_LAYERS + 4)
    for ref in refs:
        place.node.ensure_source(place.store, ref.digest, group="g")
    depths = [len(place.node.source(ref.digest)) for ref in refs]
    # One more is left for what is near the deepest; what is far from the others begins anew.
    assert depths == [*range(1, MOST_LAYERS), *range(1, 6)]
    deepest = refs[MOST_LAYERS - 2]
    tree = place.root / "trees" / f"chain-{MOST_LAYERS - 2}"
    noted = {*(place.node.base / "references").iterdir()}
    for number in range(3):
        (tree / "testbed/f1").write_bytes(b"a bug, number %d\n" % number)
        bug = place.store.add("source", tree, date=DATE, idmap=place.idmap)
        found = place.node.ensure_source(place.store, bug.digest, group="g")
        assert found[:-1] == place.node.source(deepest.digest)
    assert {*(place.node.base / "references").iterdir()} == noted
    assert all(found.problem is None for found in verify_node(place.node, place.store))


def test_notes_that_make_a_circle_are_of_no_source(place: Place) -> None:
    refs = place.chain(3)
    for ref in refs:
        place.node.ensure_source(place.store, ref.digest, group="g")
    (lowest, *_, highest) = place.node.source(refs[2].digest)
    mark = (highest.parent / "sketch").read_bytes()[:8].hex()
    note = lowest.parent / "below"
    call_mapped(place.idmap, lambda: note.write_text(f"{highest.parent.name} {mark}") and None)
    again = NodeStore(place.node.root, place.idmap)
    for ref in refs:
        found = again.ensure_source(place.store, ref.digest, group="g")
        assert lies(found[-1].parent)
    assert all(found.problem is None for found in verify_node(again, place.store))


def test_a_source_of_which_little_is_alike_is_whole_and_others_lie_on_it(place: Place) -> None:
    """Not what has the same contents under other names, or with other dates."""
    first = {f"testbed/pkg/f{n}": b"%d\n" % n for n in range(100)}
    moved = {f"testbed/src/pkg/f{n}": b"%d\n" % n for n in range(100)}
    layers = [place.pack("first", first, "source")]
    layers += [place.pack(f"s{n}", moved | {"testbed/n": b"%d" % n}, "source") for n in range(3)]
    found = [place.node.ensure_source(place.store, item.digest, group="g") for item in layers]
    assert [len(trees) for trees in found] == [1, 1, 2, 2]


@pytest.mark.parametrize("process", ["the same", "another"])
@pytest.mark.parametrize("lost", ["tree", "below", "changes", "sketch", "everything"])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_whatever_is_lost_of_a_chain_nothing_wrong_is_shown(
    place: Place, level: int, lost: str, process: str
) -> None:
    refs = place.chain(4)
    trees = [place.node.ensure_source(place.store, ref.digest, group="g")[-1] for ref in refs]
    folder = trees[level].parent
    gone = folder if lost == "everything" else folder / lost
    if gone.is_dir():
        remove_tree(gone, place.idmap)
    elif gone.exists():
        call_mapped(place.idmap, gone.unlink)
    node = place.node if process == "the same" else NodeStore(place.node.root, place.idmap)
    for ref in reversed([*refs, *place.chain(5)[4:]]):
        found = node.ensure_source(place.store, ref.digest, group="g")
        call_mapped(place.idmap, partial(check_shown, found, place.files(ref)))
    if lost == "changes":  # none of them needs it, but others could not be told against them
        found = {item.problem for item in verify_node(node, place.store)}
        assert (found != {None}) == (level > 0)
    assert all(item.problem is None for item in verify_node(node, place.store))


def test_of_sources_that_come_at_once_one_is_made_first(place: Place) -> None:
    """Whatever their environment: what one makes, those that come later lie on."""
    for group, layers in (("g", place.sources(4)), ("h", place.chain(2))):
        ready = multiprocessing.Barrier(len(layers))

        def ensure(layer: LayerRef, group: str, ready: Any) -> None:
            node = NodeStore(place.node.root, place.idmap)
            ready.wait()
            node.ensure_source(place.store, layer.digest, group=group)

        context = multiprocessing.get_context("fork")
        started = [context.Process(target=ensure, args=(item, group, ready)) for item in layers]
        for process in started:
            process.start()
        for process in started:
            process.join()
        assert [process.exitcode for process in started] == [0] * len(layers)
        depths = sorted(len(place.node.source(layer.digest)) for layer in layers)
        assert depths == [1] + [2] * (len(layers) - 1)
    assert all(item.problem is None for item in verify_node(place.node, place.store))


def test_what_was_not_chosen_is_not_held(place: Place) -> None:
    far = place.chain(3)
    for ref in far:
        place.node.ensure_source(place.store, ref.digest, group="g")
    lowest, *_, highest = (tree.parent.name for tree in place.node.source(far[-1].digest))
    alone = {f"testbed/f{n}": b"%d\n" % n for n in range(300)} | {"testbed/f0": b"alone\n"}
    near = place.pack("near", alone, "source")
    with place.node.lease() as lease:
        found = place.node.ensure_source(place.store, near.digest, group="g", lease=lease)
        assert [tree.parent.name for tree in found[:-1]] == [lowest]
        assert in_use(place.node.base, lowest)
        assert not in_use(place.node.base, highest)


def check_shown(trees: Sequence[Path], files: Mapping[str, bytes]) -> None:
    """An overlay of ``trees`` would show these files, each as a file of its own."""
    shown: dict[str, Path] = {}
    for tree in trees:
        for path in tree.rglob("*"):
            if path.is_char_device():
                shown.pop(str(path.relative_to(tree)), None)
            elif path.is_file():
                shown[str(path.relative_to(tree))] = path
    assert {name: path.read_bytes() for name, path in shown.items()} == files
    assert len({path.stat().st_ino for path in shown.values()}) == len(files)


def test_byte_code_goes_with_its_layer_and_not_alone(place: Place) -> None:
    ref = place.layer(1)
    path = place.node.ensure(place.store, ref.digest)

    def fill(work: Path) -> None:
        work.mkdir()
        (work / "code").write_bytes(b"c" * 50_000)

    code = place.node.derive(derived_name("bytecode", ref.digest, ref.digest), fill)
    other = place.node.ensure(place.store, place.layer(2).digest)
    for ago, item in ((900, path), (100, code), (500, other)):
        place.used(item, ago)
    total = survey(place.node.base, place.idmap).total
    assert names_of(collect(place.node, total - 1)) == [other.name], "byte-code was used with it"
    assert names_of(collect(place.node, 1)) == [code.name, path.name]


def test_a_limit_is_kept_while_layers_are_unpacked(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, "1MB")
    refs = [place.layer(seed) for seed in range(9)]
    for ref in refs:
        path = place.node.ensure(place.store, ref.digest, size=ref.unpacked_size)
        place.used(path, 1000 - len([*path.parent.iterdir()]))
        assert path.is_dir()
        assert survey(place.node.base, place.idmap).total <= 1_000_000
    assert place.node.path(refs[-1].digest).is_dir()
    assert not place.node.path(refs[0].digest).exists()
    known = Account(place.node.base).total()
    assert known == survey(place.node.base, place.idmap).total


def test_a_limit_counts_what_was_unpacked_without_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [place.node.ensure(place.store, place.layer(seed).digest) for seed in range(4)]
    monkeypatch.setenv(LIMIT_VARIABLE, "600kB")
    place.node.ensure(place.store, place.layer(9).digest, size=205_000)
    assert sum(path.is_dir() for path in old) < 4
    assert survey(place.node.base, place.idmap).total <= 600_000


def damage(place: Place, path: Path) -> None:
    """Change one byte, and nothing else that could be seen."""

    def work() -> None:
        status = path.stat()
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
        path.chmod(status.st_mode & 0o7777)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    call_mapped(place.idmap, work)


def test_damage_is_named_moved_away_and_mended_by_the_next_use(place: Place) -> None:
    one = place.pack("one", {"opt/shared": b"1" * 50_000, "opt/own": b"2" * 50_000})
    two = place.pack("two", {"opt/shared": b"1" * 50_000, "opt/other": b"3" * 50_000})
    whole = place.layer(3)
    refs = (one, two, whole)
    paths = [place.node.ensure(place.store, r.digest, pool="environment-0") for r in refs]
    assert all(found.problem is None for found in verify_node(place.node, place.store))
    damage(place, paths[0] / "opt/shared")
    found = {item.name: item for item in verify_node(place.node, place.store)}
    for path in paths[:2]:
        assert found[path.name].problem == "opt/shared has another content"
        moved = found[path.name].moved
        assert moved is not None
        assert moved.is_dir()
        assert not path.exists()
    assert found[paths[2].name].problem is None
    for ref in refs:
        path = place.node.ensure(place.store, ref.digest, pool="environment-0")
        if ref is not whole:
            assert (path / "opt/shared").read_bytes() == b"1" * 50_000
    assert all(found.problem is None for found in verify_node(place.node, place.store))
    collect(place.node, None)
    assert not [*(place.node.base / "damaged").iterdir()]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: (tree / "opt/other").unlink(), "opt/other is missing"),
        (lambda tree: (tree / "opt/more").touch(), "opt/more is not in the layer"),
        (lambda tree: (tree / "opt/data").chmod(0o777), "opt/data has other permissions"),
        (lambda tree: os.utime(tree / "opt/data", (1, 1)), "opt/data has another date"),
        (
            lambda tree: [(tree / "opt/data").unlink(), (tree / "opt/data").mkdir()],
            "opt/data is of another kind",
        ),
    ],
)
def test_whatever_was_changed_is_found(place: Place, change: object, said: str) -> None:
    path = place.node.ensure(place.store, place.layer(1).digest)
    assert callable(change)
    call_mapped(place.idmap, lambda: change(path) and None)
    (found,) = verify_node(place.node, place.store)
    assert found.problem is not None
    assert found.problem.startswith(said)


def test_what_lies_on_a_damaged_reference_goes_with_it(place: Place) -> None:
    refs = place.sources(3)
    trees = [place.node.ensure_source(place.store, ref.digest, group="g") for ref in refs]
    alone = place.node.ensure_source(place.store, place.sources(4)[3].digest)
    assert all(found.problem is None for found in verify_node(place.node, place.store))
    damage(place, trees[0][0] / "testbed/f3")
    found = {item.name: item for item in verify_node(place.node, place.store)}
    assert [found[tree[-1].parent.name].problem is None for tree in trees] == [False] * 3
    assert alone[0].parent.name in found
    for ref in refs:
        (*_, tree) = place.node.ensure_source(place.store, ref.digest, group="g")
        assert tree.is_dir()
    assert all(found.problem is None for found in verify_node(place.node, place.store))


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_all_that_lies_on_a_damaged_source_goes_with_it(place: Place, damaged: int) -> None:
    refs = place.chain(4)
    trees = [place.node.ensure_source(place.store, ref.digest, group="g")[-1] for ref in refs]
    damage(place, trees[damaged] / f"testbed/f{damaged}")
    found = list(verify_node(place.node, place.store))
    names = [tree.parent.name for tree in trees]
    wrong = {item.name for item in found if item.problem is not None}
    assert wrong == {*names[damaged:]}
    assert [tree.exists() for tree in trees] == [number < damaged for number in range(4)]
    for ref in refs:
        place.node.ensure_source(place.store, ref.digest, group="g")
    assert all(item.problem is None for item in verify_node(place.node, place.store))


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_chain_of_which_somebody_removed_one_is_made_anew(place: Place, removed: int) -> None:
    refs = place.chain(4)
    trees = [place.node.ensure_source(place.store, ref.digest, group="g") for ref in refs]
    remove_tree(trees[removed][-1].parent, place.idmap)
    for node in (place.node, NodeStore(place.node.root, place.idmap)):
        for ref in reversed(refs):
            found = node.ensure_source(place.store, ref.digest, group="g")
            assert all((tree / "testbed").is_dir() for tree in found)
    assert all(item.problem is None for item in verify_node(place.node, place.store))


def test_a_source_whose_reference_somebody_removed_is_made_anew(place: Place) -> None:
    refs = place.sources(2)
    trees = [place.node.ensure_source(place.store, ref.digest, group="g") for ref in refs]
    remove_tree(trees[0][0].parent, place.idmap)
    again = NodeStore(place.node.root, place.idmap)
    found = again.ensure_source(place.store, refs[1].digest, group="g")
    assert all((tree / "testbed").is_dir() for tree in found)
    assert all(item.problem is None for item in verify_node(again, place.store))


def test_byte_code_is_compared_with_what_was_made(place: Place) -> None:
    def fill(work: Path) -> None:
        work.mkdir()
        (work / "code").write_bytes(b"c" * 50_000)

    path = place.node.derive("bytecode-1-2", fill)
    assert [item.problem for item in verify_node(place.node, place.store)] == [None]
    damage(place, path / "code")
    (found,) = verify_node(place.node, place.store)
    assert found.problem == "bytecode-1-2 is not what was made"
    assert place.node.derive("bytecode-1-2", fill).is_dir()


def test_what_no_store_has_is_said_not_to_be_checked(place: Place) -> None:
    place.node.ensure(place.store, place.layer(1).digest)
    (found,) = verify_node(place.node, Store(place.root / "elsewhere"))
    assert found.problem is None
    assert "elsewhere" in found.unchecked
