"""What an image says of itself: indexes, manifests and configurations, read strictly.

All of it may be hostile JSON. What is read is checked for type and size and becomes a dataclass, or
is refused with the name of the document; what is not needed is not looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from minisandbox import keys
from minisandbox.errors import InvalidInput
from minisandbox.oci import media
from minisandbox.oci.choosing import Choice, choose
from minisandbox.oci.sources import Source
from minisandbox.sandbox import arguments

#: Bytes of one document; registries take 4 MiB at most.
_MOST_TEXT = 4 << 20
#: What overlayfs stacks, less what a sandbox lays around an image.
MOST_LAYERS = 490
#: Indexes in indexes.
_MOST_NESTED = 4
#: Platforms that an error lists.
_SHOWN = 10
#: Characters of the name of an image.
_LONGEST_NAME = 500
#: A file of a docker archive is named by the digest of what it holds, if it is new enough.
_BY_DIGEST = re.compile(r"(?:blobs/sha256/)?([0-9a-f]{64})(?:\.tar|\.json)?")

#: Names by which tools keep what an image was called, the fullest first.
_NAMES = ("io.containerd.image.name", media.REF_NAME)


@dataclass(frozen=True)
class Blob:
    """A blob: the file it is in, and what is promised of it. Without a digest it is the digest of
    its content that tells.
    """

    path: str
    size: int | None
    digest: str | None


@dataclass(frozen=True)
class Description:
    """An image as its documents tell. ``diff_ids`` belong to ``layers``, bottom first."""

    reference: str
    digest: str
    created: str
    architecture: str
    layers: tuple[Blob, ...]
    diff_ids: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    user: str
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]


def describe(source: Source, *, reference: str, architecture: str) -> Description:
    """The image called ``reference``, or the only one there is; raises ``ImageRefused``."""
    if source.has(media.INDEX_FILE):
        return _Layout(source, architecture).describe(reference)
    if source.has("manifest.json"):
        return _of_docker(source, reference, architecture)
    raise source.refused(
        media.INDEX_FILE,
        "is not there, nor is manifest.json: this is no OCI layout, and no docker archive",
    )


class _Layout:
    """An OCI image layout."""

    def __init__(self, source: Source, architecture: str) -> None:
        self._source = source
        self._architecture = architecture

    def describe(self, reference: str) -> Description:
        if self._source.has(media.LAYOUT_FILE):
            version = _mapping(self._source, media.LAYOUT_FILE).get("imageLayoutVersion")
            if version != media.LAYOUT_VERSION:
                raise self._source.refused(media.LAYOUT_FILE, f"says version {version!r:.40}")
        entries = _images(_entries(self._source, media.INDEX_FILE, "manifests"))
        choices = [
            Choice(
                tuple(_names(self._source, entry)),
                str(entry.get("digest")),
                entry,
                self._fits(entry),
            )
            for entry in entries
        ]
        chosen, name = choose(self._source, media.INDEX_FILE, choices, reference)
        return self._image(chosen.document, name, 0)

    def _image(self, entry: Mapping[str, Any], name: str, depth: int) -> Description:
        """The image of a descriptor: a manifest, or the one for this machine of an index."""
        kind = entry.get("mediaType")
        blob = self._blob(entry, "a manifest")
        if kind in media.MANIFESTS:
            return self._manifest(blob, name)
        if kind not in media.INDEXES:
            raise self._source.refused(blob.path, f"has the media type {kind!r:.80}, no image's")
        if depth >= _MOST_NESTED:
            raise self._source.refused(blob.path, f"is an index {depth} indexes deep")
        entries = _images(_items(self._source, blob.path, self._document(blob), "manifests"))
        fitting = [item for item in entries if self._fits(item)]
        if not fitting:
            offered = ", ".join(sorted({_platform(item) for item in entries})[:_SHOWN])
            raise self._source.refused(
                blob.path,
                f"holds no image for linux/{self._architecture}, only for {offered or 'nothing'}",
            )
        # One for every processor of the architecture, if there is one: others may want more of it.
        return self._image(min(fitting, key=_is_choosy), name, depth + 1)

    def _fits(self, entry: Mapping[str, Any]) -> bool:
        platform = entry.get("platform")
        if platform is None:
            return True  # its configuration tells
        return _platform(entry) == f"linux/{self._architecture}"

    def _manifest(self, blob: Blob, name: str) -> Description:
        manifest = self._document(blob)
        where = blob.path
        config = manifest.get("config")
        if not _is_object(config):
            raise self._source.refused(where, "names no configuration")
        if config.get("mediaType") not in media.CONFIGS:
            kind = config.get("mediaType")
            raise self._source.refused(where, f"is of {kind!r:.80}, which is no image")
        described = self._blob(config, "a configuration")
        layers = [
            self._layer(item, where) for item in _items(self._source, where, manifest, "layers")
        ]
        return _configured(
            self._source,
            described.path,
            self._document(described),
            name=name,
            digest=cast(str, blob.digest),
            layers=layers,
            architecture=self._architecture,
        )

    def _layer(self, entry: Mapping[str, Any], where: str) -> Blob:
        kind = str(entry.get("mediaType"))
        if kind.endswith("+encrypted"):
            raise self._source.refused(where, "has an encrypted layer, to which nobody has the key")
        if kind not in media.LAYERS | media.FOREIGN_LAYERS:
            raise self._source.refused(where, f"has a layer of the media type {kind!r:.80}")
        blob = self._blob(entry, "a layer")
        if (kind in media.FOREIGN_LAYERS or entry.get("urls")) and not self._source.has(blob.path):
            raise self._source.refused(
                where, f"has a layer that is to be fetched from elsewhere (urls): {blob.digest}"
            )
        return blob

    def _blob(self, entry: Mapping[str, Any], what: str) -> Blob:
        digest, size = entry.get("digest"), entry.get("size")
        try:
            path = f"blobs/sha256/{keys.hex_of(str(digest))}"
        except ValueError:
            raise self._source.refused(
                media.INDEX_FILE, f"leads to {what} with the digest {digest!r:.80}, no sha256"
            ) from None
        if type(size) is not int or size < 0:
            raise self._source.refused(path, f"is {what} whose size is {size!r:.40}")
        return Blob(path, size, str(digest))

    def _document(self, blob: Blob) -> dict[str, Any]:
        return _mapping(self._source, blob.path, blob)


def _of_docker(source: Source, reference: str, architecture: str) -> Description:
    """The image of a docker archive, whose layers have no digests of their own."""
    choices: list[Choice] = []
    for entry in _array(source, "manifest.json"):
        tags: Any = entry.get("RepoTags") or []
        if not _is_texts(tags) or not all(map(_is_name, tags)):
            raise source.refused("manifest.json", "has RepoTags that are no list of names")
        choices.append(Choice(tuple(tags), str(entry.get("Config")), entry))
    chosen, name = choose(source, "manifest.json", choices, reference)
    paths, config = chosen.document.get("Layers"), chosen.document.get("Config")
    if not _is_texts(paths) or not isinstance(config, str):
        raise source.refused("manifest.json", "names no configuration, or no list of layers")
    known = _BY_DIGEST.fullmatch(config)
    digest = f"sha256:{known[1]}" if known else None
    text = _text(source, config, Blob(config, None, digest))
    return _configured(
        source,
        config,
        _parse_mapping(source, config, text),
        name=name,
        digest=_sha256(text),
        layers=[Blob(path, None, None) for path in paths],
        architecture=architecture,
    )


def _images(entries: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """What of an index is images, and not signatures, accounts of a build and other things that
    are kept beside them; all of it where nothing is.
    """
    kinds = media.MANIFESTS | media.INDEXES
    found = [
        entry
        for entry in entries
        if entry.get("mediaType") in kinds and not entry.get("artifactType")
    ]
    return found or entries


def _is_choosy(entry: Mapping[str, Any]) -> bool:
    """Whether an image is for some processors of its architecture only."""
    platform = entry.get("platform")
    return _is_object(platform) and platform.get("variant") not in (None, "", "v1", "v8")


def _names(source: Source, entry: Mapping[str, Any]) -> Iterator[str]:
    known = entry.get("annotations")
    if not _is_object(known):
        return
    for key in _NAMES:
        if key in known:
            if not _is_name(known[key]):
                raise source.refused(media.INDEX_FILE, f"has a {key} that is no name")
            yield known[key]


def _is_name(value: Any) -> bool:
    """Whether it can be shown to a person, whose terminal must not do what it says."""
    return isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_NAME


def _platform(entry: Mapping[str, Any]) -> str:
    known = entry.get("platform")
    if not _is_object(known):
        return "an unknown platform"
    return f"{_shown(known.get('os'))}/{_shown(known.get('architecture'))}"


def _shown(value: Any) -> str:
    return ascii(str(value)[:40])[1:-1]


def _configured(
    source: Source,
    where: str,
    document: Mapping[str, Any],
    *,
    name: str,
    digest: str,
    layers: Sequence[Blob],
    architecture: str,
) -> Description:
    """The description of an image with this configuration; raises ``ImageRefused``."""
    rootfs = document.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if _is_object(rootfs) else None
    if not _is_texts(diff_ids):
        raise source.refused(where, "has no list of diff_ids")
    if len(diff_ids) != len(layers):
        raise source.refused(where, f"has {len(diff_ids)} diff_ids for {len(layers)} layers")
    if not layers:
        raise source.refused(where, "has no layers, so there is nothing to run")
    if len(layers) > MOST_LAYERS:
        raise source.refused(where, f"has {len(layers)} layers, and at most {MOST_LAYERS} stack")
    for diff_id in diff_ids:
        try:
            keys.hex_of(diff_id)
        except ValueError as error:
            raise source.refused(where, f"has a diff_id that is {error!s:.120}") from None
    system, built_for = document.get("os", "linux"), document.get("architecture")
    if system != "linux" or built_for != architecture:
        raise source.refused(
            where, f"is for {_shown(system)}/{_shown(built_for)}, not for linux/{architecture}"
        )
    config: Any = document.get("config") or {}
    if not _is_object(config):
        raise source.refused(where, "has a 'config' that is no object")
    return Description(
        reference=name,
        digest=digest,
        created=_string(source, where, document, "created"),
        architecture=str(built_for),
        layers=tuple(layers),
        diff_ids=tuple(diff_ids),
        env=_variables(source, where, config),
        workdir=_workdir(source, where, config),
        user=_string(source, where, config, "User"),
        entrypoint=_words(source, where, config, "Entrypoint"),
        cmd=_words(source, where, config, "Cmd"),
    )


def _variables(source: Source, where: str, config: Mapping[str, Any]) -> dict[str, str]:
    given: Any = config.get("Env") or []
    if not _is_texts(given):
        raise source.refused(where, "has an Env that is no list of texts")
    found: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise source.refused(where, f"has the variable {item!r:.80} without a value")
        found[name] = value
    try:
        return dict(arguments.variables("Env", found))
    except InvalidInput as error:
        reason = ascii(str(error)[:200])[1:-1]
        raise source.refused(where, f"has an Env that nothing can have: {reason}") from None


def _workdir(source: Source, where: str, config: Mapping[str, Any]) -> str:
    path = _string(source, where, config, "WorkingDir") or "/"
    if not path.startswith("/") or len(path) > 4095:
        raise source.refused(where, f"has the WorkingDir {path!r:.80}, no absolute path")
    return path


def _string(source: Source, where: str, mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key) or ""
    if not isinstance(value, str) or "\0" in value or not _is_unicode(value):
        raise source.refused(where, f"has a {key} that is no text")
    return value


def _words(source: Source, where: str, mapping: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value: Any = mapping.get(key) or []
    if not _is_texts(value) or any("\0" in word for word in value):
        raise source.refused(where, f"has {key}, which is no list of texts")
    return tuple(value)


def _is_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(
        isinstance(item, str) and _is_unicode(item) for item in cast("list[object]", value)
    )


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_unicode(text: str) -> bool:
    """Whether it can be written down: JSON can spell half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _text(source: Source, path: str, blob: Blob | None) -> bytes:
    """A document, checked against what is promised of it; raises ``ImageRefused``."""
    with source.open(path) as (file, size):
        if size > _MOST_TEXT:
            raise source.refused(path, f"has {size} bytes, where {_MOST_TEXT} are plenty")
        if blob is None:
            return file.read(size)
        promised = size if blob.size is None else blob.size
        if promised != size:
            raise source.refused(path, f"has {size} bytes, where {promised} are promised")
        text = file.read(size)
    if blob.digest is not None and blob.digest != (found := _sha256(text)):
        raise source.refused(path, f"has the digest {found}")
    return text


def _sha256(text: bytes) -> str:
    import hashlib

    return "sha256:" + hashlib.sha256(text).hexdigest()


def _parse(source: Source, path: str, text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise source.refused(path, "is nested too deeply") from None
    except ValueError as error:
        raise source.refused(path, f"is not JSON ({error!s:.120})") from None


def _parse_mapping(source: Source, path: str, text: bytes) -> dict[str, Any]:
    found = _parse(source, path, text)
    if not _is_object(found):
        raise source.refused(path, "is no JSON object")
    return found


def _mapping(source: Source, path: str, blob: Blob | None = None) -> dict[str, Any]:
    return _parse_mapping(source, path, _text(source, path, blob))


def _entries(source: Source, path: str, key: str) -> list[dict[str, Any]]:
    return _items(source, path, _mapping(source, path), key)


def _items(source: Source, path: str, mapping: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return _objects(source, path, mapping.get(key), key)


def _array(source: Source, path: str) -> list[dict[str, Any]]:
    return _objects(source, path, _parse(source, path, _text(source, path, None)), "images")


def _objects(source: Source, path: str, value: Any, what: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(map(_is_object, cast("list[Any]", value))):
        raise source.refused(path, f"has no list of {what}")
    return cast("list[dict[str, Any]]", value)
