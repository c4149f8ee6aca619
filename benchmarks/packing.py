"""The same layers stored in several ways: bytes, seconds to store, seconds to get one layer out.

    python benchmarks/packing.py --scratch /dev/shm STORE [STORE ...] [--ways loose,packs,...]

STORE is the store of a cache; its loose layers are linked, not touched. One line of JSON a way.
``distributions`` keeps every distribution of a site-packages as a layer of its own, ``reference``
compresses each layer against its most similar predecessor's tar (``zstd --patch-from``); squashfs,
borg and restic get the unpacked trees of all layers, and are left out where they are not installed.
Seconds are processor seconds of this process and its children, for other programs may run.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import zstandard

from minisandbox.store import Store
from minisandbox.store.packs.consolidation import consolidate

_LEVEL = 9
#: What a distribution brings: a folder or module of site-packages, or its notes.
_DISTRIBUTION = re.compile(r"(.*/site-packages/)([^/]+?)(-[0-9][^/]*|\.libs)?(/.*)?$")


def main() -> int:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("stores", nargs="+", type=Path)
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--ways", default=",".join(_WAYS), help="of " + ", ".join(_WAYS))
    parser.add_argument("--level", type=int, default=12, help="of the packs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="packing-", dir=arguments.scratch) as scratch:
        work = Path(scratch)
        store = _linked(arguments.stores, work / "store")
        digests = _by_date(store)
        for way in arguments.ways.split(","):
            folder = work / way
            folder.mkdir()
            result = _WAYS[way](store, digests, folder, arguments.level)
            shutil.rmtree(folder)
            print(json.dumps({"way": way, "layers": len(digests), **result}), flush=True)
    return 0


def _linked(stores: list[Path], target: Path) -> Store:
    merged = Store(target)
    for place in stores:
        store = Store(place)
        for digest in store.loose():
            path = merged.path(digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                shutil.copyfile(store.path(digest), path)
    return merged


def _by_date(store: Store) -> list[str]:
    dated: list[tuple[float, str]] = []
    for digest in store.loose():
        with store.open(digest) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            first = archive.next()
            dated.append((first.mtime if first else 0, digest))
    return [digest for _, digest in sorted(dated)]


class _Timer:
    """Processor seconds since it was made."""

    def __init__(self) -> None:
        self._start = self._now()
        self._wall = time.monotonic()

    @staticmethod
    def _now() -> float:
        return sum(os.times()[:4])

    @property
    def seconds(self) -> float:
        return round(self._now() - self._start, 2)

    @property
    def wall(self) -> float:
        return round(time.monotonic() - self._wall, 1)


def _read(store: Store, digest: str) -> float:
    timer = _Timer()
    with store.open(digest) as stream:
        while stream.read(1 << 20):
            pass
    return timer.seconds


def _loose(store: Store, digests: list[str], _: Path, __: int) -> dict[str, object]:
    size = sum(store.path(digest).stat().st_size for digest in digests)
    return {"bytes": size, "out": [_read(store, digest) for digest in _some(digests)]}


def _packs(store: Store, digests: list[str], folder: Path, level: int) -> dict[str, object]:
    copy = Store(folder)
    shutil.copytree(store.root / "layers", folder / "layers")
    timer = _Timer()
    done = consolidate(copy, level=level)
    seconds = timer.seconds
    out = [_read(Store(folder), digest) for digest in _some(digests)]
    left = sum(copy.path(digest).stat().st_size for digest in copy.loose())
    return {
        "level": level,
        "bytes": done.pack_bytes + left,
        "seconds": seconds,
        "wall": timer.wall,
        "out": out,
    }


def _distributions(store: Store, digests: list[str], folder: Path, _: int) -> dict[str, object]:
    """Each distribution's members as a tar, named by its content; the rest of the layer as one."""
    timer = _Timer()
    parts: dict[str, list[str]] = {}
    for digest in digests:
        with store.open(digest) as stream, ExitStack() as stack:
            archive = stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))
            buffers: dict[str, io.BytesIO] = {}
            writers: dict[str, tarfile.TarFile] = {}
            for member in archive:
                found = _DISTRIBUTION.match(member.name)
                name = found[2].lower().replace("-", "_") if found else ""
                if name not in writers:
                    buffers[name] = io.BytesIO()
                    writer = tarfile.TarFile(fileobj=buffers[name], mode="w")
                    writers[name] = stack.enter_context(writer)
                member.mtime = 0  # the date is the environment's; it would part equal wheels
                content = archive.extractfile(member) if member.isreg() else None
                writers[name].addfile(member, content)
        parts[digest] = []
        for buffer in buffers.values():
            name = hashlib.sha256(buffer.getbuffer()).hexdigest()
            parts[digest].append(name)
            if not (folder / name).exists():
                (folder / name).write_bytes(_compressor().compress(buffer.getbuffer()))
    seconds = timer.seconds
    out: list[float] = []
    for digest in _some(digests):
        timer = _Timer()
        for name in parts[digest]:
            packed = (folder / name).read_bytes()
            hashlib.sha256(zstandard.ZstdDecompressor().decompress(packed))
        out.append(timer.seconds)
    return {"bytes": _size(folder), "seconds": seconds, "out": out}


def _compressor() -> zstandard.ZstdCompressor:
    parameters = zstandard.ZstdCompressionParameters(
        compression_level=_LEVEL, window_log=27, enable_ldm=True
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


def _reference(store: Store, digests: list[str], folder: Path, _: int) -> dict[str, object]:
    """The first of a run of similar layers (their names) whole, the others against it."""
    tars = {digest: folder / f"{number}.tar" for number, digest in enumerate(digests)}
    names: dict[str, set[str]] = {}
    for digest, tar in tars.items():
        with store.open(digest) as stream, tar.open("wb") as whole:
            shutil.copyfileobj(stream, whole, 1 << 20)
        with tarfile.open(tar) as archive:
            names[digest] = set(archive.getnames())
    firsts: list[str] = []
    based: dict[str, str | None] = {}
    for digest in digests:
        likeness = [
            (len(names[digest] & names[f]) / len(names[digest] | names[f]), f) for f in firsts
        ]
        share, first = max(likeness, default=(0.0, ""))
        based[digest] = first if share > 0.3 else None
        if based[digest] is None:
            firsts.append(digest)
    timer = _Timer()
    total = 0
    for digest, tar in tars.items():
        first = based[digest]
        patch = [f"--patch-from={tars[first]}"] if first else []
        command = ["zstd", "-q", f"-{_LEVEL}", "--long=31", *patch, str(tar), "-o", f"{tar}.zst"]
        subprocess.run(command, check=True)
        total += Path(f"{tar}.zst").stat().st_size
    seconds = timer.seconds
    out: list[float] = []
    for digest in _some(digests):
        timer = _Timer()
        # The reference has to be unpacked first, as it is not on the node.
        for one in filter(None, (based[digest], digest)):
            first = based[one]
            patch = [f"--patch-from={tars[first]}"] if first else []
            command = ["zstd", "-q", "-d", "-c", "--long=31", *patch, f"{tars[one]}.zst"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        out.append(timer.seconds)
    return {"bytes": total, "seconds": seconds, "wholes": len(firsts), "out": out}


def _trees(store: Store, digests: list[str], folder: Path) -> Iterator[tuple[str, Path]]:
    for number, digest in enumerate(digests):
        tree = folder / "trees" / f"{number:04}"
        with store.open(digest) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            archive.extractall(tree, filter="fully_trusted")
        yield digest, tree


def _squashfs(store: Store, digests: list[str], folder: Path, _: int) -> dict[str, object]:
    trees = dict(_trees(store, digests, folder))
    image = folder / "image"
    timer = _Timer()
    options = ["-comp", "zstd", "-Xcompression-level", "19", "-b", "1M", "-quiet", "-no-progress"]
    subprocess.run(["mksquashfs", folder / "trees", image, *options], check=True)
    seconds = timer.seconds
    out: list[float] = []
    for digest in _some(digests):
        timer = _Timer()
        command = ["unsquashfs", "-q", "-n", "-d", folder / "out", image, trees[digest].name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        out.append(timer.seconds)
        shutil.rmtree(folder / "out")
    return {"bytes": image.stat().st_size, "seconds": seconds, "out": out}


def _borg(store: Store, digests: list[str], folder: Path, _: int) -> dict[str, object]:
    repository = folder / "repository"
    home = {
        "BORG_BASE_DIR": str(folder / "home"),
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    }
    run = _runner(folder, home)
    run("borg", "init", "-e", "none", str(repository))
    trees = dict(_trees(store, digests, folder))
    timer = _Timer()
    for tree in trees.values():
        run("borg", "create", "-C", "zstd,19", f"{repository}::{tree.name}", f"trees/{tree.name}")
    seconds = timer.seconds
    out: list[float] = []
    for digest in _some(digests):
        timer = _Timer()
        run("borg", "export-tar", f"{repository}::{trees[digest].name}", "/dev/null")
        out.append(timer.seconds)
    return {"bytes": _size(repository), "seconds": seconds, "out": out}


def _restic(store: Store, digests: list[str], folder: Path, _: int) -> dict[str, object]:
    repository = folder / "repository"
    run = _runner(
        folder,
        {
            "RESTIC_PASSWORD": "x",
            "RESTIC_REPOSITORY": str(repository),
            "RESTIC_CACHE_DIR": str(folder / "cache"),
            "RESTIC_COMPRESSION": "max",
        },
    )
    run("restic", "init")
    trees = dict(_trees(store, digests, folder))
    timer = _Timer()
    for tree in trees.values():
        run("restic", "backup", "-q", "--tag", tree.name, f"trees/{tree.name}")
    seconds = timer.seconds
    out: list[float] = []
    for digest in _some(digests):
        timer = _Timer()
        run("restic", "dump", "-q", "--tag", trees[digest].name, "latest", "/")
        out.append(timer.seconds)
    return {"bytes": _size(repository), "seconds": seconds, "out": out}


def _runner(folder: Path, variables: dict[str, str]) -> Callable[..., None]:
    def run(*command: str) -> None:
        subprocess.run(
            command,
            check=True,
            cwd=folder,
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
        )

    return run


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _some(digests: list[str]) -> list[str]:
    """First, middle, last by date."""
    return [digests[0], digests[len(digests) // 2], digests[-1]]


Way = Callable[[Store, list[str], Path, int], dict[str, object]]
_PEERS: dict[str, tuple[str, Way]] = {
    "reference": ("zstd", _reference),
    "squashfs": ("mksquashfs", _squashfs),
    "borg": ("borg", _borg),
    "restic": ("restic", _restic),
}
_WAYS: dict[str, Way] = {"loose": _loose, "packs": _packs, "distributions": _distributions} | {
    name: way for name, (program, way) in _PEERS.items() if shutil.which(program)
}


if __name__ == "__main__":
    sys.exit(main())
