"""Removing trees that somebody else shaped: any depth, any mode, no link followed.

A sandbox leaves directories of mode 000 (the overlay's work directory), of thousands of levels, and
links to anywhere. Invariant: nothing outside the named directory is ever touched, nor anything
that is mounted in it: below a mount are files of somebody else, under the same device number where
it is a bind. Light to import: the server of sandboxes loads it.
"""

from __future__ import annotations

import errno
import os
import stat

from minisandbox import linux

#: Levels held open at once. Deeper directories are first moved up, so depth costs neither stack nor
#: descriptors.
_MAX_DEPTH = 48


def remove(path: str) -> None:
    """Remove ``path`` and everything below with the rights of this process; missing is fine.

    Raises ``PermissionError`` for files of ids that this process may not act for, and ``OSError``
    (EBUSY) at a mount, whose content and place stay.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
    except FileNotFoundError:
        return
    parent = os.open(
        os.path.dirname(os.path.abspath(path)), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    )
    try:
        name = os.path.basename(os.path.abspath(path))
        top = _open(name, parent)
        try:
            while _empty(top, top, 0):
                pass
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return
    finally:
        os.close(parent)


def _open(name: str, parent: int) -> int:
    handle = _open_here(name, parent, os.O_PATH)
    try:
        status = os.fstat(handle)
        if status.st_mode & 0o700 != 0o700:
            # Through the descriptor: fchmodat cannot refuse links before Linux 6.6.
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return _open_here(name, parent, os.O_RDONLY)
    finally:
        os.close(handle)


def _open_here(name: str, parent: int, flags: int) -> int:
    try:
        return linux.open_beneath(parent, name, flags | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise OSError(errno.EBUSY, "something is mounted here, so it stays", name) from error
        raise


def _empty(directory: int, top: int, depth: int) -> bool:
    """Empty ``directory``; returns whether something was moved up into ``top`` and is still to
    do.
    """
    again = False
    with os.scandir(directory) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in names:
        try:
            if not is_directory:
                os.unlink(name, dir_fd=directory)
            elif depth >= _MAX_DEPTH:
                os.close(_open(name, directory))  # a directory is only moved by who may write in it
                os.rename(name, f"up-{os.urandom(8).hex()}", src_dir_fd=directory, dst_dir_fd=top)
                again = True
            else:
                child = _open(name, directory)
                try:
                    again |= _empty(child, top, depth + 1)
                finally:
                    os.close(child)
                os.rmdir(name, dir_fd=directory)
        except FileNotFoundError:
            continue
    return again
