"""Which host ids stand for the ids inside a sandbox, and how to act as them.

Three kinds, best first. ``root``: the caller is root of the host and maps a range of host ids that
nobody else has. ``subid``: the caller's own id is id 0 inside, and the range that the administrator
gave it in /etc/subuid follows (so inside ids 0..65535 exist, and inside root can reach the caller's
own files that are mounted for it, whatever the modes of directories on the way). ``single``: only
id 0 exists inside.

Invariant: host uid 0 is never mapped in; it could write /proc/sys and every file bound from the
host.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from minisandbox import linux, namespaces, removal
from minisandbox.errors import HostUnsupported

T = TypeVar("T")

#: Ids inside: what tools expect (nobody is 65534), and what one line of /etc/subuid holds.
COUNT = 65_536

#: First host id of a root caller's range. systemd gives out 524288..1879048191 to containers and
#: leaves 1879048192..2147483647 unused (https://systemd.io/UIDS-GIDS); ids from 2^31 on break
#: programs that keep them signed. So this range meets neither people, nor nspawn, nor /etc/subuid
#: (100000 upwards).
ROOT_BASE = 1_879_048_192


@dataclass(frozen=True)
class IdMap:
    """A bijection between ``count`` inside ids (0 upwards) and host ids.

    ``uid_base`` and ``gid_base`` are the host ids of inside id 0. For ``subid`` the inside ids from
    1 on stand for host ids from ``uid_range`` (``gid_range``) on; the other kinds do not use these
    two.
    """

    kind: Literal["root", "subid", "single"]
    uid_base: int
    gid_base: int
    count: int
    uid_range: int = 0
    gid_range: int = 0

    @property
    def key(self) -> str:
        """A path component that names the map; files unpacked under one key fit no other."""
        if self.kind == "subid":
            return f"subid-{self.uid_base}-{self.uid_range}"
        return f"{self.kind}-{self.uid_base}"

    @property
    def sees_inside(self) -> bool:
        """Whether code in :func:`call_mapped` sees (and writes) inside ids rather than host ids."""
        return self.kind != "root"

    @property
    def uid_extents(self) -> tuple[linux.Extent, ...]:
        """The map as ``/proc/<pid>/uid_map`` wants it."""
        return _extents(self.kind, self.uid_base, self.uid_range, self.count)

    @property
    def gid_extents(self) -> tuple[linux.Extent, ...]:
        """The map as ``/proc/<pid>/gid_map`` wants it."""
        return _extents(self.kind, self.gid_base, self.gid_range, self.count)

    @property
    def map_writers(self) -> tuple[str, str] | None:
        """The set-uid programs that must write the maps, or None where this process may."""
        return _map_writers() if self.kind == "subid" else None

    def inside_uid(self, host_uid: int) -> int:
        """The inside id of a host uid; raises ``ValueError`` for one that is not mapped."""
        return _inside(self.uid_extents, host_uid)

    def inside_gid(self, host_gid: int) -> int:
        """The inside id of a host gid; raises ``ValueError`` for one that is not mapped."""
        return _inside(self.gid_extents, host_gid)

    def host_uid(self, inside: int) -> int:
        """The host uid of an inside id; raises ``ValueError`` for one that is not mapped."""
        return _host(self.uid_extents, inside)

    def host_gid(self, inside: int) -> int:
        """The host gid of an inside id; raises ``ValueError`` for one that is not mapped."""
        return _host(self.gid_extents, inside)


def _extents(kind: str, base: int, following: int, count: int) -> tuple[linux.Extent, ...]:
    if kind == "subid":
        return ((0, base, 1), (1, following, count - 1))
    return ((0, base, count),)


def _inside(extents: tuple[linux.Extent, ...], host: int) -> int:
    for first, outside, count in extents:
        if outside <= host < outside + count:
            return first + host - outside
    raise ValueError(f"host id {host} is not mapped into the sandbox")


def _host(extents: tuple[linux.Extent, ...], inside: int) -> int:
    for first, outside, count in extents:
        if first <= inside < first + count:
            return outside + inside - first
    raise ValueError(f"id {inside} does not exist in the sandbox")


@functools.cache
def current() -> IdMap:
    """The best map this process can use, found by trying it; the answer is kept for the process."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0 and _may_map_root_range():
        return IdMap("root", ROOT_BASE, ROOT_BASE, COUNT)
    uids, gids = _subordinate("/etc/subuid", uid), _subordinate("/etc/subgid", uid)
    if uids is not None and gids is not None and _map_writers() is not None:
        ranged = IdMap("subid", uid, gid, COUNT, uids, gids)
        if works(ranged):
            return ranged
    return single()


def single() -> IdMap:
    """The map that needs nobody's permission: the caller is id 0, and no other id exists."""
    return IdMap("single", os.geteuid(), os.getegid(), 1)


def works(idmap: IdMap) -> bool:
    """Whether a user namespace with this map can be entered here (always true for ``root``)."""
    try:
        return call_mapped(idmap, os.geteuid) == (os.geteuid() if idmap.kind == "root" else 0)
    except (OSError, HostUnsupported):
        return False


def _may_map_root_range() -> bool:
    # Root of a container may hold a few ids only, or lack the capabilities.
    capabilities = linux.effective_capabilities()
    if not all(capabilities >> bit & 1 for bit in (linux.CAP_SETUID, linux.CAP_SYS_ADMIN)):
        return False
    for name in ("uid_map", "gid_map"):
        rows = [
            tuple(map(int, row.split()))
            for row in Path("/proc/self", name).read_text().splitlines()
        ]
        if not any(a <= ROOT_BASE and a + n >= ROOT_BASE + COUNT for a, _, n in rows):
            return False
    return True


def _map_writers() -> tuple[str, str] | None:
    import shutil  # here and below: what importing the package need not wait for

    path = "/usr/bin:/bin:/usr/sbin:/sbin"  # never the caller's PATH: these run with privilege
    found = [shutil.which(name, path=path) for name in ("newuidmap", "newgidmap")]
    return (found[0], found[1]) if found[0] and found[1] else None


def _subordinate(table: str, uid: int) -> int | None:
    """First id of the first line of ``table`` that is the caller's and long enough (subuid(5))."""
    import pwd

    try:
        names = {str(uid), pwd.getpwuid(uid).pw_name}
    except KeyError:
        names = {str(uid)}
    try:
        lines = Path(table).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.strip().split(":")
        if len(fields) != 3 or fields[0] not in names or not "".join(fields[1:]).isdigit():
            continue
        if int(fields[2]) >= COUNT - 1:
            return int(fields[1])
    return None


def call_mapped(idmap: IdMap, function: Callable[[], T]) -> T:
    """Run ``function`` where it can write files of every inside id, and return what it returns.

    For ``root`` that is this very process (the function changes owners to host ids itself);
    otherwise a forked child that is id 0, with all capabilities, of a user namespace with this map,
    and sees inside ids. Result or exception come back pickled. The child is made with ``os.fork``
    so that closures work; in a program with threads the function must therefore not need a lock
    that another thread may hold (logging and imports at the first use are the usual ones). Raises
    ``ChildProcessError`` when the child dies, and ``HostUnsupported`` where the host refuses the
    namespace.
    """
    if idmap.kind == "root":
        return function()
    import pickle

    read_end, write_end = os.pipe()

    def child() -> None:
        os.close(read_end)
        try:
            answer = pickle.dumps((True, function()))
        except BaseException as error:  # noqa: BLE001 - raised again in the parent
            answer = _pickled_error(error)
        with open(write_end, "wb") as pipe:
            pipe.write(answer)

    with warnings.catch_warnings():
        # Python >= 3.12 warns of fork in a threaded program; the docstring says what that means
        # here.
        warnings.simplefilter("ignore", DeprecationWarning)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = linux.fork_mapped(
                idmap.uid_extents,
                idmap.gid_extents,
                map_writers=idmap.map_writers,
                child=child,
            )
        except BaseException as error:
            os.close(read_end)
            if isinstance(error, linux.NamespacesRefused):
                place = f" ({error.filename})" if error.filename else ""
                detail = f"{error.strerror}{place}"
                raise namespaces.refused(error.errno or 0, detail) from error
            raise
        finally:
            os.close(write_end)
    try:
        with open(read_end, "rb") as pipe:
            answer = pipe.read()
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0 or not answer:
        raise ChildProcessError(
            f"the process acting for {idmap.key} died with {code} before it answered"
        )
    succeeded, value = pickle.loads(answer)
    if not succeeded:
        raise value
    return value


def _pickled_error(error: BaseException) -> bytes:
    import pickle

    try:
        answer = pickle.dumps((False, error))
        pickle.loads(answer)  # some exceptions pickle but cannot be built again
        return answer
    except Exception:  # noqa: BLE001 - pickling runs code of any class
        return pickle.dumps((False, ChildProcessError(f"{type(error).__name__}: {error}")))


def remove_tree(path: Path, idmap: IdMap) -> None:
    """Remove ``path`` whatever a sandbox with this map left there; missing is fine, links stay
    links.

    Copes with mode 000 (overlay work directories), with ids that are not the caller's, and with any
    depth.
    """
    try:
        removal.remove(os.fspath(path))
    except PermissionError:
        if idmap.kind == "root":
            raise
        call_mapped(idmap, functools.partial(removal.remove, os.fspath(path)))
