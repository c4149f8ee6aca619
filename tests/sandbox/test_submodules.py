"""Submodules in a checkout: at the commit that the tree names, clean to git, without a future."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox.build import clone, stage
from minisandbox.build.checkouts.checkout import commit_install, make_checkout
from minisandbox.build.checkouts.submodules import (
    Submodule,
    mirrored,
    source_of,
    submodules_at,
)
from minisandbox.build.workshop import Workshop
from minisandbox.errors import StageFailed
from minisandbox.idmap import current, remove_tree
from minisandbox.records import codec
from minisandbox.records.plan import RepositoryPlan
from minisandbox.records.stages import CloneRecord
from minisandbox.runtime import Instance, start_instance
from minisandbox.sandbox import Limits
from minisandbox.store import NodeStore, Store

pytestmark = pytest.mark.timeout(180)

URL = "https://github.com/owner/helpers.git"
FUTURE = "the_helper_of_tomorrow"


def git(folder: Path, *words: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    settings = ("user.name=t", "user.email=t@t", "protocol.file.allow=always")
    options = [word for setting in settings for word in ("-c", setting)]
    done = subprocess.run(
        ["git", *options, *words],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


class Upstream:
    """``owner/main`` with ``owner/helpers`` as a submodule, which has gone on since."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.helpers, self.main = root / "owner__helpers", root / "owner__main"
        for folder in (self.helpers, self.main):
            folder.mkdir()
            git(folder, "init", "-q", "-b", "main")
        self.commit(self.helpers, "helper.py", "one = 1\n")
        self.pinned = git(self.helpers, "rev-parse", "HEAD")
        self.commit(self.helpers, "helper.py", f"{FUTURE} = 2\n")
        git(self.main, "submodule", "add", "-q", "--name", "tools", str(self.helpers), "lib/help")
        git(self.main / "lib/help", "checkout", "-q", self.pinned)
        self.describe(URL)
        self.commit(self.main, "main.py", "import helper\n")

    def commit(self, folder: Path, name: str, text: str) -> None:
        (folder / name).write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"Write {name}")

    def describe(self, url: str) -> None:
        text = f'[submodule "tools"]\n\tpath = lib/help\n\turl = {url}\n'
        (self.main / ".gitmodules").write_text(text)

    @property
    def base(self) -> str:
        return git(self.main, "rev-parse", "main")

    def plan(self, *wanted: str) -> RepositoryPlan:
        template = f"{self.root}/{{slug}}"
        return RepositoryPlan(
            slug="owner__main",
            repo="owner/main",
            mirror=str(self.root / "mirrors/owner__main.git"),
            kind="git",
            url=template.format(slug="owner__main"),
            revisions=(self.base,),
            submodules=wanted,
            git_url=template,
        )

    def clone(self, *wanted: str) -> CloneRecord:
        codec.write(self.root / "plan.json", self.plan(*wanted))
        record = self.root / "clone/clone.json"
        clone.run(self.root / "plan.json", record, stage.Attempt(stage.ATTEMPTS))
        return codec.read(CloneRecord, record)


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(tmp_path)


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """One whose install leaves things in the submodule."""
    root = tmp_path_factory.mktemp("submodules")
    upstream = Upstream(root)
    record = upstream.clone("*")
    assert record.failure is None
    mirror = Path(record.mirror)
    submodules = submodules_at(mirror, upstream.base, ["*"])
    store, log = Store(root / "store"), root / "log"
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("MINISANDBOX_NODE_STORE", str(root / "node"))
        checkout = make_checkout(
            mirror,
            upstream.base,
            history="none",
            store=store,
            log=log,
            name="submodules",
            url="here",
            clone="here",
            limits=Limits(),
            submodules=[(item, Path(record.submodules[item.url])) for item in submodules],
        )
        with Workshop([checkout.layer], store=store, network="none", log=log, name="s") as shop:
            install = "echo made > lib/help/made.txt; echo '# changed' >> lib/help/helper.py"
            shop.run(install, failure="install", what="install", cwd="/testbed")
            head = commit_install(shop, date=checkout.date)
            layer = shop.pack("instance")
    node = NodeStore(root / "node", current())
    with start_instance(
        [checkout.layer, layer], head_tree=head.tree, store=store, node=node, name="submodules"
    ) as started:
        yield started
    remove_tree(node.root, node.idmap)


def said(instance: Instance, command: str) -> str:
    return instance.run(command, merge_stderr=True).text.strip()


def pinned(instance: Instance) -> str:
    """The commit that base's tree names."""
    return said(instance, "git ls-tree HEAD~1 lib/help").split()[2]


def test_it_is_there_at_its_commit(instance: Instance) -> None:
    assert said(instance, "cat lib/help/helper.py").startswith("one = 1")
    assert said(instance, "git -C lib/help rev-parse HEAD") == pinned(instance)


def test_git_takes_it_for_initialised(instance: Instance) -> None:
    # ah_bootstrap of astropy asks exactly this, and would fetch what begins with a minus.
    status = instance.run("git submodule status --cached lib/help").text
    assert status.startswith(f" {pinned(instance)} lib/help")
    assert said(instance, "git submodule update --init; echo $?") == "0"


def test_git_sees_no_change(instance: Instance) -> None:
    assert said(instance, "git status --porcelain") == ""
    assert said(instance, "git diff") == ""
    assert instance.diff() == b""


def test_nothing_newer_is_there(instance: Instance) -> None:
    commits = "git -C lib/help cat-file --batch-all-objects --batch-check | grep -c commit"
    assert said(instance, commits) == "1"
    assert said(instance, f"grep -r {FUTURE} /testbed; echo $?") == "1"
    assert said(instance, "git -C lib/help log --all -p | grep -c the_helper") == "0"
    assert said(instance, "git -C lib/help remote; git -C lib/help for-each-ref") == ""
    assert said(instance, "git remote") == ""


def test_only_what_is_wanted_is_mirrored(upstream: Upstream) -> None:
    assert upstream.clone().submodules == {}
    assert not (upstream.root / "mirrors/owner__main.submodules").exists()
    (mirror,) = upstream.clone("lib/help").submodules.values()
    assert git(Path(mirror), "cat-file", "-t", upstream.pinned) == "commit"


def test_a_mirror_that_is_gone_is_made_again(upstream: Upstream) -> None:
    (mirror,) = upstream.clone("*").submodules.values()
    remove_tree(Path(mirror), current())
    (again,) = upstream.clone("*").submodules.values()
    assert Path(again, "HEAD").exists()


def test_a_path_that_is_no_submodule_is_named(upstream: Upstream) -> None:
    mirror = Path(upstream.clone("lib/other").mirror)
    with pytest.raises(StageFailed, match="has no submodule at lib/other"):
        submodules_at(mirror, upstream.base, ["lib/other"])


def test_a_repository_without_any_has_none(upstream: Upstream) -> None:
    bare = upstream.root / "bare.git"
    git(upstream.root, "clone", "-q", "--bare", str(upstream.helpers), str(bare))
    assert submodules_at(bare, "main", ["*"]) == []


@pytest.mark.parametrize(
    "url",
    [
        "/etc",
        "file:///root/private",
        "ext::sh -c id",
        "--upload-pack=touch /tmp/x",
        "ssh://-oProxyCommand=id/x",
        "../../../../private",
    ],
)
def test_a_repository_names_no_place_of_this_machine(upstream: Upstream, url: str) -> None:
    upstream.describe(url)
    upstream.commit(upstream.main, "more.py", "")
    record = upstream.clone("*")
    # The instances that do without it are none the worse for it.
    assert (record.failure, record.submodules) == (None, {})
    with pytest.raises(StageFailed, match="which is no server's address") as caught:
        mirrored(submodules_at(Path(record.mirror), upstream.base, ["*"]), record)
    assert caught.value.kind == "clone"


def test_a_submodule_that_is_gone_costs_only_those_that_need_it(upstream: Upstream) -> None:
    git(upstream.main, "submodule", "add", "-q", str(upstream.helpers), "lib/more")
    text = f"[submodule 'lib/more']\n\tpath = lib/more\n\turl = {URL}x\n".replace("'", '"')
    described = upstream.main / ".gitmodules"
    upstream.describe(URL)
    described.write_text(described.read_text() + text)
    upstream.commit(upstream.main, "more.py", "")
    record = upstream.clone("*")
    assert record.failure is None

    def had(path: str) -> list[str]:
        found = submodules_at(Path(record.mirror), upstream.base, [path])
        return [item.path for item, _ in mirrored(found, record)]

    assert had("lib/help") == ["lib/help"]
    with pytest.raises(StageFailed, match="submodule lib/more cannot be had: cannot clone"):
        had("lib/more")


def test_what_another_recipe_wants_hides_no_submodule(upstream: Upstream) -> None:
    record = upstream.clone("lib/help", "lib/of-another-version")
    assert list(record.submodules) == [URL]


SUBMODULE = Submodule("tools", "lib/help", URL, "a" * 40)


@pytest.mark.parametrize(
    ("url", "source"),
    [
        ("https://github.com/owner/helpers.git", "/srv/owner/helpers"),
        ("git@github.com:owner/helpers.git", "/srv/owner/helpers"),
        ("git://github.com/owner/helpers", "/srv/owner/helpers"),
        ("../helpers.git", "/srv/owner/helpers"),
        ("https://gitlab.com/owner/helpers.git", "https://gitlab.com/owner/helpers.git"),
    ],
)
def test_github_is_where_the_configuration_says(url: str, source: str) -> None:
    submodule = replace(SUBMODULE, url=url)
    parent = "https://github.com/owner/main.git"
    assert source_of(submodule, parent=parent, git_url="/srv/{repo}") == source
