"""Hosts that refuse something: each ends in a mechanism that works, or in a refusal that says how
to enable it (hazards G1, G3, G4, G6, G10, G16, G19).

`tests/hosts/simulate.py` makes the hosts, for real, for one program at a time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import minisandbox
from minisandbox.idmap import IdMap, current, remove_tree
from minisandbox.runtime import stack
from minisandbox.sandbox import Sandbox

SOURCE = Path(minisandbox.__file__).parents[1]
PAGE = Path(__file__).parents[2] / "docs/hosts.md"
SIMULATE = Path(__file__).parents[1] / "hosts/simulate.py"

#: Starts a sandbox as anybody would, and says what came of it.
PROGRAM = """
import sys
from pathlib import Path
from minisandbox.errors import HostUnsupported
from minisandbox.sandbox import Sandbox
scratch = Path(sys.argv[1])
scratch.mkdir(exist_ok=True)
try:
    with Sandbox.start([], scratch=scratch) as box:
        print(box.run("echo works in $(ls -d /proc/[0-9]* | wc -l) processes; id -u").text)
except HostUnsupported as error:
    print(error)
print(*scratch.glob("box-*/*"))
"""

SECCOMP = "start the container with `--security-opt seccomp=unconfined`"
MODULE = "no sysctl and no seccomp filter forbids it, so a security module does"
MASKED = (
    "a fresh /proc cannot be used on this host: mount proc: Operation not permitted (/proc): the "
    "/proc here is partly covered, as in containers"
)


def on_host(*hosts: str, command: list[str], env: dict[str, str] | None = None) -> str:
    """What a command prints on a host that does ``hosts`` to it."""
    words = [sys.executable, str(SIMULATE), *hosts, "--", *command]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}",
        **(env or {}),
    }
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done.stdout


def started(place: Path, *hosts: str) -> str:
    """What came of starting a sandbox there, in one line; nothing of it may be left."""
    said = on_host(*hosts, command=[sys.executable, "-c", PROGRAM, str(place / "scratch")])
    lines = said.splitlines()
    assert lines.pop() == "", "something was left in the scratch directory"
    return " ".join(line for line in lines if line)


REFUSED = [
    (
        ("unshare=EPERM",),
        "user namespaces cannot be used on this host: clone: Operation",
        SECCOMP,
    ),
    (("unshare=EACCES",), "user namespaces cannot be used on this host: clone: Perm", SECCOMP),
    (("unshare=EINVAL",), "user namespaces cannot be used on this host: clone: Inv", "USER_NS"),
    (("unshare=EUSERS",), "user namespaces cannot be used on this host: clone: Too", "nested"),
    (("unshare=ENOSPC",), "this is not about disk space", "raise user.max_*_namespaces"),
    (("id-map=EPERM",), "user namespaces cannot be used on this host: Operation not", MODULE),
    (("id-map=EACCES",), "user namespaces cannot be used on this host: Permission den", MODULE),
    (
        ("namespace-limit=0",),
        "user.max_user_namespaces is 0; this is not about disk space",
        "ask for `sysctl -w user.max_user_namespaces=10000`",
    ),
    (
        ("mount-overlay=EPERM",),
        "an overlay of the layers cannot be used on this host: mount overlay: Operation not",
        "in a user namespace this needs Linux 5.12 or later",
    ),
    (
        ("mount-overlay=ENODEV",),
        "an overlay of the layers cannot be used on this host: mount overlay: No such device",
        "ask for `modprobe overlay`",
    ),
    (("container-root", "masked-proc"), MASKED, "systempaths=unconfined"),
    (
        ("without-sys-admin", "masked-proc", "unshare=EPERM"),  # `docker run` as it comes
        "user namespaces cannot be used on this host: clone: Operation",
        SECCOMP,
    ),
]


@pytest.mark.parametrize(
    ("hosts", "reason", "remedy"), REFUSED, ids=["+".join(hosts) for hosts, *_ in REFUSED]
)
def test_a_refusal_says_what_refuses_and_how_to_enable_it(
    tmp_path: Path, hosts: tuple[str, ...], reason: str, remedy: str
) -> None:
    said = started(tmp_path, *hosts)
    assert reason in said
    assert remedy in said
    assert plain(remedy) in plain(PAGE.read_text(encoding="utf-8"))


def plain(text: str) -> str:
    """Words alone: neither lines nor marks of Markdown matter."""
    return " ".join(text.replace("`", "").replace(">", "").replace("|", "").split())


WORKS = [
    (),
    ("without-sys-admin",),
    ("no-new-privileges",),
    ("container-root",),
    ("container-root", "no-new-privileges"),
    ("namespace-limit=50",),
]


@pytest.mark.parametrize("hosts", WORKS, ids=["+".join(hosts) or "plain" for hosts in WORKS])
def test_what_can_be_done_without_is_done_without(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    assert started(tmp_path, *hosts).startswith("works in ")


def test_where_proc_is_covered_root_hands_one_in(tmp_path: Path) -> None:
    said = started(tmp_path, "masked-proc")
    if current().kind == "root":
        processes = int(said.removeprefix("works in ").split()[0])
        assert processes < 10, "those of the host are seen"
    else:
        assert MASKED in said


def test_a_chroot_is_named(tmp_path: Path) -> None:
    # The kernel lets nobody in a chroot make a user namespace, and says EPERM.
    program = """
import os, sys
from minisandbox import linux, namespaces
uid, gid = os.geteuid(), os.getegid()
def child():
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("", "/", "", linux.MS_SLAVE | linux.MS_REC)
    os.mkdir("proc")
    linux.mount("/proc", "proc", "", linux.MS_BIND | linux.MS_REC)
    os.chroot(".")
    os.chdir("/")
    try:
        linux.unshare(linux.CLONE_NEWUSER)
    except OSError as error:
        print(namespaces.refused(error.errno, error.strerror), flush=True)
os.chdir(sys.argv[1])
maps = [((0, uid, 1),), ((0, gid, 1),)]
pid = linux.fork_mapped(*maps, map_writers=None, child=child)
assert os.waitpid(pid, 0)[1] == 0
"""
    said = on_host(command=[sys.executable, "-c", program, str(tmp_path)])
    assert "this process runs in a chroot" in said


@pytest.mark.root
def test_a_client_that_goes_to_a_chroot_does_not_start_outside_of_it(tmp_path: Path) -> None:
    """Its server stays outside, where the same paths are other directories."""
    program = """
import os, subprocess, sys
from pathlib import Path
from minisandbox.errors import HostUnsupported
from minisandbox.sandbox import Sandbox
scratch, root = (Path(sys.argv[1], name) for name in ("scratch", "root"))
for folder in (scratch, root):
    folder.mkdir()
with Sandbox.start([], scratch=scratch) as box:
    for entry in Path("/").iterdir():
        if entry.is_symlink():
            (root / entry.name).symlink_to(entry.readlink())
        elif entry.is_dir():
            (root / entry.name).mkdir()
            subprocess.run(["mount", "--rbind", entry, root / entry.name], check=True)
    os.chroot(root)
    os.chdir("/")
    try:
        Sandbox.start([], scratch=scratch)
    except HostUnsupported as error:
        print(error)
    print(box.run("echo the first one lives").text)
    subprocess.run(["umount", "--lazy", "/proc"], check=True)
    try:
        Sandbox.start([], scratch=scratch)
    except HostUnsupported as error:
        print(error)
"""
    private = ["unshare", "--mount", "--propagation", "private"]
    said = on_host(command=[*private, sys.executable, "-c", program, str(tmp_path)])
    assert "this process runs in a chroot" in said
    assert "the first one lives" in said
    assert "there is no /proc here; mount one, also in a chroot" in said


DOCTOR = "import sys; from minisandbox.cli.main import main; sys.exit(main(['doctor']))"


def doctor(place: Path, *hosts: str) -> dict[str, tuple[str, str]]:
    """Of each line that the doctor prints: its word and the rest, with what to do about it."""
    env = {"MINISANDBOX_NODE_STORE": str(place / "node")}
    said = on_host(*hosts, command=[sys.executable, "-c", DOCTOR], env=env)
    found: dict[str, tuple[str, str]] = {}
    name = ""
    for line in said.partition("\n\n")[0].splitlines():
        if line.startswith(" "):
            word, detail = found[name]
            found[name] = word, f"{detail} {line.strip()}"
        else:
            name = line[6:].partition("  ")[0]
            found[name] = line[:4].strip(), line[6 + len(name) :].strip()
    return found


def test_the_doctor_says_what_will_be_used(tmp_path: Path) -> None:
    said = doctor(tmp_path)
    assert {word for word, _ in said.values()} == {"ok"}
    root = current().kind == "root"
    assert said["overlay"][1].startswith(f"mounted {'by root' if root else 'in the user'}")
    assert said["/proc"] == ("ok", "its own")
    assert said["system calls"] == ("ok", "a seccomp filter of ours")
    for name in ("memory", "cpus", "processes", "disk", "inodes", "open files"):
        assert re.search(r", (enforced|watched): \w+", said[f"limit on {name}"][1])
    rooms = {name: line for name, (_, line) in said.items() if name.startswith("room by ")}
    assert len(rooms) == 7
    counts = [int(line.partition(" ")[0].replace(",", "")) for line in rooms.values()]
    assert counts == sorted(counts)
    assert counts[0] > 0


def test_the_doctor_asks_for_everything_at_once(tmp_path: Path) -> None:
    said = doctor(tmp_path, "without-sys-admin", "masked-proc", "unshare=EPERM")
    assert [name for name, (word, _) in said.items() if word == "FAIL"] == [
        "user namespaces",
        "a fresh /proc",
    ]
    assert SECCOMP in said["user namespaces"][1]
    assert "systempaths=unconfined" in said["a fresh /proc"][1]


def test_a_listener_around_us_costs_the_record_of_connections_alone(tmp_path: Path) -> None:
    word, detail = doctor(tmp_path, "mount-other=EPERM")["record of connections"]
    assert word == "warn"
    assert "has the one listener that the kernel allows" in detail


STORE = """
import sys
from pathlib import Path
from minisandbox.sandbox import Sandbox
from minisandbox.store import NodeStore
node = NodeStore(Path(sys.argv[1]))
with Sandbox.start([], scratch=node.scratch, idmap=node.idmap) as box:
    print(box.run("echo works > /opt/new && cat /opt/new").text.strip(), node.scratch)
"""


def node_store(place: Path, *hosts: str, **env: str) -> str:
    """What comes of using the node store ``place`` on a host that does ``hosts`` to it."""
    place.mkdir(exist_ok=True)
    return on_host(*hosts, command=[sys.executable, "-c", STORE, str(place)], env=env).strip()


def test_what_sandboxes_write_goes_elsewhere_where_the_store_is_read_only(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    store, key = tmp_path / "node", current().key
    env = {"TMPDIR": str(tmp_path / "tmp")}
    assert node_store(store, **env) == f"works {store}/{key}/scratch"
    said = node_store(store, f"read-only={store}", **env)
    word, _, used = said.partition(" ")
    assert word == "works"
    assert Path(used).parents[1] == tmp_path / f"tmp/minisandbox-{os.geteuid()}"
    chosen = node_store(store, MINISANDBOX_SCRATCH=str(tmp_path / "chosen"))
    assert chosen == f"works {tmp_path}/chosen/{key}/scratch"


def test_the_name_of_another_user_among_temporary_files_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"tmp/minisandbox-{os.geteuid()}").symlink_to(tmp_path / "theirs")
    store = tmp_path / "node"
    store.mkdir()
    program = STORE.replace(
        "with Sandbox",
        "try:\n    node.scratch\nexcept Exception as error:\n"
        "    sys.exit(print(error))\nwith Sandbox",
    )
    said = on_host(
        f"read-only={store}",
        command=[sys.executable, "-c", program, str(store)],
        env={"TMPDIR": str(tmp_path / "tmp")},
    )
    assert "it is not a directory of this user; set MINISANDBOX_SCRATCH to one" in said


def test_a_store_in_memory_holds_sandboxes_too(tmp_path: Path) -> None:
    store = tmp_path / "node"
    store.mkdir()
    assert node_store(store, f"tmpfs={store}").startswith("works ")


def test_a_store_on_an_overlay_has_sandboxes_write_elsewhere(tmp_path: Path) -> None:
    # As in a container without volumes; the layers may stay there.
    (tmp_path / "tmp").mkdir()
    store = tmp_path / "node"
    store.mkdir()
    word, _, used = node_store(store, f"overlay={store}", TMPDIR=str(tmp_path / "tmp")).partition(
        " "
    )
    assert word == "works"
    assert used.startswith(f"{tmp_path}/tmp/minisandbox-{os.geteuid()}/")


def test_no_place_at_all_is_refused_with_the_name_of_the_variable(tmp_path: Path) -> None:
    store = tmp_path / "node"
    store.mkdir()
    program = (
        STORE.replace("node.scratch", f"Path('{store}')")
        .replace("with", "from minisandbox.errors import HostUnsupported\ntry:\n  with")
        .replace("    print", "    print")
        + "except HostUnsupported as error:\n  print(error)\n"
    )
    said = on_host(f"overlay={store}", command=[sys.executable, "-c", program, str(store)])
    assert "an overlay of the layers cannot be used on this host" in said
    assert "MINISANDBOX_SCRATCH" in said


def test_what_was_written_elsewhere_becomes_a_layer_with_its_owners(
    tmp_path: Path, idmap: IdMap
) -> None:
    place = Path("/dev/shm")
    if place.stat().st_dev == tmp_path.stat().st_dev:
        place = Path("/var/tmp")
    with TemporaryDirectory(dir=place) as name:
        elsewhere = Path(name)
        elsewhere.chmod(0o755)
        with Sandbox.start([], scratch=elsewhere, idmap=idmap) as box:
            made = "mkdir /opt/made; echo x > /opt/made/file; ln -s file /opt/made/link"
            assert box.run(made).ok
            stack._take(box.seal(), tmp_path / "layer", idmap)
        for rest in elsewhere.iterdir():
            remove_tree(rest, idmap)
    made = tmp_path / "layer/opt/made"
    assert (made / "file").read_text() == "x\n"
    assert os.readlink(made / "link") == "file"
    for path in (made, made / "file", made / "link"):
        assert path.lstat().st_uid == idmap.host_uid(0)
    remove_tree(tmp_path / "layer", idmap)
