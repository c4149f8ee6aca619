"""H1, H6, D8: packing that is killed, done twice at once or out of room loses nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minisandbox.idmap import current, remove_tree
from minisandbox.store import Store
from minisandbox.store.packs.consolidation import consolidate

DATE = 1_600_000_000
IDMAP = current()
UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.iterdir():
        remove_tree(path, IDMAP)


def make_tree(tree: Path, version: int, files: int = 40) -> Path:
    tree.mkdir()
    source = random.Random(0)
    for number in range(files):
        (tree / f"random-{number}").write_bytes(source.randbytes(20_000))
    (tree / "only").write_bytes(random.Random(version).randbytes(200_000))
    return tree


def fill(store: Store, place: Path, versions: range) -> dict[str, bytes]:
    tars: dict[str, bytes] = {}
    for version in versions:
        tree = place / f"tree-{version}"
        if not tree.exists():
            make_tree(tree, version)
        ref = store.add("source", tree, date=DATE, idmap=IDMAP)
        with store.open(ref.digest) as stream:
            tars[ref.digest] = stream.read()
    return tars


def check_whole(store: Store, tars: dict[str, bytes]) -> None:
    assert list(store.digests()) == sorted(tars)
    for digest, tar in tars.items():
        with store.open(digest) as stream:
            assert stream.read() == tar


def in_child(function: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return pid


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_killed_at_any_moment(place: Path) -> None:
    """And nothing that it leaves is there after the next run."""
    store = Store(place / "store", level=1)
    tars = fill(store, place, range(2))
    started = time.monotonic()
    consolidate(store, level=3)
    took = time.monotonic() - started
    chance = random.Random(4)
    killed = 0
    for round_ in range(12):
        tars |= fill(store, place, range(2 + round_, 4 + round_))
        anew = round_ % 2 == 1
        victim = in_child(lambda: consolidate(Store(store.root), level=3, anew=anew))  # noqa: B023
        time.sleep(chance.uniform(0, took))
        os.kill(victim, signal.SIGKILL)
        killed += exit_code(victim) == -signal.SIGKILL
        check_whole(Store(store.root), tars)
        if round_ % 3 == 2:
            consolidate(Store(store.root), level=3, anew=round_ % 2 == 0)
            assert list(store.loose()) == []
            assert list((store.root / "incoming").iterdir()) == []
    assert killed >= 3
    check_whole(Store(store.root), tars)
    assert {one.problem for one in Store(store.root).verify()} == {None}


def test_killed_between_the_pack_and_the_removal(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(place / "store", level=1)
    tars = fill(store, place, range(3))
    module = "minisandbox.store.packs.consolidation._Consolidation._remove"

    def nothing(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, nothing)
        with pytest.raises(KeyboardInterrupt):
            consolidate(store, level=1)
    assert len(list(store.loose())) == 3
    done = consolidate(Store(store.root), level=1)
    assert (sorted(done.layers), done.pack) == (sorted(tars), None)
    assert list(store.loose()) == []
    check_whole(Store(store.root), tars)
    assert len(list(store.catalogue.packs())) == 1


def test_what_a_killed_one_left_goes_where_there_is_nothing_to_pack(place: Path) -> None:
    store = Store(place / "store", level=1)
    fill(store, place, range(1))
    consolidate(store, level=1)
    (store.root / "incoming/abandoned.tmp").touch()
    assert consolidate(Store(store.root), level=1).pack is None
    assert list((store.root / "incoming").iterdir()) == []


def test_two_at_once_make_one_pack(place: Path) -> None:
    store = Store(place / "store", level=1)
    tars = fill(store, place, range(3))
    pids = [in_child(lambda: consolidate(Store(store.root), level=3)) for _ in range(3)]
    assert [exit_code(pid) for pid in pids] == [0, 0, 0]
    check_whole(Store(store.root), tars)
    assert len(list(Store(store.root).catalogue.packs())) == 1


def test_who_reads_or_adds_meanwhile_notices_nothing(place: Path) -> None:
    store = Store(place / "store", level=1)
    tars = fill(store, place, range(6))

    def pack_again_and_again() -> None:
        for anew in (False, True, True, True):
            consolidate(Store(store.root), level=3, anew=anew)

    packing = in_child(pack_again_and_again)
    reader = Store(store.root)
    while os.waitpid(packing, os.WNOHANG) == (0, 0):
        for digest, tar in tars.items():
            assert reader.has(digest)
            with reader.open(digest) as stream:
                assert stream.read() == tar
        ref = store.add("source", place / "tree-0", date=DATE, idmap=IDMAP)
        assert ref.digest in tars
        assert {one.problem for one in reader.verify()} == {None}
    consolidate(Store(store.root), level=1)
    check_whole(reader, tars)


def test_a_reader_that_has_the_loose_file_open_reads_on(place: Path) -> None:
    store = Store(place / "store", level=1)
    ((digest, tar),) = fill(store, place, range(1)).items()
    with store.open(digest) as stream:
        begun = stream.read(1000)
        consolidate(Store(store.root), level=1)
        assert not store.path(digest).exists()
        assert begun + stream.read() == tar


_FULL = """
import os, sys
from pathlib import Path
from minisandbox.store import Store, StoreUnusable
from minisandbox.store.packs.consolidation import consolidate

root, other = Path(sys.argv[1]) / "store", Path(sys.argv[1]) / "full/store"
assert os.system(f"cp -r {root} {other}") == 0
digests = list(Store(root).digests())
try:
    consolidate(Store(other), level=1)
    print("packed")
except StoreUnusable as error:
    print(error)
    assert list(Store(other).loose()) == digests
assert list(Store(other).digests()) == digests
assert [one.problem for one in Store(other).verify()] == [None] * len(digests)
assert list((other / "incoming").iterdir()) == []
"""


def test_a_disk_that_fills_up_at_any_point(place: Path) -> None:
    store = Store(place / "store", level=1)
    fill(store, place, range(3))
    used = sum(path.stat().st_size for path in store.root.rglob("*") if path.is_file())
    (place / "full").mkdir()
    told: list[str] = []
    for share in (0.1, 0.3, 0.6, 0.8, 1.1, 2.5):
        size = int(used * (1 + share)) // 1024 + 64
        inner = f'mount -t tmpfs -o size={size}k none "$2/full" && exec "$0" -c "$1" "$2"'
        words = [*UNSHARE, "sh", "-c", inner, sys.executable, _FULL, str(place)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.strip())
    assert told[-1] == "packed"
    refused = [line for line in told if line != "packed"]
    assert len(refused) >= 2
    sentence = (
        f"cannot write to the store {place}/full/store: No space left on device; "
        "free some space there, or use a directory on another file system"
    )
    assert set(refused) == {sentence}
