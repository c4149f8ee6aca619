"""What a host refuses is told in a sentence that names it, and never as something else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import minisandbox
from minisandbox.idmap import current

SOURCE = Path(minisandbox.__file__).parents[1]
PROGRAM = """
import sys
from pathlib import Path
from minisandbox.errors import HostUnsupported
from minisandbox.idmap import current, single
from minisandbox.sandbox import Sandbox
from minisandbox.store import NodeStore, Store
from minisandbox.store.streams import LooseLayer
place = Path(sys.argv[1])
def refused(action):
    try:
        action()
    except HostUnsupported as error:
        print(error)
    else:
        raise AssertionError("nothing was refused")
"""


#: Has seccomp(2) fail below it, as an outer container may.
BELOW_A_FILTER = """
import os, struct
from minisandbox import linux
def refuse_filters(number):
    code = [
        (0x20, 0, 0, 0),  # the system call's number
        (0x15, 0, 1, linux._SYSCALLS[os.uname().machine]["seccomp"]),
        (6, 0, 0, 0x00050000 | number),
        (6, 0, 0, 0x7FFF0000),
    ]
    if current().kind != "root":
        linux.forbid_new_privileges()
    linux.install_filter(b"".join(struct.pack("=HBBI", *i) for i in code))
"""


def told(place: Path, mount: str, script: str, *unshare: str) -> list[str]:
    """Run ``script`` where the shell command ``mount`` was done for it alone; its lines."""
    inner = f'cd "$2" && {mount} && exec "$0" -c "$1" "$2"'
    words = [*unshare, "sh", "-c", inner, sys.executable, PROGRAM + script, str(place)]
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_limit_on_namespaces_is_not_a_full_disk(tmp_path: Path) -> None:
    lines = told(
        tmp_path,
        "mkdir tree && echo 0 > /proc/sys/user/max_user_namespaces",
        """
idmap = current()
assert idmap == single()
(place / "scratch").mkdir()
store, node = Store(place / "store"), NodeStore(place / "node")
add = lambda: store.add("source", place / "tree", date=1_600_000_000, idmap=idmap)
refused(add)
store.stored = lambda digest: LooseLayer(digest, place, open("/dev/null", "rb"))
refused(lambda: node.ensure(store, "sha256:" + "0" * 64))
refused(lambda: Sandbox.start([], scratch=place / "scratch", idmap=idmap))
assert list((place / "scratch").glob("box-*")) == []
""",
        *("unshare", "--user", "--map-root-user"),
    )
    sentence = (
        "user namespaces cannot be used on this host: user.max_user_namespaces is 0; this is not "
        "about disk space; ask for `sysctl -w user.max_user_namespaces=10000`"
    )
    assert lines == [sentence] * 3


@pytest.mark.parametrize("started_before", [False, True])
def test_a_read_only_scratch_directory(tmp_path: Path, started_before: bool) -> None:
    root = current().kind == "root"
    lines = told(
        tmp_path,
        "mkdir fixed && mount -t tmpfs none fixed",
        f"""
import os
idmap = current()
if {started_before}:
    Sandbox.start([], scratch=place / "fixed", idmap=idmap).close()
assert os.system("mount -o remount,bind,ro fixed") == 0
refused(lambda: Sandbox.start([], scratch=place / "fixed", idmap=idmap))
""",
        *("unshare", "--mount", *(() if root else ("--user", "--map-root-user"))),
    )
    (line,) = lines
    start = "the scratch directory cannot be used on this host: Read-only file system ("
    assert line.startswith(f"{start}{tmp_path}/fixed/")
    assert "Traceback" not in line
    assert line.endswith("); make it writable and free some space there, or choose another one")


@pytest.mark.parametrize(
    ("number", "reason", "remedy"),
    [
        (
            errno.EPERM,
            "Operation not permitted",
            "a filter around this process or a security module",
        ),
        (errno.ENOSYS, "Function not implemented", "use a kernel with CONFIG_SECCOMP_FILTER"),
        (errno.EINVAL, "Invalid argument", "use a kernel with CONFIG_SECCOMP_FILTER"),
        (errno.ENOMEM, "Cannot allocate memory", "too many filters apply around this process"),
    ],
)
def test_no_sandbox_runs_without_its_filter(
    tmp_path: Path, number: int, reason: str, remedy: str
) -> None:
    (line,) = told(
        tmp_path,
        "mkdir scratch",
        f"""{BELOW_A_FILTER}
idmap = current() if current().kind == "root" else single()
refuse_filters({number})
refused(lambda: Sandbox.start([], scratch=place / "scratch", idmap=idmap))
assert list((place / "scratch").glob("box-*")) == []
""",
        *("env",),
    )
    start = f"a filter of system calls cannot be used on this host: seccomp: {reason}; "
    assert line.startswith(start + remedy), line
