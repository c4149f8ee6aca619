"""podman, with a storage of its own and an image of the instance.

The image holds the same environment and repository as the sandbox; the host's /usr is bound
read-only there as well, so that neither of them carries a distribution. podman of its own accord
uses cgroup v2 where it sees both versions, and fails; see ``startup.hide_unified_hierarchy``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from contenders import FIRST, PYTHON, Unavailable, first_output
from minisandbox.runtime.instance import TESTBED
from subjects import Subject

#: Some hosts do not let podman raise the limits that it would raise by default.
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
_OPTIONS = ("--network", "none", "--volume", "/usr:/usr:ro", "--workdir", TESTBED, *_LIMITS)


class Podman:
    """An engine with an image of one subject, and a container that runs for ``podman exec``."""

    name = "podman"

    def __init__(self, subject: Subject, folder: Path) -> None:
        if not shutil.which("podman"):
            raise Unavailable("podman is not installed")
        places = ("--root", str(folder / "root"), "--runroot", str(folder / "run"))
        self._podman = ["podman", *places, "--cgroup-manager=cgroupfs"]
        self._image = f"minisandbox-benchmark:{subject.key}"
        self._box = f"minisandbox-benchmark-{subject.key}"
        driver = json.loads(self._call("info", "--format", "json"))["store"]["graphDriverName"]
        if driver != "overlay":  # vfs copies the image for each container
            raise Unavailable(f"its storage driver is {driver}, not overlay")
        self._import(subject)
        self._call("rm", "--force", "--ignore", "--time", "0", self._box)
        self._call("run", "-d", "--name", self._box, *_OPTIONS, self._image, "/bin/sleep", "1d")

    def _call(self, *words: str) -> bytes:
        command = [*self._podman, *words]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise Unavailable(f"podman {words[0]} ended with {done.returncode}: {said[-300:]}")
        return done.stdout

    def _import(self, subject: Subject) -> None:
        known = subprocess.run([*self._podman, "image", "exists", self._image], check=False)
        if known.returncode == 0:
            return
        tar = ["tar", "-cf", "-", "-C", str(subject.tree()), "."]
        with subprocess.Popen(tar, stdout=subprocess.PIPE) as packer:
            imported = subprocess.run(
                [*self._podman, "import", "-", self._image],
                stdin=packer.stdout,
                capture_output=True,
                check=False,
            )
        if packer.returncode or imported.returncode:
            said = imported.stderr.decode("utf-8", "replace").strip()
            raise Unavailable(f"podman import failed: {said[-300:]}")

    def round(self) -> dict[str, float]:
        """A container from nothing to its first output, and commands in the one that runs."""
        run = [*self._podman, "run", "--rm", *_OPTIONS, self._image]
        inside = [*self._podman, "exec", self._box]
        return {
            "first command": first_output([*run, *FIRST]),
            "command": first_output([*inside, *FIRST]),
            "command, python": first_output([*inside, *PYTHON]),
        }

    def close(self) -> None:
        """Remove the container that runs; the image stays for the next time."""
        self._call("rm", "--force", "--time", "0", self._box)
