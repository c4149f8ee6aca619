"""``oci export`` and ``oci import``: instances as container images, and images as sandboxes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from minisandbox.cli.subparsers import Subparsers
from minisandbox.cli.waiting import bar
from minisandbox.errors import EXIT_OK, InvalidInput
from minisandbox.sizes import readable_size

if TYPE_CHECKING:
    from minisandbox.runtime import Cache


def add_commands(commands: Subparsers) -> None:
    """Register the commands of this module."""
    oci = commands.add_parser("oci", help="instances as container images, and images as sandboxes")
    verbs = oci.add_subparsers(dest="verb", metavar="VERB", required=True)

    export = verbs.add_parser(
        "export", help="write instances as an OCI image layout, for podman, skopeo and others"
    )
    export.add_argument("ids", nargs="+", metavar="ID", help="instance ids, or patterns of them")
    export.add_argument(
        "--output", "-o", required=True, type=Path, help="a folder that is not there"
    )
    export.add_argument(
        "--compression",
        choices=("zstd", "gzip"),
        default="zstd",
        help="of the layers; gzip is for what does not read zstd, such as Docker before 23.0 "
        "(default: zstd, as they are stored)",
    )
    _cache_option(export)
    export.set_defaults(function=export_images)

    importing = verbs.add_parser(
        "import", help="take an OCI layout or a docker archive made by others"
    )
    importing.add_argument("path", type=Path, help="a folder, or a tar file")
    importing.add_argument("--ref", default="", help="which image, where the file holds several")
    importing.add_argument("--name", default="", help="what to call it (default: as it is called)")
    _cache_option(importing)
    importing.set_defaults(function=import_images)

    ls = verbs.add_parser("ls", help="list the images that were imported")
    _cache_option(ls)
    ls.set_defaults(function=list_images)


def _cache_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache", default="results", type=Path, help="the results folder (default: results)"
    )


def export_images(arguments: argparse.Namespace) -> int:
    """``minisandbox oci export``."""
    from minisandbox.oci import export_instances
    from minisandbox.oci.exporting import packed_size
    from minisandbox.runtime import open_cache

    cache = open_cache(arguments.cache)
    ids = _selected(cache, arguments.ids)
    with bar("layers", packed_size(cache, ids), "B") as progress:
        images = export_instances(
            cache, ids, arguments.output, compression=arguments.compression, progress=progress
        )
    for image in images:
        print(f"{arguments.output}:{image.tag}  {readable_size(image.size)}  {image.digest}")
        for name in image.missing:
            print(f"  its tests were validated with {name!r}, which no image can say")
    return EXIT_OK


def _selected(cache: Cache, patterns: Sequence[str]) -> list[str]:
    """The instances that are named; of those that a pattern covers, what was built."""
    found: dict[str, None] = {}
    for pattern in patterns:
        if pattern in cache or not any(sign in pattern for sign in "*?["):
            found[cache.row(pattern).instance_id] = None
            continue
        covered = [name for name in cache if fnmatchcase(name, pattern) and cache.row(name).layers]
        if not covered:
            raise InvalidInput(
                repr(pattern), "covers no instance that was built", "see `minisandbox ls`"
            )
        found.update(dict.fromkeys(covered))
    return list(found)


def import_images(arguments: argparse.Namespace) -> int:
    """``minisandbox oci import``."""
    from minisandbox.oci import import_image
    from minisandbox.runtime.cache import store_of
    from minisandbox.runtime.image import images_in
    from minisandbox.store import Store

    before = {image.name: image.digest for image in images_in(arguments.cache)}
    store = Store(store_of(arguments.cache))
    with bar("layers", 2 * _size(arguments.path), "B") as progress:
        image = import_image(
            arguments.path,
            arguments.cache,
            store,
            name=arguments.name,
            reference=arguments.ref,
            progress=progress,
        )
    size = sum({part.layer.digest: part.layer.size for part in image.layers}.values())
    print(f"{image.name}  {len(image.layers)} layers, {readable_size(size)}  {image.digest}")
    replaced = before.get(image.name, image.digest)
    if replaced != image.digest:
        print(f"  in the place of {replaced}, which was called so; --name gives it another name")
    for number, part in enumerate(image.layers, 1):
        for note in part.notes:
            print(f"  layer {number}: {note}")
    return EXIT_OK


def _size(path: Path) -> int:
    """Bytes of a file, or of the blobs of a layout; nothing where there is none."""
    files = [path] if path.is_file() else (path / "blobs").glob("*/*")
    return sum(file.lstat().st_size for file in files)


def list_images(arguments: argparse.Namespace) -> int:
    """``minisandbox oci ls``."""
    from minisandbox.runtime.image import images_in

    for image in images_in(arguments.cache):
        size = sum({part.layer.digest: part.layer.size for part in image.layers}.values())
        print(
            f"{image.name}  {len(image.layers)} layers, {readable_size(size)}  "
            f"{image.reference or '-'}  {image.digest}"
        )
    return EXIT_OK
