"""The method of the SWE-MiniSandbox paper, as root: unpack two archives per task, bind, chroot.

The archives of environment and repository are made beforehand; the interpreter, which that method
takes from the host, is bound. The unpacker is the fastest of those that are installed, and it
unpacks into memory, so that no disk is waited for: the method at its best. Nothing isolates but a
mount namespace; what is unpacked is removed afterwards, untimed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from contenders import FIRST, Unavailable, first_output, milliseconds
from minisandbox.runtime.instance import CONDA, TESTBED
from minisandbox.runtime.stack import PYTHONS
from subjects import Subject

#: A tmpfs wherever there is a C library (shm_overview(7)).
_MEMORY = Path("/dev/shm")
_ENTER = f"""
set -e
for place in /usr /dev; do mount --rbind $place "$1$place"; done
mount --bind "$2" "$1/{PYTHONS}"
mount -t proc proc "$1/proc"
cd "$1{TESTBED}"
root=$1
shift 2
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Unpacker:
    """A way to unpack a ``.tar.gz``."""

    name: str
    #: Writes the tar to standard output, given the archive as its last word; none where the last
    #: program decompresses by itself.
    decompress: tuple[str, ...]
    extract: tuple[str, ...]

    def unpack(self, archive: Path, target: Path) -> None:
        """Unpack into an existing directory; raises ``CalledProcessError``."""
        extract = [*self.extract, "-C", str(target)]
        if not self.decompress:
            subprocess.run([*extract, "-xf", str(archive)], check=True)
            return
        command = [*self.decompress, str(archive)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as feeder:
            subprocess.run([*extract, "-xf", "-"], stdin=feeder.stdout, check=True)
        if feeder.returncode:
            raise subprocess.CalledProcessError(feeder.returncode, command)


def unpackers() -> Iterator[Unpacker]:
    """Those that can be run here."""
    tar = ("tar",)
    for name, options in (
        ("gzip", ("-dc",)),
        ("pigz", ("-dc",)),
        ("igzip", ("-dc",)),
        ("libdeflate-gunzip", ("-c",)),
        ("rapidgzip", ("-dc",)),
    ):
        program = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
        if program:
            yield Unpacker(f"tar, {name}", (program, *options), tar)
    for module in ("isal.igzip", "zlib_ng.gzip_ng"):
        command = (sys.executable, "-m", module, "-dc")
        if subprocess.run([*command, "--help"], capture_output=True, check=False).returncode == 0:
            yield Unpacker(f"tar, python -m {module}", command, tar)
    if shutil.which("bsdtar"):
        yield Unpacker("bsdtar", (), ("bsdtar",))


def fastest(archive: Path, times: int) -> tuple[Unpacker, dict[str, float]]:
    """The unpacker that was fastest on ``archive`` (the best of ``times``), and the time of each
    in milliseconds.
    """
    candidates = list(unpackers())
    best = dict.fromkeys((candidate.name for candidate in candidates), float("inf"))
    for _ in range(times):
        for candidate in candidates:
            with tempfile.TemporaryDirectory(dir=_MEMORY) as target:
                took = milliseconds(partial(candidate.unpack, archive, Path(target)))
            best[candidate.name] = min(best[candidate.name], took)
    return min(candidates, key=lambda candidate: best[candidate.name]), best


class Published:
    """The method on one subject."""

    name = "published method"

    def __init__(self, subject: Subject, folder: Path) -> None:
        if os.geteuid() != 0:
            raise Unavailable("it needs root: it mounts, and changes the root")
        self._folder = folder / subject.key
        self._folder.mkdir(parents=True, exist_ok=True)
        tree = subject.tree()
        self._python = tree / PYTHONS
        self.environment = self._pack("environment", tree, CONDA)
        self._repository = self._pack("repository", tree, TESTBED)
        self.unpacker = next(unpackers())

    def _pack(self, name: str, tree: Path, path: str) -> Path:
        archive = self._folder / f"{name}.tar.gz"
        if not archive.exists():
            part = archive.with_suffix(".part")
            words = ["tar", "-czf", str(part), "-C", str(tree), path.lstrip("/")]
            subprocess.run(words, check=True)
            part.rename(archive)
        archive.read_bytes()  # the page cache is warm for everybody
        return archive

    def round(self) -> dict[str, float]:
        """One task: unpack twice, mount, change the root, run."""
        started = time.perf_counter()
        root = Path(tempfile.mkdtemp(dir=_MEMORY))
        try:
            for name in ("usr", "dev", "proc", "tmp", PYTHONS):
                (root / name).mkdir(parents=True)
            for name in ("bin", "lib", "lib64"):
                (root / name).symlink_to(f"usr/{name}")
            for archive in (self.environment, self._repository):
                self.unpacker.unpack(archive, root)
            words = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", root, self._python, *FIRST]
            return {"first command": first_output(words, since=started)}
        finally:
            shutil.rmtree(root)

    def close(self) -> None:
        """Nothing is left of it."""
