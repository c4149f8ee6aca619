"""Removing trees that somebody else shaped: any depth, any mode, no link followed.

A sandbox leaves directories of mode 000 (the overlay's work directory), of thousands of levels, and
links to anywhere. Invariant: nothing outside the named directory is ever touched. Light to import:
every supervisor loads it.
"""

from __future__ import annotations

import os
import stat

#: Levels held open at once. Deeper directories are first moved up, so depth costs neither stack nor
#: descriptors.
_MAX_DEPTH = 48

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: str) -> None:
    """Remove ``path`` and everything below with the rights of this process; missing is fine.

    Raises ``PermissionError`` for files of ids that this process may not act for.
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
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        status = os.fstat(handle)
        if status.st_mode & 0o700 != 0o700:
            # Through the descriptor: fchmodat cannot refuse links before Linux 6.6.
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(name, _OPEN_DIRECTORY, dir_fd=parent)
    finally:
        os.close(handle)


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
