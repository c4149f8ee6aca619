"""PID 1 of a sandbox: reaps every orphan, and gives each request of the client to a monitor, a fork
of it.

It runs no request itself, so nothing a command does can block it, and the kernel lets no signal
from inside the pid namespace reach it. One monitor is always forked beforehand, since a fork is a
third of a short command's time. Whatever Python does writes to pages that a fork shares with its
parent, and makes them two: while requests come one after the other the spare monitor has done all
that it can before its own comes, which is a quarter of a short command's time; after a pause one
that has done nothing takes its place, with which an idle sandbox holds half as much memory. When
the client's socket closes PID 1 ends, and the kernel ends everything else.
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
    from collections.abc import Callable
    from typing import Any

#: From the server, when the sandbox has exceeded a limit: every process but this one is ended. Root
#: inside may send it as well, and could end the same processes itself.
STOP = signal.SIGUSR1


#: Milliseconds without a request after which the spare monitor is exchanged.
_PAUSE = 300

#: Seconds that a monitor, which answers before it ends, gets to end. A command's is never alone.
_MONITOR_ENDS = 0.05


class _Spare:
    """A monitor that waits for its request; ``warm`` if it has prepared itself for it."""

    def __init__(self, pid: int, link: socket.socket, *, warm: bool) -> None:
        self.pid = pid
        self.link = link
        self.warm = warm


class Init:
    """The state of PID 1."""

    def __init__(self, control: socket.socket, ids: int, limits: dict[str, Any]) -> None:
        self._control = control
        self._ids = ids
        self._limits = limits
        self._wakeup = processes.ChildWakeup()
        #: Tokens of the requests by the monitors that serve them.
        self._monitors: dict[int, str] = {}
        self._spare: _Spare | None = None
        #: The monitor that has all others stopped at the moment.
        self._freezer = 0

    def serve(self) -> None:
        """Serve until ``control`` closes."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wakeup.fileno(), select.POLLIN)
        self._replace_spare(warm=True)
        while True:
            pause = _PAUSE if self._spare is not None and self._spare.warm else None
            ready = {fd for fd, _ in poller.poll(pause)}
            if not ready:
                self._let_spare_go()
                self._replace_spare(warm=False)
            if self._wakeup.fileno() in ready:
                self._wakeup.clear()
                self._collect()
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
            if self._spare is None:
                self._replace_spare(warm=True)

    def _collect(self) -> None:
        for pid in processes.newly_stopped():
            self._let_go_on(pid)
        for pid, _ in processes.reap():
            self._monitors.pop(pid, None)
            if pid == self._freezer:
                self._freezer = 0
                spare = [self._spare.pid] if self._spare is not None else []
                for monitor in (*self._monitors, *spare):
                    self._let_go_on(monitor)
            if self._spare is not None and self._spare.pid == pid:
                # Not replaced before it is needed: something inside may kill whatever it sees.
                self._spare.link.close()
                self._spare = None

    def _let_go_on(self, pid: int) -> None:
        """Nothing inside has to stop a monitor: the client would wait for its answer for ever."""
        if self._freezer and pid != self._freezer:
            return
        if pid in self._monitors or (self._spare is not None and pid == self._spare.pid):
            processes.send_signal(pid, signal.SIGCONT)

    def _handle(self, fields: list[str], fds: list[int]) -> None:
        if fields[0] == "start":
            self._give(fields[1], fds)
        elif fields[0] == "freeze":
            self._freezer = self._give(fields[1], fds)
        elif fields[0] == "kill":
            for pid in [pid for pid, name in self._monitors.items() if name == fields[1]]:
                processes.kill_tree(pid)
        elif fields[0] == "idle":
            with socket.socket(fileno=os.dup(fds[0])) as channel:
                answers.answer(channel, "idle" if self._is_idle() else "busy")

    def _is_idle(self) -> bool:
        """Whether nothing would be lost with this process but its spare monitor: no program runs,
        and there is nothing in memory that programs share.
        """
        deadline = time.monotonic() + _MONITOR_ENDS
        while others := self._others():
            if others - set(self._monitors) or time.monotonic() > deadline:
                return False
            time.sleep(0.0002)
            self._collect()
        return not any(os.listdir(place) for place in ("/dev/shm", "/dev/mqueue")) and not any(
            map(_holds_rows, ("/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem"))
        )

    def _others(self) -> set[int]:
        ours = {1, self._spare.pid} if self._spare is not None else {1}
        return {int(name) for name in os.listdir("/proc") if name.isdigit()} - ours

    def _give(self, token: str, fds: list[int]) -> int:
        """Have the request in ``fds`` served by the spare monitor, or by a new one; its pid, or 0
        where there can be none.
        """
        spare, self._spare = self._spare, None
        if spare is not None:
            try:
                with spare.link:
                    wire.send(spare.link, "serve", fds=fds)
            except OSError:
                pass  # it was killed
            else:
                self._monitors[spare.pid] = token
                return spare.pid
        try:
            pid = self._fork_monitor(lambda: fds)
        except OSError as error:
            with socket.socket(fileno=os.dup(fds[0])) as channel:
                answers.answer(channel, "error", str(error.errno), "start a process", "")
            return 0
        self._monitors[pid] = token
        return pid

    def _let_spare_go(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.link.close()
            self._monitors[spare.pid] = ""  # until it is collected; no token is empty

    def _replace_spare(self, *, warm: bool) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def wait() -> None:
            if not warm:
                for end in (ours, self._control):
                    os.close(end.fileno())
                theirs.recv(1, socket.MSG_PEEK)

        def request() -> list[int]:
            linux.close_all_but((0, 1, 2, theirs.fileno()))
            return wire.receive(theirs)[1]

        with theirs:
            try:
                self._spare = _Spare(self._fork_monitor(request, wait), ours, warm=warm)
            except OSError:
                ours.close()  # the limit on processes is reached: the next request says so

    def _fork_monitor(
        self, request: Callable[[], list[int]], wait: Callable[[], None] = lambda: None
    ) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            self._wakeup.close()
            wait()
            signal.signal(STOP, signal.SIG_DFL)
            rlimits.limit_monitor(self._limits)
            fds = request()
            if fds:
                linux.close_all_but((0, 1, 2, *fds))
                # A monitor does not outlive PID 1: the kernel kills the whole namespace with it.
                _serve(fds, self._ids)
        finally:
            os._exit(1)
        return 0


def _holds_rows(table: str) -> bool:
    try:
        with open(table, "rb") as rows:
            return rows.read().count(b"\n") > 1  # the first names the columns
    except FileNotFoundError:
        return False  # a kernel without System V IPC


def _serve(fds: list[int], ids: int) -> None:
    with socket.socket(fileno=os.dup(fds[0])) as channel:
        try:
            command.serve_request(fds, ids)
        except BaseException as error:  # noqa: BLE001 - the process ends here
            wire.send(channel, "failed", linux.describe_exception(error))


def _end_all(_number: int, _frame: object) -> None:
    """End every process but this one: in one step, which no fork can outrun (kill(2))."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def serve_inside(control: socket.socket, ids: int, limits: dict[str, Any]) -> None:
    """Serve until ``control`` closes. ``ids`` is how many ids exist inside, ``limits`` what the
    commands are held to.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(STOP, _end_all)
    Init(control, ids, limits).serve()
