"""Attacks by way of what a caller hands in or takes out: transfers, streams, layers, binds."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from minisandbox.errors import SandboxFileError
from minisandbox.idmap import IdMap, call_mapped, current, remove_tree, single
from minisandbox.sandbox import Bind, Profile, Sandbox, trees

IDMAPS = [current()] if current().kind in ("root", "single") else [current(), single()]
UP = "/".join([".."] * 40)
#: What a link inside may point at, to lead whoever follows it from a privileged place out.
WAYS = [
    "{folder}",
    "/proc/1/root{folder}",
    "/proc/1/cwd/{up}{folder}",
    "/proc/self/root{folder}",
    "/proc/self/cwd/{up}{folder}",
    "/proc/self/task/self/root{folder}",
    *(f"/proc/self/fd/{number}/{{up}}{{folder}}" for number in range(8)),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of the host that everybody may change, with a file that holds a secret."""
    made = tmp_path / "host"
    made.mkdir(mode=0o777)
    made.chmod(0o777)
    (made / "secret").write_text("the secret")
    (made / "secret").chmod(0o666)
    return made


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def attempted(action: Callable[[], object]) -> object:
    """The result, or nothing where the sandbox says that it cannot be done."""
    try:
        return action()
    except SandboxFileError:
        return None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("user", [None, 0])
def test_links_lead_no_transfer_out(
    box: Sandbox, folder: Path, tmp_path: Path, way: str, user: int | None
) -> None:
    before = content(folder)
    target = way.format(folder=folder, up=UP)
    box.run(["ln", "-sfn", target, "/root/way"])
    (tmp_path / "planted").write_text("planted")
    got = [
        attempted(partial(box.read_file, "/root/way/secret", user=user)),
        attempted(partial(box.write_file, "/root/way/secret", "planted", user=user)),
        attempted(partial(box.write_file, "/root/way/planted", "planted", user=user)),
        attempted(partial(box.upload, tmp_path / "planted", "/root/way/uploaded")),
        attempted(partial(box.upload, tmp_path / "planted", "/root/way/secret")),
    ]
    assert b"the secret" not in got
    assert content(folder) == before
    attempted(partial(box.download, "/root/way", tmp_path / "got"))
    taken = [path for path in (tmp_path / "got").rglob("*") if path.is_file()]
    assert all(b"the secret" not in path.read_bytes() for path in taken)


def test_monitors_have_no_environment_of_the_caller(box: Sandbox) -> None:
    box.run(["ln", "-sfn", "/proc/self/environ", "/root/own"])
    variables = box.read_file("/root/own").split(b"\0")
    assert {variable.partition(b"=")[0] for variable in variables} <= {b"", b"LD_LIBRARY_PATH"}


HEADER = struct.Struct("=cIIQq")  # kind, length of the name, mode, size, date


def entry(kind: bytes, name: bytes = b"", data: bytes = b"", mode: int = 0o644) -> bytes:
    return HEADER.pack(kind, len(name), mode, len(data), 0) + name + data


D, U, E = entry(b"d", b"top", mode=0o755), entry(b"u"), entry(b"e")


def streams(outside: bytes) -> dict[str, bytes]:
    """Streams that no honest monitor sends; ``outside`` is where they would like to write."""
    return {
        "a parent": D + entry(b"f", b"..", b"x") + U + E,
        "a name with ..": D + entry(b"f", b"../planted", b"x") + U + E,
        "an absolute name": D + entry(b"f", outside + b"/planted", b"x") + U + E,
        "a directory above": D + entry(b"d", b"..") + entry(b"f", b"planted", b"x") + U + U + E,
        "a NUL byte": D + entry(b"f", b"planted\0x", b"x") + U + E,
        "no name": D + entry(b"f", b"", b"x") + U + E,
        "a link and then what is below": D
        + entry(b"l", b"out", outside)
        + entry(b"d", b"out")
        + entry(b"f", b"planted", b"x")
        + U
        + U
        + E,
        "a link instead of the top": entry(b"l", b"top", outside)
        + D
        + entry(b"f", b"planted", b"x")
        + U
        + E,
        "a file through a link": D
        + entry(b"l", b"secret", outside + b"/secret")
        + entry(b"f", b"secret", b"planted")
        + U
        + E,
        "more ends than beginnings": D + U + U + entry(b"f", b"planted", b"x") + E,
        "an unknown kind": D + entry(b"c", b"planted") + U + E,
        "a length beyond the end": D
        + struct.pack("=cIIQq", b"f", 7, 0o644, 1 << 62, 0)
        + b"planted",
        "a long name": D + struct.pack("=cIIQq", b"f", 1 << 31, 0o644, 1, 0) + b"x" * 5000,
        "many levels": D + b"".join(entry(b"d", b"d") for _ in range(300)),
    }


@pytest.mark.parametrize("name", streams(b""))
def test_no_stream_writes_outside_its_destination(folder: Path, tmp_path: Path, name: str) -> None:
    before = content(folder)
    receiver = trees.Receiver(str(tmp_path / "destination"), mode_mask=0o777)
    try:
        receiver.receive(io.BytesIO(streams(os.fsencode(folder))[name]))
    except OSError:
        pass  # most are refused; what was written until then counts
    finally:
        receiver.close()
    assert content(folder) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"host", "destination"}


#: Each tries to change the file "shared" where it lies, not a copy of it.
CHANGES = {
    "written": "open('shared', 'r+').write('x')",
    "truncated": "os.truncate('shared', 0)",
    "truncated through a reader": "os.truncate(f'/proc/self/fd/{reader}', 0)",
    "opened through a reader": "os.write(os.open(f'/proc/self/fd/{reader}', os.O_WRONLY), b'x')",
    "emptied through a reader": "open(f'/proc/self/fd/{reader}', 'w')",
    "mapped, shared": "mmap.mmap(os.open('shared', os.O_RDWR), 0)[:1] = b'x'",
    "mapped from a reader": "mmap.mmap(reader, 0)[:1] = b'x'",
    "mode": "os.chmod('shared', 0o4777)",
    "mode of a reader": "os.fchmod(reader, 0o4777)",
    "owner": "os.chown('shared', 1, 1)",
    "written by a second name": "os.link('shared', 'other'); open('other', 'r+').write('x')",
    "written by a name of a reader": (
        "os.link(f'/proc/self/fd/{reader}', 'other', src_dir_fd=reader);"
        "open('other', 'r+').write('x')"
    ),
    "date": "os.utime('shared', (1, 1))",
    "date of a reader": "os.utime(reader, (1, 1))",
    "attribute of a reader": "os.setxattr(reader, 'user.x', b'x')",
    "flags of a reader": "fcntl.ioctl(reader, 0x40086602, (0x80).to_bytes(8, 'little'))",
    "removed": "os.unlink('shared')",
    "renamed": "os.rename('shared', 'other')",
    "space allocated": "os.posix_fallocate(os.open('shared', os.O_RDWR), 0, 9999)",
    "copied onto itself": "os.copy_file_range(reader, os.open('shared', os.O_RDWR), 1, None, 3)",
    "whiteout": "os.unlink('shared'); os.mknod('shared', stat.S_IFCHR, 0)",
    "redirect": "os.setxattr('.', 'user.overlay.redirect', b'/etc')",
    "redirect of root": "os.setxattr('.', 'trusted.overlay.redirect', b'/etc')",
    "opaque": "os.setxattr('.', 'user.overlay.opaque', b'y')",
}
#: What must have worked where it is allowed, or the others prove nothing.
PROVEN = set(CHANGES) - {
    "flags of a reader",  # no-dump: a flag that not every file system keeps
    "mapped from a reader",  # a reader is not mapped for writing anywhere
    "owner",  # there is one id inside, or it has no right to the file
    "redirect",  # attributes of an overlay's own are nothing for programs
    "redirect of root",
    "opaque",
    "attribute of a reader",
    "whiteout",
}
PLACES = ("/testbed", "/bound", "/open")
_PROGRAM = """\
import fcntl, mmap, os, stat, sys
for place in sys.argv[2:]:
    if os.fork() == 0:
        os.chdir(place + '/' + sys.argv[1])
        reader = os.open('shared', os.O_RDONLY)
        {change}
        os._exit(0)
    os.wait()
"""
State = dict[str, tuple[object, ...]]


def _state(folder: Path) -> State:
    found: State = {}
    for path in (folder, *folder.iterdir()):
        status = os.lstat(path)
        kept = (status.st_mode, status.st_nlink, status.st_uid, status.st_mtime_ns, status.st_size)
        data = path.read_bytes() if path.is_file() else b""
        # The flags need an open file, and none of the host's opens device nodes.
        names = os.listxattr(path, follow_symlinks=False)
        found[path.name] = (*kept, data, tuple(names))
    return found


def _fill(tree: Path) -> None:
    for number in range(len(CHANGES)):
        folder = tree / str(number)
        folder.mkdir(parents=True)
        (folder / "shared").write_text("content")
        for path in (tree, folder, folder / "shared"):
            path.chmod(0o777)  # what keeps it is the sandbox, not its mode


class Shared:
    """Two sandboxes over one layer, with two binds: for each change a directory in each place."""

    def __init__(self, idmap: IdMap, folder: Path, stack: ExitStack) -> None:
        layer = folder / "layer"
        self.outside = dict(
            zip(PLACES, (layer / "testbed", folder / "bound", folder / "open"), strict=True)
        )
        for tree in self.outside.values():
            call_mapped(idmap, partial(_fill, tree))
        if idmap.kind == "root":
            for path in (layer, *layer.rglob("*"), *self.outside["/open"].rglob("*")):
                os.chown(path, idmap.host_uid(0), idmap.host_gid(0))
        binds = (
            Bind(self.outside["/bound"], "/bound"),
            Bind(self.outside["/open"], "/open", writable=True),
        )
        scratch = folder / "scratch"
        scratch.mkdir()
        self.one, self.other = (
            stack.enter_context(
                Sandbox.start([layer], scratch=scratch, idmap=idmap, profile=Profile(binds=binds))
            )
            for _ in range(2)
        )


@pytest.fixture(scope="module", params=IDMAPS, ids=lambda idmap: idmap.kind)
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    with ExitStack() as stack:
        yield Shared(request.param, folder, stack)
    remove_tree(folder, request.param)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_shared_is_changed_where_that_is_allowed_and_nowhere_else(
    shared: Shared, change: str
) -> None:
    number = str(list(CHANGES).index(change))
    before = {place: _state(tree / number) for place, tree in shared.outside.items()}
    program = _PROGRAM.format(change=CHANGES[change])
    shared.one.run(["/usr/bin/python3", "-c", program, number, *PLACES])
    after = {place: _state(tree / number) for place, tree in shared.outside.items()}
    assert after["/testbed"] == before["/testbed"]
    assert after["/bound"] == before["/bound"]
    assert shared.other.run(f"cat /testbed/{number}/shared").stdout == b"content"
    # The control: the same program on a bind that may be written.
    assert after["/open"] != before["/open"] or change not in PROVEN
