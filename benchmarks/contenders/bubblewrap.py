"""bubblewrap over the unpacked tree of an instance, with its usual flags.

It has no way into a running sandbox, so each command is a start. It does less: no overlay (Debian
12's has none, so what a command writes stays in the tree), no limits, no filter of system calls, a
single id. Its row is the floor for a program in C.
"""

from __future__ import annotations

import shutil

from contenders import FIRST, PYTHON, Unavailable, first_output
from minisandbox.runtime.instance import TESTBED
from subjects import Subject

_FLAGS = (
    *("--unshare-all", "--die-with-parent", "--new-session", "--uid", "0", "--gid", "0"),
    *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
    *("--dir", "/root"),
)


class Bubblewrap:
    """``bwrap`` on one subject."""

    name = "bubblewrap"

    def __init__(self, subject: Subject) -> None:
        if not shutil.which("bwrap"):
            raise Unavailable("bwrap is not installed")
        tree = subject.tree()
        binds = [
            word
            for name in ("etc", "opt", "testbed")
            for word in ("--bind", tree / name, f"/{name}")
        ]
        self._command = ["bwrap", *_FLAGS, *binds, "--chdir", TESTBED]
        self.round()

    def round(self) -> dict[str, float]:
        """One start, and one more with the environment's interpreter."""
        return {
            "first command": first_output([*self._command, *FIRST]),
            "first command, python": first_output([*self._command, *PYTHON]),
        }

    def close(self) -> None:
        """Nothing is left of it."""
