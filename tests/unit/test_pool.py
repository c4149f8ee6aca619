"""Equal files of layers as one: when they are, and when they must not be."""

from __future__ import annotations

import hashlib
import io
import os
from functools import partial
from pathlib import Path

import pytest
import zstandard

from minisandbox.archive.members import BLOCK, Kind, Member, encode_header, padding
from minisandbox.archive.reading import Reader
from minisandbox.idmap import IdMap, call_mapped
from minisandbox.store import NodeStore, Store, listing, pool
from minisandbox.store.listing import Entry

DATE = 1_577_836_800


class Layers:
    """Packs and unpacks small layers."""

    def __init__(self, place: Path, idmap: IdMap) -> None:
        self.place = place
        self.store = Store(place / "store", level=1)
        self.node = NodeStore(place / "node", idmap)
        self._count = 0

    def __call__(
        self, files: dict[str, bytes], *, date: int = DATE, pool: str = "kind", mode: int = 0o644
    ) -> Path:
        self._count += 1
        tree = self.place / f"tree{self._count}"

        def write() -> None:
            for name, content in files.items():
                path = tree / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(mode)

        call_mapped(self.node.idmap, write)
        ref = self.store.add("environment", tree, date=date, idmap=self.node.idmap)
        return self.node.ensure(self.store, ref.digest, pool=pool)


@pytest.fixture
def layers(place: Path, idmap: IdMap) -> Layers:
    return Layers(place, idmap)


def same(one: Path, other: Path) -> bool:
    return one.stat().st_ino == other.stat().st_ino


def test_equal_files_of_two_layers_are_one(layers: Layers) -> None:
    first = layers({"a/x": b"equal\n", "a/y": b"first\n"})
    second = layers({"b/z": b"equal\n", "b/y": b"second\n"})
    assert same(first / "a/x", second / "b/z")
    assert not same(first / "a/y", second / "b/y")
    assert (second / "b/z").read_bytes() == b"equal\n"


def test_equal_files_of_one_layer_are_two(layers: Layers) -> None:
    first = layers({"a": b"", "b": b"", "c": b"more"})
    second = layers({"d": b"", "e": b"", "f": b"", "g": b"other"})
    assert not same(first / "a", first / "b")
    assert same(first / "a", second / "d")
    assert same(first / "b", second / "e")
    assert len({(second / name).stat().st_ino for name in "def"}) == 3


def test_what_differs_in_more_than_content_is_not_shared(layers: Layers) -> None:
    first = layers({"x": b"equal\n"})
    assert not same(first / "x", layers({"x": b"equal\n", "1": b""}, date=DATE + 2) / "x")
    assert not same(first / "x", layers({"x": b"equal\n", "2": b""}, mode=0o755) / "x")
    assert not same(first / "x", layers({"x": b"equal\n", "3": b""}, pool="other") / "x")
    assert not same(first / "x", layers({"x": b"equal\n", "4": b""}, pool="") / "x")


def test_large_files_are_shared_without_being_held(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_IN_MEMORY", 10)
    first = layers({"x": b"more than ten bytes", "y": b"another of them here"})
    second = layers({"z": b"more than ten bytes"})
    assert same(first / "x", second / "z")
    assert (second / "z").read_bytes() == b"more than ten bytes"
    assert sorted(path.name for path in second.iterdir()) == ["z"]


def test_a_pool_without_links_left_gives_a_file(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = layers({"x": b"equal\n"})

    def link(*_: object, **__: object) -> None:
        raise OSError(31, os.strerror(31))

    monkeypatch.setattr(os, "link", link)
    second = layers({"z": b"equal\n"})
    assert (second / "z").read_bytes() == b"equal\n"
    assert not same(first / "x", second / "z")


def test_nothing_of_a_damaged_layer_gets_into_the_pool(layers: Layers) -> None:
    layers({"x": b"equal\n"})
    before = sorted((layers.place / "node").rglob("pool/kind/*/*"))
    tree = layers.place / "tree"
    call_mapped(layers.node.idmap, tree.mkdir)
    call_mapped(layers.node.idmap, partial((tree / "y").write_bytes, os.urandom(100_000)))
    ref = layers.store.add("environment", tree, date=DATE, idmap=layers.node.idmap)
    path = layers.store.path(ref.digest)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(Exception, match="damaged"):
        layers.node.ensure(layers.store, ref.digest, pool="kind")
    assert sorted((layers.place / "node").rglob("pool/kind/*/*")) == before


def test_a_listing_survives_being_written(tmp_path: Path) -> None:
    members = [
        Member(b"dir", Kind.DIRECTORY, 0o755, 0, 0, DATE * 10**9),
        Member(b"dir/latin-\xe9", Kind.FILE, 0o600, 5, 6, 1, 7, xattrs={b"user.x": b"\0\xff"}),
        Member(b"link", Kind.SYMLINK, 0o777, 0, 0, 2, target=b"to/\xff"),
    ]
    entries = [
        Entry.of(member)._replace(content="ab" * 32 if member.kind is Kind.FILE else "")
        for member in members
    ]
    assert [entry.member for entry in entries] == members
    assert listing.decode(listing.encode(entries)) == entries
    with pytest.raises(ValueError, match=r"rame|zst"):
        listing.decode(b"no listing")
    with pytest.raises(ValueError, match="another version"):
        listing.decode(zstandard.compress(b"[]"))


def test_recording_hashes_what_passes() -> None:
    content = os.urandom(3_000_000)
    member = Member(b"x", Kind.FILE, 0o644, 0, 0, 0, len(content))
    tar = encode_header(member) + content + bytes(padding(len(content))) + bytes(2 * BLOCK)
    recording = listing.Recording(Reader(io.BytesIO(tar)))
    for found in recording:
        assert found == member
        assert recording.last() == ""
        assert b"".join(recording.content()) == content
        assert recording.last() == hashlib.sha256(content).hexdigest()
    assert len(recording.entries) == 1
