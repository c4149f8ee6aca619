"""Checkouts on a node: told against one that they are like, with git's objects made there."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest

from minisandbox import archive
from minisandbox.archive.members import BLOCK, Kind, Member, encode_header, padding
from minisandbox.build.checkouts.checkout import Checkout, make_checkout
from minisandbox.errors import LayerDamaged
from minisandbox.idmap import IdMap, call_mapped, remove_tree
from minisandbox.sandbox import Limits, Sandbox
from minisandbox.store import NodeStore, Store
from minisandbox.store.checking import verify_node
from minisandbox.store.gitobjects import read_index, trees
from minisandbox.store.packs.consolidation import consolidate

Commits = dict[str, str]


def git(folder: Path, *words: str) -> str:
    identity = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME",)}
    identity |= {f"GIT_{who}_EMAIL": "x@x" for who in ("AUTHOR", "COMMITTER")}
    identity |= {f"GIT_{who}_DATE": "@1700000000 +0000" for who in ("AUTHOR", "COMMITTER")}
    done = subprocess.run(
        ["git", "-c", "core.autocrlf=false", *words],
        cwd=folder,
        env={**os.environ, **identity, "GIT_CONFIG_GLOBAL": "/dev/null"},
        check=True,
        capture_output=True,
    )
    return done.stdout.decode("utf-8", "surrogateescape")


def grow(folder: Path) -> Iterator[str]:
    """Change a project step by step; yields the name of each step."""
    for number in range(40):
        path = folder / f"package/part{number % 4}/module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"value = {number}\n" * 20)
    for name in ("package/__init__.py", "package/part0/__init__.py", "package/part1/__init__.py"):
        (folder / name).write_bytes(b"")
    (folder / "link").symlink_to("package/__init__.py")
    (folder / "tool.sh").write_text("echo tool\n")
    (folder / "tool.sh").chmod(0o755)
    (folder / "swapped").mkdir()
    (folder / "swapped/inner").write_text("inner\n")
    (folder / "other").write_text("a file\n")
    (folder / "lines.txt").write_text("one\ntwo\n")
    (folder / "keyword.id").write_text("$Id$\n")
    yield "first"
    (folder / "package/part2/module2.py").write_text("value = 'changed'\n")
    (folder / "package/part3/__init__.py").write_bytes(b"")  # one more of what there are three of
    (folder / os.fsdecode(b"latin-\xe9")).write_text("name\n")
    (folder / "two\nlines").write_text("name\n")
    yield "edited"
    subprocess.run(["rm", "-r", "swapped", "other", "package/part1"], cwd=folder, check=True)
    (folder / "swapped").write_text("now a file\n")
    (folder / "other").mkdir()
    (folder / "other/inner").write_text("now a directory\n")
    (folder / "tool.sh").chmod(0o644)
    (folder / "link").unlink()
    (folder / "link").symlink_to("tool.sh")
    yield "turned"
    (folder / ".gitattributes").write_text("*.txt text eol=crlf\n*.id ident\n")
    yield "converted"
    for number in range(40, 400):
        (folder / f"package/part0/module{number}.py").write_text(f"{number}\n")
    yield "grown"
    for number in range(40, 140):
        (folder / f"package/part0/module{number}.py").write_text(f"new {number}\n")
    (folder / "copied.py").write_text("300\n")  # like another that stays
    yield "moved"
    for number in range(100, 170):
        (folder / f"package/part0/module{number}.py").write_text(f"{number}\n" * 2)
    for number in range(40, 60):
        (folder / f"package/part0/module{number}.py").write_text(f"{number}\n")  # as once before
    (folder / "package/part0/module300.py").unlink()
    (folder / "again.py").write_text("300\n")
    yield "moved on"
    (folder / "again.py").write_text("again\n")
    (folder / "once more.py").write_text("300\n")
    yield "at last"


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Commits]:
    folder = tmp_path_factory.mktemp("upstream")
    git(folder, "init", "-q", "-b", "main")
    commits: Commits = {}
    for step in grow(folder):
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", step)
        commits[step] = git(folder, "rev-parse", "HEAD").strip()
    return folder / ".git", commits


@pytest.fixture(scope="module", params=["loose", "packed"])
def packed(
    upstream: tuple[Path, Commits],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Store, dict[str, Checkout]]]:
    folder, commits = upstream
    root = tmp_path_factory.mktemp("packed")
    store = Store(root / "store")
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("MINISANDBOX_NODE_STORE", str(root / "node"))
        checkouts = {
            step: make_checkout(
                folder,
                commit,
                history="none",
                store=store,
                log=root / "log",
                name=step,
                url="here",
                clone="here",
                limits=Limits(),
            )
            for step, commit in commits.items()
        }
        if request.param == "packed":
            assert len(consolidate(store).layers) == len(checkouts)
        yield store, checkouts


@pytest.fixture
def node(tmp_path: Path, idmap: IdMap) -> Iterator[NodeStore]:
    yield NodeStore(tmp_path / "node", idmap)
    remove_tree(tmp_path / "node", idmap)


@pytest.fixture
def opened(packed: tuple[Store, dict[str, Checkout]], node: NodeStore) -> Callable[..., Sandbox]:
    store, checkouts = packed

    def opened(step: str, group: str = "group") -> Sandbox:
        folders = node.ensure_source(store, checkouts[step].layer.digest, group=group)
        return Sandbox.start(
            folders, scratch=node.scratch, idmap=node.idmap, cwd="/testbed", name=step
        )

    return opened


def said(sandbox: Sandbox, command: str) -> str:
    result = sandbox.run(command, merge_stderr=True)
    assert result.exit_code == 0, result.text
    return result.stdout.decode("utf-8", "surrogateescape").strip()


@pytest.mark.parametrize(
    ("before", "step"),
    [
        (["first"], "edited"),
        (["first"], "turned"),
        (["first"], "converted"),
        (["converted"], "first"),
        (["turned"], "first"),
        (["first"], "grown"),
        (["grown", "moved"], "moved on"),
        (["grown", "moved", "moved on"], "at last"),
        (["at last", "moved on", "moved"], "grown"),
    ],
)
def test_a_checkout_is_that_of_its_commit(
    opened: Callable[..., Sandbox], upstream: tuple[Path, Commits], before: list[str], step: str
) -> None:
    folder, commits = upstream
    for other in before:
        opened(other).close()
    with opened(step) as box:
        assert said(box, "git status --porcelain; git stash list; git remote") == ""
        assert said(box, "git fsck --full --strict --no-progress --unreachable") == ""
        assert said(box, "git rev-parse HEAD") == commits[step]
        every = "git cat-file --batch-all-objects --batch-check='%(objectname)' | sort"
        assert said(box, every) == said(box, "git rev-list --objects HEAD | cut -c1-40 | sort")
        # All that lies there, directories too, and nothing of the checkout it is told against.
        listed = said(box, "find . -path ./.git -prune -o -type f -print -o -type l -print | sort")
        tree = git(folder, "ls-tree", "-r", "-z", "--name-only", commits[step]).split("\0")[:-1]
        names = sorted(("./" + name for name in tree), key=os.fsencode)
        assert listed == said(box, "printf '%s\\n' " + " ".join(map(quoted, names)) + " | sort")
        said(box, "git checkout -q -f HEAD && git reset -q --hard && git diff --exit-code HEAD")
        said(box, "rm -rf package && git checkout -q HEAD -- package && git diff --exit-code HEAD")


def quoted(name: str) -> str:
    return "'" + name.replace("'", "'\\''") + "'"


def test_one_that_differs_little_is_a_difference(
    packed: tuple[Store, dict[str, Checkout]], node: NodeStore
) -> None:
    store, checkouts = packed
    layers = {step: checkout.layer.digest for step, checkout in checkouts.items()}
    (first,) = node.ensure_source(store, layers["first"], group="one")
    below, edited = node.ensure_source(store, layers["edited"], group="one")
    assert below == first
    assert node.source(layers["edited"]) == (first, edited)
    assert len(node.ensure_source(store, layers["grown"], group="one")) == 1
    assert node.ensure_source(store, layers["turned"], group="other")[:-1] == (first,)
    assert len(node.ensure_source(store, layers["converted"])) == 1

    def counted() -> tuple[int, bool]:
        names = {path.relative_to(edited) for path in edited.rglob("*")}
        return len(names), (edited / "testbed/package/part0/module0.py").exists()

    files, unchanged = call_mapped(node.idmap, counted)
    assert not unchanged
    assert files < 60


def test_a_reference_that_cannot_be_read_is_none(
    packed: tuple[Store, dict[str, Checkout]], node: NodeStore
) -> None:
    store, checkouts = packed
    (first,) = node.ensure_source(store, checkouts["first"].layer.digest, group="one")
    written = first.with_name("listing")
    call_mapped(node.idmap, partial(written.write_bytes, b"of another version"))
    assert len(node.ensure_source(store, checkouts["edited"].layer.digest, group="one")) == 1
    assert len(node.ensure_source(store, checkouts["turned"].layer.digest, group="one")) == 2


def test_a_source_is_made_anew_where_its_reference_became_a_difference(
    packed: tuple[Store, dict[str, Checkout]], node: NodeStore, opened: Callable[..., Sandbox]
) -> None:
    store, checkouts = packed
    first, edited, turned = (checkouts[step].layer.digest for step in ("first", "edited", "turned"))
    (below,) = node.ensure_source(store, first, group="group")
    assert len(node.ensure_source(store, edited, group="group")) == 2
    assert len(pickle.dumps(node)) < 1000, "what another process gets has no listing with it"
    remove_tree(below.parent, node.idmap)
    assert len(node.ensure_source(store, turned, group="group")) == 1
    assert len(node.ensure_source(store, first, group="group")) == 2
    with opened("edited") as box:
        assert said(box, "git status --porcelain; git fsck --full --no-progress") == ""


def test_a_reference_shows_nothing_that_it_does_not_list(
    packed: tuple[Store, dict[str, Checkout]], node: NodeStore
) -> None:
    store, checkouts = packed
    with store.open(checkouts["first"].layer.digest) as stream:
        honest = stream.read()
    more = tar({b"testbed/evil/conftest.py": b"raise SystemExit\n"})  # in no listed directory
    layer = store.add_written("source", lambda out: _write(out, honest[: -2 * BLOCK] + more))
    node.ensure_source(store, layer.digest, group="one")
    folders = node.ensure_source(store, checkouts["edited"].layer.digest, group="one")
    assert not any((folder / "testbed/evil").exists() for folder in folders)


def _write(out: BinaryIO, data: bytes) -> archive.PackStats:
    out.write(data)
    return archive.PackStats(len(data), 1)


def test_byte_code_that_a_project_tracks_keeps_its_objects(
    tmp_path: Path, node: NodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "builds"))
    work = tmp_path / "work"
    (work / "__pycache__").mkdir(parents=True)
    git(work, "init", "-q", "-b", "main")
    for name in ("module.py", "module.pyc", "__pycache__/module.cpython-39.pyc"):
        (work / name).write_text(name)
    git(work, "add", "-A", "-f")
    git(work, "commit", "-q", "-m", "x")
    store = Store(tmp_path / "store")
    checkout = make_checkout(
        work / ".git",
        git(work, "rev-parse", "HEAD").strip(),
        history="none",
        store=store,
        log=tmp_path / "log",
        name="x",
        url="here",
        clone="here",
        limits=Limits(),
    )
    folders = node.ensure_source(store, checkout.layer.digest, group="one")
    with Sandbox.start(folders, scratch=node.scratch, idmap=node.idmap, cwd="/testbed") as box:
        assert said(box, "git fsck --full --no-progress") == ""
        assert said(box, "git show HEAD:module.pyc") == "module.pyc"
    remove_tree(tmp_path / "builds", node.idmap)


def test_equal_files_of_two_checkouts_are_one_and_of_one_are_two(
    packed: tuple[Store, dict[str, Checkout]], node: NodeStore
) -> None:
    store, checkouts = packed
    (first,) = node.ensure_source(store, checkouts["first"].layer.digest, group="one")
    (second,) = node.ensure_source(store, checkouts["edited"].layer.digest)
    same = "testbed/package/part0/module0.py"
    assert (first / same).stat().st_ino == (second / same).stat().st_ino
    empty = [first / f"testbed/package/{name}__init__.py" for name in ("", "part0/", "part1/")]
    assert len({path.stat().st_ino for path in empty}) == 3
    commit = checkouts["first"].commit
    blob = next(
        path for path in (first / "testbed/.git/objects").glob("??/*") if commit not in str(path)
    )
    assert blob.stat().st_nlink > 1


def test_copying_one_equal_file_over_another_works(opened: Callable[..., Sandbox]) -> None:
    opened("first").close()
    with opened("edited") as box:
        for target in ("package/part3/__init__.py", "package/part1/__init__.py"):
            said(box, f"cp package/part0/__init__.py {target}")
            said(
                box,
                f'python3 -c \'import shutil; shutil.copyfile("package/__init__.py", "{target}")\'',
            )


def test_sources_lie_on_those_that_they_are_most_like(
    packed: tuple[Store, dict[str, Checkout]], node: NodeStore
) -> None:
    store, checkouts = packed
    steps = ("first", "grown", "moved", "moved on", "at last")
    found = [
        node.ensure_source(store, checkouts[step].layer.digest, group=step.replace(" ", ""))
        for step in steps
    ]
    first, grown, moved, moved_on, at_last = (folders[-1] for folders in found)
    assert found == [
        *((first,), (grown,), (grown, moved), (grown, moved, moved_on)),
        (grown, moved, moved_on, at_last),
    ]
    assert all(item.problem is None for item in verify_node(node, store))
    # Nothing lies on what nothing is told against.
    assert not (at_last.parent / "changes").exists()


def test_in_no_chain_of_sources_two_names_are_one_file(
    packed: tuple[Store, dict[str, Checkout]], node: NodeStore, opened: Callable[..., Sandbox]
) -> None:
    store, checkouts = packed
    for step in ("grown", "moved"):
        node.ensure_source(store, checkouts[step].layer.digest, group="group")
    fresh = NodeStore(node.root, node.idmap)  # that knows the slots of files from notes alone
    for step in ("moved on", "at last"):
        folders = fresh.ensure_source(store, checkouts[step].layer.digest, group="group")
    assert len(folders) == 4
    _, moved, moved_on, at_last = (folder / "testbed" for folder in folders)
    same = ["copied.py", "again.py", "once more.py"]
    held = (moved / same[0], moved_on / same[1], at_last / same[2])
    inodes = call_mapped(node.idmap, lambda: [path.stat().st_ino for path in held])
    assert inodes[0] not in inodes[1:]
    with opened("moved on") as box:
        said(box, f"cp {same[0]} {same[1]}")
    with opened("at last") as box:
        said(box, f"cp {same[0]} '{same[2]}'")
        assert said(box, "git status --porcelain; git fsck --full --no-progress") == ""


def test_what_came_back_is_one_file_with_what_it_was(
    packed: tuple[Store, dict[str, Checkout]], node: NodeStore
) -> None:
    store, checkouts = packed
    for step in ("grown", "moved", "moved on"):
        folders = node.ensure_source(store, checkouts[step].layer.digest, group="group")
    path = "testbed/package/part0/module50.py"

    def inodes() -> list[int]:
        return [(folder / path).stat().st_ino for folder in folders]

    grown, moved, moved_on = call_mapped(node.idmap, inodes)
    assert grown == moved_on != moved


@pytest.mark.parametrize("kind", [b"blob", b"tree", b"commit"])
def test_objects_and_files_are_verified_by_their_names(
    packed: tuple[Store, dict[str, Checkout]], node: NodeStore, kind: bytes
) -> None:
    store, checkouts = packed
    layers = [checkouts[step].layer.digest for step in ("first", "edited", "turned", "converted")]
    for digest in layers:
        node.ensure_source(store, digest, group="one")
    found = list(verify_node(node, store))
    assert [(item.problem, item.unchecked) for item in found] == [(None, "")] * 4
    tree = node.source(layers[1])[-1]

    def damage() -> str:
        objects = tree / "testbed/.git/objects"
        files = (path for path in sorted(objects.glob("??/*")) if path.is_file())
        found = ((path, path.read_bytes()) for path in files)
        path, held = next(item for item in found if zlib.decompress(item[1]).startswith(kind))
        date, data = path.stat().st_mtime_ns, bytearray(held)
        data[-5] ^= 1
        path.chmod(0o644)
        path.write_bytes(data)
        path.chmod(0o444)
        os.utime(path, ns=(date, date))
        return str(path.relative_to(tree))

    path = call_mapped(node.idmap, damage)
    found = [item for item in verify_node(node, store) if item.problem is not None]
    assert [item.name for item in found if item.problem == f"{path} has another content"]
    for digest in layers:
        node.ensure_source(store, digest, group="one")
    assert all(item.problem is None for item in verify_node(node, store))


def test_sandboxes_of_one_reference_do_not_see_each_other(opened: Callable[..., Sandbox]) -> None:
    with opened("first") as first, opened("edited") as second:
        said(first, "echo 'value = 0' > package/part0/module0.py; git add -A; chmod 600 tool.sh")
        said(first, "rm -rf .git/objects/??")
        assert said(second, "git fsck --full --no-progress; git status --porcelain") == ""
        assert said(second, "stat -c %a tool.sh") == "755"


def test_trees_are_those_that_git_writes(upstream: tuple[Path, Commits]) -> None:
    folder, commits = upstream
    git(folder, "read-tree", commits["converted"])
    made = trees(read_index((folder / "index").read_bytes()))
    assert made.root.hex() == git(folder, "rev-parse", f"{commits['converted']}^{{tree}}").strip()
    listed = git(folder, "ls-tree", "-r", "-t", commits["converted"]).splitlines()
    below = {line.split()[2] for line in listed if line.split()[1] == "tree"}
    assert {name.hex() for name in made.contents} == {*below, made.root.hex()}


def tar(members: dict[bytes, bytes | None]) -> bytes:
    out = io.BytesIO()
    for path, content in members.items():
        kind = Kind.DIRECTORY if content is None else Kind.FILE
        size = len(content or b"")
        out.write(encode_header(Member(path, kind, 0o755, 0, 0, 10**18, size)))
        out.write((content or b"") + bytes(padding(size)))
    return out.getvalue() + bytes(2 * BLOCK)


def index_of(path: bytes) -> bytes:
    """An index of one file with this path."""
    entry = struct.pack(">40s20sH", b"", bytes(20), min(len(path), 0xFFF)) + path
    body = struct.pack(">4sII", b"DIRC", 2, 1) + entry + bytes(8 - len(entry) % 8)
    return body + hashlib.sha1(body).digest()


def fan_of(content: bytes) -> str:
    """The directory that the object of a file lies in."""
    return "objects/" + hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()[:2]


def flipped(data: bytes) -> bytes:
    """With another last byte, whatever it was."""
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda files: files.update(file=b"changed\n"), "is not what git's index says"),
        (lambda files: files.update(HEAD=b"ref: refs/heads/gone\n"), "no reference"),
        (lambda files: files.update(HEAD=b"0" * 40 + b"\n"), "is not there"),
        (lambda files: files.update(HEAD=b"0" * 9000), "its HEAD is none of git's"),
        (lambda files: files.update(index=flipped(files["index"])), "the checksum"),
        (lambda files: files.update(index=b""), "too short"),
        (lambda files: files.update(index=index_of(b"d/" * 3000 + b"f")), "more than 4096 bytes"),
        (lambda files: files.update({fan_of(b"content\n"): b"no directory"}), "is no directory"),
    ],
)
def test_a_checkout_that_contradicts_itself_is_refused(
    tmp_path: Path,
    node: NodeStore,
    damage: Callable[[dict[str, bytes]], None],
    sentence: str,
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init", "-q", "-b", "main")
    (work / "file").write_bytes(b"content\n")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "x")
    git(work, "pack-refs", "--all")
    commit = git(work, "rev-parse", "HEAD").strip()
    dot, object_file = work / ".git", f"objects/{commit[:2]}/{commit[2:]}"
    names = ("HEAD", "packed-refs", "index", object_file)
    files = {name: (dot / name).read_bytes() for name in names} | {"file": b"content\n"}
    damage(files)
    content: dict[bytes, bytes | None] = {b"testbed": None, b"testbed/.git": None}
    content |= {
        b"testbed/.git/objects": None,
        b"testbed/.git/objects/%b" % commit[:2].encode(): None,
    }
    git_files = files.keys() - {"file"}
    content |= {b"testbed/.git/" + name.encode(): files[name] for name in sorted(git_files)}
    store = Store(tmp_path / "store")
    layer = store_tar(store, tmp_path, tar(content | {b"testbed/file": files["file"]}), node.idmap)
    with pytest.raises(LayerDamaged, match=sentence):
        node.ensure_source(store, layer, group="one")
    assert node.source(layer) == ()


def store_tar(store: Store, place: Path, data: bytes, idmap: IdMap) -> str:
    """Store what a tar holds."""
    target = place / "laid"
    call_mapped(idmap, partial(archive.unpack, io.BytesIO(data), target, idmap=idmap))
    digest = store.add("source", target, date=1_600_000_000, idmap=idmap).digest
    remove_tree(target, idmap)
    return digest
