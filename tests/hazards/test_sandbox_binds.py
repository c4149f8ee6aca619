"""What is bound from the host: never what a layer points at, and never what a removal may reach."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from minisandbox.errors import InvalidInput
from minisandbox.idmap import IdMap, call_mapped, remove_tree
from minisandbox.runtime import start_instance
from minisandbox.sandbox import Bind, Profile
from minisandbox.store import NodeStore, Store

TARGET = "/run/minisandbox/base/source"


def link(at: Path, to: str) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(to)


def of_layer(layer: Path) -> Profile:
    return Profile(binds=(Bind(layer, TARGET, beneath="testbed/.git"),))


def test_a_directory_of_a_layer_is_bound_alone_and_read_only(start, make_layer) -> None:
    layer = make_layer({"testbed/.git/index": "content"})
    box = start(layer, profile=of_layer(layer))
    assert box.run(f"cat {TARGET}/index").stdout == b"content"
    assert box.run(f"echo x > {TARGET}/index").exit_code != 0
    assert (layer / "testbed/.git/index").read_text() == "content"


@pytest.mark.parametrize("to", ["/", "{secret}", "..", "../..", ".", "real"])
@pytest.mark.parametrize("at", ["testbed/.git", "testbed"])
def test_no_link_of_a_layer_is_followed(
    start, make_layer, idmap: IdMap, scratch: Path, tmp_path: Path, at: str, to: str
) -> None:
    secret = tmp_path / "secret"
    (secret / ".git").mkdir(parents=True)
    layer = make_layer({"real/.git/x": "1", "testbed.d/x": "1"})
    call_mapped(idmap, partial(link, layer / at, to.format(secret=secret)))
    with pytest.raises(InvalidInput, match="no link there is followed") as caught:
        start(layer, profile=of_layer(layer))
    assert "testbed/.git" in str(caught.value)
    assert str(layer) in str(caught.value)
    assert list(scratch.glob("box-*")) == []


@pytest.mark.parametrize("files", [{"testbed/x": "1"}, {"testbed/.git": "gitdir: /etc"}])
def test_what_is_no_directory_of_a_layer_is_refused(start, make_layer, files) -> None:
    layer = make_layer(files)
    with pytest.raises(InvalidInput, match="is no directory of its own"):
        start(layer, profile=of_layer(layer))


def test_an_instance_does_not_show_what_its_source_layer_points_at(
    make_layer, idmap: IdMap, tmp_path: Path
) -> None:
    tree = make_layer({"testbed/x": "1"})
    call_mapped(idmap, partial(link, tree / "testbed/.git", "/"))
    store, node = Store(tmp_path / "store"), NodeStore(tmp_path / "node", idmap)
    layer = store.add("source", tree, date=1_600_000_000, idmap=idmap)
    try:
        with pytest.raises(InvalidInput, match="no link there is followed"):
            start_instance([layer], head_tree="", store=store, node=node, name="hostile")
    finally:
        remove_tree(node.root, idmap)


def test_a_callers_own_links_are_followed(start, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "real/file").write_text("content")
    os.symlink("real", tmp_path / "link")
    box = start(profile=Profile(binds=(Bind(tmp_path / "link", "/mnt/given"),)))
    assert box.run("cat /mnt/given/file").stdout == b"content"


def test_a_directory_of_a_layer_is_never_writable(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be writable"):
        Bind(tmp_path, "/mnt/x", writable=True, beneath="testbed")
