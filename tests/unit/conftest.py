"""Every id map that this caller can use, and a folder in which files of its ids may be left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox.idmap import IdMap, current, remove_tree, single

#: An ordinary user with a range of ids has two.
IDMAPS = [current()] if current().kind in ("root", "single") else [current(), single()]


@pytest.fixture(params=IDMAPS, ids=[idmap.kind for idmap in IDMAPS])
def idmap(request: pytest.FixtureRequest) -> IdMap:
    return request.param


@pytest.fixture
def place(tmp_path: Path, idmap: IdMap) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.iterdir():
        remove_tree(path, idmap)
