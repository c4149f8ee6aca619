"""D8: a disk that is full, or has no inode left, is told of by name; what ran before runs on, and
nothing is left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import minisandbox

SOURCE = Path(minisandbox.__file__).parents[1]
PROGRAM = """
import os, sys
from pathlib import Path
from minisandbox.errors import HostUnsupported, SandboxFileError
from minisandbox.sandbox import Profile, Sandbox

place = Path(sys.argv[1])
scratch = place / "scratch"
scratch.mkdir()

def fill():
    number = 0
    while True:
        try:
            with open(place / f"filler-{number}", "wb", buffering=0) as file:
                while int(sys.argv[2]) and file.write(b"x" * 512):
                    pass
        except OSError:
            break
        number += 1

def refused(kind, action):
    try:
        action()
    except kind as error:
        assert "No space left on device" in str(error), error
        print(error)
    else:
        raise AssertionError("nothing was refused")

def start(upper="disk"):
    return Sandbox.start([], scratch=scratch, profile=Profile(upper=upper), start_timeout=20)

fill()
refused(HostUnsupported, start)
for path in place.glob("filler-*"):
    path.unlink()
with start() as box:
    assert box.run("head -c 10000 /dev/zero > /some").ok
    fill()
    refused(HostUnsupported, start)
    refused(HostUnsupported, lambda: start("memory"))
    refused(HostUnsupported, box.reset)
    refused(SandboxFileError, lambda: box.write_file("/file", b"x" * 100_000))
    refused(SandboxFileError, lambda: box.upload(sys.executable, "/file"))
    refused(OSError, lambda: box.download("/etc", place / "etc"))
    refused(OSError, lambda: box.run("seq 100000", stdout_file=place / "output"))
    assert box.run("echo more > /other").exit_code == 1
    with box.popen("sleep 100"):
        refused(OSError, box.snapshot)
    assert box.run("wc -c < /some").stdout == b"10000\\n"
for path in place.glob("filler-*"):
    path.unlink()
with start() as box:
    assert box.run("echo fine > /some").ok
assert not list(scratch.glob("box-*"))
"""


@pytest.mark.root
@pytest.mark.parametrize("limit", ["size=3m", "nr_inodes=2500"])
def test_a_full_disk(tmp_path: Path, limit: str) -> None:
    mount = f'mount -t tmpfs -o {limit} none "$1" && exec "$0" -c "$2" "$1" "$3"'
    by_size = str(int(limit.startswith("size")))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, sys.executable, str(tmp_path), PROGRAM, by_size],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.returncode == 0, done.stderr
    first, *more = done.stdout.splitlines()
    assert "free some space there" in first
    for line in more[:3]:
        assert line.startswith("the scratch directory cannot be used on this host: No space left")
        assert f"({tmp_path}/scratch/" in line
    assert [line.partition(":")[0] for line in more[3:5]] == [
        "cannot write /file in the sandbox",
        "cannot upload /file in the sandbox",
    ]
    assert f"{tmp_path}/etc" in more[5]
    assert f"{tmp_path}/output" in more[6]
    assert "the upper directory cannot be copied: " in more[7]
