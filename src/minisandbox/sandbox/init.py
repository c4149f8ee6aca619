"""PID 1 of a sandbox: reaps every orphan, and gives each request of the client to a monitor, a fork
of it.

It runs no request itself, so nothing a command does can block it, and the kernel lets no signal
from inside the pid namespace reach it. A fork of Python is two thirds of a short command's work:
whatever it does writes to pages that it shares with its parent, and makes them two. So the first
monitor is forked and has done all that it can before its request comes, and one whose command has
left nothing behind is used again. After a pause one that has done nothing takes its place, with
which an idle sandbox holds half as much memory. When the client's socket closes PID 1 ends, and the
kernel ends everything else.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from minisandbox import linux
from minisandbox.sandbox import answers, command, processes, wire
from minisandbox.sandbox.limits import rlimits

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from typing import Any

#: From the server, when the sandbox has exceeded a limit: every process but this one is ended. Root
#: inside may send it as well, and could end the same processes itself.
STOP = signal.SIGUSR1

#: Milliseconds in which nothing happens, after which the spare monitor is exchanged, or replaced
#: where there is none: at once would not do, since something inside may kill whatever it sees.
_PAUSE = 300
#: After so many a monitor is not used again: it collects no garbage.
_MOST_REQUESTS = 1000
#: Seconds that a monitor, which answers before it ends, gets to end. A command's is never alone.
_MONITOR_ENDS = 0.05


class _Monitor:
    """A process that serves requests, one at a time; ``token`` is that of its request. ``warm`` if
    it has prepared itself for one.
    """

    def __init__(self, pid: int, link: socket.socket, *, warm: bool) -> None:
        self.pid = pid
        self.link = link
        self.token = ""
        self.warm = warm


class Init:
    """The state of PID 1."""

    def __init__(
        self, control: socket.socket, ids: int, limits: dict[str, Any], first: _Monitor | None
    ) -> None:
        self._control = control
        self._ids = ids
        self._limits = limits
        self._wakeup = processes.ChildWakeup()
        self._poller = select.poll()
        #: Those that serve a request, by the descriptors of their links.
        self._busy: dict[int, _Monitor] = {}
        self._spare = first
        #: The first monitor, as long as it may hold what no other does (see ``early``).
        self._joining = first
        #: The pids of those that are about to end.
        self._leaving: set[int] = set()
        #: The monitor that has all others stopped at the moment.
        self._freezer = 0

    def serve(self) -> None:
        """Serve until ``control`` closes."""
        self._poller.register(self._control, select.POLLIN)
        self._poller.register(self._wakeup.fileno(), select.POLLIN)
        self._collect()  # who ended before anything was woken by it
        if self._spare is None:
            self._spare = self._fork_spare(warm=True)
        while True:
            cold = self._spare is not None and not self._spare.warm
            ready = {fd for fd, _ in self._poller.poll(None if cold else _PAUSE)}
            if not ready:
                if self._spare is not None:
                    self._let_go(self._spare)
                self._spare = self._fork_spare(warm=False)
            # Before the next request is looked at: who was told of an end may ask for more at once.
            self._hear(ready)
            if self._control.fileno() not in ready:
                continue
            fields, fds = wire.receive(self._control)
            if not fields:
                return
            try:
                self._handle(fields, fds)
            finally:
                for fd in fds:
                    os.close(fd)

    def _hear(self, ready: set[int]) -> None:
        """Take back monitors that are free, and forget those that have ended."""
        for fd in ready & self._busy.keys():
            if self._busy[fd] is self._joining and self._await_joined():
                continue
            monitor = self._busy.pop(fd)
            self._poller.unregister(fd)
            if wire.receive(monitor.link)[0] and self._spare is None:
                monitor.token, monitor.warm = "", True
                self._spare = monitor
            else:
                self._let_go(monitor)
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
            self._collect()

    def _collect(self) -> None:
        for pid in processes.newly_stopped():
            self._let_go_on(pid)
        for pid, _ in processes.reap():
            self._leaving.discard(pid)
            if pid == self._freezer:
                self._freezer = 0
                for monitor in self._serving():
                    self._let_go_on(monitor)
            if self._spare is not None and self._spare.pid == pid:
                self._hang_up(self._spare)
                self._spare = None

    def _serving(self) -> set[int]:
        """The pids of all monitors, but for those that are about to end."""
        spare = () if self._spare is None else (self._spare,)
        return {monitor.pid for monitor in (*self._busy.values(), *spare)}

    def _let_go_on(self, pid: int) -> None:
        """Nothing inside has to stop a monitor: the client would wait for its answer for ever."""
        if self._freezer and pid != self._freezer:
            return
        if pid in self._serving() or pid in self._leaving:
            processes.send_signal(pid, signal.SIGCONT)

    def _handle(self, fields: list[str], fds: list[int]) -> None:
        if fields[0] == "start":
            self._give(fields[1], fds)
        elif fields[0] == "freeze":
            self._freezer = self._give(fields[1], fds)
        elif fields[0] == "kill":
            for monitor in self._busy.values():
                if monitor.token == fields[1]:
                    processes.kill_tree(monitor.pid)
        elif fields[0] == "idle":
            with wire.channel(os.dup(fds[0])) as channel:
                answers.answer(channel, "idle" if self._is_idle() else "busy")
        elif fields[0] == "ping":
            with wire.channel(os.dup(fds[0])) as channel:
                answers.answer(channel, "here")

    def _is_idle(self) -> bool:
        """Whether nothing would be lost with this process but its spare monitor: no program runs,
        and there is nothing in memory that programs share.
        """
        deadline = time.monotonic() + _MONITOR_ENDS
        while others := self._others():
            ending = self._leaving.union(monitor.pid for monitor in self._busy.values())
            if others - ending or time.monotonic() > deadline:
                return False
            self._hear({fd for fd, _ in self._poller.poll(1)})
        return not any(os.listdir(place) for place in ("/dev/shm", "/dev/mqueue")) and not any(
            map(_holds_rows, ("/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem"))
        )

    def _others(self) -> set[int]:
        ours = {1, self._spare.pid} if self._spare is not None else {1}
        return {int(name) for name in os.listdir("/proc") if name.isdigit()} - ours

    def _await_joined(self) -> bool:
        """Wait until the first monitor is as all others will be; False where it has ended."""
        monitor, self._joining = self._joining, None
        if monitor is None:
            return True
        poller = select.poll()
        poller.register(monitor.link, select.POLLIN)
        while not poller.poll(_PAUSE):
            processes.send_signal(monitor.pid, signal.SIGCONT)  # if something outside stopped it
        return bool(wire.receive(monitor.link)[0])

    def _give(self, token: str, fds: list[int]) -> int:
        """Have the request in ``fds`` served by the spare monitor, or by a new one; its pid, or 0
        where there can be none.
        """
        monitor, self._spare = self._spare, None
        if monitor is not None:
            try:
                wire.send(monitor.link, "serve", fds=fds)
            except OSError:  # it was killed
                self._let_go(monitor)
                monitor = None
        if monitor is None:
            try:
                monitor = self._fork_monitor(fds, warm=True)
            except OSError as error:
                with wire.channel(os.dup(fds[0])) as channel:
                    answers.answer(channel, "error", str(error.errno), "start a process", "")
                return 0
        monitor.token = token
        self._busy[monitor.link.fileno()] = monitor
        self._poller.register(monitor.link, select.POLLIN)
        return monitor.pid

    def _let_go(self, monitor: _Monitor) -> None:
        # Not by the end of the link alone: others that were forked may hold a copy of it.
        answers.answer(monitor.link, "end")
        self._hang_up(monitor)
        self._leaving.add(monitor.pid)

    def _hang_up(self, monitor: _Monitor) -> None:
        if monitor is self._joining:
            self._await_joined()  # while it can be heard
        monitor.link.close()

    def _fork_spare(self, *, warm: bool) -> _Monitor | None:
        try:
            return self._fork_monitor([], warm=warm)
        except OSError:
            return None  # the limit on processes is reached: the next request says so

    def _fork_monitor(self, fds: list[int], *, warm: bool) -> _Monitor:
        """A new monitor, with a first request if ``fds`` holds one."""
        self._await_joined()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid:
                return _Monitor(pid, ours, warm=warm)
            try:
                self._wakeup.close()
                if not warm:
                    for end in (ours, self._control):
                        os.close(end.fileno())
                    theirs.recv(1, socket.MSG_PEEK)
                signal.signal(STOP, signal.SIG_DFL)
                linux.close_all_but((0, 1, 2, theirs.fileno(), *fds))
                # A monitor does not outlive PID 1: the kernel kills the whole namespace with it.
                _be_monitor(theirs, fds, self._ids, self._limits)
            finally:
                os._exit(1)


def _holds_rows(table: str) -> bool:
    try:
        with open(table, "rb") as rows:
            return rows.read().count(b"\n") > 1  # the first names the columns
    except FileNotFoundError:
        return False  # a kernel without System V IPC


def _be_monitor(link: socket.socket, fds: list[int], ids: int, limits: dict[str, Any]) -> None:
    """Serve requests, the first of which may be in ``fds``, as long as nothing is left of them."""
    rlimits.limit_monitor(limits)
    prepared = command.Prepared()
    for left in reversed(range(_MOST_REQUESTS)):
        fds = fds or wire.receive(link)[1]
        if not fds:
            return
        # Who knows that it is free before the client knows that its command has ended has it ready
        # for what the client asks next.
        prepared.free = (lambda: answers.answer(link, "free")) if left else None
        if not _serve(fds, ids, prepared):
            return
        linux.close_all_but((0, 1, 2, link.fileno(), *prepared.wakeup.filenos()))
        prepared.renew()
        fds = []


def _serve(fds: list[int], ids: int, prepared: command.Prepared) -> bool:
    with wire.channel(os.dup(fds[0])) as channel:
        try:
            return command.serve_request(fds, ids, prepared)
        except BaseException as error:  # noqa: BLE001 - the process ends here
            answers.answer(channel, "failed", linux.describe_exception(error))
            return False


def _end_all(_number: int, _frame: object) -> None:
    """End every process but this one: in one step, which no fork can outrun (kill(2))."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def be_first_monitor(link: socket.socket, ids: int, limits: dict[str, Any]) -> None:
    """Serve requests, as a process that was forked before :func:`serve_inside` was called."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _be_monitor(link, [], ids, limits)


def serve_inside(
    control: socket.socket,
    ids: int,
    limits: dict[str, Any],
    first: tuple[int, socket.socket] | None,
) -> None:
    """Serve until ``control`` closes. ``ids`` is how many ids exist inside, ``limits`` what the
    commands are held to, ``first`` the pid of a monitor that there is already, and the link to it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(STOP, _end_all)
    spare = None if first is None else _Monitor(*first, warm=True)
    Init(control, ids, limits, spare).serve()
