"""H1: a pack whose checksums are right but which tells lies is damaged, in a sentence, at no cost.

Whoever may write to a shared store can make such a one: nothing of it takes memory that its file
does not, and nothing of it reaches what other stores' layers are made of.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard

from minisandbox.archive.members import Kind, Member, encode_header
from minisandbox.errors import LayerDamaged, MiniSandboxError
from minisandbox.idmap import current, remove_tree
from minisandbox.store import NodeStore, Store
from minisandbox.store.packs import layout
from minisandbox.store.packs.consolidation import consolidate
from minisandbox.store.packs.layout import Frame, Record
from minisandbox.store.packs.skeleton import NO_CONTENT, Skeleton

DATE = 1_600_000_000
IDMAP = current()
CONTENT = b"a content\n" * 11
SHA256 = hashlib.sha256(CONTENT).digest()
DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.iterdir():
        remove_tree(path, IDMAP)


def skeleton(files: Mapping[bytes, int], size: int = len(CONTENT)) -> Skeleton:
    """Files by path, with the numbers of their contents."""
    made = Skeleton()
    for path, content in files.items():
        length = 0 if content == NO_CONTENT else size
        member = Member(path, Kind.FILE, 0o644, 0, 0, DATE * 10**9, length)
        made.append(member, encode_header(member), content)
    return made


@dataclass
class Lies:
    """A pack of one layer, told as its writer likes."""

    skeleton: Skeleton = field(default_factory=lambda: skeleton({b"file": 0}))
    frames: Sequence[tuple[bytes, int]] = ((zstandard.compress(CONTENT), len(CONTENT)),)
    records: Sequence[Record] = (Record(SHA256, len(CONTENT), 0, 0),)
    entries: int | None = None
    sequence: int = 1
    tell: Callable[[Frame], Frame] = lambda frame: frame

    def write(self, root: Path, *, size: int = 0) -> Store:
        """Write the pack, its file at least of this ``size``."""
        store = Store(root)
        store.catalogue.folder.mkdir(parents=True)
        records = b"".join(record.encode() for record in self.records)
        members = self.skeleton.encode()
        parts = [*self.frames, (zstandard.compress(members), len(members))]
        at = layout.HEADER_SIZE + len(records)
        at += layout.index_size(
            dependencies=0, layers=1, frames=len(parts), contents=len(self.records)
        )
        spans: list[Frame] = []
        for data, unpacked in parts:
            spans.append(Frame(at, len(data), unpacked))
            at += len(data)
        layer = layout.Layer(
            hashlib.sha256(members).digest(),
            len(spans) - 1,
            0,
            len(members),
            len(self.skeleton) if self.entries is None else self.entries,
        )
        head = layout.encode(
            sequence=self.sequence,
            file_size=at,
            dependencies=(),
            layers={bytes.fromhex(DIGEST.removeprefix("sha256:")): layer},
            frames=[*map(self.tell, spans[:-1]), spans[-1]],
            own=len(self.records),
            records=records,
        )
        name = head[layout.HEADER_SIZE - 32 : layout.HEADER_SIZE].hex()
        with open(store.catalogue.path(name), "wb") as file:
            file.write(head + records + b"".join(data for data, _ in parts))
            file.truncate(max(size, file.tell()))
        return store


def bomb() -> tuple[bytes, int]:
    """A frame of 256 MiB that is told to be of 65."""
    compressing = zstandard.ZstdCompressor(level=1).compressobj()
    data = b"".join(compressing.compress(bytes(16 << 20)) for _ in range(16))
    return data + compressing.flush(), 65 << 20


LIES = {
    "a frame beyond all files": (
        Lies(tell=lambda frame: frame._replace(offset=2**64 - 1)),
        "it ends in frame 0",
    ),
    "a frame of holes": (
        Lies(tell=lambda frame: frame._replace(packed=1 << 40)),
        "frame 0 is longer than zstd makes one",
    ),
    "a content beyond its frame": (
        Lies(records=[Record(SHA256, 1 << 50, 0, 0)]),
        "a content ends after its frame 0",
    ),
    "a content in no frame": (
        Lies(records=[Record(SHA256, len(CONTENT), 4_000_000_000, 0)]),
        "there is no frame 4000000000",
    ),
    "no such content": (
        Lies(skeleton({b"file": 4_000_000_000})),
        "there is no content number 4000000000",
    ),
    "a small content in a frame that is a bomb": (
        Lies(frames=[bomb()], records=[Record(SHA256, len(CONTENT), 0, 0)]),
        "a content is not all of its frame 0",
    ),
    "a bomb": (
        Lies(frames=[bomb()], records=[Record(SHA256, 65 << 20, 0, 0)]),
        "frame 0 unpacks to more than the index says",
    ),
    "more members than it tells of": (
        Lies(skeleton({b"%d" % n: NO_CONTENT for n in range(100)}), entries=1),
        "a list of 100 members in frame 1 should have 1",
    ),
}


def read(store: Store) -> None:
    with store.open(DIGEST) as stream:
        while stream.read(1 << 20):
            pass


def read_apart(store: Store) -> None:
    assert store.listing(DIGEST)
    for _ in store.contents(DIGEST, {SHA256.hex()}):
        pass


@pytest.mark.parametrize("lie", LIES)
def test_what_is_told_falsely_is_damage(place: Path, lie: str) -> None:
    lies, reason = LIES[lie]
    store = lies.write(place / "store", size=1 << 41 if "holes" in lie else 0)
    (found,) = store.verify()
    assert str(found.problem).endswith(reason)
    with pytest.raises(LayerDamaged, match=reason):
        read(store)
    with pytest.raises(LayerDamaged, match=reason):
        read_apart(store)
    node = NodeStore(place / "node", IDMAP)
    with pytest.raises(LayerDamaged, match=reason):
        node.ensure_source(store, DIGEST, group="one")
    assert consolidate(Store(store.root), level=1, anew=True).damaged.keys() == {DIGEST}


def test_a_content_that_is_there_twice_is_given_once(place: Path) -> None:
    """Or the two, one after the other, would be in the pool of all layers under the name of one."""
    tree = place / "tree"
    tree.mkdir()
    for number in range(20):
        (tree / f"{number:02}").write_bytes(b"")
    honest = Store(place / "honest")
    first = honest.add("source", tree, date=DATE, idmap=IDMAP)
    (tree / "file").write_bytes(CONTENT)
    second = honest.add("source", tree, date=DATE, idmap=IDMAP)
    consolidate(honest, level=1)
    node = NodeStore(place / "node", IDMAP)
    node.ensure_source(honest, first.digest, group="one")
    files = {b"%02d" % number: NO_CONTENT for number in range(20)} | {b"file": 0, b"zz": 1}
    twice = [Record(SHA256, len(CONTENT), 0, 0)] * 2
    store = Lies(skeleton(files), records=twice).write(place / "store")
    folders = node.ensure_source(store, DIGEST, group="one")
    assert [(folders[-1] / name).read_bytes() for name in ("file", "zz")] == [CONTENT] * 2
    folders = node.ensure_source(honest, second.digest, group="one")
    assert len(folders) == 2
    assert (folders[-1] / "file").read_bytes() == CONTENT


def test_an_index_of_holes_is_not_read(place: Path) -> None:
    store = Store(place)
    store.catalogue.folder.mkdir(parents=True)
    path = store.catalogue.path("ab" * 32)
    with open(path, "wb") as file:
        file.write(
            struct.pack("<8sIIQQ32s", layout.MAGIC, layout.VERSION, 1, 1 << 30, 1 << 40, b"")
        )
        file.truncate(1 << 40)
    assert store.unreadable() == {path: "its header gives its index an impossible length"}


def test_after_the_last_pack_there_is_none(place: Path) -> None:
    store = Lies(sequence=layout.LAST_SEQUENCE).write(place / "store")
    (place / "tree").mkdir()
    ref = store.add("source", place / "tree", date=DATE, idmap=IDMAP)
    with pytest.raises(MiniSandboxError, match=r"no pack can be newer than .*; move it away"):
        consolidate(store, level=1)
    assert list(store.loose()) == [ref.digest]


def test_a_layer_of_endless_members_stays_loose(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minisandbox.store.packs.consolidation._MEMBERS", 4)
    (place / "tree").mkdir()
    for number in range(5):
        (place / f"tree/{number}").touch()
    store = Store(place / "store")
    ref = store.add("source", place / "tree", date=DATE, idmap=IDMAP)
    assert consolidate(store, level=1).stay == {ref.digest: "it has more than 4 members"}
