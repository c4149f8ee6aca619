"""Files that are put into a build, and what the layer has of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from minisandbox.build.build_files import Given, put
from minisandbox.build.workshop import Workshop
from minisandbox.errors import StageFailed
from minisandbox.idmap import remove_tree
from minisandbox.records.layer import LayerRef
from minisandbox.store import NodeStore, Store

#: Two below a link to elsewhere, one of them in the repository.
PLACES = ("/opt/here/a", "/opt/link/b", "/testbed/build/c", "/testbed/out/d", "/etc/passwd")


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "node"))
    yield
    store = NodeStore(tmp_path / "node")
    remove_tree(store.root, store.idmap)


def workshop(folder: Path, *layers: LayerRef) -> Workshop:
    store = Store(folder / "store")
    return Workshop(layers, store=store, network="none", log=folder / "log", name="files")


def said(shop: Workshop, command: str) -> str:
    return shop.run(command, failure="install", what="it").text


def test_only_those_in_the_repository_are_packed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content\n")
    with workshop(tmp_path) as shop:
        said(shop, "mkdir -p /opt/real /testbed/build /srv && ln -s /opt/real /opt/link")
        said(shop, "ln -s /srv /testbed/out")
        absent = put(shop, [Given(tmp_path / "file", place) for place in PLACES])
        assert said(shop, f"cat {' '.join(PLACES)} | sort -u") == "content\n"
        layer = shop.pack("instance", without=absent)
    with workshop(tmp_path, layer) as shop:
        assert said(shop, "find /opt /srv /testbed -type f") == "/testbed/build/c\n"
        assert "root" in said(shop, "cat /etc/passwd")  # what was covered is there again


def test_a_place_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content\n")
    with workshop(tmp_path) as shop, pytest.raises(StageFailed, match="/tmp") as caught:
        put(shop, [Given(tmp_path / "file", "/tmp")])
    assert (caught.value.kind, caught.value.hint) == ("install", "see 'files' in the recipe")
