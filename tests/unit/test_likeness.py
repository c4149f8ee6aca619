"""How much two sources have in common, from a few of their files."""

from __future__ import annotations

import pytest

from minisandbox.archive.members import Kind
from minisandbox.keys import digest_of, hex_of
from minisandbox.store.likeness import SKETCH, Sketch, decode, digests, encode, likeness
from minisandbox.store.listing import Entry


def source(names: range, *, folder: str = "f", mtime: int = 0, mode: int = 0o644) -> list[Entry]:
    return [
        Entry(
            f"{folder}/{name}".encode(),
            Kind.FILE,
            mode,
            0,
            0,
            mtime,
            b"",
            1,
            hex_of(digest_of(name)),
            {},
        )
        for name in names
    ]


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        (range(5000), range(5000), 1.0),
        (range(5000), range(100, 5100), 4900 / 5100),
        (range(5000), range(2500, 7500), 1 / 3),
        (range(200), range(10000), 200 / 10000),  # of one sketch all is known, of the other little
        (range(100), range(50, 150), 1 / 3),
        (range(100), range(100, 200), 0.0),
        (range(0), range(100), 0.0),
        (range(0), range(0), 1.0),
    ],
)
def test_the_share_is_about_that_of_all_files(one: range, other: range, share: float) -> None:
    sketches = digests(source(one)), digests(source(other))
    assert likeness(*sketches) == likeness(*sketches[::-1])
    assert likeness(*sketches) == pytest.approx(share, abs=0.07)


def test_a_file_is_its_path_content_mode_and_date() -> None:
    one = digests(source(range(300)))
    assert likeness(one, digests(source(range(300), folder="g"))) == 0.0
    assert likeness(one, digests(source(range(300), mtime=10**9))) == 0.0
    assert likeness(one, digests(source(range(300), mode=0o755))) == 0.0


def test_a_sketch_is_a_block_and_reads_as_it_was_written() -> None:
    sketch = Sketch(b"12345678", 3, 5000, digests(source(range(5000))))
    data = encode(sketch)
    assert (len(sketch.digests), len(data)) == (SKETCH, 4096)
    read = decode(data)
    assert (read.mark, read.layers, read.files) == (b"12345678", 3, 5000)
    assert [*read.digests] == [*sketch.digests]
    for damaged in (b"", b"1234567", data[:-1]):
        with pytest.raises(ValueError, match="no sketch"):
            decode(damaged)
