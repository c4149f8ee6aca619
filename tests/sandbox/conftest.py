"""Layers and sandboxes for tests, the same for root and for an ordinary user."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from minisandbox.idmap import IdMap, call_mapped, current, remove_tree, single
from minisandbox.sandbox import Profile, Sandbox, connection

Files = Mapping[str, "str | bytes | None"]
MakeLayer = Callable[[Files], Path]
Start = Callable[..., Sandbox]

#: Every map this caller can use: an ordinary user with a range of ids has two.
IDMAPS = [current()] if current().kind in ("root", "single") else [current(), single()]


def write_files(root: Path, files: Files) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)


def give_to_inside_root(root: Path, idmap: IdMap) -> None:
    if idmap.kind == "root":
        uid, gid = idmap.host_uid(0), idmap.host_gid(0)
        for path in (root, *root.rglob("*")):
            os.chown(path, uid, gid, follow_symlinks=False)


@pytest.fixture(params=IDMAPS, ids=lambda idmap: idmap.kind)
def idmap(request: pytest.FixtureRequest) -> IdMap:
    return request.param


@pytest.fixture
def scratch(tmp_path: Path, idmap: IdMap) -> Iterator[Path]:
    path = tmp_path / "scratch"
    path.mkdir()
    yield path
    remove_tree(path, idmap)


@pytest.fixture
def make_layer(tmp_path: Path, idmap: IdMap) -> MakeLayer:
    def make(files: Files) -> Path:
        root = tmp_path / f"layer-{len(list(tmp_path.glob('layer-*')))}"
        call_mapped(idmap, partial(write_files, root, files))
        give_to_inside_root(root, idmap)
        return root

    return make


@pytest.fixture
def start(scratch: Path, idmap: IdMap) -> Iterator[Start]:
    """Start sandboxes that are closed with the test."""
    with ExitStack() as stack:

        def start(*layers: Path, profile: Profile | None = None, **options: object) -> Sandbox:
            box = Sandbox.start(
                layers,
                scratch=options.pop("scratch", scratch),
                idmap=idmap,
                profile=profile,
                **options,
            )
            return stack.enter_context(box)

        yield start


@pytest.fixture(scope="module", params=IDMAPS, ids=lambda idmap: idmap.kind)
def box(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """One sandbox for all tests of a module that only look, or clean up after themselves."""
    scratch = tmp_path_factory.mktemp("scratch")
    with Sandbox.start([], scratch=scratch, idmap=request.param) as started:
        yield started
    remove_tree(scratch, request.param)


@pytest.fixture
def fresh_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test's sandboxes have a server of their own."""
    mine: dict[tuple[int, ...], connection.Server] = {}
    monkeypatch.setattr(connection, "_servers", mine)
    yield
    for server in mine.values():
        server.close(10)
