"""What other forks of the server do: remove what a sandbox left, and copy its changes.

A tree may be large, and its owners several ids, some of which only a process inside of the user
namespace can act for.
"""

from __future__ import annotations

import errno
import os

from minisandbox import linux, removal
from minisandbox.sandbox import copying, scratch
from minisandbox.sandbox.limits import ledger

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def remove_untouched(path: str) -> bool:
    """Remove the directory of a sandbox, if nothing was written in it: that takes no process of its
    own. Whether nothing is left.
    """
    work = os.path.join(path, "work", "work")
    try:
        os.rmdir(os.path.join(path, "upper"))
        # What the overlay leaves in its work directory, with the option volatile: directories of
        # mode 000. Its work directory was another where the sandbox wrote to memory.
        if os.path.lexists(work):
            parts = [os.path.join(work, name) for name in ("", "incompat", "incompat/volatile")]
            for part in parts:
                os.chmod(part, 0o700)
            os.unlink(os.path.join(parts[-1], "dirty"))
            for part in reversed(parts):
                os.rmdir(part)
        os.rmdir(os.path.dirname(work))
        os.unlink(os.path.join(path, ledger.NAME))
        os.rmdir(path)
    except OSError:
        return False
    return True


def remove(spec: dict[str, Any], space: int, path: str) -> None:
    """Remove what a sandbox left, whoever of its ids it belongs to."""
    if space >= 0:
        _become_inside_root(space)
    _remove(spec, path)


def remove_stale(spec: dict[str, Any], space: int, stale: list[scratch.Stale]) -> None:
    """Remove what other servers left; what cannot be removed is left for later."""
    if space >= 0:
        _become_inside_root(space)
    for path, _ in stale:
        try:
            _remove(spec, path)
        except OSError:
            continue


def copy(spec: dict[str, Any], space: int, source: str, target: str) -> None:
    """Copy an upper directory, whoever of the sandbox's ids its files belong to. Ends this process
    if that fails: cp has said why in the log, which the client quotes.
    """
    if space >= 0:
        _become_inside_root(space)
    if spec["kind"] == "single":
        code = _act_mapped(spec, lambda: os._exit(copying.copy_tree(source, target)))
    else:
        code = copying.copy_tree(source, target)
    if code != 0:
        os._exit(1)


def _remove(spec: dict[str, Any], path: str) -> None:
    try:
        removal.remove(path)
    except PermissionError:
        if spec["kind"] != "single":
            raise
        code = _act_mapped(spec, lambda: removal.remove(path))
        if code != 0:
            reason = f"the process that acts for the sandbox ended with {code}"
            raise OSError(errno.EIO, reason, path) from None


def _become_inside_root(space: int) -> None:
    linux.enter_namespace(space, linux.CLONE_NEWUSER)
    linux.become_inside_root(groups=True)


def _act_mapped(spec: dict[str, Any], action: Callable[[], None]) -> int:
    """Run ``action`` as root of the sandbox's map; returns the exit code of the fork that did."""
    child = linux.fork_mapped(spec["uids"], spec["gids"], map_writers=None, child=action)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
