"""Services of an instance: started with every sandbox, after a reset too, and said if not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from minisandbox.build.planning.recipes import read_recipe
from minisandbox.build.services import service, service_names
from minisandbox.errors import HostUnsupported, InvalidInput
from minisandbox.idmap import call_mapped, current, remove_tree
from minisandbox.runtime import Instance, start_instance
from minisandbox.store import NodeStore, Store

START = """#!/bin/bash
echo started >> /run/starts
grep -q example.test /etc/hosts || echo '127.0.0.1 example.test' >> /etc/hosts
setsid sleep 600 > /dev/null 2>&1 < /dev/null &
"""
FAILS = "#!/bin/bash\necho 'no port is free' >&2\nexit 1\n"


def write_layers(root: Path, start: str) -> None:
    (root / "source/testbed/.git/info").mkdir(parents=True)
    folder = root / "service/opt/services/example"
    folder.mkdir(parents=True)
    (folder / "start").write_text(start)
    (folder / "start").chmod(0o755)


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Instance]]:
    """Starts an instance with one service, whose program is given."""
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "node"))
    idmap, trees = current(), tmp_path / "trees"
    node = NodeStore(tmp_path / "node", idmap)

    def call(start: str, *kinds: str) -> Instance:
        call_mapped(idmap, partial(write_layers, trees, start))
        store = Store(tmp_path / "store")
        layers = [
            store.add(kind, trees / kind, date=10**9, idmap=idmap)
            for kind in kinds or ("service", "source")
        ]
        return start_instance(layers, head_tree="", store=store, node=node, name="services")

    yield call
    remove_tree(trees, idmap)
    remove_tree(node.root, node.idmap)


def starts(instance: Instance) -> int:
    return int(instance.run("cat /run/starts 2>/dev/null | wc -l").text)


def test_a_service_is_there_before_the_first_command(launch) -> None:
    with launch(START) as instance:
        assert starts(instance) == 1
        assert "sleep" in instance.run("cat /proc/[0-9]*/comm").text
        assert instance.run("getent hosts example.test").text.startswith("127.0.0.1")


def test_without_a_layer_of_that_kind_nothing_is_started(launch) -> None:
    with launch(START, "source") as instance:
        assert starts(instance) == 0


def test_a_reset_starts_it_again(launch) -> None:
    with launch(START) as instance:
        instance.reset()
        assert starts(instance) == 1  # the file of the first start is gone with all else
        assert "sleep" in instance.run("cat /proc/[0-9]*/comm").text


def test_a_fork_has_one_of_its_own(launch) -> None:
    with launch(START) as instance, instance.fork() as other:
        assert "sleep" in other.run("cat /proc/[0-9]*/comm").text
        assert other.run("grep -c example.test /etc/hosts").text == "1\n"


def test_one_that_does_not_start_is_said(launch) -> None:
    with pytest.raises(HostUnsupported, match=r"services of services cannot be used .*no port is"):
        launch(FAILS)


def test_every_service_is_whole() -> None:
    assert service_names() == ["httpbin"]
    for name in service_names():
        found = service(name)
        assert {"start", found.prepare} <= set(found.files)
        assert all("==" in package for package in found.packages)


def test_a_service_that_there_is_not_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("repo: o/r\namends: true\nservices: [httpbin, ftp]\n")
    with pytest.raises(InvalidInput, match=r"key 'services': has 'ftp'; expected some of httpbin"):
        read_recipe(path)
