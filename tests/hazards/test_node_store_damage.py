"""H1: whatever a node store notes of its sources may be damaged: then they are made anew, and
whoever looks at the store is told in a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from minisandbox import atomic
from minisandbox.archive import PackStats
from minisandbox.archive.members import Kind, Member, encode_header
from minisandbox.errors import LayerDamaged, UnsafeArchive
from minisandbox.idmap import call_mapped, current, remove_tree
from minisandbox.records.layer import LayerRef
from minisandbox.store import NodeStore, Store, collecting, derived_name, references, usage
from minisandbox.store.checking import verify_node
from minisandbox.store.collecting import collect
from minisandbox.store.objects import Checkout
from minisandbox.store.usage import Survey

DATE = 1_600_000_000
IDMAP = current()


class Two:
    """Two sources, of which the second lies on the first."""

    def __init__(self, place: Path) -> None:
        self.tree = place / "tree"
        self.tree.mkdir()
        for number in range(20):
            (self.tree / f"file-{number}").write_bytes(b"%d\n" % number * 500)
        self.store = Store(place / "store")
        self.first = self.add()
        (self.tree / "file-7").write_bytes(b"changed\n")
        self.second = self.add()
        self.node = NodeStore(place / "node", IDMAP)
        self.ensure(self.first)
        self.ensure(self.second)

    def add(self) -> LayerRef:
        return self.store.add("source", self.tree, date=DATE, idmap=IDMAP)

    def ensure(self, layer: LayerRef) -> tuple[Path, ...]:
        return self.node.ensure_source(self.store, layer.digest, group="group")

    def place(self, layer: LayerRef) -> Path:
        return self.node.source(layer.digest)[-1].parent

    def write(self, note: Path, text: bytes) -> None:
        call_mapped(IDMAP, lambda: note.write_bytes(text))

    def problems(self) -> dict[str, str | None]:
        return {found.name: found.problem for found in verify_node(self.node, self.store)}

    def check_whole(self) -> None:
        for layer in (self.first, self.second):
            assert len(self.ensure(layer)) == 1 + (layer is self.second)
        assert {*self.problems().values()} == {None}


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    yield Two(tmp_path)
    remove_tree(tmp_path / "node", IDMAP)


NOTES = pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"../x", b"z" * 64])


@NOTES
def test_a_damaged_note_of_what_a_source_lies_on(two: Two, text: bytes) -> None:
    note = two.place(two.second) / "below"
    two.write(note, text)
    assert collect(two.node, None).removed == []
    name = note.parent.name
    assert two.problems()[name] == f"{name} lies on a source that is not there"
    two.check_whole()
    two.write(note, text)
    two.check_whole()
    call_mapped(IDMAP, note.unlink)
    two.check_whole()


@NOTES
@pytest.mark.parametrize("name", ["sketch", "listing", "objects"])
def test_a_damaged_note_of_what_others_are_told_against(two: Two, name: str, text: bytes) -> None:
    """Then others lie on another, or on none; and what they are told is not what was damaged."""
    note = two.place(two.first) / name
    kept = note.read_bytes()
    two.write(note, text)
    two.node = NodeStore(two.node.root, IDMAP)  # that has not read it before
    (two.tree / "file-8").write_bytes(b"changed too\n")
    third = two.add()
    assert len(two.ensure(third)) == (2 if kept == text else 1)
    problems = two.problems()
    name = two.first.digest.removeprefix("sha256:")
    told = "sketch" if note.name == "sketch" else "listing"
    assert problems.pop(name) == (None if kept == text else f"{told} is not that of its files")
    assert problems.pop(third.digest.removeprefix("sha256:")) is None
    for layer in (two.first, two.second):
        assert two.ensure(layer)
    assert {*two.problems().values()} == {None}


def test_a_note_of_a_reference_that_is_not_there(two: Two) -> None:
    stray = two.node.base / "references/stray"
    for forget in (lambda: two.ensure(two.add()), lambda: collect(two.node, None)):
        stray.touch()
        (two.tree / "file-9").write_bytes(b"changed\n")
        forget()
        assert not stray.exists()
    assert (stray.with_name(two.first.digest.removeprefix("sha256:"))).exists()


def test_a_damaged_note_of_what_was_computed(two: Two) -> None:
    name = derived_name("bytecode", two.first.digest, two.second.digest)
    two.node.derive(name, lambda work: work.mkdir())
    (two.node.base / "sums" / name).write_bytes(b"\xff")
    assert two.problems()[name] == f"{name} is not what was made"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_what_a_damaged_layer_is_compared_with_is_said(two: Two, share: float) -> None:
    packed = two.store.path(two.first.digest)
    content = packed.read_bytes()
    packed.chmod(0o644)
    packed.write_bytes(content[: int(len(content) * share)])
    found = {one.name: one for one in verify_node(two.node, two.store)}
    name = two.first.digest.removeprefix("sha256:")
    assert found.pop(name).unchecked.startswith(f"{packed} is damaged")
    assert [one.problem for one in found.values()] == [None]
    with two.store.stored(two.first.digest) as layer, pytest.raises(LayerDamaged):
        layer.listed()


@pytest.mark.parametrize("who", ["collects", "verifies"])
def test_who_collects_and_who_verifies_may_meet_in_the_pool(
    two: Two, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one is about to remove, the other has removed."""
    unlink, removed = os.unlink, list[str]()

    def late(path: os.DirEntry[str] | str, **options: int) -> None:
        if isinstance(path, os.DirEntry):
            removed.append(path.path)
            unlink(path.path)
        unlink(path, **options)

    if who == "collects":
        next((two.node.base / "pool/source").glob("*")).joinpath("garbage").touch()
    else:
        damaged = two.place(two.second) / "tree/file-7"
        call_mapped(IDMAP, lambda: damaged.write_bytes(b"damaged\n"))
    with monkeypatch.context() as patching:
        patching.setattr(os, "unlink", late)
        if who == "collects":
            collect(two.node, None)
        else:
            two.problems()
    assert len(removed) == 1
    two.check_whole()


def test_a_checkout_is_read_as_it_is_shown(tmp_path: Path) -> None:
    """Not what a whiteout, a file or a link of the upper directory hides of the lower one."""
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for name in ("kept/file", "filed/file", "linked/file", "other"):
        (lower / name).parent.mkdir(parents=True, exist_ok=True)
        (lower / name).write_text("lower")
    (upper / "kept").mkdir(parents=True)
    (upper / "filed").write_text("a file")
    (upper / "linked").symlink_to("kept")
    (upper / "other").symlink_to("kept/file")
    with Checkout([upper, lower]) as checkout:
        assert checkout.read("kept/file") == b"lower"
        assert checkout.read("kept/file", 4) is None
        for name in ("filed/file", "linked/file", "other", "../lower/other", "f" * 300, "kept", ""):
            assert checkout.read(name) is None
            assert checkout.target(name) == (b"kept/file" if name == "other" else None)


def test_what_is_no_archive_is_refused_in_a_sentence(two: Two) -> None:
    def write(out: BinaryIO) -> PackStats:
        out.write(b"1" * 4000)
        return PackStats(4000, 1)

    ref = two.store.add_written("source", write)
    with two.store.stored(ref.digest) as layer:
        with pytest.raises(UnsafeArchive, match="refused: "):
            layer.listed()


def test_names_of_files_do_not_write_to_the_terminal(two: Two) -> None:
    name = os.fsdecode(b"evil\xe9\nsource 1  \x1b[1mfine")
    (two.tree / name).write_bytes(b"1")
    layer = two.add()
    path = two.ensure(layer)[-1] / name
    call_mapped(IDMAP, lambda: path.write_bytes(b"2"))
    told = two.problems()[layer.digest.removeprefix("sha256:")]
    assert told == r"'evil\udce9\nsource 1  \x1b[1mfine' has another content"


def test_what_killed_processes_were_noting_is_removed(two: Two) -> None:
    """But not what somebody is noting right now."""
    base = two.node.base
    (base / "sums").mkdir(exist_ok=True)
    kept = base / "sums/.objects-11.abcdefgh.tmp"
    gone = [base / "sums/.objects-33.abcdefgh.tmp", base / ".account.abcdefgh.tmp"]
    for path in (kept, *gone):
        path.touch()
    with atomic.locked(base / "locks/objects-11.lock"):
        collect(two.node, None)
    assert [path.exists() for path in (kept, *gone)] == [True, False, False]


def test_what_thousands_lie_on_is_looked_up_once(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of what came since: a source that lies on another keeps it."""
    folder = two.node.base / "sources"
    for number in range(60):
        (folder / f"{number:064x}/tree").mkdir(parents=True)
        if number % 2:
            (folder / f"{number:064x}/below").write_text(f"{number - 1:064x} {0:016x}")
    looked: list[str] = []
    reference_of, surveyed = references.reference_of, collecting.survey

    def counted(source: Path) -> str:
        looked.append(source.name)
        return reference_of(source)

    def late(*words: Any) -> Survey:
        found = surveyed(*words)
        (folder / f"{99:064x}/tree").mkdir(parents=True)
        (folder / f"{99:064x}/below").write_text(f"{20:064x} {0:016x}")
        return found

    for module in (collecting, usage):
        monkeypatch.setattr(module, "reference_of", counted)
    monkeypatch.setattr(collecting, "survey", late)
    assert len(collect(two.node, 1).removed) == 61
    assert sorted(path.name for path in folder.iterdir()) == [f"{20:064x}", f"{99:064x}"]
    assert {looked.count(name) for name in {*looked} - {f"{99:064x}"}} == {1}


def test_a_source_with_whiteouts_is_as_it_should_be(two: Two) -> None:
    member = Member(b"folder/.wh..wh..opq", Kind.FILE, 0o644, 0, 0, DATE * 10**9)

    def write(out: BinaryIO) -> PackStats:
        out.write(encode_header(member) + bytes(1024))
        return PackStats(0, 1)

    ref = two.store.add_written("source", write)
    two.node.ensure_source(two.store, ref.digest)
    assert {*two.problems().values()} == {None}
