"""An instance from a store packed by hand: what was changed, patches, files back, files in and out.

A diff is told against the recorded tree. Each case here does something inside that git by itself
would be misled by.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from minisandbox.cli.main import main
from minisandbox.errors import InvalidInput, MiniSandboxError, PatchFailed, RebuildFailed
from minisandbox.evaluate import run_tests
from minisandbox.idmap import IdMap, call_mapped, current, remove_tree
from minisandbox.records.layer import LayerRef
from minisandbox.runtime import Instance, start_instance
from minisandbox.store import NodeStore, Store

DATE = 1_600_000_000

FILES: dict[str, str | bytes] = {
    ".gitignore": "*.log\n",
    "code.py": "x = 1\n",
    "package/module.py": "first = 1\nsecond = 2\n",
    "package/data.bin": b"\0\1\2",
    "tests/test_code.py": "assert True\n",
    "with\nnewline": "odd\n",
}
#: What a checkout converts: bytes of the work tree are not those of the tree.
CONVERTED: dict[str, str | bytes] = {
    ".gitattributes": "*.bat text eol=crlf\n*.c ident\n*.u16 text working-tree-encoding=UTF-16LE\n",
    "start.bat": b"one\r\ntwo\r\n",
    "version.c": "/* $Id$ */\n",
    "wide.u16": "wide\n".encode("utf-16-le"),
}


@dataclass
class Packed:
    """Layers of a checkout and of an install step that made ``made.txt``."""

    layers: list[LayerRef]
    head_tree: str
    store: Store
    node: NodeStore
    stack: ExitStack

    def start(self) -> Instance:
        instance = start_instance(
            self.layers,
            head_tree=self.head_tree,
            store=self.store,
            node=self.node,
            name="example",
        )
        return self.stack.enter_context(instance)


def git(folder: Path, *words: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_DATE": f"@{DATE} +0000",
        "GIT_COMMITTER_DATE": f"@{DATE} +0000",
    }
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "safe.directory=*"]
    return subprocess.run(
        ["git", *identity, *words],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def write_layers(root: Path, files: dict[str, str | bytes]) -> str:
    """The two trees, and the hash of the recorded one."""
    testbed = root / "source/testbed"
    for name, content in files.items():
        path = testbed / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(testbed, "init", "-q", "-b", "main", "--template=", ".")
    git(testbed, "add", "-A", ".")
    git(testbed, "commit", "-q", "-m", "base")
    shutil.rmtree(testbed / "package", ignore_errors=True)
    (testbed / "version.c").unlink(missing_ok=True)
    git(testbed, "checkout", "-q", "-f", ".")
    install = root / "instance/testbed"
    (install / ".git/info").mkdir(parents=True)
    (install / ".git/info/exclude").write_text("/made.txt\n")
    (install / "made.txt").write_text("by the install step\n")
    return git(testbed, "rev-parse", "HEAD^{tree}")


def pack(root: Path, files: dict[str, str | bytes], idmap: IdMap, stack: ExitStack) -> Packed:
    trees = root / "trees"
    head_tree = call_mapped(idmap, partial(write_layers, trees, files))
    if idmap.kind == "root":
        for path in (trees, *trees.rglob("*")):
            os.chown(path, idmap.host_uid(0), idmap.host_gid(0), follow_symlinks=False)
    store = Store(root / "store")
    layers = [
        store.add("source", trees / "source", date=DATE, idmap=idmap),
        store.add("instance", trees / "instance", date=DATE, idmap=idmap),
    ]
    return Packed(layers, head_tree, store, NodeStore(root / "node", idmap), stack)


@pytest.fixture(scope="module")
def pack_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[dict[str, str | bytes], ExitStack], Packed]]:
    idmap, made = current(), dict[tuple[str, ...], Packed]()

    def packed(files: dict[str, str | bytes], stack: ExitStack) -> Packed:
        key = tuple(files)
        if key not in made:
            made[key] = pack(tmp_path_factory.mktemp("packed"), files, idmap, stack)
        made[key].stack = stack
        return made[key]

    yield packed
    for one in made.values():
        remove_tree(one.node.root, idmap)
        remove_tree(one.store.root.parent / "trees", idmap)


@pytest.fixture
def packed(pack_once) -> Iterator[Packed]:
    with ExitStack() as stack:
        yield pack_once(FILES, stack)


@pytest.fixture
def instance(packed: Packed) -> Instance:
    return packed.start()


@pytest.fixture
def converted(pack_once) -> Iterator[Packed]:
    with ExitStack() as stack:
        yield pack_once(FILES | CONVERTED, stack)


def do(instance: Instance, script: str) -> None:
    result = instance.run("set -e\n" + script)
    assert result.ok, result.text


def changed(diff: bytes) -> set[str]:
    return {
        line.split(" b/", 1)[1]
        for line in diff.decode("utf-8", "replace").split("\n")
        if line.startswith("diff --git ") and " b/" in line
    }


def assert_carries_over(packed: Packed, instance: Instance, look: str) -> None:
    """A fresh instance with the diff applied answers ``look`` as this one does."""
    diff = instance.diff().decode("utf-8", "surrogateescape")
    fresh = packed.start()
    fresh.apply_patch(diff)
    seen = [one.run(look, merge_stderr=True).text for one in (fresh, instance)]
    assert seen[0] == seen[1]


LOOK = (
    "find . -name .git -prune -o -type f ! -name '*.log' -print0 | sort -z > /tmp/list\n"
    "xargs -0 stat -c '%n %A' < /tmp/list; xargs -0 sha256sum < /tmp/list"
)


def test_nothing_done_is_nothing_changed(instance: Instance) -> None:
    assert instance.diff() == b""
    assert instance.read_file("made.txt") == b"by the install step\n"
    do(instance, "touch code.py; echo noise > x.log")
    assert instance.diff() == b""
    assert instance.run("ls /var/tmp").stdout == b""


def test_every_kind_of_change_carries_over(packed: Packed, instance: Instance) -> None:
    do(
        instance,
        "echo 'y = 2' >> code.py; rm tests/test_code.py; printf '\\0\\7' > package/data.bin\n"
        "chmod +x package/module.py; printf new > 'a b'; printf 1 > $'tab\\tand\\nline'\n"
        "printf odder > $'with\\nnewline'; mkdir empty; printf '\\377' > $'latin-\\344'",
    )
    assert_carries_over(packed, instance, LOOK)


@pytest.mark.parametrize("files", [FILES, FILES | CONVERTED], ids=["plain", "converted"])
def test_files_links_and_directories_take_each_others_place(pack_once, files) -> None:
    with ExitStack() as stack:
        packed = pack_once(files, stack)
        instance = packed.start()
        do(
            instance,
            "rm code.py; mkdir code.py; echo x > code.py/inner\n"
            "rm -r package; ln -s /etc package; rm tests/test_code.py; mkfifo tests/test_code.py",
        )
        names = {"code.py", "code.py/inner", "package", "package/module.py", "tests/test_code.py"}
        assert changed(instance.diff()) == names | {"package/data.bin"}
        look = "find code.py package ! -type p | sort; readlink package"
        assert_carries_over(packed, instance, look)


def test_commits_and_a_removed_repository_hide_nothing(instance: Instance) -> None:
    do(
        instance,
        "echo 'y = 2' >> code.py; git add -A\n"
        "git -c user.name=a -c user.email=a@a commit -q -m mine; git update-index "
        "--assume-unchanged code.py",
    )
    before = instance.diff()
    assert changed(before) == {"code.py"}
    do(instance, "rm -rf .git")
    assert instance.diff() == before


NESTED = [
    ("git init -q .", set[str]()),
    ("git init -q . && git add -A && git commit -q -m inner", set[str]()),
    ("git init -q y && git -C y commit -q --allow-empty -m inner && mv y/.git .", set[str]()),
    ("git init -q --separate-git-dir /root/elsewhere .", set[str]()),
    ("git init -q . && mkdir deep && git init -q deep && echo y > deep/y", {"new/deep/y"}),
    (
        "git init -q . && echo noise > x.log && echo z > .gitignore && echo z > z",
        {"new/.gitignore"},
    ),
]


@pytest.mark.parametrize(("script", "more"), NESTED)
def test_a_nested_repository_is_plain_files(
    packed: Packed, instance: Instance, script: str, more: set[str]
) -> None:
    do(
        instance,
        "git config --global user.name a; git config --global user.email a@a\n"
        f"mkdir new; cd new; echo x > x; {script}",
    )
    assert changed(instance.diff()) == {"new/x"} | more
    assert b"Subproject" not in instance.diff()
    do(instance, "rm -rf new/z")
    assert_carries_over(packed, instance, LOOK)


def test_a_repository_over_tracked_files_hides_nothing(instance: Instance) -> None:
    do(
        instance,
        "git config --global user.name a; git config --global user.email a@a\n"
        "cd package; echo 'third = 3' >> module.py; echo x > x; git init -q .; git add -A\n"
        "git commit -q -m inner",
    )
    assert changed(instance.diff()) == {"package/module.py", "package/x"}


def test_a_repository_in_place_of_a_tracked_file_is_its_removal(instance: Instance) -> None:
    do(
        instance,
        "git config --global user.name a; git config --global user.email a@a\n"
        "rm code.py; mkdir code.py; cd code.py; echo x > x; git init -q .; git add -A\n"
        "git commit -q -m inner",
    )
    assert changed(instance.diff()) == {"code.py", "code.py/x"}


def test_names_that_git_does_not_take_are_left_out(instance: Instance) -> None:
    do(instance, "mkdir .GIT 'git~1'; echo x > .GIT/x; echo x > 'git~1/x'; echo y > y")
    assert changed(instance.diff()) == {"git~1/x", "y"}


@pytest.mark.parametrize(
    "edit",
    [
        "cp -p code.py /tmp/old; sed -i 's/1/2/' code.py; touch -r /tmp/old code.py",
        "sed 's/1/2/' code.py > /tmp/new; touch -r code.py /tmp/new; cp -p /tmp/new code.py",
        "sed 's/1/2/' code.py > /tmp/new; touch -r code.py /tmp/new; mv /tmp/new code.py",
    ],
)
def test_an_edit_of_the_same_size_and_time_is_seen(instance: Instance, edit: str) -> None:
    do(instance, edit)
    assert b"+x = 2" in instance.diff()


HOSTILE = [
    "git config core.fsmonitor '/bin/sh -c \"touch /ran\"'; git config filter.f.clean 'touch /ran'",
    "git config --global filter.f.clean 'touch /ran; cat'; echo '* filter=f' >> .gitattributes",
    "git config diff.d.textconv 'touch /ran'; echo '* diff=d' >> .git/info/attributes",
    "echo '* -diff' >> .git/info/attributes; git config core.worktree /nonexistent",
]


@pytest.mark.parametrize("script", HOSTILE)
def test_configuration_inside_runs_nothing(instance: Instance, script: str) -> None:
    do(instance, f"echo 'y = 2' >> code.py\n{script}")
    assert changed(instance.diff()) - {".gitattributes"} == {"code.py"}
    assert instance.run("test -e /ran").exit_code == 1


ATTRIBUTES = [
    "* text eol=crlf",
    "* ident",
    "* working-tree-encoding=UTF-16",
    "* binary",
    "* export-ignore -diff",
]


@pytest.mark.parametrize("line", ATTRIBUTES)
def test_attributes_of_the_agent_change_no_other_file(
    packed: Packed, instance: Instance, line: str
) -> None:
    do(instance, "echo 'y = \"$Id: mine $\"' >> code.py; printf 'a\\r\\nb\\n' > lines\n")
    do(instance, f"echo '{line}' > .gitattributes")
    diff = instance.diff()
    assert changed(diff) == {"code.py", "lines", ".gitattributes"}
    assert b"$Id: mine $" in diff
    assert b"+a\r\n" in diff


def test_what_a_checkout_converts_is_no_change(converted: Packed) -> None:
    instance = converted.start()
    assert instance.read_file("start.bat") == b"one\r\ntwo\r\n"
    assert b"$Id: " in instance.read_file("version.c")
    assert instance.read_file("wide.u16") == "wide\n".encode("utf-16-le")
    assert instance.diff() == b""
    do(instance, "printf 'three\\r\\n' >> start.bat; rm .gitattributes; printf 'a\\0' > new.u16")
    assert changed(instance.diff()) == {"start.bat", ".gitattributes", "new.u16"}
    assert b"+three\n" in instance.diff()


def test_a_change_of_a_converted_file_carries_over(converted: Packed) -> None:
    instance = converted.start()
    do(instance, "printf 'three\\r\\n' >> start.bat; echo 'int x;' >> version.c")
    assert b"+three\n" in instance.diff()
    assert_carries_over(converted, instance, "cat start.bat; tail -n 1 version.c")


def test_an_encoding_that_does_not_fit_is_told_as_it_is(converted: Packed) -> None:
    instance = converted.start()
    do(instance, "printf 'x' > wide.u16; echo 'y = 2' >> code.py")
    assert changed(instance.diff()) == {"wide.u16", "code.py"}


def test_a_removed_work_tree_is_the_removal_of_everything(instance: Instance) -> None:
    do(instance, "cd /; rm -rf /testbed")
    assert {"code.py", "package/module.py"} <= changed(instance.diff())
    do(instance, "rmdir /testbed; ln -s /etc /testbed")
    with pytest.raises(MiniSandboxError, match="link"):
        instance.diff()


def test_files_are_put_back_or_removed(instance: Instance) -> None:
    do(
        instance,
        "echo y > code.py; rm -r package; ln -s /etc package; echo x > new; mkdir tests/dir\n"
        "rm tests/test_code.py; mkdir tests/test_code.py; echo x > tests/test_code.py/x",
    )
    instance.restore(
        ["code.py", "package/module.py", "package/data.bin", "new", "tests/dir", "missing/x"]
    )
    instance.restore(["tests/test_code.py", "with\nnewline", "code.py"])
    assert instance.diff() == b""
    assert instance.run("test -e tests/dir").exit_code == 1
    assert instance.run("test -L package").exit_code == 1


def test_a_directory_is_put_back_whole(instance: Instance) -> None:
    do(instance, "echo y > package/module.py; rm package/data.bin")
    instance.restore(["package"])
    assert instance.diff() == b""


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "../etc", "/etc", "a/../../etc", ".git", ".git/config", "a/.GIT/x", "a//b"],
)
def test_only_files_of_the_work_tree_are_restored(instance: Instance, path: str) -> None:
    with pytest.raises(InvalidInput, match="not a path of the repository"):
        instance.restore(["code.py", path])
    assert instance.run("test -e /etc/passwd && test -e .git").ok


def test_nothing_is_removed_through_a_link(instance: Instance) -> None:
    do(instance, "mkdir /root/kept; echo x > /root/kept/passwd; ln -s /root/kept way")
    instance.restore(["way/passwd"])
    assert instance.read_file("/root/kept/passwd") == b"x\n"


def test_files_are_restored_by_the_recorded_attributes(converted: Packed) -> None:
    instance = converted.start()
    do(instance, "echo '* text eol=crlf' > .gitattributes; rm start.bat; echo > tests/test_code.py")
    instance.restore(["tests/test_code.py", "start.bat"])
    assert instance.read_file("tests/test_code.py") == b"assert True\n"
    assert instance.read_file("start.bat") == b"one\r\ntwo\r\n"


PATCH = "--- a/code.py\n+++ b/code.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"


def test_patches_apply_whole_or_not_at_all(instance: Instance) -> None:
    instance.apply_patch(PATCH)
    assert instance.read_file("code.py") == b"x = 2\n"
    before = instance.diff()
    with pytest.raises(PatchFailed, match="applied already"):
        instance.apply_patch(PATCH)
    with pytest.raises(PatchFailed):
        instance.apply_patch(
            PATCH.replace("1", "2") + "--- a/no.py\n+++ b/no.py\n@@ -1 +1 @@\n-a\n+b\n"
        )
    assert instance.diff() == before
    assert instance.run("ls /var/tmp").stdout == b""


def test_an_inexact_patch_applies_and_leaves_nothing_else(instance: Instance) -> None:
    if not instance.run("command -v patch").ok:
        with pytest.raises(PatchFailed):
            instance.apply_patch(FUZZY)
        return
    instance.apply_patch(FUZZY)
    assert instance.read_file("package/module.py") == b"first = 1\nsecond = 3\n"
    assert changed(instance.diff()) == {"package/module.py"}
    assert instance.run("ls /var/tmp").stdout == b""


FUZZY = (
    "--- a/package/module.py\n+++ b/package/module.py\n@@ -1,2 +1,2 @@\n"
    " first = one\n-second = 2\n+second = 3\n"
)
NEW = "--- /dev/null\n+++ b/{}\n@@ -0,0 +1 @@\n+x\n"
LINK = (
    "diff --git a/way b/way\nnew file mode 120000\n--- /dev/null\n+++ b/way\n@@ -0,0 +1 @@\n"
    "+{}\n\\ No newline at end of file\n"
)


@pytest.mark.parametrize(
    "patch",
    [
        NEW.format("../root/x"),
        NEW.format(".git/x"),
        NEW.format("here/x"),
        LINK.format("/root") + NEW.format("way/x"),
        LINK.format("../root") + NEW.format("way/x"),
    ],
)
def test_patches_do_not_leave_the_work_tree(instance: Instance, patch: str) -> None:
    do(instance, "ln -s /root here")
    with pytest.raises(PatchFailed):
        instance.apply_patch(patch)
    assert instance.run("test -e /root/x || test -e .git/x || test -L way").exit_code == 1


def test_commands_run_in_the_work_tree(instance: Instance, tmp_path: Path) -> None:
    assert instance.run("pwd; cat", stdin=b"in").stdout == b"/testbed\nin"
    (tmp_path / "local").write_text("up")
    instance.upload(tmp_path / "local", "dir/remote")
    instance.download("dir", tmp_path / "down")
    assert (tmp_path / "down/remote").read_text() == "up"
    instance.write_file("code.py", "new")
    assert instance.read_file("/testbed/code.py") == b"new"


def test_a_failing_rebuild_is_not_a_failing_patch(instance: Instance, tmp_path: Path) -> None:
    spec = run_tests.TestSpec(
        "true", "pytest", test_patch="", rebuild_command="echo no compiler; exit 3"
    )
    with pytest.raises(RebuildFailed, match="exit 3` ended with 3") as caught:
        run_tests.run_tests(instance, spec, patch=PATCH, log_path=tmp_path / "log")
    assert (caught.value.exit_code, caught.value.log) == (3, tmp_path / "log")
    assert (tmp_path / "log").read_text() == "no compiler\n"


def test_a_test_patch_that_leads_elsewhere_does_not_apply(
    instance: Instance, tmp_path: Path
) -> None:
    spec = run_tests.TestSpec("true", "pytest", test_patch=NEW.format("../etc/passwd"))
    with pytest.raises(PatchFailed, match="not a path of the repository"):
        run_tests.run_tests(instance, spec, patch="", log_path=tmp_path / "log")
    assert instance.run("test -s /etc/passwd").ok


RUN = """
import sys
from pathlib import Path
from minisandbox.cli import caches, main
from minisandbox.idmap import current
from minisandbox.records.layer import LayerRef
from minisandbox.runtime import start_instance
from minisandbox.store import NodeStore, Store

def start(_):
    return start_instance(
        {layers}, head_tree="{tree}", store=Store(Path("{store}")),
        node=NodeStore(Path("{node}")), name="example",
    )

caches._instance = start
sys.exit(main.main(["run", "example", "--", *sys.argv[1:]]))
"""


def cli(packed: Packed, *words: str) -> list[str]:
    """A command line that runs ``minisandbox run`` on this store."""
    program = RUN.format(
        layers=packed.layers, tree=packed.head_tree, store=packed.store.root, node=packed.node.root
    )
    return [sys.executable, "-c", program, *words]


def test_standard_input_reaches_the_command(packed: Packed) -> None:
    data = bytes(range(256)) * 4096
    done = subprocess.run(cli(packed, "cat"), input=data, capture_output=True)
    assert (done.stdout, done.stderr, done.returncode) == (data, b"", 0)


@pytest.mark.parametrize("ending", ["< /dev/null", "<&-", "< /etc/passwd"])
def test_no_input_does_not_hang(packed: Packed, ending: str) -> None:
    line = f"{shlex.join(cli(packed, 'head -c 4; echo end'))} {ending}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=30)
    assert done.stdout.endswith(b"end\n"), done.stderr


def test_input_that_never_ends_does_not_keep_a_command(packed: Packed) -> None:
    read_end, write_end = os.pipe()
    try:
        done = subprocess.run(
            cli(packed, "echo done"), stdin=read_end, capture_output=True, timeout=30
        )
    finally:
        os.close(read_end)
        os.close(write_end)
    assert (done.stdout, done.returncode) == (b"done\n", 0)


def test_what_takes_long_is_told_once(packed: Packed, tmp_path: Path) -> None:
    node = NodeStore(tmp_path / "node", packed.node.idmap)
    told: list[str] = []
    for _ in range(2):
        start_instance(
            packed.layers,
            head_tree=packed.head_tree,
            store=packed.store,
            node=node,
            name="example",
            report=told.append,
        ).close()
    assert told == ["unpacking the source layer, 0 MB", "unpacking the instance layer, 0 MB"]
    remove_tree(node.root, node.idmap)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_is_shown_progress(
    packed: Packed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["store", "verify", "--store", str(packed.store.root)]
    assert main(words) == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert main(words) == 0
    assert capsys.readouterr().out == quiet.out
    # Other tests may have put checkpoints beside the two that were packed.
    count = len(set(packed.store.digests()))
    assert f"{count} of {count} layers read" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_fork_has_the_changes_and_then_its_own(packed: Packed) -> None:
    instance = packed.start()
    do(instance, "echo x = 2 > code.py; echo new > new.py")
    with instance.fork() as fork:
        assert fork.diff() == instance.diff()
        do(fork, "git checkout -q code.py")
        do(instance, "rm new.py")
        assert changed(fork.diff()) == {"new.py"}
        assert changed(instance.diff()) == {"code.py"}
    instance.reset()
    assert instance.diff() == b""


def test_a_checkpoint_is_layers_that_any_process_can_start_from(packed: Packed) -> None:
    instance = packed.start()
    do(instance, "echo x = 2 > code.py; rm package/data.bin; echo tmp > /tmp/kept")
    instance.snapshot().close()
    do(instance, "rm -r package; mkdir package; echo second > package/new.py; rm /root/.* || :")
    layers = instance.checkpoint()
    assert [layer.kind for layer in layers] == ["checkpoint"] * 2
    diff = instance.diff()
    assert changed(diff) == {
        "code.py",
        "package/new.py",
        "package/module.py",
        "package/data.bin",
    }
    instance.close()
    started = start_instance(
        [*packed.layers, *layers],
        head_tree=packed.head_tree,
        store=packed.store,
        node=packed.node,
        name="again",
    )
    with started as again:
        assert again.diff() == diff
        assert again.read_file("/tmp/kept") == b"tmp\n"
        assert again.run("git status --porcelain | wc -l").stdout != b"0\n"
