"""Profiles out of what plans and manifests say: records know no sandboxes, so there limits are
plain values by the names of ``Limits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minisandbox.records import codec
from minisandbox.records.manifest import ManifestRow, limits_of
from minisandbox.sandbox import Limits, Profile


def limits_from(values: Mapping[str, Any], *, where: str) -> Limits:
    """Limits as written down; what is not named has its default. Raises ``InvalidInput``."""
    return codec.decode(Limits, dict(values), where=where, path="limits")


def profile_of(row: ManifestRow) -> Profile:
    """What the tests of a row were validated under; raises ``InvalidInput`` for a damaged row."""
    limits = limits_from(limits_of(row), where=f"manifest row {row.instance_id}")
    return Profile(network="none", nested=row.nested, blackhole=row.blackhole, limits=limits)
