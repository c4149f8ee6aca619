"""H1, H8: whatever dies, fills up or is damaged, no sandbox ever stands on anything wrong, and what
is collected is never in use.

MINISANDBOX_STRESS_ROUNDS is how often the races are run (20).
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minisandbox import atomic
from minisandbox.errors import LayerDamaged
from minisandbox.idmap import call_mapped, current, remove_tree
from minisandbox.records.layer import LayerRef
from minisandbox.runtime import Cache
from minisandbox.runtime.prefetching import PrefetchBroken, prefetch, spread
from minisandbox.runtime.stack import stack
from minisandbox.sandbox import Sandbox
from minisandbox.store import NodeStore, Store
from minisandbox.store.checking import verify_node
from minisandbox.store.collecting import collect
from minisandbox.store.usage import items_in
from small_projects import DATE, write_manifest

ROUNDS = int(os.environ.get("MINISANDBOX_STRESS_ROUNDS", "20"))
IDMAP = current()
UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]


class Project:
    """A cache of four instances, whose layers are an environment, a checkout and an install."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store(root / "store", level=1)
        self.node = NodeStore(root / "node", IDMAP)
        source = random.Random(0)
        files = {
            f"opt/d{n % 7}/f{n}": source.randbytes(source.randrange(40_000)) for n in range(90)
        }
        environment = self._pack("environment", "environment", files)
        common = {f"testbed/d{n % 5}/f{n}": b"%d\n" % n * 700 for n in range(60)}
        self.layers: dict[str, tuple[LayerRef, ...]] = {}
        #: What a sandbox of each instance has to show.
        self.expected: dict[str, str] = {}
        for number in range(4):
            own = {f"testbed/d{number}/own": b"%d" % number * 3000}
            made = {"testbed/made.txt": b"made %d\n" % number}
            self.layers[f"small-{number}"] = (
                environment,
                self._pack("source", f"source-{number}", common | own),
                self._pack("instance", f"instance-{number}", made),
            )
            self.expected[f"small-{number}"] = digest(files | common | own | made)

    def _pack(self, kind: str, name: str, files: dict[str, bytes]) -> LayerRef:
        tree = self.root / "trees" / name
        for path, content in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        assert kind in ("environment", "source", "instance")
        return self.store.add(kind, tree, date=DATE, idmap=IDMAP)

    def cache(self) -> Cache:
        rows = [{"instance_id": name, "layers": layers} for name, layers in self.layers.items()]
        write_manifest(self.root, rows)
        return Cache(self.root, self.store, self.node)

    def use(self, name: str) -> None:
        """Look at all that the layers of an instance show, without a sandbox."""
        node = NodeStore(self.node.root, IDMAP)
        with stack(self.layers[name], store=self.store, node=node) as stacked:
            assert call_mapped(IDMAP, lambda: shown(stacked.layers)) == self.expected[name]

    def start(self, name: str) -> None:
        """The same in a sandbox, which stands on it for a while."""
        node = NodeStore(self.node.root, IDMAP)
        with stack(self.layers[name], store=self.store, node=node) as stacked:
            box = Sandbox.start(
                stacked.layers, scratch=node.scratch, idmap=IDMAP, lease=stacked.lease
            )
        with box:
            for _ in range(2):
                told = box.run(
                    "cd / && find opt testbed -type f -print0 | LC_ALL=C sort -z"
                    " | while IFS= read -r -d '' f; do printf '%s ' \"$f\"; cat \"$f\"; done"
                    " | sha256sum"
                ).text
                assert told.split()[0] == self.expected[name]
                time.sleep(0.05)


def digest(files: dict[str, bytes]) -> str:
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(path.encode() + b" " + files[path])
    return total.hexdigest()


def shown(layers: tuple[Path, ...]) -> str:
    files: dict[str, bytes] = {}
    for layer in layers:
        for path in layer.rglob("*"):
            name = str(path.relative_to(layer))
            if path.is_char_device():
                files.pop(name, None)
            elif path.is_file():
                files[name] = path.read_bytes()
    return digest(files)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    root = tmp_path_factory.mktemp("project")
    yield Project(root)
    remove_tree(root, IDMAP)


@pytest.fixture
def fresh(project: Project) -> Project:
    """With an empty node store."""
    remove_tree(project.node.root, IDMAP)
    return project


def in_child(function: Callable[[], object]) -> int:
    """Fork a child that runs ``function``; returns its pid. Its code is 0 if nothing was raised."""
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException as error:  # noqa: BLE001 - said where the test can be read
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    return pid


def codes(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def check_whole(project: Project) -> None:
    """All of it is there, right, and nothing besides."""
    for name in project.layers:
        project.use(name)
    findings = list(verify_node(project.node, project.store))
    assert [found.problem for found in findings] == [None] * len(findings)
    assert len(findings) == 9
    collect(project.node, None)
    assert not [*project.node.base.glob("*/.*.tmp")]


@pytest.mark.timeout(120 + 30 * ROUNDS)
def test_eight_processes_of_which_one_is_killed(fresh: Project) -> None:
    names = list(fresh.layers)
    chance = random.Random(3)

    def work(number: int) -> None:
        order = names[number % 4 :] + names[: number % 4]
        for name in order:
            (fresh.start if number < 2 and name == order[0] else fresh.use)(name)

    started = time.monotonic()
    assert codes([in_child(lambda n=n: work(n)) for n in range(8)]) == [0] * 8
    took = time.monotonic() - started
    killed = 0
    for _ in range(ROUNDS):
        remove_tree(fresh.node.base, IDMAP)
        pids = [in_child(lambda n=n: work(n)) for n in range(8)]
        time.sleep(chance.uniform(0, took))
        victim = chance.randrange(8)
        os.kill(pids[victim], signal.SIGKILL)
        ended = codes(pids)
        killed += ended[victim] == -signal.SIGKILL
        del ended[victim]
        assert ended == [0] * 7
        check_whole(fresh)
    assert killed >= ROUNDS // 4


def test_what_snapshots_and_forks_stand_on_stays(fresh: Project) -> None:
    layers, limit = fresh.layers["small-1"], 1
    fresh.use("small-0")  # the reference of the other
    with stack(layers, store=fresh.store, node=fresh.node) as stacked:
        box = Sandbox.start(
            stacked.layers, scratch=fresh.node.scratch, idmap=IDMAP, lease=stacked.lease
        )
    snapshot = box.snapshot()
    box.close()
    collect(fresh.node, limit)
    with box.start_from(snapshot) as again:
        snapshot.close()
        collect(fresh.node, limit)
        with again.fork() as fork:
            again.close()
            collect(fresh.node, limit)
            assert fork.run("cat /testbed/made.txt /testbed/d2/f2").text.startswith("made 1\n2\n")
        assert len(list(items_in(fresh.node.base))) == 4
    collect(fresh.node, limit)
    assert list(items_in(fresh.node.base)) == []


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_nothing_in_use_is_collected(fresh: Project) -> None:
    names = list(fresh.layers)

    def start(number: int) -> None:
        for turn in range(max(2, ROUNDS // 4)):
            fresh.start(names[(number + turn) % 4])

    removed = 0
    starters = [in_child(lambda n=n: start(n)) for n in range(4)]
    waiting = set(starters)
    results: list[int] = []
    while waiting:
        removed += len(collect(fresh.node, 1).removed)
        for pid in [*waiting]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                waiting.remove(pid)
                results.append(os.waitstatus_to_exitcode(status))
    assert results == [0] * 4
    assert removed > 0
    collect(fresh.node, 1)
    assert list(items_in(fresh.node.base)) == []


def test_a_limit_below_what_all_need_is_kept_by_all(
    fresh: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINISANDBOX_NODE_STORE_SIZE", "4.5MB")
    names = list(fresh.layers)
    pids = [in_child(lambda n=n: [fresh.use(names[(n + k) % 4]) for k in range(4)]) for n in (0, 2)]
    assert codes(pids) == [0, 0]


def test_prefetching_is_begun_again_where_it_was_ended(fresh: Project) -> None:
    cache = fresh.cache()
    names = list(fresh.layers)
    assert sorted(spread(cache, names)) == names
    first = next(iter(prefetch(cache, names, jobs=1)))
    assert (first.problem, first.size > 0) == ("", True)
    rest = {done.instance_id: done for done in prefetch(cache, names, jobs=2)}
    assert [rest[name].problem for name in names] == [""] * 4
    assert rest[first.instance_id].size == 0
    assert sum(done.size for done in prefetch(cache, names, jobs=1)) == 0
    check_whole(fresh)


def test_what_cannot_be_prefetched_is_said_and_holds_nothing_up(fresh: Project) -> None:
    cache = fresh.cache()
    lost = fresh.store.path(fresh.layers["small-1"][1].digest)
    content = lost.read_bytes()
    lost.chmod(0o644)
    try:
        lost.write_bytes(content[: len(content) // 2])
        found = {done.instance_id: done.problem for done in prefetch(cache, cache, jobs=2)}
    finally:
        lost.write_bytes(content)
        lost.chmod(0o444)
    assert [name for name, problem in found.items() if problem] == ["small-1"]
    assert str(lost) in found["small-1"]
    assert [done.problem for done in prefetch(cache, ["small-1"], jobs=1)] == [""]
    check_whole(fresh)


def test_what_several_processes_waited_for_is_counted_once(fresh: Project) -> None:
    sizes = {ref.digest: ref.unpacked_size for refs in fresh.layers.values() for ref in refs}
    found = list(prefetch(fresh.cache(), fresh.layers, jobs=4))
    assert sum(done.size for done in found) == sum(sizes.values())


def test_a_killed_process_of_a_prefetch_is_said_and_made_up_for(fresh: Project) -> None:
    cache = fresh.cache()
    busy = fresh.layers["small-3"][-1].digest.removeprefix("sha256:")
    with atomic.locked(fresh.node.base / f"locks/{busy}.lock"):
        prefetching = prefetch(cache, fresh.layers, jobs=2)
        assert next(prefetching).problem == ""
        for child in multiprocessing.active_children():
            child.kill()
        with pytest.raises(PrefetchBroken, match=r"was killed, .*; begin again"):
            list(prefetching)
    assert {done.problem for done in prefetch(cache, fresh.layers, jobs=2)} == {""}
    check_whole(fresh)


@pytest.mark.parametrize("part", ["reference", "difference"])
def test_a_damaged_source_is_never_used_and_mended_by_a_whole_one(
    fresh: Project, part: str
) -> None:
    chance = random.Random(4)
    name = "small-0" if part == "reference" else "small-1"
    if part == "difference":
        fresh.use("small-0")
    digest = fresh.layers[name][1].digest
    packed = fresh.store.path(digest)
    content = packed.read_bytes()
    packed.chmod(0o644)
    try:
        for _ in range(20):
            data = bytearray(content)
            if chance.random() < 0.5:
                del data[chance.randrange(len(data)) :]
            else:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            packed.write_bytes(data)
            try:
                fresh.use(name)
            except LayerDamaged as error:
                assert error.digest == digest  # noqa: PT017 - some bits of a frame mean nothing
                assert fresh.node.source(digest) == ()
            else:
                remove_tree(fresh.node.base / "sources" / digest.removeprefix("sha256:"), IDMAP)
    finally:
        packed.write_bytes(content)
        packed.chmod(0o444)
    check_whole(fresh)


FULL = """
import errno, os, random, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
import test_node_store
from minisandbox.store import NodeStore, StoreUnusable

project = test_node_store.Project(Path(sys.argv[1]))
chance = random.Random(5)
full = whole = 0
for _ in range(6):
    left = chance.randrange(300, 6000) << 10
    project.node = NodeStore(Path(sys.argv[1]) / "full", test_node_store.IDMAP)
    assert os.system("mount -t tmpfs -o size=64m none full") == 0
    ballast = Path("full/ballast")
    ballast.write_bytes(bytes((64 << 20) - left))
    for name in project.layers:
        try:
            project.use(name)
            whole += 1
        except StoreUnusable as error:
            assert error.errno == errno.ENOSPC, error
            full += 1
    found = list(test_node_store.verify_node(project.node, project.store))
    assert [item.problem for item in found] == [None] * len(found), found
    ballast.unlink()
    test_node_store.check_whole(project)
    project.start("small-2")
    assert os.system("umount -l full") == 0
print(full, whole)
"""


@pytest.mark.timeout(300)
def test_a_disk_that_is_full_at_any_moment(tmp_path: Path) -> None:
    """Also: a node store on tmpfs."""
    (tmp_path / "full").mkdir()
    folders = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    inner = 'cd "$2" && exec "$0" -c "$@"'
    words = [*UNSHARE, "sh", "-c", inner, sys.executable, FULL, str(tmp_path), *folders]
    done = subprocess.run(words, capture_output=True, text=True)
    remove_tree(tmp_path / "node", IDMAP)
    assert done.returncode == 0, done.stderr
    full, whole = map(int, done.stdout.split()[-2:])
    assert full > 0
    assert whole > 0


@pytest.mark.timeout(180)
def test_store_commands(
    fresh: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from minisandbox.cli.main import main

    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(fresh.node.root))
    fresh.cache()
    cache = ["--cache", str(fresh.root)]
    assert main(["store", "prefetch", "--all", "--jobs", "2", *cache]) == 0
    assert "4 of 4 instances are on this machine" in capsys.readouterr().out
    assert main(["store", "prefetch", "--all", *cache]) == 0
    assert " 0 B were unpacked, 0 failed" in capsys.readouterr().out
    assert main(["store", "ls", "--node", *cache]) == 0
    out = capsys.readouterr().out
    assert "small-0 and 3 more" in out
    assert out.splitlines()[-1].startswith("9 in ")
    assert main(["store", "du", "--instances", *cache]) == 0
    assert "small-3" in capsys.readouterr().out
    assert main(["store", "verify", "--node", *cache]) == 0
    assert "0 damaged, 0 not checked" in capsys.readouterr().out
    assert main(["store", "verify", "--node", "--cache", str(fresh.root / "none")]) == 2
    assert "none/store is not a folder" in capsys.readouterr().err
    with fresh.node.lease() as lease:
        fresh.node.ensure(fresh.store, fresh.layers["small-0"][0].digest, lease=lease)
        assert main(["store", "gc", "--max-size", "1kB"]) == 1
        assert "the limit of 1.0 kB cannot be met" in capsys.readouterr().out
    assert main(["store", "gc", "--max-size", "1kB", "--dry-run"]) == 1
    assert "1 would be removed" in capsys.readouterr().out
    assert main(["store", "prefetch", *cache]) == 2
    assert main(["store", "prefetch", "--dataset", "x", *cache]) == 2
    assert main(["store", "prefetch", "nobody", *cache]) != 0
