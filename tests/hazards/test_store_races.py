"""H1, H6: many processes at once, or killed at any moment, never leave or see half a layer."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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


def make_tree(tree: Path, seed: int = 0, files: int = 50) -> Path:
    source = random.Random(seed)
    for number in range(files):
        path = tree / f"d{number % 17}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source.randbytes(source.randrange(100_000)))
    return tree


def content(tree: Path) -> str:
    """One digest over names and content of a tree."""

    def work() -> str:
        total = hashlib.sha256()
        for path in sorted(tree.rglob("*")):
            total.update(str(path.relative_to(tree)).encode() + b"\0")
            total.update(path.read_bytes() if path.is_file() else b"/")
        return total.hexdigest()

    return call_mapped(IDMAP, work)


def in_child(function: Callable[[], object]) -> int:
    """Fork a child that runs ``function``; returns its pid. Its code is 0 if nothing was raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return pid


def codes(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def leftovers(place: Path) -> list[Path]:
    return [*place.rglob("*.tmp")]


def settle(node: NodeStore) -> None:
    """Wait until nobody holds a lock: the mapped child of a killed process may still be at work."""
    for lock in (node.root / IDMAP.key / "locks").glob("*.lock"):
        with open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


@pytest.fixture
def layer(place: Path) -> tuple[Store, LayerRef, str]:
    store = Store(place / "store", level=1)
    tree = make_tree(place / "tree")
    return store, store.add("environment", tree, date=DATE, idmap=IDMAP), content(tree)


def test_eight_processes_ask_for_the_same_layer(
    place: Path, layer: tuple[Store, LayerRef, str]
) -> None:
    store, ref, expected = layer
    node = NodeStore(place / "node", IDMAP)

    def ask() -> None:
        path = NodeStore(place / "node", IDMAP).ensure(store, ref.digest)
        assert content(path) == expected

    assert codes([in_child(ask) for _ in range(8)]) == [0] * 8
    assert content(node.path(ref.digest)) == expected
    assert leftovers(place) == []


def test_processes_ask_for_different_layers_of_which_each_exceeds_the_budget(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINISANDBOX_IO_BUDGET", "1MB")
    store, node = Store(place / "store", level=1), NodeStore(place / "node", IDMAP)
    trees = [make_tree(place / f"tree-{seed}", seed) for seed in range(4)]
    refs = [store.add("instance", tree, date=DATE, idmap=IDMAP) for tree in trees]
    pids = [
        in_child(lambda ref=ref: NodeStore(place / "node", IDMAP).ensure(store, ref.digest))
        for ref in refs * 2
    ]
    assert codes(pids) == [0] * 8
    for tree, ref in zip(trees, refs, strict=True):
        assert content(node.path(ref.digest)) == content(tree)


def test_process_killed_at_any_moment_of_unpacking(
    place: Path, layer: tuple[Store, LayerRef, str]
) -> None:
    store, ref, expected = layer
    node = NodeStore(place / "node", IDMAP)
    started = time.monotonic()
    remove_tree(node.ensure(store, ref.digest), IDMAP)
    took = time.monotonic() - started
    chance = random.Random(1)
    killed, tries = 0, 0
    while killed < 6 and tries < 100:  # one that was faster than the signal shows nothing
        tries += 1
        victim = in_child(lambda: node.ensure(store, ref.digest))
        time.sleep(chance.uniform(0, took))
        os.kill(victim, signal.SIGKILL)
        killed += codes([victim]) == [-signal.SIGKILL]
        target = node.path(ref.digest)
        if target.exists():
            assert content(target) == expected
        assert content(node.ensure(store, ref.digest)) == expected
        settle(node)
        remove_tree(target, IDMAP)
    assert killed == 6
    assert content(node.ensure(store, ref.digest)) == expected
    assert leftovers(place) == []


def test_process_killed_at_any_moment_of_packing(place: Path) -> None:
    store = Store(place / "store", level=1)
    tree = make_tree(place / "tree")
    started = time.monotonic()
    ref = store.add("environment", tree, date=DATE, idmap=IDMAP)
    took = time.monotonic() - started
    chance = random.Random(2)
    for _ in range(20):
        store.path(ref.digest).unlink(missing_ok=True)
        victim = in_child(lambda: store.add("environment", tree, date=DATE, idmap=IDMAP))
        time.sleep(chance.uniform(0, took))
        os.kill(victim, signal.SIGKILL)
        codes([victim])
        assert [found.problem for found in store.verify()] in ([], [None])
    # The mapped child of the last victim may still write, and holds the lock until it is done.
    deadline = time.monotonic() + 20
    while store.add("environment", tree, date=DATE, idmap=IDMAP) and leftovers(place):
        assert time.monotonic() < deadline
    assert [found.problem for found in store.verify()] == [None]


def test_eight_processes_pack_the_same_tree(place: Path) -> None:
    tree = make_tree(place / "tree")
    store = Store(place / "store", level=1)
    pids = [
        in_child(lambda: store.add("environment", tree, date=DATE, idmap=IDMAP)) for _ in range(8)
    ]
    assert codes(pids) == [0] * 8
    assert [found.problem for found in store.verify()] == [None]
    assert leftovers(place) == []


def test_work_in_progress_is_left_alone(place: Path, layer: tuple[Store, LayerRef, str]) -> None:
    """Left-overs go, what somebody holds the lock of stays."""
    store, ref, _ = layer
    node = NodeStore(place / "node", IDMAP)
    base = node.scratch.parent
    abandoned, busy = "a" * 64, "b" * 64
    for value in (abandoned, busy):
        (base / "layers" / f".{value[:40]}.xyz.tmp" / "d").mkdir(parents=True)
        (base / "locks").mkdir(exist_ok=True)
        (base / "locks" / f"{value}.lock").touch()
    (place / "store/incoming/abandoned.tmp").touch()
    (place / "store/incoming/busy.tmp").touch()
    with (
        open(base / "locks" / f"{busy}.lock") as lock,
        open(place / "store/incoming/busy.tmp") as incoming,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(incoming, fcntl.LOCK_EX)
        node.ensure(store, ref.digest)
        make_tree(place / "tree", seed=7)
        store.add("environment", place / "tree", date=DATE, idmap=IDMAP)
    names = sorted(path.name for path in leftovers(place))
    assert names == [f".{busy[:40]}.xyz.tmp", "busy.tmp"]


def test_lock_file_of_a_dead_process_holds_nobody_up(
    place: Path, layer: tuple[Store, LayerRef, str]
) -> None:
    """Locks are the kernel's: a file with somebody's pid in it means nothing."""
    store, ref, expected = layer
    node = NodeStore(place / "node", IDMAP)
    locks = node.scratch.parent / "locks"
    locks.mkdir()
    budget, uses = node.root / "budget", locks.with_name("uses")
    for folder in (budget, uses):
        folder.mkdir()
    name = ref.digest.removeprefix("sha256:")
    tokens = [budget / f"token-{number:02}.lock" for number in range(32)]
    for path in (locks / f"{name}.lock", uses / name, budget / "turn.lock", *tokens):
        path.write_text("pid 1 on another-host\n")
    assert content(node.ensure(store, ref.digest)) == expected
