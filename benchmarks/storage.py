"""What instances cost to keep and to have, beside the same content kept in other ways.

    python benchmarks/storage.py results --ids ids.txt [--counts results/plan] [--level 19]

``results`` is a cache in which the instances of ``ids.txt`` (one a line) were built. Their layers
are packed anew, alone, in a temporary store. Beside that the same content is stored

- in the published layout: for each instance a tar.gz of its virtual environment and interpreter,
  and a tar.gz of its repository with the whole history in ``.git``;
- as one tar.zst for each instance;
- as OCI layers, each distinct one once, without deduplication inside of them.

Then the Django instances are materialized in random order on an empty node store. Those whose
environment was met before are the *next* ones: time, and bytes on disk (allocated, directories and
``.git`` counted), are those of their own layers.

``--counts`` is the plan of a whole dataset, which says how many environments and instances each
repository has there; the figures are extrapolated by

    sum over repositories of (mean environment x environments + mean instance x instances)
    + what several layers hold, once + bases and interpreters

where an environment, or an instance, counts with what no other layer holds: the more of them, the
less that is, so this is rather too much. The minimum and the maximum stand in the place of the mean
beside it; the published layout is the mean of an instance times instances. A repository of which
nothing was built is not in the sum, and is named. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from chart import write_chart
from minisandbox import archive, keys
from minisandbox.idmap import remove_tree
from minisandbox.records.layer import LayerRef
from minisandbox.records.manifest import ManifestRow
from minisandbox.runtime import Cache, open_cache
from minisandbox.runtime.stack import stack
from minisandbox.store import NodeStore, Store
from minisandbox.store.packs.catalogue import Pack
from minisandbox.store.packs.consolidation import consolidate
from minisandbox.store.packs.reading import PackReader
from minisandbox.store.packs.skeleton import NO_CONTENT
from minisandbox.store.packs.writing import DEFAULT_LEVEL

#: Of an instance alone; the other kinds are shared.
_OWN = ("source", "wheelhouse", "instance", "bug")
_CHUNK = 1 << 20


@dataclass
class Extent:
    """Mean, least and most of some sizes, in bytes."""

    sizes: list[float] = field(default_factory=list[float])

    def of(self, which: str) -> float:
        """One of ``mean``, ``min`` and ``max``."""
        return {"mean": statistics.fmean, "min": min, "max": max}[which](self.sizes)


def main() -> int:
    """Measure, and print tables; the last line is one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("cache", type=Path)
    parser.add_argument("--ids", type=Path, required=True)
    parser.add_argument("--counts", type=Path, help="the plan folder of a whole dataset")
    parser.add_argument("--mirrors", type=Path, help="bare repositories (default: of the cache)")
    parser.add_argument("--work", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--level", type=int, default=DEFAULT_LEVEL, help="of zstd in the packs")
    parser.add_argument("--ours", action="store_true", help="leave the other layouts out")
    parser.add_argument("--plot", type=Path, help="an SVG file to draw the layouts in")
    parser.add_argument("--seed", type=int, default=0, help="of the order on the node")
    arguments = parser.parse_args()
    wanted = [
        line.split()[0]
        for line in arguments.ids.read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    cache = open_cache(arguments.cache)
    found = {row.instance_id: row for row in cache.rows() if row.layers}
    rows = [found[name] for name in wanted if name in found]
    absent = [name for name in wanted if name not in found]
    if absent:
        print(f"not built, and not measured: {', '.join(absent)}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=arguments.work) as work:
        answer: dict[str, object] = {
            "instances": len(rows),
            "instances_asked_for": len(wanted),
            "level": arguments.level,
        }
        packed = _pack(cache, rows, Path(work) / "store", arguments.level)
        answer |= _ours(rows, packed)
        mirrors = arguments.mirrors or arguments.cache / "mirrors"
        published: Mapping[str, int] = {}
        if not arguments.ours:
            published = _published(cache, rows, mirrors)
            answer |= _others(rows, packed.total, sum(published.values()), arguments.plot)
        if arguments.counts:
            answer |= _extrapolated(rows, packed, published, arguments.counts)
        answer |= _node(Store(Path(work) / "store"), rows, Path(work) / "node", arguments.seed)
    print(json.dumps(answer))
    return 0


@dataclass(frozen=True)
class Packed:
    """A store of some layers: its bytes, those of each layer (its share of what it has in common
    with others), those that only this layer needs, and what no layer stands for: indices and
    directories.
    """

    total: int
    layers: Mapping[str, float]
    alone: Mapping[str, float]
    overhead: int


def _pack(cache: Cache, rows: Sequence[ManifestRow], place: Path, level: int) -> Packed:
    """The layers of ``rows``, and nothing else, in one store."""
    store = Store(place, level=1)
    layers = {layer.digest: layer for row in rows for layer in row.layers}
    for layer in tqdm(layers.values(), desc="copying layers", disable=None):
        with cache.store.open(layer.digest) as stream:

            def write(out: object, stream: object = stream, layer: LayerRef = layer) -> object:
                shutil.copyfileobj(stream, out, _CHUNK)  # pyright: ignore[reportArgumentType]
                return archive.PackStats(layer.unpacked_size, layer.files)

            kept = store.add_written(layer.kind, write)  # pyright: ignore[reportArgumentType]
        if kept.digest != layer.digest:
            raise RuntimeError(f"{layer.digest} became {kept.digest}")
    start = time.monotonic()
    done = consolidate(store, level=level, report=lambda text: print(text, file=sys.stderr))
    print(f"packed in {time.monotonic() - start:.0f} s", file=sys.stderr)
    if done.stay:
        raise RuntimeError(f"not packed: {done.stay}")
    shares: defaultdict[str, float] = defaultdict(float)
    alone: defaultdict[str, float] = defaultdict(float)
    for pack in store.catalogue.packs():
        _add_shares(store, pack, shares, alone)
    total = _allocated(place)
    return Packed(total, shares, alone, round(total - sum(shares.values())))


def _add_shares(
    store: Store, pack: Pack, shares: defaultdict[str, float], alone: defaultdict[str, float]
) -> None:
    """Count the bytes of a pack's frames for layers: a content's part of its frame is shared
    equally by those that hold it.
    """
    holders: defaultdict[int, list[str]] = defaultdict(list)
    frames = pack.index.frames
    with PackReader(pack, store.catalogue) as reader:
        for raw, layer in pack.index.layers.items():
            digest = "sha256:" + raw.hex()
            frame = frames[layer.frame]
            skeleton = frame.packed * layer.length / frame.unpacked
            shares[digest] += skeleton
            alone[digest] += skeleton
            for number in {*reader.skeleton(layer).contents} - {NO_CONTENT}:
                holders[number].append(digest)
        for number, digests in holders.items():
            record = reader.pack.record(number)
            frame = frames[record.place]
            size = frame.packed * record.size / frame.unpacked
            for digest in digests:
                shares[digest] += size / len(digests)
            if len(digests) == 1:
                alone[digests[0]] += size


def _allocated(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def _ours(rows: Sequence[ManifestRow], packed: Packed) -> dict[str, object]:
    kinds = {layer.digest: layer.kind for row in rows for layer in row.layers}
    sizes: defaultdict[str, float] = defaultdict(float)
    for digest, size in packed.layers.items():
        sizes[kinds[digest]] += size
    by_kind = sorted([*sizes.items(), ("index", packed.overhead)], key=lambda item: -item[1])
    environments = {
        layer.digest for row in rows for layer in row.layers if layer.kind == "environment"
    }
    print("| kind | layers | bytes |\n|---|---|---|")
    count = Counter(kinds.values())
    for kind, size in by_kind:
        print(f"| {kind} | {count[kind] or ''} | {size:,.0f} |")
    print(
        f"| all, of {len(rows)} instances on {len(environments)} environments | "
        f"| {packed.total:,} |"
    )
    return {
        "environments": len(environments),
        "bytes_total": packed.total,
        "bytes_per_instance": round(packed.total / len(rows)),
        "bytes_by_kind": {kind: round(size) for kind, size in by_kind},
    }


def _published(cache: Cache, rows: Sequence[ManifestRow], mirrors: Path) -> Mapping[str, int]:
    """Bytes of each instance, by id, in the published layout."""
    layers = {layer.digest: layer for row in rows for layer in row.layers}
    gzipped = {
        digest: _gzipped(cache.store, digest)
        for digest, layer in tqdm(layers.items(), desc="gzip", disable=None)
        if layer.kind != "base"
    }
    histories = {slug: _history(mirrors, slug) for slug in {keys.slug(row.repo) for row in rows}}
    return {
        row.instance_id: sum(gzipped[layer.digest] for layer in row.layers if layer.kind != "base")
        + histories[keys.slug(row.repo)]
        for row in rows
    }


def _others(
    rows: Sequence[ManifestRow], ours: int, published: int, plot: Path | None
) -> dict[str, object]:
    """The same content in other layouts, and how many times as many bytes that is."""
    layers = {layer.digest: layer for row in rows for layer in row.layers}
    images = sum(layer.size for row in rows for layer in row.layers if layer.kind != "base")
    once = sum(layer.size for layer in layers.values())
    layouts = (
        ("tar.gz of environment and of repository with history, an instance", published),
        ("tar.zst an instance, without the base", images),
        ("each layer once, zstd, base included", once),
        ("this store, base included", ours),
    )
    print("\n| layout | bytes | times ours |\n|---|---|---|")
    for name, size in layouts:
        print(f"| {name} | {size:,} | {size / ours:.1f} |")
    if plot is not None:
        bars = [(name.partition(",")[0], size / 1e9, size == ours) for name, size in layouts]
        write_chart(plot, f"The same {len(rows)} instances in four layouts", bars, unit="GB")
    return {
        "bytes_published_layout": published,
        "bytes_tar_zst_per_instance": images,
        "bytes_oci_layers": once,
        "ratio_vs_published_layout": round(published / ours, 2),
        "ratio_vs_tar_zst": round(images / ours, 2),
        "ratio_vs_oci_layers": round(once / ours, 2),
    }


def _gzipped(store: Store, digest: str) -> int:
    """Bytes of a layer's tar through gzip at its default level."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    size = 0
    with store.open(digest) as stream:
        while chunk := stream.read(_CHUNK):
            size += len(packer.compress(chunk))
    return size + len(packer.flush())


def _history(mirrors: Path, slug: str) -> int:
    """Bytes of the objects of a repository, which are compressed already."""
    mirror = mirrors / f"{slug}.git"
    if not mirror.is_dir():
        raise SystemExit(f"there is no mirror {mirror}")
    packs = (mirror / "objects").rglob("*")
    return sum(path.stat().st_size for path in packs if path.is_file())


def _extrapolated(
    rows: Sequence[ManifestRow], packed: Packed, published: Mapping[str, int], plan: Path
) -> dict[str, object]:
    """To all instances that the plan at ``plan`` lists."""
    environments: Counter[str] = Counter()
    instances: Counter[str] = Counter()
    for path in (plan / "batches").glob("*/*.json"):
        batch = json.loads(path.read_text())
        repos = {keys.slug(item["repo"]) for item in batch["instances"]}
        for item in batch["instances"]:
            instances[keys.slug(item["repo"])] += 1
        for repo in repos:
            environments[f"{repo}\t{batch['environment']}"] += 1
    number = Counter(key.split("\t")[0] for key in environments)
    sizes: defaultdict[str, tuple[dict[str, float], Extent]] = defaultdict(lambda: ({}, Extent()))
    counted: dict[str, float] = {}
    bases: dict[str, float] = {}
    for row in rows:
        shelf, own = sizes[keys.slug(row.repo)]
        mine = {layer.digest: layer.kind for layer in row.layers}
        own.sizes.append(sum(packed.alone[name] for name in mine if mine[name] in _OWN))
        shelf |= {name: packed.alone[name] for name in mine if mine[name] == "environment"}
        counted |= {
            name: packed.alone[name] for name in mine if mine[name] in (*_OWN, "environment")
        }
        bases |= {name: packed.layers[name] for name in mine if mine[name] == "base"}
    rest = packed.total - sum(counted.values())
    unknown = sorted(number.keys() - sizes.keys())
    print(
        "\n| repository | environments | mean | instances | mean | bytes |"
        "\n|---|---|---|---|---|---|"
    )
    totals = dict.fromkeys(("mean", "min", "max"), rest)
    for repo in sorted(number.keys() & sizes.keys()):
        shelf, own = sizes[repo]
        each = Extent([*shelf.values()])
        for which in totals:
            totals[which] += each.of(which) * number[repo] + own.of(which) * instances[repo]
        size = each.of("mean") * number[repo] + own.of("mean") * instances[repo]
        print(
            f"| {repo} | {number[repo]} | {each.of('mean'):,.0f} | {instances[repo]} "
            f"| {own.of('mean'):,.0f} | {size:,.0f} |"
        )
    print(f"| what several layers hold, bases, interpreters | | | | | {rest:,.0f} |")
    if unknown:
        print(f"not in the sum, because nothing of it was built: {', '.join(unknown)}")
    share = sum(instances[repo] for repo in sizes) / sum(instances.values())
    answer = {
        f"verified_gb_extrapolated{'' if which == 'mean' else '_' + which}": round(size / 1e9, 3)
        for which, size in totals.items()
    }
    of_repos: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row.instance_id in published:
            of_repos[keys.slug(row.repo)].append(published[row.instance_id])
    theirs = sum(statistics.fmean(sizes) * instances[repo] for repo, sizes in of_repos.items())
    if theirs:
        print(f"in the published layout: {theirs:,.0f}")
        answer["published_gb_extrapolated"] = round(theirs / 1e9, 1)
        answer["ratio_vs_published_layout_extrapolated"] = round(theirs / totals["mean"], 1)
    answer["verified_gb_of_bases"] = round(sum(bases.values()) / 1e9, 3)
    return {**answer, "share_of_instances_extrapolated_to": round(share, 3)}


def _node(store: Store, rows: Iterable[ManifestRow], place: Path, seed: int) -> dict[str, object]:
    """Milliseconds and bytes of each Django instance after the first of its environment."""
    node = NodeStore(place)
    some = [row for row in rows if row.repo == "django/django"]
    random.Random(seed).shuffle(some)
    met: set[str] = set()
    times: list[float] = []
    sizes: list[int] = []
    try:
        for row in some:
            (environment,) = (x.digest for x in row.layers if x.kind == "environment")
            first = environment not in met
            met.add(environment)
            before = _on_disk(place)
            start = time.perf_counter()
            stack(row.layers, store=store, node=node)
            seconds = time.perf_counter() - start
            size = _on_disk(place) - before
            print(
                f"{row.instance_id}: {'first of its environment, ' if first else ''}"
                f"{seconds * 1000:,.0f} ms, {size / 1e6:,.1f} MB",
                file=sys.stderr,
            )
            if not first:
                times.append(seconds * 1000)
                sizes.append(size)
    finally:
        remove_tree(place, node.idmap)
    if not times:
        return {"node_ms_next_instance": None, "node_bytes_next_instance": None}
    print(
        f"\nnext Django instance, median of {len(times)}: {statistics.median(times):,.0f} ms, "
        f"{statistics.median(sizes) / 1e6:,.2f} MB"
    )
    return {
        "node_next_instances": len(times),
        "node_ms_next_instance": round(statistics.median(times), 1),
        "node_bytes_next_instance": round(statistics.median(sizes)),
    }


def _on_disk(place: Path) -> int:
    """Bytes that the file system has given out; an inode with many names counts once."""
    os.sync()
    if not place.exists():
        return 0
    du = ["du", "-s", "--block-size=1", os.fspath(place)]
    return int(subprocess.run(du, check=True, capture_output=True).stdout.split()[0])


if __name__ == "__main__":
    sys.exit(main())
