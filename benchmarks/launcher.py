"""Time to start a sandbox and to run a command in it, beside bubblewrap and podman.

    python benchmarks/launcher.py [--rounds N]

podman is measured for root only, with an image of one static program (busybox) in a storage of its
own. Where cgroup v1 and v2 are mounted together it does not start; there run this as
`unshare -m sh -c 'umount /sys/fs/cgroup/unified; exec python benchmarks/launcher.py'`.

Each row is measured by alternating with the others, so that a busy moment of the machine hits all.
Peers that are not installed are left out. bubblewrap has no way into a running sandbox, so each of
its commands is a start; it does not mount an overlay (Debian 12's cannot), set up loopback names,
or reap for a PID 1 of its own beyond its trivial one: its row is the floor for a program in C that
does less. Nothing is written outside a temporary directory.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from minisandbox import idmap
from minisandbox.sandbox import Sandbox

BUBBLEWRAP = [
    *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--uid", "0", "--gid", "0"),
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--ro-bind", "/etc/passwd", "/etc/passwd"),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/root"),
]


PODMAN_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")


class Podman:
    """An engine with storage of its own, an image, and a container that runs."""

    def __init__(self, folder: Path) -> None:
        places = (
            "--root",
            folder / "root",
            "--runroot",
            folder / "run",
            "--cgroup-manager=cgroupfs",
        )
        self.command = ["podman", *map(str, places)]
        content = folder / "image/bin"
        content.mkdir(parents=True)
        shutil.copy(str(shutil.which("busybox")), content / "busybox")
        tar = folder / "image.tar"
        subprocess.run(["tar", "-cf", tar, "-C", content.parent, "bin"], check=True)
        self.call("import", str(tar), "bench")
        self.call(
            "run", "-d", "--name", "box", *self.options, "bench", "/bin/busybox", "sleep", "9999"
        )

    options = ("--network", "none", *PODMAN_LIMITS)

    def call(self, *words: str) -> bytes:
        """Run podman; raises ``CalledProcessError``."""
        return subprocess.run(
            [*self.command, *words], stdin=subprocess.DEVNULL, capture_output=True, check=True
        ).stdout

    def run(self) -> None:
        """Start, run one program, end, remove."""
        said = self.call("run", "--rm", *self.options, "bench", "/bin/busybox", "echo", "x")
        assert said == b"x\n"

    def exec(self) -> None:
        """Run one program in the container that runs."""
        assert self.call("exec", "box", "/bin/busybox", "echo", "x") == b"x\n"

    def close(self) -> None:
        """Remove containers and image."""
        self.call("rm", "--force", "--time", "0", "box")
        self.call("rmi", "--force", "bench")


def bubblewrap() -> None:
    """Start, run one program, end."""
    done = subprocess.run(
        [*BUBBLEWRAP, "echo", "x"], stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    assert done.stdout == b"x\n"


def milliseconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1000


def measure(
    scratch: Path, layer: Path, rounds: int, podman: Podman | None
) -> dict[str, list[float]]:
    """All rows, each with ``rounds`` values in milliseconds."""
    rows: dict[str, list[float]] = {
        "minisandbox: start to first output": [],
        "minisandbox: command, argv": [],
        "minisandbox: command, bash script": [],
        "minisandbox: close": [],
    }
    peers: dict[str, Callable[[], None]] = {}
    if shutil.which("bwrap"):
        peers["bubblewrap: start to first output (= command)"] = bubblewrap
    if podman is not None:
        peers["podman run: start to first output"] = podman.run
        peers["podman exec: command"] = podman.exec
    rows.update({name: [] for name in peers})
    boxes: list[Sandbox] = []

    def start() -> None:
        boxes.append(Sandbox.start([layer], scratch=scratch))
        assert boxes[-1].run(["echo", "x"]).stdout == b"x\n"

    start()  # the skeleton is built once for a scratch directory
    boxes.pop().close()
    for _ in range(rounds):
        rows["minisandbox: start to first output"].append(milliseconds(start))
        box = boxes.pop()
        box.run(["echo", "x"])
        argv, script = partial(box.run, ["echo", "x"]), partial(box.run, "echo x")
        rows["minisandbox: command, argv"].append(milliseconds(argv))
        rows["minisandbox: command, bash script"].append(milliseconds(script))
        rows["minisandbox: close"].append(milliseconds(box.close))
        for name, action in peers.items():
            rows[name].append(milliseconds(action))
    return rows


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    mapped = idmap.current()
    with tempfile.TemporaryDirectory(prefix="launcher-") as name:
        layer, scratch = Path(name, "layer"), Path(name, "scratch")
        (layer / "testbed").mkdir(parents=True)
        scratch.mkdir()
        podman = None
        if mapped.kind == "root" and shutil.which("podman") and shutil.which("busybox"):
            podman = Podman(Path(name, "podman"))
        try:
            rows = measure(scratch, layer, options.rounds, podman)
        finally:
            if podman is not None:
                podman.close()
    print(f"Id map: {mapped.kind}; {options.rounds} rounds; milliseconds of wall time.\n")
    print("| what | fastest | median | 95th percentile |\n|---|---|---|---|")
    for row, values in rows.items():
        late = sorted(values)[int(len(values) * 0.95)]
        print(f"| {row} | {min(values):.1f} | {statistics.median(values):.1f} | {late:.1f} |")


if __name__ == "__main__":
    main()
