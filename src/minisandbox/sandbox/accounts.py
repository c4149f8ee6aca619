"""Users and groups of a sandbox, read from its own files.

Not through ``pwd`` and ``grp``: those would load the name service modules of whatever lies in the
sandbox into a process that holds capabilities.
"""

from __future__ import annotations

import errno
import os
import stat

#: Bytes of a table that are read.
_MOST = 4 << 20


class Account:
    """The ids a command runs with, and where its HOME is."""

    def __init__(self, uid: int, gid: int, groups: list[int], home: str) -> None:
        self.uid = uid
        self.gid = gid
        self.groups = groups
        self.home = home


def find(user: str | int | None) -> Account:
    """The account named (or numbered) ``user``; None is root. A number need not be in /etc/passwd.

    With a colon it is as container engines read it: ``user:group`` has that group alone, and with
    nothing behind the colon a number that is not in /etc/passwd has the group 0. Raises ``OSError``
    (ENOENT, with the name) for an unknown name.
    """
    name, colon, group = ("root" if user is None else str(user)).partition(":")
    account = _named(name or "root", unlisted_group=0 if colon else None)
    if not group:
        return account
    gid = _group(group)
    return Account(account.uid, gid, [gid] if gid else [], account.home)


def _named(user: str, *, unlisted_group: int | None) -> Account:
    if user in ("0", "root"):
        return Account(0, 0, [], "/root")
    for name, _, uid, gid, _, home, *_ in _rows("/etc/passwd", 7):
        # Like the C library: a row without numbers is no row.
        if user in (name, uid) and _is_id(uid) and _is_id(gid):
            groups = [
                int(group[2])
                for group in _rows("/etc/group", 4)
                if name in group[3].split(",") and _is_id(group[2])
            ]
            return Account(int(uid), int(gid), sorted({int(gid), *groups}), home or "/")
    if _is_id(user):
        gid = int(user) if unlisted_group is None else unlisted_group
        return Account(int(user), gid, [gid], "/")
    raise OSError(errno.ENOENT, "no such user", user)


def _group(group: str) -> int:
    for name, _, gid, *_ in _rows("/etc/group", 4):
        if group in (name, gid) and _is_id(gid):
            return int(gid)
    if _is_id(group):
        return int(group)
    raise OSError(errno.ENOENT, "no such group", group)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) < 2**32 - 1  # the last one is no id


def _rows(path: str, width: int) -> list[list[str]]:
    try:
        # What lies there is up to programs inside: a pipe must not hold a request up, and a device
        # without end must not fill its memory.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(fd, "rb") as table:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            text = table.read(_MOST) if regular else b""
    except OSError:
        return []
    rows = [line.split(":") for line in text.decode("utf-8", "replace").split("\n")]
    return [row for row in rows if len(row) >= width]
