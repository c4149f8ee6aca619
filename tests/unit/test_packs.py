"""Layers in packs: the same tars come out, equal contents are kept once, lists cost little."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import pickle
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from minisandbox.archive.members import Kind, Member
from minisandbox.archive.reading import Malformed
from minisandbox.errors import LayerMissing
from minisandbox.idmap import current, remove_tree
from minisandbox.records.layer import LayerRef
from minisandbox.store import NodeStore, Store
from minisandbox.store.packs import arrangement, reading
from minisandbox.store.packs.consolidation import consolidate
from minisandbox.store.packs.layout import FRAME_LIMIT
from minisandbox.store.packs.skeleton import NO_CONTENT, Skeleton

DATE = 1_600_000_000
IDMAP = current()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.iterdir():
        remove_tree(path, IDMAP)


def make_tree(tree: Path, version: int) -> Path:
    """Versions of one project: most files equal, some near-equal, all kinds of members."""
    source = random.Random(0)
    (tree / "d/empty").mkdir(parents=True)
    for number in range(30):
        text = "".join(f"line {source.random()}\n" for _ in range(200))
        changed = f"# version {version}\n" if number % 10 == 0 else ""
        (tree / f"d/f{number:03}.py").write_text(changed + text)
    (tree / "d/nothing").touch()
    (tree / f"only-{version}").write_bytes(source.randbytes(1000 + version))
    (tree / "d/tool").write_text("#!/bin/sh\n")
    (tree / "d/tool").chmod(0o755)
    os.link(tree / "d/tool", tree / "hard")
    os.symlink("d/tool", tree / "link")
    os.mkfifo(tree / "fifo")
    (tree / os.fsdecode(b"not \xff utf-8")).write_text("x")
    (tree / ("long/" + "n" * 150)).mkdir(parents=True)
    (tree / ("long/" + "n" * 150) / ("m" * 180)).write_text("long name")
    return tree


def tar_of(store: Store, digest: str) -> bytes:
    with store.open(digest) as stream:
        return stream.read()


@pytest.fixture
def layers(place: Path) -> tuple[Store, list[LayerRef]]:
    store = Store(place / "store", level=1)
    trees = [make_tree(place / f"tree-{version}", version) for version in range(4)]
    return store, [
        store.add("source", tree, date=DATE + number, idmap=IDMAP)
        for number, tree in enumerate(trees)
    ]


def test_packed_layers_are_the_same_tars(layers: tuple[Store, list[LayerRef]]) -> None:
    store, refs = layers
    before = [tar_of(store, ref.digest) for ref in refs]
    done = consolidate(store, level=1)
    assert sorted(done.layers) == sorted(ref.digest for ref in refs)
    assert done.loose_bytes == sum(ref.size for ref in refs)
    assert done.pack is not None
    assert done.pack_bytes == done.pack.stat().st_size < done.loose_bytes / 2
    assert done.pack.stat().st_mode & 0o777 == 0o444
    assert list(store.loose()) == []
    assert [tar_of(store, ref.digest) for ref in refs] == before
    assert all(store.has(ref.digest) for ref in refs)
    assert sorted(store.digests()) == sorted(ref.digest for ref in refs)
    assert [found.problem for found in store.verify()] == [None] * 4
    assert list((store.root / "incoming").iterdir()) == []


def test_a_store_that_was_open_before_finds_the_pack(
    layers: tuple[Store, list[LayerRef]],
) -> None:
    store, refs = layers
    earlier = Store(store.root)
    assert tar_of(earlier, refs[0].digest)
    consolidate(Store(store.root), level=1)
    assert earlier.has(refs[0].digest)
    assert tar_of(earlier, refs[0].digest)
    assert tar_of(pickle.loads(pickle.dumps(earlier)), refs[1].digest)


def test_unpacks_as_the_loose_layer_did(place: Path, layers: tuple[Store, list[LayerRef]]) -> None:
    store, refs = layers
    consolidate(store, level=1)
    path = NodeStore(place / "node", IDMAP).ensure(store, refs[2].digest)
    assert store.add("source", path, date=DATE + 2, idmap=IDMAP) == refs[2]
    assert list(store.loose()) == []  # a pack holds it: no file of its own again


def test_packing_again_packs_what_is_new_and_refers_to_the_rest(
    place: Path, layers: tuple[Store, list[LayerRef]]
) -> None:
    store, refs = layers
    first = consolidate(store, level=1)
    assert consolidate(store, level=1).pack is None
    late = store.add("source", make_tree(place / "late", 7), date=DATE + 7, idmap=IDMAP)
    second = consolidate(store, level=1)
    assert second.layers == [late.digest]
    assert second.pack_bytes < first.pack_bytes / 2
    newest, oldest = store.catalogue.packs()
    assert newest.index.dependencies == (oldest.index.name,)
    assert newest.index.own < 8 < newest.index.contents
    assert [found.problem for found in store.verify()] == [None] * 5
    listed = store.listing(late.digest)
    assert listed is not None
    wanted = {entry.content for entry in listed.entries if entry.content}
    assert dict(store.contents(late.digest, wanted)).keys() == wanted
    assert tar_of(store, refs[0].digest)


def test_packing_all_anew_leaves_one_pack(
    place: Path, layers: tuple[Store, list[LayerRef]]
) -> None:
    store, refs = layers
    reader = Store(store.root)
    consolidate(store, level=1)
    for version in (7, 8):
        refs.append(
            store.add("source", make_tree(place / f"{version}", version), date=DATE, idmap=IDMAP)
        )
        if version == 7:
            consolidate(store, level=1)
    before = [tar_of(reader, ref.digest) for ref in refs]
    with reader.stored(refs[0].digest) as opened, reader.stored(refs[4].digest) as referring:
        done = consolidate(store, level=3, anew=True)
        assert len(done.replaced) == 2
        for layer, tar in ((opened, before[0]), (referring, before[4])):
            with layer.tar() as stream:
                assert stream.read() == tar, "who has it open reads on"
    assert done.replaced_bytes > 0
    assert sorted(done.layers) == sorted(ref.digest for ref in refs)
    (pack,) = store.catalogue.packs()
    assert (pack.path, pack.index.dependencies) == (done.pack, ())
    assert [path.name for path in store.catalogue.folder.iterdir()] == [pack.path.name]
    assert [tar_of(reader, ref.digest) for ref in refs] == before, "who knew the old ones"
    assert [found.problem for found in reader.verify()] == [None] * 6
    assert consolidate(store, level=9, anew=True).replaced == [pack.path], "at another level"
    assert [found.problem for found in reader.verify()] == [None] * 6


def test_digests_do_not_depend_on_how_they_are_packed(
    place: Path, layers: tuple[Store, list[LayerRef]]
) -> None:
    """Another folder, another order, another level: the layers are the same ones."""
    store, refs = layers
    other = Store(place / "other")
    for number in (2, 0, 3, 1):
        tree = make_tree(place / f"again-{number}", number)
        other.add("source", tree, date=DATE + number, idmap=IDMAP)
        consolidate(other, level=3, threads=1)
    consolidate(store, level=9, threads=2)
    assert list(other.digests()) == list(store.digests())
    assert [tar_of(other, ref.digest) for ref in refs] == [
        tar_of(store, ref.digest) for ref in refs
    ]


def test_listing_says_what_the_tar_says(layers: tuple[Store, list[LayerRef]]) -> None:
    store, refs = layers
    digest = refs[1].digest
    assert store.listing(digest) is None  # loose
    consolidate(store, level=1)
    listed = store.listing(digest)
    assert listed is not None
    kinds = {
        tarfile.REGTYPE: Kind.FILE,
        tarfile.LNKTYPE: Kind.HARD_LINK,
        tarfile.SYMTYPE: Kind.SYMLINK,
        tarfile.DIRTYPE: Kind.DIRECTORY,
        tarfile.FIFOTYPE: Kind.FIFO,
    }
    with tarfile.open(fileobj=io.BytesIO(tar_of(store, digest))) as archive:
        expected: list[tuple[object, ...]] = []
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            expected.append(
                (
                    os.fsencode(member.name),
                    kinds[member.type],
                    member.mode,
                    member.uid,
                    member.gid,
                    int(member.mtime) * 1_000_000_000,
                    os.fsencode(member.linkname),
                    member.size if member.isreg() else 0,
                    hashlib.sha256(content.read()).hexdigest() if content else "",
                    {},
                )
            )
    assert [tuple(entry) for entry in listed.entries] == expected


def test_contents_come_once_and_only_those_asked_for(
    layers: tuple[Store, list[LayerRef]],
) -> None:
    store, refs = layers
    consolidate(store, level=1)
    listed = store.listing(refs[0].digest)
    assert listed is not None
    by_path = {entry.path: entry.content for entry in listed.entries}
    wanted = [by_path[b"d/f000.py"], by_path[b"only-0"], by_path[b"d/nothing"], "0" * 64]
    found = list(store.contents(refs[0].digest, wanted))
    assert sorted(sha256 for sha256, _ in found) == sorted(wanted[:3])
    assert all(hashlib.sha256(data).hexdigest() == sha256 for sha256, data in found)


def test_contents_of_a_layer_that_is_not_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(LayerMissing):
        list(store.contents("sha256:" + "0" * 64, ["0" * 64]))
    with pytest.raises(LayerMissing):
        store.listing("sha256:" + "0" * 64)


def test_a_large_content_is_read_in_pieces(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minisandbox.store.packs.layout.FRAME_LIMIT", 1 << 20)
    monkeypatch.setattr(reading, "FRAME_LIMIT", 1 << 20)
    monkeypatch.setattr(arrangement, "FRAME_LIMIT", 1 << 20)
    monkeypatch.setattr(reading, "PIECE", 700_000)
    tree = place / "tree"
    tree.mkdir()
    data = random.Random(1).randbytes(2_500_000)
    (tree / "large").write_bytes(data)
    (tree / "small").write_bytes(b"small")
    store = Store(place / "store", level=1)
    ref = store.add("environment", tree, date=DATE, idmap=IDMAP)
    consolidate(store, level=1)
    name = hashlib.sha256(data).hexdigest()
    pieces = list(store.contents(ref.digest, [name]))
    assert [len(piece) for _, piece in pieces] == [700_000, 700_000, 700_000, 400_000]
    assert b"".join(piece for _, piece in pieces) == data
    assert [found.problem for found in store.verify()] == [None]


def put(store: Store, tar: bytes) -> str:
    digest = "sha256:" + hashlib.sha256(tar).hexdigest()
    store.path(digest).parent.mkdir(parents=True, exist_ok=True)
    store.path(digest).write_bytes(zstandard.ZstdCompressor().compress(tar))
    return digest


def gnu_tar(out: io.BytesIO) -> None:
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in ("./usr/", "./usr/bin/tool", "./usr/" + "n" * 200):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            info.uname, info.mtime, info.size = "root", 7, 3 * info.isreg()
            archive.addfile(info, io.BytesIO(b"abc"))


def pax_tar(out: io.BytesIO) -> None:
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("file")
        info.size, info.mtime = 5, 1.5  # type: ignore[assignment]
        info.pax_headers = {"SCHILY.xattr.user.colour": "blue"}
        archive.addfile(info, io.BytesIO(b"hello"))


@pytest.mark.parametrize("make", [gnu_tar, pax_tar])
def test_tars_of_other_tools_come_back_to_the_byte(
    tmp_path: Path, make: Callable[[io.BytesIO], None]
) -> None:
    out = io.BytesIO()
    make(out)
    store = Store(tmp_path)
    digest = put(store, out.getvalue())
    assert consolidate(store, level=1).layers == [digest]
    assert tar_of(store, digest) == out.getvalue()
    listed = store.listing(digest)
    assert listed is not None
    if make is pax_tar:
        assert listed.entries[0].xattrs == {b"user.colour": b"blue"}
        assert listed.entries[0].mtime == 1_500_000_000


def test_a_tar_that_could_not_be_made_again_stays_loose(tmp_path: Path) -> None:
    out = io.BytesIO()
    gnu_tar(out)
    data = bytearray(out.getvalue())
    data[data.index(b"abc") + 10] = 1  # in the padding
    store = Store(tmp_path)
    digest = put(store, bytes(data))
    whole = put(store, out.getvalue())
    done = consolidate(store, level=1)
    assert done.layers == [whole]
    assert done.stay == {digest: "something is written between its members"}
    assert tar_of(store, digest) == bytes(data)


def test_versions_of_a_file_share_a_frame_and_others_do_not_grow_it() -> None:
    kilobytes = 1024
    contents = [
        arrangement.Content(number, 300 * kilobytes, path, number, number)
        for number, path in enumerate(
            [b"a/x-1.so", b"b/y.py", b"a/x-2.so", b"a/x-3.so", b"c/z.py", b"b/z.py"]
        )
    ]
    frames = [[content.path for content in frame] for frame in arrangement.arrange(contents)]
    assert frames == [
        [b"a/x-1.so", b"a/x-2.so", b"a/x-3.so"],
        [b"b/y.py"],
        [b"b/z.py"],
        [b"c/z.py"],
    ]


def test_files_that_are_read_together_share_a_frame() -> None:
    """Three files of a distribution, in one release or in two, and one that changed on its own."""
    kilobytes = 1024
    releases = [(b"dist/a.py", 1, 2), (b"dist/b.py", 1, 2), (b"dist/c.py", 1, 2), (b"dist/d.py", 3)]
    contents = [
        arrangement.Content(10 * number + holder, 300 * kilobytes, path, holder, holder)
        for number, (path, *holders) in enumerate(releases)
        for holder in holders
    ]
    frames = [[content.number for content in frame] for frame in arrangement.arrange(contents)]
    assert frames == [[1, 2, 11, 12, 21, 22], [33]]


def test_a_few_versions_of_a_large_file_share_a_frame() -> None:
    megabytes = 1 << 20
    large = [arrangement.Content(n, 7 * megabytes, b"lib.so", n, n) for n in range(12)]
    small = [arrangement.Content(20 + n, megabytes // 10, b"module.py", n, n) for n in range(200)]
    frames = [len(frame) for frame in arrangement.arrange([*large, *small])]
    assert frames == [8, 4, 80, 80, 40]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"lib/python3.9/a-1.2.dist-info/METADATA", b"lib/python3.11/a-1.10.dist-info/METADATA"),
        (b"a/x.cpython-36m-x86_64-linux-gnu.so", b"a/x.cpython-311-x86_64-linux-gnu.so"),
        (
            b"p/numpy.libs/libgfortran-040039e1.so.5.0.0",
            b"p/scipy.libs/libgfortran-91cc3cb1.so.3.0.0",
        ),
        (b"p/a64f60bb4641b67cb20c__mypyc.so", b"p/3204bda914b7f2c6f497__mypyc.so"),
    ],
)
def test_versions_of_a_file_are_told_by_its_path(one: bytes, other: bytes) -> None:
    assert arrangement.family(one) == arrangement.family(other)
    assert arrangement.family(b"a/x.py") != arrangement.family(b"b/x.py")


def test_frames_of_several_contents_fit_into_memory() -> None:
    contents = [arrangement.Content(n, 5 << 20, b"lib.so", n) for n in range(40)]
    for frame in arrangement.arrange(contents):
        assert sum(content.size for content in frame) <= FRAME_LIMIT


def test_a_packed_layer_can_be_handed_out_compressed(place: Path) -> None:
    """As the loose file was, to the byte where zstd is the same."""
    store = Store(place / "store")
    ref = store.add("source", make_tree(place / "tree", 1), date=DATE, idmap=IDMAP)
    loose = store.path(ref.digest).read_bytes()
    consolidate(store, level=1)
    copied: list[bytes] = []
    with store.stored(ref.digest) as layer, layer.tar(copied.append) as stream:
        tar = stream.read()
    assert b"".join(copied) == loose
    with store.stored(ref.digest) as layer, layer.tar() as stream:
        assert stream.read() == tar


def test_a_kept_header_of_nothing_is_damage() -> None:
    made = Skeleton()
    made.append(Member(b"f", Kind.FILE, 0o644, 0, 0, 0), bytes(1024), NO_CONTENT)
    made = Skeleton.decode(made.encode())
    with pytest.raises(Malformed, match="no header"):
        made.entries({})
    with pytest.raises(Malformed, match="no header"):
        list(made.members({}))


def test_like_layers_are_neighbours() -> None:
    """Two projects, each with versions that change one file in ten a step, mixed up."""
    layers: dict[bytes, Skeleton] = {}
    steps = [(project, version) for version in (4, 0, 3, 1, 5, 2) for project in (0, 1)]
    for project, version in steps:
        skeleton = Skeleton()
        for number in range(300):
            age = int(version > number % 10)
            member = Member(b"%d/%d" % (project, number), Kind.FILE, 0o644, 0, 0, 0, size=1)
            skeleton.append(member, b"", project * 10_000 + number * 10 + age)
        layers[b"%d %d" % (project, version)] = skeleton
    order = [tuple(map(int, name.split())) for name in arrangement.by_likeness(layers)]
    assert [project for project, _ in order] == [0] * 6 + [1] * 6
    versions = [version for _, version in order]
    for chain in (versions[:6], versions[6:]):
        assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(chain)) >= 4
