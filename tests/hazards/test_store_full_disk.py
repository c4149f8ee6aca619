"""D8, H1: a full, read-only or forbidden store says so in a sentence and holds no half."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minisandbox.idmap import current
from minisandbox.store import NodeStore, Store, StoreUnusable

UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]
PRELUDE = """
import errno, os, sys
from pathlib import Path
from minisandbox.idmap import current
from minisandbox.store import NodeStore, Store, StoreUnusable

place = Path(sys.argv[1])
idmap = current()

def add(store, tree="tree"):
    return store.add("environment", place / tree, date=1_600_000_000, idmap=idmap)

def files(root):
    # All but locks.
    found = (path for path in root.rglob("*") if not path.is_dir() and path.suffix != ".lock")
    return sorted(path for path in found if path.parent.name != "uses")

def refused(action, number):
    try:
        action()
    except StoreUnusable as error:
        assert error.errno == number, error
        assert isinstance(error.__cause__, OSError)
        print(error)
    else:
        raise AssertionError("nothing was refused")
"""


def in_private_mounts(place: Path, mount: str, script: str) -> list[str]:
    """Run ``script`` where the shell command ``mount`` was done for it alone; its output."""
    tree = place / "tree"
    if not tree.exists():
        tree.mkdir()
        for number in range(10):
            (tree / f"file-{number}").write_bytes(os.urandom(200_000))
    inner = f'cd "$2" && {mount} && exec "$0" -c "$1" "$2"'
    words = [*UNSHARE, "sh", "-c", inner, sys.executable, PRELUDE + script, str(place)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_packing_into_a_full_disk(tmp_path: Path) -> None:
    lines = in_private_mounts(
        tmp_path,
        "mkdir full && mount -t tmpfs -o size=1m none full",
        """
store = Store(place / "full")
refused(lambda: add(store), errno.ENOSPC)
assert files(place / "full") == []
assert list(store.digests()) == []
""",
    )
    (line,) = lines
    assert line == (
        f"cannot write to the store {tmp_path}/full: No space left on device; "
        "free some space there, or use a directory on another file system"
    )


def test_unpacking_into_a_full_disk(tmp_path: Path) -> None:
    lines = in_private_mounts(
        tmp_path,
        "mkdir full && mount -t tmpfs -o size=1m none full",
        """
store = Store(place / "store")
ref = add(store)
node = NodeStore(place / "full", idmap)
refused(lambda: node.ensure(store, ref.digest), errno.ENOSPC)
assert files(place / "full") == []
assert list(node.path(ref.digest).parent.iterdir()) == []
""",
    )
    assert len(lines) == 1
    assert lines[0].startswith(f"cannot unpack a layer into the node store {tmp_path}/full/")


def test_unpacking_without_a_free_inode(tmp_path: Path) -> None:
    in_private_mounts(
        tmp_path,
        "mkdir full && mount -t tmpfs -o nr_inodes=12 none full",
        """
store = Store(place / "store")
ref = add(store)
node = NodeStore(place / "full", idmap)
refused(lambda: node.ensure(store, ref.digest), errno.ENOSPC)
assert files(place / "full") == []
""",
    )


@pytest.mark.parametrize("full", ["inodes", "bytes"])
def test_a_full_disk_can_be_collected(tmp_path: Path, full: str) -> None:
    """It is what is done about it: no lock and no account may be in the way."""
    option = "nr_inodes=60" if full == "inodes" else "size=4m"
    in_private_mounts(
        tmp_path,
        f"mkdir full && mount -t tmpfs -o {option} none full",
        """
from minisandbox.store.collecting import collect

def fill():
    try:
        for number in range(100_000):
            with open(place / f"full/{number}", "wb") as file:
                file.write(bytes(size))
    except OSError as error:
        assert error.errno == errno.ENOSPC

size = 4096 if sys.argv[2:] == ["bytes"] else 0
store = Store(place / "store")
node = NodeStore(place / "full/node", idmap)
ref = add(store)
node.ensure(store, ref.digest)
fill()
assert collect(node, None).removed == []
assert len(collect(node, 1, dry_run=True).removed) == 1
assert [item.name for item in collect(node, 1).removed] == [ref.digest.removeprefix("sha256:")]
for path in (place / "full").glob("[0-9]*"):
    path.unlink()
node.ensure(store, ref.digest)
""".replace("sys.argv[2:]", repr([full])),
    )


def test_read_only_stores_serve_what_they_hold(tmp_path: Path) -> None:
    lines = in_private_mounts(
        tmp_path,
        "mkdir fixed && mount -t tmpfs none fixed",
        """
store, node = Store(place / "fixed/store"), NodeStore(place / "fixed/node", idmap)
ref = add(store)
path = node.ensure(store, ref.digest)
(place / "tree/new").touch()
other = add(Store(place / "other"))
assert os.system("mount -o remount,bind,ro fixed") == 0
assert NodeStore(place / "fixed/node", idmap).ensure(store, ref.digest) == path
assert [found.problem for found in store.verify()] == [None]
assert NodeStore(place / "node", idmap).ensure(store, ref.digest).is_dir()
refused(lambda: add(store), errno.EROFS)
refused(lambda: node.ensure(Store(place / "other"), other.digest), errno.EROFS)
os.environ["MINISANDBOX_SCRATCH"] = str(place / "fixed/elsewhere")
refused(lambda: node.scratch, errno.EROFS)
""",
    )
    assert [line.partition(" /")[0] for line in lines] == [
        "cannot write to the store",
        "cannot unpack a layer into the node store",
        "cannot use the scratch directory",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="needs to be an ordinary user")
def test_forbidden_stores(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    shut = tmp_path / "shut"
    shut.mkdir(0o500)
    store, idmap = Store(tmp_path / "store"), current()
    ref = store.add("environment", tmp_path / "tree", date=1_600_000_000, idmap=idmap)
    with pytest.raises(StoreUnusable, match=r"cannot write to the store .*make it accessible"):
        Store(shut).add("environment", tmp_path / "tree", date=1_600_000_000, idmap=idmap)
    with pytest.raises(StoreUnusable, match="cannot unpack a layer into the node store"):
        NodeStore(shut, idmap).ensure(store, ref.digest)
    store.path(ref.digest).chmod(0)
    with pytest.raises(StoreUnusable, match=r"cannot read .*Permission denied"):
        NodeStore(tmp_path / "node", idmap).ensure(store, ref.digest)
    problem = next(store.verify()).problem
    assert problem is not None
    assert "Permission denied" in problem
