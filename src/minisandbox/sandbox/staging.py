"""Where on the host a download comes together, and how it gets to its place.

A download may end at any moment: too much comes, the sandbox dies, the caller is interrupted.
Invariant: what is at the destination then is what was there before. Its paths are those of the
host, which nothing inside can change meanwhile: sandboxes never import this.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat

from minisandbox import removal
from minisandbox.closing import Closing

_CONTENT = "content"


class Staging(Closing):
    """An empty directory on the file system of ``destination``; removed at the end of a ``with``.

    What is made at ``path`` goes to the destination by :meth:`put_in_place`. Raises ``OSError``
    with the destination where nothing can be written.
    """

    def __init__(self, destination: str) -> None:
        self._target = os.path.realpath(destination)
        # In the destination itself where that is a directory: it may be a mount, or lie in a
        # directory that its owner cannot write.
        place = self._target
        if not os.path.isdir(place):
            place = os.path.dirname(place)
            while not os.path.lexists(place):
                place = os.path.dirname(place)
        self._home = os.path.join(place, f".minisandbox-{os.urandom(6).hex()}")
        try:
            os.mkdir(self._home, 0o700)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._target) from error
        self.path = os.path.join(self._home, _CONTENT)

    def put_in_place(self) -> None:
        """Move what is at ``path`` to the destination: directories are merged into those that are
        there, a file replaces the one that is there in one step. Raises ``OSError``, before
        anything is moved where a file and a directory would have to replace each other.
        """
        _refuse_misfits(self.path, self._target)
        os.makedirs(os.path.dirname(self._target), exist_ok=True)
        status = os.lstat(self.path)
        _bring(self.path, self._target)
        # It may lie in the destination, whose date this changes, and where it may not be allowed
        # any more once that has its mode.
        removal.remove(self._home)
        _finish(self._target, status)

    def close(self) -> None:
        """Remove what has not been put in place."""
        removal.remove(self._home)


def _refuse_misfits(source: str, target: str) -> None:
    status = os.lstat(source)
    if not os.path.lexists(target):
        return
    comes, there = stat.S_ISDIR(status.st_mode), _is_directory(target)
    if comes != there:
        number = errno.EISDIR if there else errno.ENOTDIR
        raise OSError(number, os.strerror(number), target)
    if comes:
        os.chmod(source, 0o700)
        for name in os.listdir(source):
            _refuse_misfits(os.path.join(source, name), os.path.join(target, name))
        os.chmod(source, stat.S_IMODE(status.st_mode))


def _move(source: str, target: str) -> None:
    status = os.lstat(source)
    _bring(source, target)
    _finish(target, status)


def _bring(source: str, target: str) -> None:
    if not stat.S_ISDIR(os.lstat(source).st_mode):
        _rename(source, target)
        return
    os.chmod(source, 0o700)  # only who may write in a directory can move it, or what is in it
    if _is_directory(target):
        _merge(source, target)
    else:
        _rename(source, target)


def _finish(path: str, status: os.stat_result) -> None:
    """Give a directory, as the last thing, the mode and the date that it came with."""
    if stat.S_ISDIR(status.st_mode):
        os.chmod(path, stat.S_IMODE(status.st_mode))
        os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _merge(source: str, target: str) -> None:
    for name in sorted(os.listdir(source)):
        _move(os.path.join(source, name), os.path.join(target, name))


def _is_directory(path: str) -> bool:
    """Not where a link leads to one: who put it there did not mean it to be written through."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _rename(source: str, target: str) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, target)  # something is mounted below the destination


def _copy(source: str, target: str) -> None:
    if _is_directory(source):
        os.mkdir(target, 0o700)
        _merge(source, target)
        return
    temporary = os.path.join(os.path.dirname(target), f".minisandbox-{os.urandom(6).hex()}")
    try:
        shutil.copy2(source, temporary, follow_symlinks=False)
        os.rename(temporary, target)
    except BaseException:
        removal.remove(temporary)
        raise
