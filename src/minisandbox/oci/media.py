"""Names of the OCI image specification (and Docker's own, older ones) that both ways share."""

from __future__ import annotations

import re

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"

INDEXES = frozenset({INDEX, "application/vnd.docker.distribution.manifest.list.v2+json"})
MANIFESTS = frozenset({MANIFEST, "application/vnd.docker.distribution.manifest.v2+json"})
CONFIGS = frozenset({CONFIG, "application/vnd.docker.container.image.v1+json"})
LAYERS = frozenset(
    {
        *(LAYER + end for end in ("", "+gzip", "+zstd")),
        *(f"application/vnd.docker.image.rootfs.diff.tar{end}" for end in ("", ".gzip", ".zstd")),
    }
)

#: Layers that need not come with their image: whoever may distribute them has them (``urls``).
FOREIGN_LAYERS = frozenset(
    {
        *(
            f"application/vnd.oci.image.layer.nondistributable.v1.tar{end}"
            for end in ("", "+gzip", "+zstd")
        ),
        *(
            f"application/vnd.docker.image.rootfs.foreign.diff.tar{end}"
            for end in ("", ".gzip", ".zstd")
        ),
    }
)

#: The file that says that a folder is an image layout, and what it holds.
LAYOUT_FILE = "oci-layout"
LAYOUT_VERSION = "1.0.0"
INDEX_FILE = "index.json"

#: By which tools find an image in a layout.
REF_NAME = "org.opencontainers.image.ref.name"

#: What such a name may be to be a tag everywhere: the grammar of the image specification, in which
#: no two separators meet, and the length of a tag.
REF = re.compile(r"(?=.{1,128}\Z)[A-Za-z0-9]+(?:[-._][A-Za-z0-9]+)*")

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture(machine: str) -> str:
    """How images call what ``uname -m`` calls ``machine``."""
    return _ARCHITECTURES.get(machine, machine)


def layer_type(compression: str) -> str:
    """The media type of a layer that is packed with ``compression``."""
    return f"{LAYER}+{compression}"
