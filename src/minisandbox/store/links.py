"""Files that directories share: hard links to and from a directory that holds one of each."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: What a link meets where it cannot be made, and a copy can: no such file, too many links, a file
#: system or a policy that has none.
_NO_LINK = frozenset(
    {errno.ENOENT, errno.EMLINK, errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EACCES}
)


class Links:
    """A directory of files by relative names, of which each has a folder before its slash."""

    def __init__(self, place: Path) -> None:
        self._place = os.fspath(place)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return os.path.lexists(f"{self._place}/{name}")

    def take(self, name: str, target: str | bytes, directory: int) -> bool:
        """Make ``target`` in ``directory`` a link to a file; False where it has to be a copy."""
        try:
            source = f"{self._place}/{name}"
            os.link(source, target, dst_dir_fd=directory, follow_symlinks=False)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise
        return True

    def give(self, path: str | bytes, directory: int, name: str) -> None:
        """Let others link to the file ``path`` below ``directory``, which is on disk by now."""
        target = f"{self._place}/{name}"
        try:
            try:
                os.link(path, target, src_dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
                os.link(path, target, src_dir_fd=directory, follow_symlinks=False)
        except OSError:
            return  # Somebody was faster, or there is no room: then it is not shared.


class Whiteouts:
    """Hides names of the layer below a directory. All of them are one inode, as far as it takes
    links, as overlayfs does it itself: a checkout hides more than a thousand objects.
    """

    def __init__(self, root: int) -> None:
        """``root`` is a descriptor of the directory, open as long as this is used."""
        self._root = root
        self._made = ""

    def add(self, name: str, path: str, directory: int) -> None:
        """Hide ``name`` in ``directory``, which is at ``path`` below the root."""
        if self._made:
            try:
                os.link(
                    self._made,
                    name,
                    src_dir_fd=self._root,
                    dst_dir_fd=directory,
                    follow_symlinks=False,
                )
                return
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)
        self._made = f"{path}/{name}"
