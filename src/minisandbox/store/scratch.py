"""Where sandboxes write: a directory on a file system that can hold an overlay's upper directory.

Beside the layers of the node store where that is one, for then what a sandbox made becomes a layer
by a rename; else elsewhere on this machine. A choice of the user's is never overruled.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from minisandbox import mounts
from minisandbox.store.faults import StoreUnusable, explained

#: overlayfs does not take itself, nor remote file systems, nor those without extended attributes,
#: as an upper directory (kernel: Documentation/filesystems/overlayfs.rst).
_NO_UPPER = frozenset(
    {"overlay", "nfs", "nfs4", "lustre", "cifs", "smb3", "9p", "ceph", "gpfs", "vfat", "exfat"}
)
#: Users' extended attributes on tmpfs, in which an overlay of a user namespace keeps its notes.
_TMPFS_FLOOR = (6, 6)
#: Bytes free below which a place in memory would only fail later.
_ENOUGH = 1 << 30


def scratch_directory(base: Path, key: str, make: Callable[[Path], None]) -> Path:
    """The scratch directory that goes with the node store ``base``, made by ``make`` if missing.

    ``key`` names the id map. ``$MINISANDBOX_SCRATCH`` is where it lies; unless given, it is beside
    the layers, or, where those are read-only or on a file system that cannot hold it, in the
    directory for temporary files or in /dev/shm. Raises ``StoreUnusable``.
    """
    chosen = os.environ.get("MINISANDBOX_SCRATCH")
    if chosen:
        path = Path(chosen).absolute() / key / "scratch"
        with explained("use the scratch directory", path):
            make(path)
        return path
    path = base / "scratch"
    usable = False
    with explained("use the scratch directory", path):
        try:
            make(path)
            usable = os.access(path, os.W_OK)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
    if usable and _can_hold_upper(path):
        return path
    for place in (tempfile.gettempdir(), "/var/tmp", "/dev/shm"):
        if os.access(place, os.W_OK) and _can_hold_upper(Path(place)) and _is_large(place):
            elsewhere = _own_directory(Path(place)) / key / "scratch"
            with explained("use the scratch directory", elsewhere):
                make(elsewhere)
            return elsewhere
    if usable:
        return path  # a start there says what is missing
    error = OSError(errno.EROFS, f"{os.strerror(errno.EROFS)}, and no other place will do")
    raise StoreUnusable("use the scratch directory", path, error)


def _can_hold_upper(path: Path) -> bool:
    kind, _ = mounts.file_system(path)
    if kind == "tmpfs" and os.geteuid() != 0:
        numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
        return bool(numbers) and (int(numbers[1]), int(numbers[2])) >= _TMPFS_FLOOR
    return kind not in _NO_UPPER


def _is_large(place: str) -> bool:
    room = os.statvfs(place)
    return room.f_bavail * room.f_frsize >= _ENOUGH


def _own_directory(place: Path) -> Path:
    """A directory of this user's where everyone may make one; raises ``StoreUnusable`` if somebody
    else has taken its name.
    """
    path = place / f"minisandbox-{os.geteuid()}"
    with explained("use the scratch directory", path):
        try:
            path.mkdir()
            path.chmod(0o755)
        except FileExistsError:
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                reason = "it is not a directory of this user; set MINISANDBOX_SCRATCH to one"
                raise OSError(errno.EEXIST, reason) from None
    return path
