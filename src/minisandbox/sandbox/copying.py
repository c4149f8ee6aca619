"""Copying the upper directory of a sandbox whose programs may be at it.

They are stopped by signals, which a program can get around: while cp(1) walks the tree by paths, it
may exchange a directory for a link, and what lies behind the link would be copied with the caller's
rights. Invariant: cp runs where neither links nor ``..`` lead to more than the programs of the
host, the tree itself, and the empty place for its copy.
"""

from __future__ import annotations

import os

from minisandbox import linux
from minisandbox.sandbox import rootfs

#: Where a program and the libraries that it is linked to are.
_PROGRAMS = ("usr", "bin", "lib", "lib32", "lib64", "libx32")
_SOURCE, _TARGET = "source", "target"


def copy_tree(source: str, target: str) -> int:
    """Copy ``source`` to ``target``, the only entry of its directory, with all that overlayfs keeps
    in it, sharing blocks where the file system can. Returns the exit code of cp; raises ``OSError``
    for what comes before.

    For a fork, which loses its view of the host. Needs CAP_SYS_ADMIN in its user namespace.
    """
    home, name = os.path.split(target)
    root = os.path.join(home, "root")
    os.mkdir(root, 0o700)
    linux.unshare(linux.CLONE_NEWNS)
    rootfs.detach_from_host()
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=700,size=64k")
    for program in _PROGRAMS:
        outside, inside = f"/{program}", os.path.join(root, program)
        if os.path.islink(outside):
            os.symlink(os.readlink(outside), inside)
        elif os.path.isdir(outside):
            _bind(outside, inside, linux.MS_REC)
            linux.set_mount_attributes(inside, linux.MOUNT_ATTR_RDONLY)
    _bind(source, os.path.join(root, _SOURCE), 0)
    linux.set_mount_attributes(os.path.join(root, _SOURCE), linux.MOUNT_ATTR_RDONLY)
    _bind(home, os.path.join(root, _TARGET), 0)
    pid = os.fork()
    if pid == 0:
        try:
            _become_cp(root, f"/{_SOURCE}", f"/{_TARGET}/{name}")
        except OSError as error:
            linux.log_exception(error)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _bind(source: str, place: str, flags: int) -> None:
    os.makedirs(place)
    linux.mount(source, place, "", linux.MS_BIND | flags)


def _become_cp(root: str, source: str, target: str) -> None:
    # Through this the C library changes the mode of what may be a link (fchmodat(3)). All of /proc
    # would lead to the host; this shows what cp itself has open.
    _bind("/proc/self/fd", os.path.join(root, "proc/self/fd"), 0)
    os.chroot(root)
    os.chdir("/")
    program = "/usr/bin/cp" if os.path.exists("/usr/bin/cp") else "/bin/cp"
    # Extended attributes by name: with --preserve=all they may be lost without a word, and an
    # opaque directory would show what was deleted.
    keep = "--preserve=mode,ownership,timestamps,links,xattr"
    argv = [program, "-R", "-d", keep, "--reflink=auto", "--sparse=auto", "--", source, target]
    linux.close_all_but((0, 1, 2))
    os.execve(program, argv, {})
