"""Control groups of sandboxes: found, made, entered, asked and removed.

Below the caller's own group and nowhere else: in a group beside it, sandboxes would escape the
limits of the job that the caller runs in. With version 2 a group with processes cannot have groups
with controllers, and the caller's own always has one, the caller. So there the place is the nearest
group above it, as long as no group on the way has a limit of its own: what holds for the caller
then holds for its sandboxes too.

Each server makes one group and locks (flock) its directory; the kernel drops the lock when the
server ends. So a group of that name that can be locked is a leftover, and the next server removes
it. Only the memory and pids controllers of version 1 are used: to enter a group of its cpu
controller takes milliseconds. With version 2 there is one group for all, cpu included.
"""

from __future__ import annotations

import errno
import fcntl
import os

from minisandbox.sandbox.limits.rlimits import SPARE

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PREFIX = "minisandbox-"
#: Below the group of an ordinary user's sandbox, the one that its processes are in. Its files are
#: that user's, who root inside is: a program with a namespace of its own (``Profile.nested``) may
#: mount them, and write to them. It sees nothing above this one, where the limits are.
_INSIDE = "inside"
_CONTROLLERS = {1: ("memory", "pids"), 2: ("memory", "pids", "cpu")}
#: Files of version 2 that say whether a group has a limit of its own: it has none where they begin
#: with "max", hold nothing, or are missing because their controller is not on.
_OWN_LIMITS = (
    "memory.max",
    "memory.high",
    "memory.swap.max",
    "pids.max",
    "cpu.max",
    "cpuset.cpus",
    "cpuset.mems",
    "io.max",
)
_CPU_PERIOD = 100_000  # microseconds: the kernel's default
#: More than any host has, and as much as the kernel takes.
_MOST_CPUS = 1 << 16
#: What a kernel says where groups are not the caller's to make, or not there (any more). Whatever
#: else it says is news: to go on without a limit that was asked for would keep it from the caller.
_NOT_OURS = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP)


class GroupsRefused(OSError):
    """A group cannot be made now, where groups can be made: ENOSPC is no full disk then."""


class Place:
    """Where groups can be made: the directory, the version, and the controllers on there."""

    def __init__(self, version: int, directory: str, controllers: tuple[str, ...]) -> None:
        self.version = version
        self.directory = directory
        self.controllers = controllers


def find(memberships: str, mounts: str) -> list[Place]:
    """The places for groups of the caller whose ``/proc/self/cgroup`` and ``/proc/self/mountinfo``
    these are.
    """
    found: list[Place] = []
    by_controller = _mounted(mounts)
    for line in memberships.splitlines():
        _, names, path = line.split(":", 2)
        for controller in names.split(","):
            mounted = by_controller.get(controller)
            if mounted is None:
                continue
            own = _directory(path, *mounted)
            if own is None:
                continue
            if not controller:
                place = _place_v2(own, mounted[1])
                if place is not None:
                    found.append(place)
            elif controller in _CONTROLLERS[1] and os.access(own, os.W_OK):
                found.append(Place(1, own, (controller,)))
    return found


def _mounted(mounts: str) -> dict[str, tuple[str, str]]:
    """Root and mount point of each controller's hierarchy; that of version 2 has no name."""
    found: dict[str, tuple[str, str]] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, point, *_ = before.split(" ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("", (_unescape(root), _unescape(point)))
        elif kind == "cgroup":
            for option in options.split(","):
                if option in _CONTROLLERS[1]:
                    found.setdefault(option, (_unescape(root), _unescape(point)))
    return found


def _unescape(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def _directory(path: str, root: str, point: str) -> str | None:
    """The directory of group ``path`` where the part below ``root`` is mounted at ``point``."""
    if root == "/":
        below = path
    elif path == root or path.startswith(root + "/"):
        below = path[len(root) :]
    else:
        return None
    if ".." in below.split("/"):  # above the root of a cgroup namespace: not to be seen
        return None
    own = os.path.normpath(point + below)
    return own if os.path.isdir(own) else None


def _place_v2(own: str, top: str) -> Place | None:
    group = own
    while True:
        # What is not on is left off: turning it on would change the accounting of others.
        words = _read(f"{group}/cgroup.subtree_control").decode().split()
        on = tuple(name for name in _CONTROLLERS[2] if name in words)
        # To move a process takes the right to write to the common ancestor, which this is, too.
        if on and os.access(group, os.W_OK) and os.access(f"{group}/cgroup.procs", os.W_OK):
            return Place(2, group, on)
        if group == top or _limited(group):
            return None
        group = os.path.dirname(group)


def _limited(group: str) -> bool:
    texts = [_read(f"{group}/{name}").strip() for name in _OWN_LIMITS]
    return any(text and not text.startswith(b"max") for text in texts)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read() or b""
    except OSError:
        return b""


class Group:
    """The groups of one sandbox, one in each hierarchy that is used. Its processes are in those
    below them with the name ``inside``, if it is one.
    """

    def __init__(self, places: list[Place], directories: list[str], inside: str = "") -> None:
        self.places = places
        self.directories = directories
        self._inside = inside

    @property
    def entered(self) -> list[str]:
        """The directories of the groups that its processes are in."""
        return [os.path.join(path, self._inside) for path in self.directories]

    @property
    def controllers(self) -> frozenset[str]:
        """What they limit."""
        return frozenset(name for place in self.places for name in place.controllers)

    @property
    def events(self) -> str:
        """The file that counts processes killed for memory; empty where memory is not limited."""
        for place, directory in zip(self.places, self.directories, strict=True):
            if "memory" in place.controllers:
                if place.version == 1 and self._inside:  # counts what is killed in the group alone
                    directory = os.path.join(directory, self._inside)
                return f"{directory}/{_EVENTS[place.version]}"
        return ""

    def remove(self) -> bool:
        """Whether nothing is left: the kernel may need a moment after the last process."""
        self.directories = [path for path in self.directories if not _remove_all(path)]
        return not self.directories


_EVENTS = {1: "memory.oom_control", 2: "memory.events"}


def kills(events: str) -> int:
    """How many processes the kernel killed so far, in the group of ``events``, for memory."""
    for line in _read(events).splitlines():
        name, _, count = line.partition(b" ")
        if name == b"oom_kill":
            return int(count)
    return 0


def enter(directories: list[str]) -> None:
    """Move this process into the groups; all that it starts is born there."""
    for directory in directories:
        fd = os.open(f"{directory}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)


class Groups:
    """All groups of this server."""

    def __init__(
        self,
        places: list[Place],
        make: Callable[[str], None] = os.mkdir,
        *,
        apart: bool = False,
    ) -> None:
        """With ``apart``, limits are kept in groups that programs inside cannot see. Where no group
        can be made, as in a container that shows them read-only, its place is left out. Raises
        ``GroupsRefused`` where one can, but for what the host is short of.
        """
        self._make = make
        self._inside = _INSIDE if apart else ""
        self._locks: list[int] = []
        self._own: list[Place] = []
        self._unremoved: list[Group] = []
        for place in places:
            try:
                _remove_stale(place.directory)
                # Several tries: see what can come between in ``_claim``.
                own = self._claim(place) or self._claim(place) or self._claim(place)
            except OSError:
                self.close()
                raise
            if own is not None:
                self._own.append(own)

    def _claim(self, place: Place) -> Place | None:
        directory = os.path.join(place.directory, _PREFIX + os.urandom(6).hex())
        try:
            self._make(directory)
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            _remove(directory)
            return _refuse_unless_not_ours(error)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another server may have taken it for a leftover a moment ago: then it is not there.
            if place.version == 2:
                on = " ".join(f"+{name}" for name in place.controllers)
                _set(directory, "cgroup.subtree_control", on)
            os.stat(directory)
        except OSError as error:
            os.close(lock)
            _remove(directory)
            return None if isinstance(error, BlockingIOError) else _refuse_unless_not_ours(error)
        self._locks.append(lock)
        return Place(place.version, directory, place.controllers)

    def make(self, name: str, limits: dict[str, Any]) -> Group:
        """Groups for one sandbox; one with no controllers where there is no place for any. Raises
        ``GroupsRefused``.
        """
        places: list[Place] = []
        directories: list[str] = []
        for place in self._own:
            wanted = tuple(name for name in place.controllers if limits[_LIMIT[name]] is not None)
            if not wanted:
                continue
            directory = os.path.join(place.directory, name)
            try:
                self._make(directory)
                for controller in wanted:
                    _limit(place.version, directory, controller, limits)
                if self._inside:
                    self._make(os.path.join(directory, self._inside))
            except OSError as error:
                _remove_all(directory)
                if error.errno not in _NOT_OURS:
                    Group(places, directories).remove()
                _refuse_unless_not_ours(error)
                continue
            places.append(Place(place.version, directory, wanted))
            directories.append(directory)
        return Group(places, directories, self._inside)

    def remove(self, group: Group) -> None:
        """Remove the groups of a sandbox whose processes are gone, now or at a later call."""
        self._unremoved = [each for each in (*self._unremoved, group) if not each.remove()]

    def close(self) -> None:
        """Remove what is left, the server's own groups last."""
        for group in self._unremoved:
            group.remove()
        for place in self._own:
            _remove(place.directory)
        for lock in self._locks:
            os.close(lock)


#: The limit that each controller keeps.
_LIMIT = {"memory": "memory", "pids": "processes", "cpu": "cpus"}


def _limit(version: int, directory: str, controller: str, limits: dict[str, Any]) -> None:
    value = limits[_LIMIT[controller]]
    if controller == "pids":
        _set(directory, "pids.max", str(value + SPARE))
    elif controller == "cpu":
        _set(directory, "cpu.max", f"{min(value, _MOST_CPUS) * _CPU_PERIOD} {_CPU_PERIOD}")
    elif version == 1:
        _set(directory, "memory.limit_in_bytes", str(value))
        _set_if_there(directory, "memory.memsw.limit_in_bytes", str(value))
    else:
        # One process dies of it, the largest, and not the group: PID 1 is in there too.
        _set(directory, "memory.max", str(value))
        _set_if_there(directory, "memory.swap.max", "0")
        _set_if_there(directory, "memory.oom.group", "0")


def _refuse_unless_not_ours(error: OSError) -> None:
    if error.errno not in _NOT_OURS:
        raise GroupsRefused(error.errno, error.strerror, error.filename) from error


def _set(directory: str, name: str, value: str) -> None:
    fd = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _set_if_there(directory: str, name: str, value: str) -> None:
    try:
        _set(directory, name, value)
    except FileNotFoundError:  # kernels without swap accounting
        pass


def _remove(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def _remove_all(directory: str) -> bool:
    """:func:`_remove` with the groups below, which a program inside may have made too."""
    if _remove(directory):
        return True
    for path, _, _ in os.walk(directory, topdown=False):
        _remove(path)
    return not os.path.exists(directory)


def _remove_stale(directory: str) -> None:
    """Remove the groups of servers that are gone."""
    for name in os.listdir(directory):
        if not name.startswith(_PREFIX):
            continue
        path = os.path.join(directory, name)
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue  # removed a moment ago
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_all(path)
        except OSError:
            continue  # its server lives, or another one is at it
        finally:
            os.close(lock)
