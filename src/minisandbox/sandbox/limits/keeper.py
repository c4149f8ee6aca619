"""The server's keeper of limits: what holds each sandbox to them, and the timer for what nothing
enforces.

Who measures is never who is measured: all of this runs outside of the sandboxes, and what it reads
of them is the kernel's. A sandbox in which nothing runs costs one small read for each look.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from minisandbox import linux
from minisandbox.sandbox import init
from minisandbox.sandbox.limits import cgroups, footprint, ledger, processors, usage
from minisandbox.sandbox.limits.rlimits import SPARE

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    class Fork(Protocol):
        """How :class:`Keeper` has things done in a fork of the server."""

        def __call__(
            self, child: Callable[[], None], finish: Callable[[int], None], *, keep: Sequence[int]
        ) -> int: ...


#: Seconds between two looks at a sandbox whose memory nothing else limits: a program takes about a
#: gigabyte in that time.
_PERIOD_MEMORY = 0.25
_PERIOD = 1.0
#: A walk of an upper directory is followed by a pause this many times as long as its processor
#: time, whatever sandbox is next; and what starting one takes, in seconds.
_PAUSE = 20.0
_WALK_START = 0.002
#: What the host is short of for a moment: the next look makes up for it.
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: Looks in a row at which memory was exceeded, though everything had been told to end, after which
#: the sandbox is ended.
_PATIENCE = 20
#: A sandbox that wrote as much again as its limit, and this much at least, is ended: stopping its
#: processes did not help. A disk takes gigabytes between two looks.
_BEYOND = {"disk": 4 << 30, "inodes": 100_000}


class Reservation:
    """What is set aside for one sandbox: its control groups and its processors."""

    def __init__(self, group: cgroups.Group, processors: list[int]) -> None:
        self.group = group
        self.processors = processors


class Account:
    """One sandbox: what it may use, and what was seen of it."""

    def __init__(
        self,
        name: str,
        spec: dict[str, Any],
        path: str,
        reservation: Reservation,
    ) -> None:
        self.name = name
        self.limits: dict[str, Any] = spec["limits"]
        self.kind: str = spec["kind"]
        self.in_memory = spec["upper"] == "memory"
        self.processors = reservation.processors
        self.path = path
        self.group = reservation.group
        self.words = _words(spec, self.group.controllers)
        self.init = 0
        #: Whether it was ended for a limit.
        self.doomed = False
        self.born = time.monotonic()
        self.next_look = 0.0
        #: Children of PID 1 at the last look.
        self.children: list[int] = []
        #: Processes that were told to end: until they have, what they hold is not held against
        #: those that came after them.
        self.condemned: set[int] = set()
        #: Looks in a row with too much memory.
        self.strikes = 0
        #: Whether something ran since the upper directory was measured, and when it may be again.
        self.written = True
        self.next_walk = 0.0
        #: The most that was found in it: what is there stays when its writers are ended.
        self.tolerated = [self.limits["disk"] or 0, self.limits["inodes"] or 0]
        #: Whether its writers were ended since: what they wrote until then is not held against
        #: those that come after them.
        self.settling = False

    def most(self, name: str) -> int:
        """How much is too much to let the sandbox go on."""
        limit: int | None = self.limits[name]
        return 1 << 62 if limit is None else limit + max(limit, _BEYOND[name])

    def watches(self, *names: str) -> bool:
        """Whether one of these limits is the keeper's business."""
        return any(self.words[name] == ledger.WATCHED for name in names)


class Keeper:
    """All sandboxes of one server. ``fork`` runs its first argument in a fork of the server, with
    the descriptors ``keep``, and the second, given its exit code, in the server when it has ended.
    """

    def __init__(self, fork: Fork) -> None:
        self._fork = fork
        self._accounts: dict[str, Account] = {}
        self._groups: cgroups.Groups | None = None
        self._spread = processors.Spread(os.sched_getaffinity(0))
        self._reserved = 0
        self._walking = False
        self._next_walk = 0.0

    def reserve(self, limits: dict[str, Any]) -> Reservation:
        """Set aside what a sandbox with ``limits`` needs."""
        if self._groups is None:
            places = cgroups.find(_text("cgroup"), _text("mountinfo"))
            # No id inside is root's of the host, but for an ordinary user root inside is that user.
            self._groups = cgroups.Groups(places, apart=os.geteuid() != 0)
        self._reserved += 1
        group = self._groups.make(str(self._reserved), limits)
        return Reservation(group, self._spread.take(limits["cpus"]))

    def give_up(self, reservation: Reservation) -> None:
        """No sandbox uses it any more, and no process is in its groups."""
        self._spread.give_back(reservation.processors)
        if self._groups is not None:
            self._groups.remove(reservation.group)

    def admit(self, name: str, spec: dict[str, Any], path: str, reservation: Reservation) -> None:
        """A sandbox with the directory ``path`` begins to use ``reservation``; raises ``OSError``
        where its file of limits cannot be written.
        """
        account = Account(name, spec, path, reservation)
        self._accounts[name] = account
        ledger.begin(path, account.words, account.group.events)

    def began(self, name: str, init: int) -> None:
        """PID 1 of the sandbox is ``init``."""
        account = self._accounts[name]
        account.init = init
        account.next_look = time.monotonic()

    def ended(self, name: str, *, killed: bool) -> None:
        """All processes of the sandbox are gone; ``killed`` if PID 1 was, and nobody asked for
        it.
        """
        account = self._accounts.pop(name, None)
        if account is None:
            return
        if killed and not account.doomed and cgroups.kills(account.group.events):
            why = f"the kernel ended it at its memory limit of {_amount(account.limits['memory'])}"
            _note(account, "died", "memory", why)

    def close(self) -> None:
        """The last sandbox is gone."""
        if self._groups is not None:
            self._groups.close()

    def wait(self) -> int | None:
        """Milliseconds until :meth:`look` is to be called; None while there is nothing to watch."""
        looks = [account.next_look for account in self._accounts.values() if account.init]
        if not looks:
            return None
        return max(0, int((min(looks) - time.monotonic()) * 1000) + 1)

    def look(self) -> None:
        """Look at the sandboxes whose time has come, and end what is beyond its limits."""
        now = time.monotonic()
        for account in list(self._accounts.values()):
            if account.init and now >= account.next_look:
                watched = account.watches("memory", "processes")
                account.next_look = now + (_PERIOD_MEMORY if watched else _PERIOD)
                try:
                    self._look_at(account, now)
                except OSError as error:
                    if error.errno not in _SHORT:
                        raise
        if not self._walking and now >= self._next_walk:
            self._walk_next(now)

    def _look_at(self, account: Account, now: float) -> None:
        lifetime = account.limits["time"]
        if lifetime is not None:
            if now - account.born >= lifetime:
                self._end(account, "time", f"its time of {lifetime:g} s was over")
                return
            account.next_look = min(account.next_look, account.born + lifetime)
        children = usage.children(account.init, account.init)
        # One child without children is the monitor that waits for the next command.
        quiet = (
            len(children) <= 1
            and children == account.children
            and not any(usage.children(child, child) for child in children)
        )
        account.children = children
        if quiet:
            return
        account.written = True
        if account.watches("memory", "processes", "cpus"):
            self._measure(account)

    def _measure(self, account: Account) -> None:
        sample = usage.below(account.init, account.condemned)
        account.condemned = sample.left_out
        memory, processes = account.limits["memory"], account.limits["processes"]
        if account.watches("memory") and usage.exceeds(
            account.init, sample, memory, upper=account.in_memory
        ):
            account.strikes += 1
            why = f"it used more than its memory limit of {_amount(memory)}"
            if account.strikes > _PATIENCE:
                self._end(account, "memory", why)
            else:
                account.condemned.update(sample.processes)
                _stop(account, "memory", why)
            return
        account.strikes = 0
        if account.watches("processes") and len(sample.threads) > processes + SPARE:
            account.condemned.update(sample.processes)
            _stop(account, "processes", f"it had more than its {processes} processes")
        elif account.watches("cpus"):
            processors.narrow(sample.threads, account.processors)

    def _walk_next(self, now: float) -> None:
        due = [
            account
            for account in self._accounts.values()
            if account.init and account.written and now >= account.next_walk
            if account.watches("disk", "inodes")
        ]
        if due:
            self._walk(min(due, key=lambda account: account.next_walk))

    def _walk(self, account: Account) -> None:
        # A child, as only a process of its own can enter the sandbox's user namespace, and because
        # a walk takes as long as a tree is large.
        try:
            report = os.memfd_create("footprint")
        except OSError:  # no descriptor to be had now
            return

        def child() -> None:
            os.nice(10)
            try:
                found = _walk_upper(account)
            except FileNotFoundError:
                return  # it has ended meanwhile
            os.write(report, b"%d %d %d" % (*found, time.process_time_ns()))

        def finish(_: int) -> None:
            self._walking = False
            with open(report, "rb", buffering=0) as file:
                file.seek(0)
                found = file.readall().split()
            now = time.monotonic()
            account.next_walk = now + _PERIOD
            took = int(found[2]) / 1e9 if len(found) == 3 else 0.0
            self._next_walk = now + _PAUSE * (took + _WALK_START)
            if len(found) == 3 and account.name in self._accounts:
                self._judge(account, int(found[0]), int(found[1]))

        account.written = False  # from now on; what is written meanwhile is seen by the next look
        try:
            self._fork(child, finish, keep=(report,))
            self._walking = True
        except OSError:  # no process to be had now
            os.close(report)
            account.written = True

    def _judge(self, account: Account, size: int, inodes: int) -> None:
        found = (("disk", size, "bytes"), ("inodes", inodes, "inodes"))
        settling, account.settling = account.settling, False
        for number, (name, value, unit) in enumerate(found):
            limit = account.limits[name]
            if limit is None or not account.watches(name):
                continue
            before, account.tolerated[number] = account.tolerated[number], max(limit, value)
            if value <= before:
                continue
            shown = f"{_amount(limit)} of disk" if name == "disk" else f"{limit} {unit}"
            why = f"it wrote more than its limit of {shown}"
            if value > account.most(name):
                self._end(account, name, why)
                return
            if not settling:
                account.settling = True
                _stop(account, name, why)
                return

    def _end(self, account: Account, limit: str, why: str) -> None:
        account.doomed = True
        _note(account, "died", limit, why)
        os.kill(account.init, signal.SIGKILL)  # a child that was not collected: the number is its


def _walk_upper(account: Account) -> tuple[int, int]:
    if account.kind != "root":
        # Who made this user namespace has every capability in it: with them, directories that the
        # sandbox closed, or gave to another id, can be read.
        handle = os.open(f"/proc/{account.init}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        linux.enter_namespace(handle, linux.CLONE_NEWUSER)
    return footprint.measure(
        os.path.join(account.path, "upper"),
        most_bytes=account.most("disk"),
        most_inodes=account.most("inodes"),
    )


def _stop(account: Account, limit: str, why: str) -> None:
    _note(account, "stopped", limit, why)
    os.kill(account.init, init.STOP)


def _note(account: Account, what: str, limit: str, why: str) -> None:
    try:
        ledger.note(account.path, what, limit, why)
    except OSError:
        pass  # a full disk, or a directory that somebody removed: what is to end ends all the same


def _words(spec: dict[str, Any], controllers: frozenset[str]) -> dict[str, str]:
    """How each limit of a sandbox holds."""
    # An id's processes are counted by the kernel (RLIMIT_NPROC), but with several ids inside, each
    # has a count of its own.
    counted = "pids" in controllers or spec["ids"] == 1
    in_memory = spec["upper"] == "memory"
    enforced = {
        "memory": "memory" in controllers,
        "cpus": "cpu" in controllers,
        "processes": counted,
        "disk": in_memory,
        "inodes": in_memory,
        "open_files": True,
        "time": True,
    }
    words: dict[str, str] = {}
    for name in ledger.LIMITS:
        word = ledger.ENFORCED if enforced[name] else ledger.WATCHED
        words[name] = ledger.NONE if spec["limits"][name] is None else word
    return words


def _amount(size: int) -> str:
    for unit, bits in (("GiB", 30), ("MiB", 20)):
        if size >= 1 << bits:
            return f"{size / (1 << bits):.4g} {unit}"
    return f"{size} bytes"


def _text(name: str) -> str:
    with open(f"/proc/self/{name}", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
