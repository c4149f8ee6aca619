"""Images that others made: whatever they say, nothing outside of store and records is written, and
what they cannot have is refused with a sentence, or is not there inside.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import zstandard

from images import ARCHITECTURE, PLATFORM, Layout, archive_of, digest, docker_archive
from minisandbox.archive import Limits
from minisandbox.errors import ImageRefused, MiniSandboxError, SandboxFileError
from minisandbox.idmap import call_mapped, current, remove_tree
from minisandbox.oci import import_image, importing, media
from minisandbox.records.image import ImageRecord
from minisandbox.runtime import Image
from minisandbox.sandbox import Sandbox
from minisandbox.store import NodeStore, Store
from minisandbox.store.faults import StoreUnusable
from tars import END, block, directory, entry, file, hard_link, pax, record, symlink, tar

LIMITS = Limits(max_bytes=1 << 20, max_files=60)
BELOW = tar(directory("d"), file("d/below", b"below"), file("f", b"below"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "outside").write_text("untouched")
    yield tmp_path
    for path in tmp_path.iterdir():
        remove_tree(path, current())


def take(place: Path, path: Path, **options: object) -> ImageRecord:
    results = place / "results"
    return import_image(path, results, Store(results / "store"), limits=LIMITS, **options)


def start(place: Path, image: ImageRecord, **options: object) -> Sandbox:
    node = NodeStore(place / "node", current())
    return Image(image, Store(place / "results/store"), node).start(**options)


def outside(place: Path) -> dict[str, tuple[int, int, int, int]]:
    """All that is there but what an import may write."""
    rows = {
        path: path.lstat()
        for path in place.rglob("*")
        if path.relative_to(place).parts[0] != "results"
    }
    return {
        str(path): (row.st_mode, row.st_nlink, row.st_size, row.st_mtime_ns)
        for path, row in rows.items()
    }


def refuse(place: Path, path: Path, reason: str, **options: object) -> None:
    before = outside(place)
    with pytest.raises(ImageRefused, match=reason) as caught:
        take(place, path, **options)
    assert str(caught.value).startswith(f"{path} cannot be imported: ")
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert outside(place) == before
    assert not list((place / "results").glob("images/*"))
    assert not list(Store(place / "results/store").digests())
    assert not list((place / "results").glob("store/incoming/*"))


#: Layers above ``BELOW`` that are refused, each with what the sentence says.
REFUSED: dict[str, tuple[bytes, str]] = {
    # Out of the root by name. Leading slashes and dots are put up with; see below.
    "parent": (tar(file("../outside")), "goes up"),
    "parent-in-the-middle": (tar(file("d/../../outside")), "goes up"),
    "parent-after-a-slash": (block(field=slice(0, 20), value=b"/../outside") + END, "goes up"),
    "parent-in-pax": (pax(record(b"path", b"d/../../outside")) + block() + END, "goes up"),
    "parent-in-gnu-name": (pax(b"../outside\0", b"L") + block() + END, "goes up"),
    "no-name": (tar(file(".")), "no name"),
    "nul": (pax(record(b"path", b"a\0b")) + block() + END, "NUL"),
    "terminal": (tar(file("\x1b[2J\n/../x")), "goes up"),
    # Out of the root through a link of the same layer.
    "through-link": (tar(symlink("l", ".."), file("l/outside")), "symbolic link"),
    "through-absolute-link": (tar(symlink("l", "/etc"), file("l/passwd")), "symbolic link"),
    "through-replaced-directory": (
        tar(directory("e"), file("e/a"), symlink("e", "/etc"), file("e/passwd")),
        "symbolic link",
    ),
    "through-file": (tar(file("a"), file("a/b")), "no directory"),
    "whiteout-through-link": (tar(symlink("l", "/"), file("l/.wh.etc")), "symbolic link"),
    "opaque-through-link": (tar(symlink("l", "/"), file("l/.wh..wh..opq")), "symbolic link"),
    # Hard links to what is not the layer's.
    "hard-link-up": (tar(hard_link("h", "../../outside")), "goes up"),
    "hard-link-to-the-host": (tar(hard_link("h", "/etc/passwd")), "does not come before"),
    "hard-link-to-a-lower-layer": (tar(hard_link("h", "d/below")), "in its layer"),
    "hard-link-to-a-later-member": (tar(hard_link("h", "a"), file("a")), "does not come before"),
    "hard-link-to-itself": (tar(hard_link("h", "./h")), "to itself"),
    "hard-link-through-link": (tar(symlink("l", "/etc"), hard_link("h", "l/passwd")), "not come"),
    "hard-link-to-directory": (tar(directory("e"), hard_link("h", "e")), "no file"),
    "hard-link-to-fifo": (tar(entry("p", tarfile.FIFOTYPE), hard_link("h", "p")), "no file"),
    "hard-link-whose-file-goes": (
        tar(file("a", b"1"), hard_link("h", "a"), file("a", b"2")),
        "hard link to",
    ),
    "hard-link-whose-directory-goes": (
        tar(file("e/a"), hard_link("h", "e/a"), file("e")),
        "hard link to",
    ),
    # Whiteouts of what is no name.
    "whiteout-of-parent": (tar(file("d/.wh...")), "whiteout of no name"),
    "whiteout-of-here": (tar(file(".wh..")), "whiteout of no name"),
    "whiteout-of-nothing": (tar(file(".wh.")), "whiteout of no name"),
    "inside-a-whiteout": (tar(file(".wh.d/x")), "inside of a whiteout"),
    "whiteout-with-content": (tar(file(".wh.f", b"x")), "not an empty file"),
    "whiteout-directory": (tar(directory("d/.wh.below")), "not an empty file"),
    "whiteout-link": (tar(symlink(".wh.f", "/etc/passwd")), "not an empty file"),
    "opaque-link": (tar(symlink("d/.wh..wh..opq", "/etc")), "not an empty file"),
    # Too much of anything.
    "too-large": (tar(file("a", (1 << 20) + 1)), "limit is 1048576 bytes"),
    "petabytes": (pax(record(b"size", b"9" * 15)) + block() + END, "limit is"),
    "base-256": (block(field=slice(124, 136), value=b"\x80" + b"\x7f" * 11) + END, "limit is"),
    "too-many": (tar(*(file(f"f{i}") for i in range(61))), "limit is 60 entries"),
    "too-many-directories": (tar(directory("d/" * 70)), "limit is 60 entries"),
    "long-name": (tar(file("n" * 256)), "longer than the kernel allows"),
    "long-path": (tar(file("n/" * 2048 + "f")), "longer than the kernel allows"),
    "long-target": (tar(symlink("s", "x" * 4096)), "4096 bytes long"),
    "no-target": (tar(symlink("s", "")), "0 bytes long"),
    "huge-pax": (pax(b"", size=1 << 32) + block() + END, "extended header of"),
    "gnu-sparse": (block(field=slice(156, 157), value=b"S") + END, "sparse"),
    "pax-sparse": (pax(record(b"GNU.sparse.realsize", b"9" * 12)) + block() + END, "sparse"),
    # No archive.
    "negative-size": (block(field=slice(124, 136), value=b"\xff" * 12) + END, "bytes of content"),
    "octal-overflow": (block(field=slice(124, 136), value=b"9" * 11) + END, "number belongs"),
    "truncated": (tar(file("a", 5000))[:3000], "in the middle"),
    "no-end": (block(), "in the middle"),
    "trailing-garbage": (tar(file("a")) + b"more" * 128, "after its end mark"),
    "second-archive": (tar(file("a")) + tar(file("../b")), "after its end mark"),
    "no-archive": (b"this is no archive " * 100, "number belongs|checksum"),
    "unknown-type": (block(field=slice(156, 157), value=b"Z") + END, "type is"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_layer_is_refused(place: Path, case: str) -> None:
    layer, reason = REFUSED[case]
    path = Layout([layer]).write(place / "image")
    refuse(place, path, reason)
    # And no layer of an image stays that was taken before the bad one.
    both = Layout([BELOW, layer]).write(place / "both")
    refuse(place, both, reason)


@dataclass(frozen=True)
class Neutral:
    """A layer above ``BELOW``, the files inside then (None: not there), and what the notes say."""

    layer: bytes
    inside: dict[str, bytes | None]
    note: str = ""
    modes: dict[str, int] = field(default_factory=dict)


CAPABILITY = b"\x01\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x00" + bytes(8)

NEUTRALISED: dict[str, Neutral] = {
    "absolute": Neutral(
        block(b"f", field=slice(0, 20), value=b"/etc/evil") + END, {"/etc/evil": b""}
    ),
    "absolute-hard-link": Neutral(
        tar(file("a", b"x"), hard_link("h", "/a"), hard_link("i", ".//a")), {"/h": b"x", "/i": b"x"}
    ),
    "dots-and-slashes": Neutral(
        tar(directory("./"), file("./a//./b", b"x"), directory("./d/")),
        {"/a/b": b"x", "/d/below": b"below"},
    ),
    "through-a-link-of-a-lower-layer": Neutral(
        # Its own directory, in its own layer: there is no link in that.
        tar(file("l/passwd", b"x")),
        {"/l/passwd": b"x"},
    ),
    "devices": Neutral(
        tar(
            entry("sda", tarfile.BLKTYPE, devmajor=8, devminor=0),
            entry("mem", tarfile.CHRTYPE, devmajor=1, devminor=1),
            hard_link("also", "mem"),
            file("a", b"x"),
        ),
        {"/sda": None, "/mem": None, "/also": None, "/a": b"x"},
        "3 devices left out, first 'sda'",
    ),
    "a-device-that-is-a-whiteout": Neutral(
        tar(entry("d/below", tarfile.CHRTYPE)), {"/d/below": b"below"}, "devices left out"
    ),
    "set-id": Neutral(
        tar(file("su", b"x", mode=0o6755), entry("e", tarfile.DIRTYPE, mode=0o2777)),
        {"/su": b"x"},
        "2 set-id bits taken off",
        {"/su": 0o755, "/e": 0o777},
    ),
    "capabilities": Neutral(
        pax(record(b"SCHILY.xattr.security.capability", CAPABILITY)) + block(b"ping") + END,
        {"/ping": b""},
        "attributes",
    ),
    "overlay-redirect": Neutral(
        tar(
            entry(
                "d", tarfile.DIRTYPE, pax_headers={"SCHILY.xattr.trusted.overlay.redirect": "/etc"}
            ),
            entry("d", tarfile.DIRTYPE, pax_headers={"SCHILY.xattr.user.overlay.opaque": "y"}),
        ),
        {"/d/below": b"below", "/d/hosts": None},
        "attributes",
    ),
    "owners-that-no-sandbox-has": Neutral(
        tar(file("a", b"x", uid=1_000_660_000, gid=2**40), file("b", b"y", uid=70_000)),
        {"/a": b"x", "/b": b"y"},
        "owners above 65535",
    ),
    "negative-owner": Neutral(
        block(b"a", field=slice(108, 116), value=b"\xff" * 8) + END, {"/a": b""}, "owners above"
    ),
    "twice": Neutral(tar(file("a", b"1"), file("./a", b"2")), {"/a": b"2"}, "1 members replaced"),
    "directory-link-directory": Neutral(
        tar(
            directory("e"),
            file("e/old"),
            symlink("e", "/etc"),
            directory("e"),
            file("e/new", b"x"),
        ),
        {"/e/old": None, "/e/new": b"x", "/etc/new": None},
        "members replaced",
    ),
    "file-then-directory": Neutral(
        tar(file("e"), directory("e"), file("e/x", b"x")), {"/e/x": b"x"}, "members replaced"
    ),
    "directory-then-file": Neutral(
        tar(file("e/x"), file("e/y"), file("e", b"x")), {"/e": b"x", "/e/x": None}, "replaced"
    ),
    "hard-link-to-link": Neutral(tar(symlink("s", "/f"), hard_link("h", "s")), {"/h": b"below"}),
    "link-out": Neutral(
        tar(symlink("s", "../../../../../../f"), symlink("r", "/../f")),
        {"/s": b"below", "/r": b"below"},
    ),
    "whiteout-and-file": Neutral(
        tar(file(".wh.f"), file("f", b"x"), file("d/.wh.below")), {"/f": b"x", "/d/below": None}
    ),
    "whiteout-after-file": Neutral(tar(file("f", b"x"), file(".wh.f")), {"/f": b"x"}),
    "whiteout-and-directory": Neutral(
        tar(file(".wh.d"), file("d/x", b"x")), {"/d/below": None, "/d/x": b"x"}
    ),
    "whiteout-twice": Neutral(tar(file(".wh.f"), file(".wh.f")), {"/f": None}),
    "whiteout-of-what-is-not-there": Neutral(tar(file("no/.wh.thing")), {"/f": b"below"}),
    "opaque": Neutral(
        tar(file("d/x", b"x"), file("d/.wh..wh..opq")), {"/d/below": None, "/d/x": b"x"}
    ),
    "opaque-root": Neutral(
        tar(file(".wh..wh..opq"), file("x", b"x")), {"/d/below": None, "/f": None, "/x": b"x"}
    ),
    "aufs": Neutral(
        tar(
            file(".wh..wh.aufs"),
            directory(".wh..wh.plnk"),
            file(".wh..wh.plnk/1.2", b"x"),
            file("d/.wh..wh.x"),
        ),
        {"/d/below": b"below", "/d/x": None},
        "4 notes of AUFS",
    ),
    "names": Neutral(
        tar(file("a\nb", b"x"), file("\udcff\udcfe", b"y"), file("c" * 255, b"z")),
        {"/a\nb": b"x", "/\udcff\udcfe": b"y", "/" + "c" * 255: b"z"},
    ),
    "gnu-names": Neutral(
        tar(file("e/" * 55 + "x", b"x"), style=tarfile.GNU_FORMAT), {"/" + "e/" * 55 + "x": b"x"}
    ),
    "dates": Neutral(
        tar(file("a", b"x", mtime=-5.5), file("b", b"y", mtime=1e10)), {"/a": b"x", "/b": b"y"}
    ),
    "zeros-at-the-end": Neutral(tar(file("a", b"x")) + bytes(50_000), {"/a": b"x"}),
    "fifo": Neutral(tar(entry("p", tarfile.FIFOTYPE)), {"/p": None}),
    "empty": Neutral(bytes(1024), {"/f": b"below"}),
    "root": Neutral(
        tar(entry(".", tarfile.DIRTYPE, mode=0o6700), file("a", b"x")),
        {"/a": b"x"},
        "",
        {"/": 0o700},
    ),
}


@pytest.mark.parametrize("case", NEUTRALISED)
def test_a_layer_is_made_harmless(place: Path, case: str) -> None:
    wanted = NEUTRALISED[case]
    below = [BELOW, tar(symlink("l", "/etc"))] if "lower-layer" in case else [BELOW]
    path = Layout([*below, wanted.layer]).write(place / "image")
    before = outside(place)
    image = take(place, path)
    assert outside(place) == before
    assert wanted.note in "; ".join(image.layers[-1].notes)
    with start(place, image) as box:
        for name, content in wanted.inside.items():
            if content is None:
                with pytest.raises(SandboxFileError):
                    box.read_file(name)
            else:
                assert box.read_file(name) == content, name
    assert (place / "outside").read_text() == "untouched"
    folder = NodeStore(place / "node", current()).path(image.layers[-1].layer.digest)
    for name, mode in wanted.modes.items():
        found = call_mapped(
            current(), lambda name=name: (folder / name.lstrip("/")).lstat().st_mode
        )
        assert stat.S_IMODE(found) == mode, name


def bomb(size: int) -> bytes:
    """A layer whose end is so many zeros, which no header announces."""
    return tar(file("a")) + bytes(size)


PACKED: dict[str, tuple[Callable[[bytes], bytes], bytes, str]] = {
    "zeros-without-end": (
        lambda data: zstandard.compress(data) + zstandard.compress(bytes(1 << 22)) * 1400,
        tar(file("a")),
        "unfolds to more than",
    ),
    "truncated-gzip": (lambda data: gzip.compress(data)[:-9], BELOW, "decompressed"),
    "truncated-zstd": (lambda data: zstandard.compress(data)[:-4], tar(file("a", 99_999)), "."),
    "broken-gzip": (lambda data: gzip.compress(data)[:20] + b"x" * 50, BELOW, "decompressed"),
    "gzip-and-garbage": (lambda data: gzip.compress(data) + b"x" * 50, BELOW, "decompressed"),
    "huge-window": (
        lambda data: bytes.fromhex("28b52ffd") + b"\x00\xff" + data[:50],
        BELOW,
        "decompressed",
    ),
    "bzip2": (lambda data: b"BZh9" + data, BELOW, "bzip2"),
    "xz": (lambda data: b"\xfd7zXZ\0" + data, BELOW, "xz"),
    "another-content": (lambda data: gzip.compress(tar(file("other"))), BELOW, "not the diff_id"),
    "zlib": (zlib.compress, BELOW, "number belongs|checksum|middle"),
}


@pytest.mark.parametrize("case", PACKED)
def test_what_a_blob_unfolds_to_is_checked(place: Path, case: str) -> None:
    pack, layer, reason = PACKED[case]
    refuse(place, Layout([layer], pack=pack).write(place / "image"), reason)


def test_a_ratio_that_only_bombs_have_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minisandbox.oci.unfolding._FREE", 1 << 20)
    path = Layout([bomb(1 << 26)], pack=zstandard.compress).write(place / "image")
    refuse(place, path, "1000 times its size")


def spoil(change: Callable[[Layout], None]) -> Callable[[Path], Path]:
    """An image of which ``change`` spoils something before it is written."""

    def build(place: Path) -> Path:
        image = Layout([BELOW])
        change(image)
        return image.write(place / "image")

    return build


def with_config(**config: object) -> Callable[[Path], Path]:
    return spoil(lambda image: image.config["config"].update(config))


def with_layer(**fields: object) -> Callable[[Path], Path]:
    return spoil(lambda image: image.manifest["layers"][0].update(fields))


def with_entry(**fields: object) -> Callable[[Path], Path]:
    def change(image: Layout) -> None:
        image.finish()
        image.entry.update(fields)
        image.files["index.json"] = json.dumps(image.index).encode()

    return spoil(change)


def with_file(name: str, data: bytes) -> Callable[[Path], Path]:
    return spoil(lambda image: image.files.update({name: data}))


def edited(change: Callable[[Path], None]) -> Callable[[Path], Path]:
    """An image whose folder is changed after it was written."""

    def build(place: Path) -> Path:
        path = Layout([BELOW]).write(place / "image")
        change(path)
        return path

    return build


def blobs(path: Path) -> list[Path]:
    """By size: the layer is none of the first two."""
    return sorted((path / "blobs/sha256").iterdir(), key=lambda blob: blob.stat().st_size)


def replaced(make: Callable[[Path], object]) -> Callable[[Path], Path]:
    """Every blob is moved away, and ``make`` puts something in its place."""

    def change(path: Path) -> None:
        for blob in blobs(path):
            blob.rename(path.parent / f"moved-{blob.name}")
            make(blob)

    return edited(change)


def nested(depth: int) -> Callable[[Path], Path]:
    def change(image: Layout) -> None:
        image.finish()
        for _ in range(depth):
            document = {"schemaVersion": 2, "manifests": [image.entry]}
            image.entry = image.add_json(media.INDEX, document)
        image.files["index.json"] = json.dumps({"manifests": [image.entry]}).encode()

    return spoil(change)


def two_images(*names: str | None) -> Callable[[Layout], None]:
    """Of different content; None has no name."""

    def change(image: Layout) -> None:
        entries: list[object] = []
        for name in names:
            manifest = {**image.manifest, "annotations": {"number": str(len(entries))}}
            manifest["config"] = image.add_json(media.CONFIG, image.config)
            notes = {"annotations": {media.REF_NAME: name}} if name else {}
            entries.append(image.add_json(media.MANIFEST, manifest, **notes))
        image.files["index.json"] = json.dumps({"manifests": entries}).encode()

    return change


def for_another_machine(image: Layout) -> None:
    image.finish()
    others = [{"os": "linux", "architecture": "s390x"}, {"os": "windows", "architecture": "amd64"}]
    entries = [{**image.entry, "platform": other} for other in others]
    document = {"manifests": [*entries, {**image.entry, "platform": "here"}]}
    outer = image.add_json(media.INDEX, document)
    image.files["index.json"] = json.dumps({"manifests": [outer]}).encode()


DEEP = b"[" * 200_000

DOCUMENTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    # Where blobs are.
    "digest-that-is-a-path": (with_layer(digest="sha256:../../../outside"), "no sha256"),
    "digest-that-goes-up": (with_entry(digest="../../outside"), "no sha256"),
    "digest-of-another-kind": (with_layer(digest="md5:" + "0" * 32), "no sha256"),
    "digest-that-is-a-list": (with_layer(digest=["sha256"]), "no sha256"),
    "blob-that-is-not-there": (with_layer(digest="sha256:" + "0" * 64), "is not there"),
    "blob-that-is-a-link": (
        replaced(lambda blob: blob.symlink_to(blob.parents[3] / f"moved-{blob.name}")),
        "symbolic link",
    ),
    "blob-that-is-a-fifo": (replaced(os.mkfifo), "not a regular file"),
    "blob-that-is-a-folder": (replaced(Path.mkdir), "not a regular file"),
    "blobs-behind-a-link": (
        edited(
            lambda path: (
                (path / "blobs").rename(path.parent / "moved"),
                (path / "blobs").symlink_to("../moved"),
            )
        ),
        "symbolic link",
    ),
    "index-that-is-a-link": (
        edited(
            lambda path: (
                (path / "index.json").rename(path.parent / "index.json"),
                (path / "index.json").symlink_to("../index.json"),
            )
        ),
        "symbolic link",
    ),
    "blob-of-another-content": (
        edited(lambda path: blobs(path)[-1].write_bytes(b"x" * blobs(path)[-1].stat().st_size)),
        "digest",
    ),
    "blob-that-is-longer": (
        edited(lambda path: blobs(path)[-1].write_bytes(blobs(path)[-1].read_bytes() + b"\0")),
        "are promised",
    ),
    "wrong-size": (with_layer(size=5), "are promised"),
    "negative-size": (with_layer(size=-1), "whose size is -1"),
    "size-that-is-true": (with_layer(size=True), "whose size is True"),
    # What blobs are.
    "foreign-layer": (
        with_layer(
            mediaType="application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
            urls=["http://example.com/layer"],
            digest="sha256:" + "0" * 64,
        ),
        "from elsewhere",
    ),
    "layer-with-urls": (
        with_layer(urls=["file:///etc/passwd"], digest="sha256:" + "0" * 64),
        "from elsewhere",
    ),
    "encrypted-layer": (with_layer(mediaType=f"{media.LAYER}+gzip+encrypted"), "encrypted"),
    "layer-of-another-type": (with_layer(mediaType="application/x-sh"), "media type"),
    "layer-without-type": (with_layer(mediaType=None), "media type"),
    "manifest-of-another-type": (with_entry(mediaType="text/html"), "no image's"),
    "artifact": (
        spoil(
            lambda image: image.manifest.update(
                config=image.add_json("application/vnd.cncf.helm.config.v1+json", {})
            )
        ),
        "no image",
    ),
    "index-in-index-in-index": (nested(5), "indexes deep"),
    "for-another-machine": (spoil(for_another_machine), f"no image for linux/{ARCHITECTURE}"),
    "two-images": (spoil(two_images("made:1", "other:2")), "with --ref: made:1, other:2"),
    "two-images-of-one-name": (
        spoil(two_images("made:1", "made:1")),
        "names 2 images; say which with --ref: sha256:[0-9a-f]{64}, sha256:[0-9a-f]{64}",
    ),
    "two-images-without-a-name": (spoil(two_images(None, "other:2")), "sha256:.{64}, other:2"),
    "digest-for-a-terminal": (
        spoil(
            lambda image: image.files.update(
                {
                    "index.json": json.dumps(
                        {
                            "manifests": [
                                {"mediaType": media.MANIFEST, "digest": text}
                                for text in ("\x1b[2J", "\n")
                            ]
                        }
                    ).encode()
                }
            )
        ),
        r"--ref: \\x1b\[2J, \\n",
    ),
    "name-for-a-terminal": (
        with_entry(annotations={media.REF_NAME: "\x1b]0;evil\x07:1"}),
        "no name",
    ),
    "platform-for-a-terminal": (
        spoil(lambda image: image.config.update(architecture="\x1b[2J\n")),
        r"linux/\\x1b\[2J\\n",
    ),
    "variable-for-a-terminal": (with_config(Env=["\x1b[2J=\0"]), r"nothing can have: .*x1b"),
    # Documents.
    "index-too-deep": (with_file("index.json", DEEP), "nested too deeply"),
    "index-too-large": (with_file("index.json", b" " * (5 << 20)), "are plenty"),
    "index-that-is-a-list": (with_file("index.json", b"[]"), "no JSON object"),
    "index-of-texts": (with_file("index.json", b'{"manifests": ["x"]}'), "no list of manifests"),
    "index-of-nothing": (with_file("index.json", b'{"manifests": []}'), "names no image"),
    "index-that-is-no-json": (with_file("index.json", b"\xff{"), "not JSON"),
    "number-of-a-million-digits": (with_file("index.json", b"9" * 1_000_000), "not JSON"),
    "another-layout": (with_file("oci-layout", b'{"imageLayoutVersion": "9"}'), "says version"),
    "manifest-that-is-a-list": (
        spoil(lambda image: image.entry.update(image.add_json(media.MANIFEST, [1]))),
        "no JSON object",
    ),
    "manifest-too-deep": (
        spoil(lambda image: image.entry.update(image.add(media.MANIFEST, DEEP))),
        "nested too deeply",
    ),
    "layers-that-are-an-object": (
        spoil(lambda image: image.manifest.update(layers={"0": {}})),
        "no list of layers",
    ),
    "no-configuration": (spoil(lambda image: image.manifest.update(config=None)), "names no conf"),
    "no-rootfs": (spoil(lambda image: image.config.update(rootfs=None)), "no list of diff_ids"),
    "fewer-diff-ids": (
        spoil(lambda image: image.config["rootfs"].update(diff_ids=[])),
        "0 diff_ids for 1 layers",
    ),
    "more-diff-ids": (
        spoil(lambda image: image.config["rootfs"]["diff_ids"].append("sha256:" + "0" * 64)),
        "2 diff_ids for 1 layers",
    ),
    "diff-id-that-is-a-path": (
        spoil(lambda image: image.config["rootfs"].update(diff_ids=["sha256:../../x"])),
        "not a sha256 digest",
    ),
    "wrong-diff-id": (
        spoil(lambda image: image.config["rootfs"].update(diff_ids=["sha256:" + "0" * 64])),
        "not the diff_id",
    ),
    "no-layers": (
        spoil(
            lambda image: (
                image.manifest.update(layers=[]),
                image.config["rootfs"].update(diff_ids=[]),
            )
        ),
        "nothing to run",
    ),
    "configuration-for-another-machine": (
        spoil(lambda image: image.config.update(architecture="riscv64")),
        "linux/riscv64",
    ),
    "configuration-for-windows": (
        spoil(lambda image: image.config.update(os="windows")),
        "windows",
    ),
    # Configuration.
    "variable-with-nul": (with_config(Env=["A=x\0y"]), "Env that nothing can have"),
    "variable-without-value": (with_config(Env=["LD_PRELOAD"]), "without a value"),
    "variable-without-name": (with_config(Env=["=x"]), "Env that nothing can have"),
    "variables-that-are-an-object": (with_config(Env={"A": "x"}), "no list of texts"),
    "variables-that-are-numbers": (with_config(Env=[1]), "no list of texts"),
    "half-a-character": (with_config(Env=["A=\ud800"]), "no list of texts"),
    "relative-workdir": (with_config(WorkingDir="../../etc"), "no absolute path"),
    "workdir-with-nul": (with_config(WorkingDir="/a\0b"), "WorkingDir that is no text"),
    "long-workdir": (with_config(WorkingDir="/" + "a" * 5000), "no absolute path"),
    "user-that-is-a-list": (with_config(User=["root"]), "User that is no text"),
    "command-that-is-a-text": (with_config(Cmd="sh"), "no list of texts"),
    "entrypoint-with-nul": (with_config(Entrypoint=["a\0"]), "no list of texts"),
    "configuration-that-is-a-list": (
        spoil(lambda image: image.config.update(config=[1])),
        "no object",
    ),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_a_document_is_refused(place: Path, case: str) -> None:
    build, reason = DOCUMENTS[case]
    refuse(place, build(place), reason)


def test_too_many_layers_are_refused(place: Path) -> None:
    layers = [tar(file(f"f{number}")) for number in range(491)]
    refuse(place, Layout(layers).write(place / "image"), "has 491 layers")


def archived(members: dict[str, bytes], *more: tarfile.TarInfo) -> Callable[[Path], Path]:
    def build(place: Path) -> Path:
        out = place / "image.tar"
        data = archive_of(members)
        if more:
            data = tar(*(file(name, content) for name, content in members.items()), *more)
        out.write_bytes(data)
        return out

    return build


def spoilt(change: Callable[[dict[str, bytes], list[object]], object]) -> Callable[[Path], Path]:
    """A docker archive whose manifest was changed."""
    members = docker_archive([BELOW])
    manifest = json.loads(members["manifest.json"])
    change(members, manifest)
    members["manifest.json"] = json.dumps(manifest).encode()
    return archived(members)


LAYER = f"{0:064x}/layer.tar"

ARCHIVES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "no-image": (archived({"a": b"x"}), "no OCI layout, and no docker archive"),
    "empty": (lambda place: _bytes(place, b""), "in the middle"),
    "garbage": (lambda place: _bytes(place, b"garbage" * 500), "number belongs|checksum"),
    "truncated": (
        lambda place: _bytes(place, archive_of(docker_archive([BELOW]))[:3000]),
        "in the middle",
    ),
    "gzip-bomb": (
        lambda place: _bytes(place, gzip.compress(bytes(1 << 20)) * (4 << 10)),
        "unfolds to more than",
    ),
    "fifo": (lambda place: _fifo(place), "neither a folder nor a file"),
    "ten-thousand-names": (
        archived({f"n{number}": b"" for number in range(10_001)}),
        "limit is 10000 names",
    ),
    "layer-that-goes-up": (
        spoilt(lambda _, manifest: manifest[0].update(Layers=["../outside"])),
        "is not there",
    ),
    "layer-of-the-host": (
        spoilt(lambda _, manifest: manifest[0].update(Layers=["/etc/passwd"])),
        "is not there",
    ),
    "layer-that-links-out": (
        archived(
            {name: data for name, data in docker_archive([BELOW]).items() if name != LAYER},
            symlink(LAYER, "../../outside"),
        ),
        "is not there",
    ),
    "layers-that-link-to-each-other": (
        archived(
            {name: data for name, data in docker_archive([BELOW]).items() if name != LAYER},
            symlink(LAYER, "other"),
            symlink(f"{0:064x}/other", "layer.tar"),
        ),
        "is not there",
    ),
    "no-layers": (
        spoilt(lambda _, manifest: manifest[0].pop("Layers")),
        "no list of layers",
    ),
    "two-images": (
        spoilt(lambda _, manifest: manifest.append({**manifest[0], "Config": "other.json"})),
        "'manifest.json' names 2 images; say which with --ref: [0-9a-f]{64}.json, other.json",
    ),
    "manifest-that-is-an-object": (
        archived({**docker_archive([BELOW]), "manifest.json": b"{}"}),
        "no list of images",
    ),
    "tags-that-are-a-text": (
        spoilt(lambda _, manifest: manifest[0].update(RepoTags="a:1")),
        "RepoTags",
    ),
    "configuration-of-another-digest": (
        spoilt(
            lambda members, manifest: members.update({manifest[0]["Config"]: b'{"os": "linux"}'})
        ),
        "has the digest",
    ),
    "layer-of-another-content": (
        spoilt(lambda members, _: members.update({LAYER: tar(file("other"))})),
        "not the diff_id",
    ),
}


def _bytes(place: Path, data: bytes) -> Path:
    (place / "image.tar").write_bytes(data)
    return place / "image.tar"


def _fifo(place: Path) -> Path:
    os.mkfifo(place / "image.tar")
    return place / "image.tar"


@pytest.mark.parametrize("case", ARCHIVES)
def test_an_archive_is_refused(place: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minisandbox.oci.importing._OVERHEAD", 1 << 30)
    build, reason = ARCHIVES[case]
    refuse(place, build(place), reason)


def test_a_store_that_takes_nothing_is_not_the_fault_of_the_image(place: Path) -> None:
    path = _bytes(place, gzip.compress(archive_of(docker_archive([BELOW]))))
    (place / "results").mkdir()
    (place / "results/store").write_text("no folder")
    with pytest.raises(StoreUnusable, match=r"cannot write to the store .*/results/store: File ex"):
        take(place, path)


def test_a_file_that_changes_while_it_is_read_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between what decides and what writes, somebody puts another layer there."""
    evil = tar(file("evil", b"x"))
    path = Layout([BELOW], pack=bytes, kind=media.LAYER).write(place / "image")
    blob = path / "blobs/sha256" / digest(BELOW).partition(":")[2]

    def sift(stream: io.BufferedReader, budget: object) -> object:
        done = importing_sift(stream, budget)
        blob.write_bytes(evil)
        return done

    importing_sift = importing.sift
    monkeypatch.setattr(importing, "sift", sift)
    with pytest.raises(ImageRefused, match=r"promised|digest|diff_id"):
        take(place, path)
    assert not list(Store(place / "results/store").digests())


def test_a_preload_is_for_programs_inside_alone(place: Path) -> None:
    image = take(
        place,
        Layout(
            [BELOW],
            config={
                "Env": ["LD_PRELOAD=/evil.so", "PATH=/nowhere", "HOME=/d", "PYTHONPATH=/d"],
                "WorkingDir": "/d",
            },
        ).write(place / "image"),
    )
    with start(place, image) as box:
        assert box.read_file("below") == b"below"
        assert box.alive


@pytest.mark.parametrize("target", ["/etc", "../../../../../../etc", "/proc/1/root/etc"])
def test_a_workdir_that_is_a_link_leads_nowhere_but_inside(place: Path, target: str) -> None:
    layers = [tar(symlink("work", target), file("etc/inside", b"x"))]
    path = Layout(layers, config={"WorkingDir": "/work"}).write(place / "image")
    with start(place, take(place, path)) as box:
        assert box.read_file("inside") == b"x"
        assert b"testbed" in box.read_file("hostname")


@pytest.mark.parametrize("name", ["tmp", "dev", "proc", "run", "etc"])
def test_a_link_in_the_place_of_a_mount_leads_no_mount_out(place: Path, name: str) -> None:
    image = take(place, Layout([tar(symlink(name, "/../../.."))]).write(place / "image"))
    if name == "etc":  # nothing is mounted there
        with start(place, image) as box:
            assert b"testbed" in box.read_file("/etc/hostname")
    else:
        with pytest.raises(MiniSandboxError, match="replaces this directory"):
            start(place, image)
    assert (place / "outside").read_text() == "untouched"


def test_a_name_leads_no_record_elsewhere(place: Path) -> None:
    path = Layout([BELOW], reference="../../../../outside").write(place / "image")
    image = take(place, path)
    assert image.name == "outside"
    assert (place / "results/images/outside.json").is_file()
    nameless = Layout([BELOW], reference="/..").write(place / "second")
    assert take(place, nameless).name == "unnamed"


def test_platform_of_tests_is_this_machine() -> None:
    assert PLATFORM["architecture"] in ("amd64", "arm64")
