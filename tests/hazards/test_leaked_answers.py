"""A1 A3 D6: nothing newer than the base commit is in the box, and no word of the tests that decide.

The upstream repository has the fix in every place that a clone could bring along; the checkout is
made by the shipped code, packed, and looked at in a sandbox.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox.build.checkouts.checkout import commit_install, make_checkout
from minisandbox.build.workshop import Workshop
from minisandbox.idmap import current, remove_tree
from minisandbox.runtime import Instance, start_instance
from minisandbox.sandbox import Limits
from minisandbox.store import NodeStore, Store
from small_projects import SmallProject, difference

pytestmark = pytest.mark.timeout(180)

TOKEN = "the_answer_is_forty_two"
BASE_DATE = "2024-01-01T00:00:00Z"


def git(folder: Path, *words: str, date: str = BASE_DATE) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_DATE": date,
    }
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    return subprocess.run(
        ["git", *identity, *words],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


class Upstream:
    """A repository with a past, a base commit, and the fix wherever git can keep one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        git(folder, "init", "-q", "-b", "main", ".")
        for number, date in enumerate(("2021", "2022", "2023")):
            (folder / "code.py").write_text(f"past = {number}\n")
            git(folder, "add", "-A")
            git(folder, "commit", "-qm", f"Past {number}", date=f"{date}-01-01T00:00:00Z")
        git(folder, "tag", "-a", "v1.0", "-m", "one", date="2023-02-01T00:00:00Z")
        (folder / "code.py").write_text("past = 2\nanswer = 41\n")
        git(folder, "commit", "-qam", "Base")
        self.base = git(folder, "rev-parse", "HEAD")
        later = "2025-01-01T00:00:00Z"
        git(folder, "tag", "-a", "late", "-m", TOKEN, date=later)
        (folder / "code.py").write_text(f"past = 2\nanswer = '{TOKEN}'\n")
        git(folder, "stash", "-q", date=later)
        git(folder, "stash", "apply", "-q", date=later)
        git(folder, "commit", "-qam", f"Fix: {TOKEN}", date=later)
        self.fix = git(folder, "rev-parse", "HEAD")
        self.blob = git(folder, "rev-parse", "HEAD:code.py")
        git(folder, "tag", "v2.0")
        git(folder, "branch", "topic")
        git(folder, "notes", "add", "-m", TOKEN, self.base, date=later)
        git(folder, "update-ref", "refs/pull/1/head", self.fix)
        git(folder, "commit", "-q", "--amend", "-m", f"Dangling: {TOKEN}", date=later)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    return Upstream(tmp_path_factory.mktemp("upstream") / "repository")


@pytest.fixture(scope="module", params=["none", "1", "full"])
def instance(
    request: pytest.FixtureRequest, upstream: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instance]:
    root = tmp_path_factory.mktemp("cache")
    store, log = Store(root / "store"), root / "log"
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("MINISANDBOX_NODE_STORE", str(root / "node"))
        checkout = make_checkout(
            upstream.folder,
            upstream.base,
            history=request.param,
            store=store,
            log=log,
            name="leaks",
            url="here",
            clone="here",
            limits=Limits(),
        )
        with Workshop([checkout.layer], store=store, network="none", log=log, name="leaks") as shop:
            shop.run("echo made > made.txt", failure="install", what="install", cwd="/testbed")
            head = commit_install(shop, date=checkout.date)
            layer = shop.pack("instance")
    node = NodeStore(root / "node", current())
    layers = [checkout.layer, layer]
    with start_instance(
        layers, head_tree=head.tree, store=store, node=node, name=request.param
    ) as started:
        yield started
    remove_tree(node.root, node.idmap)


def said(instance: Instance, command: str) -> str:
    return instance.run(command, merge_stderr=True).text


OBJECTS = "git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)'"


def test_nothing_newer_is_present_as_an_object(instance: Instance, upstream: Upstream) -> None:
    listing = [line.split() for line in said(instance, OBJECTS).splitlines()]
    names = {name for _, name in listing}
    assert upstream.base in names
    assert upstream.blob not in names
    assert upstream.fix not in names
    commits = " ".join(name for kind, name in listing if kind == "commit")
    dates = said(instance, f"git show -s --format=%ct {commits}").split()
    assert max(map(int, dates)) == 1704067200  # BASE_DATE
    tags = " ".join(name for kind, name in listing if kind == "tag")
    assert not tags or "tagger" in said(instance, f"git cat-file -p {tags.split()[0]}")
    content = "git cat-file --batch-all-objects --batch --buffer | tr -d '\\0'"
    assert TOKEN not in said(instance, content)


@pytest.mark.parametrize(
    "command",
    [
        "git reflog --all",
        "git fsck --lost-found --no-progress",
        "git stash list",
        "git remote -v",
        "git notes list",
        f"git log --all --oneline -S{TOKEN}",
        (
            "ls -d .git/ORIG_HEAD .git/FETCH_HEAD .git/logs .git/objects/info/alternates 2>&1 "
            "| grep -v 'No such'"
        ),
        f"grep -ra {TOKEN} /testbed",
    ],
)
def test_what_could_lead_there_says_nothing(instance: Instance, command: str) -> None:
    assert said(instance, command) == ""


def test_references_are_those_of_the_past(instance: Instance, upstream: Upstream) -> None:
    refs = said(instance, "git for-each-ref --format='%(refname)'").split()
    assert set(refs) <= {"refs/heads/main", "refs/tags/v1.0", "refs/tags/late"}
    assert upstream.fix not in said(instance, "cat .git/packed-refs .git/HEAD")
    assert said(instance, "git rev-parse HEAD~1").strip() == upstream.base


def test_git_works_as_it_did_upstream(instance: Instance, upstream: Upstream) -> None:
    assert said(instance, "git status --porcelain") == ""
    assert said(instance, "git diff") == ""
    assert "answer = 41" in said(instance, "git blame code.py")
    depth = {"none": 1, "1": 2, "full": 4}[instance.sandbox.name]
    log = said(instance, "git log --format=%s HEAD~1").splitlines()
    assert log == ["Base", "Past 2", "Past 1", "Past 0"][:depth]
    if depth > 1:
        upstreams = git(upstream.folder, "describe", "--tags", "--match", "v*", upstream.base)
        assert said(instance, "git describe --tags --match 'v*' HEAD~1").strip() == upstreams


NAME = "test_the_hidden_claim"
TEST_PATCH = difference("test_hidden.py", None, f"def {NAME}():\n    assert answer == 42\n")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallProject]:
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "node"))
    made = SmallProject(tmp_path, {"code.py": "answer = 41\n"})
    yield made
    made.close()


def test_no_word_of_the_tests_is_in_the_box_before_grading(project: SmallProject) -> None:
    cache = project.cache(
        test_patch=TEST_PATCH,
        patch=difference("code.py", "answer = 41\n", f"answer = '{TOKEN}'\n"),
        FAIL_TO_PASS=(f"test_hidden.py::{NAME}",),
        problem_statement="It is wrong.",
    )
    places = "/testbed /tmp /var/tmp /root /home /etc /opt /run /srv /mnt /dev/shm"
    words = "|".join([NAME, "test_hidden", TOKEN])
    with cache.materialize("small-1") as instance:
        # The pattern is given on standard input, else the search finds itself in /proc.
        found = instance.run(f"grep -rslaE -f - {places}", stdin=words.encode())
        assert found.stdout_text == ""
        found = instance.run(
            "for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do grep -laE -f /dev/fd/3 $f; "
            'done 3<<< "$(cat)"; env',
            stdin=words.encode(),
        )
        assert not any(word in found.stdout_text for word in (NAME, "test_hidden", TOKEN))
        # The search finds what is there.
        instance.write_file("/tmp/leak", f"see {NAME}")
        found = instance.run(f"grep -rslaE -f - {places}", stdin=words.encode())
        assert found.stdout_text == "/tmp/leak\n"
