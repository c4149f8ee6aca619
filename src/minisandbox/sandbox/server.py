"""The fork server: one program for each client process, which starts that client's sandboxes and
cleans up behind them.

Started by the client as a program of its own, never as a fork: the client may be a trainer with
threads and gigabytes. (``idmap.call_mapped``, with which an ordinary user's map is tried and its
layers are unpacked, packed and removed, does fork the client.) The server stays outside of all
namespaces with the caller's ids, and does nothing itself that may take long: a fork of it starts
each sandbox (``starter``), another removes each directory. Every PID 1 becomes its child.

Chain of life: when the client ends, however it ends, or shuts its socket, the server kills every
PID 1, the kernel kills everything in their pid namespaces, and the server removes their directories
and ends. When the server itself is killed, every PID 1 goes with it (PR_SET_PDEATHSIG), and the
next server removes what is left on disk.

A request is one packet: ``start`` with the descriptors of spec and control socket, on which PID 1
or the starter answers; ``end``, ``close`` and ``copy`` with a channel for the one answer; ``drop``
is a ``close`` that nobody waits for.
Invariant: everything the sandbox side needs is imported before a root changes, so this module and
its imports stay small.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
import sys

from minisandbox import linux
from minisandbox.sandbox import boot, cleanup, orders, processes, rootfs, scratch, starter, wire
from minisandbox.sandbox.box import Box
from minisandbox.sandbox.limits import cgroups
from minisandbox.sandbox.limits.keeper import Keeper
from minisandbox.sandbox.spares import Spares, Start, kind_of

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


#: How many descriptors come with each kind of request.
_DESCRIPTORS = {"start": 2, "drop": 0, "end": 1, "close": 1, "copy": 1}


class Server:
    """What is running, and what is done for each request."""

    def __init__(self, requests: socket.socket, client: int) -> None:
        """``client`` is a pidfd of the client's."""
        self._requests = requests
        self._client = client
        self._boxes: dict[str, Box] = {}
        self._homes = scratch.Homes()
        #: What is to be done when a child ends, with its exit code.
        self._children: dict[int, Callable[[int], None]] = {}
        #: Starters that have not ended.
        self._starts: list[Start] = []
        self._spares = Spares(self._prepare)
        #: User namespaces by their maps.
        self._spaces: dict[tuple[object, object], int] = {}
        self._wakeup = processes.ChildWakeup()
        self._keeper = Keeper(self._fork)

    def serve(self) -> None:
        """Until the client is gone and nothing of its sandboxes is left."""
        poller = select.poll()
        for fd in (self._requests.fileno(), self._client, self._wakeup.fileno()):
            poller.register(fd, select.POLLIN)
        leaving = False
        while not leaving or self._children or self._boxes:
            ready = {fd for fd, _ in poller.poll(self._wait())}
            if self._wakeup.fileno() in ready:
                self._wakeup.clear()
                self._collect()
            self._keeper.look()
            if leaving:
                continue
            if not ready and not self._starting:
                self._spares.stand_by()
            if not {self._requests.fileno(), self._client} & ready:
                continue
            if self._client in ready or not self._handle():
                leaving = True
                self._spares.close()
                poller.unregister(self._requests.fileno())
                poller.unregister(self._client)
                for name in list(self._boxes):
                    self._close(name, None)
        self._keeper.close()

    def _wait(self) -> int | None:
        """Milliseconds in which nothing has to be done that nobody asks for; None for ever."""
        waits = [self._keeper.wait()]
        if not self._starting:
            waits.append(self._spares.wait())
        return min((wait for wait in waits if wait is not None), default=None)

    def _collect(self) -> None:
        # One at a time: what is done for one child may signal the next, which must not be collected
        # before.
        while (ended := processes.reap_one()) is not None:
            pid, code = ended
            finish = self._children.pop(pid, None)
            if finish is not None:
                finish(code)
                continue
            # Each PID 1 is a grandchild until its starter has ended, and may end before.
            for start in self._starts:
                if start.init == pid:
                    start.code = code

    def _handle(self) -> bool:
        """Do one request; whether there was one."""
        fields, fds = wire.receive(self._requests)
        if not fields:
            return False
        kind, name, *more = fields
        if len(fds) < _DESCRIPTORS[kind]:
            # The kernel drops those for which there is no room (unix(7)), and the client sees that.
            sys.stderr.write("a request came without its descriptors: too many open files\n")
            sys.stderr.flush()
            for fd in fds:
                os.close(fd)
        elif kind == "start":
            with socket.socket(fileno=fds[1]) as control:
                self._start(name, fds[0], control)
        elif kind == "drop":
            self._close(name, None)
        else:
            self._do(kind, name, more, socket.socket(fileno=fds[0]))
        return True

    def _do(self, kind: str, name: str, more: list[str], reply: socket.socket) -> None:
        if name not in self._boxes:
            _answer(reply, "unknown")
        elif kind == "end":
            self._end(self._boxes[name], reply)
        elif kind == "close":
            self._close(name, reply)
        elif kind == "copy":
            self._copy(self._boxes[name], more[0], reply)

    def _start(self, name: str, spec_fd: int, control: socket.socket) -> None:
        spec = orders.read(spec_fd)
        step = "scratch"
        try:
            box = self._make(spec, name)
            step = "processes"
            box.start = self._spares.take(spec)
            box.start.box = box
            box.link, box.reservation = box.start.link, box.start.reservation
            box.start.order(box.path, spec_fd, control.fileno())
            # While that works: PID 1 does not serve before the starter has ended, which is seen
            # here.
            step = "scratch"
            self._keeper.admit(name, spec, box.path, box.reservation)
        except BrokenPipeError:
            self._close(name, None)  # killed a moment ago: the client, told nothing, asks again
        except OSError as error:
            if isinstance(error, linux.NamespacesRefused):
                step = "namespaces"
            elif isinstance(error, cgroups.GroupsRefused):
                step = "groups"
            boot.refuse(control, rootfs.Refused(step, error))
            self._close(name, None)
        finally:
            os.close(spec_fd)

    @property
    def _starting(self) -> bool:
        """Whether a sandbox is being started at the moment."""
        return any(start.box is not None for start in self._starts)

    def _prepare(self, spec: dict[str, Any]) -> Start:
        """A starter for sandboxes of the kind of ``spec``, and all that is set aside for one."""
        space = self._space(spec)
        reservation = self._keeper.reserve(spec["limits"])
        start: Start | None = None
        try:
            start = Start(reservation)
            kind = {
                **kind_of(spec),
                "groups": reservation.group.entered,
                "processors": reservation.processors,
            }
            orders, link = start.theirs

            start.pid = self._fork(
                lambda: starter.Starter(kind, space, orders, link).start(),
                lambda _: self._starter_ended(start),
                keep=(orders.fileno(), link.fileno(), space),
            )
        except OSError:
            if start is not None:
                start.close()
            self._keeper.give_up(reservation)
            raise
        start.began()
        self._starts.append(start)
        return start

    def _make(self, spec: dict[str, Any], name: str) -> Box:
        """A sandbox without processes, with its directory."""
        place = spec["scratch"]
        home = self._homes.find(place)
        try:
            if home is None:
                home = self._homes.create(place)
                self._remove_stale(spec)
            box = self._boxes[name] = Box(spec, home, name, home.make(name))
        finally:
            if home is not None:
                self._homes.tidy(home)
        return box

    def _remove_stale(self, spec: dict[str, Any]) -> None:
        stale = scratch.take_stale(spec["scratch"])
        if not stale:
            return
        try:
            space = self._space(spec)
            self._fork(
                lambda: cleanup.remove_stale(spec, space, stale),
                lambda _: None,
                keep=(space, *(lock for _, lock in stale)),
            )
        finally:
            scratch.let_go(stale)

    def _space(self, spec: dict[str, Any]) -> int:
        """A user namespace with the map of ``spec``, or -1 where each sandbox can write its own.

        The programs that may write the map of a range take milliseconds, so they are run once, and
        the namespaces of sandboxes are made below this one, where this process's forks may write.
        """
        if spec["kind"] != "subid":
            return -1
        key = (spec["uids"], spec["gids"])
        if key not in self._spaces:
            read_end, write_end = os.pipe()

            def wait() -> None:
                os.close(write_end)
                os.read(read_end, 1)

            try:
                pid = linux.fork_mapped(
                    spec["uids"],
                    spec["gids"],
                    map_writers=spec["map_writers"],
                    child=wait,
                )
                self._spaces[key] = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            finally:
                os.close(read_end)
                os.close(write_end)
        return self._spaces[key]

    def _starter_ended(self, start: Start) -> None:
        """Take over PID 1, if the starter came that far: this process is its parent from now on."""
        self._starts.remove(start)
        pid = start.init if start.code is None else 0
        box = start.box
        if box is None:  # a spare that nobody needs any more, or that was killed
            self._spares.forget(start)
            start.close()
            if pid:  # without orders it would end by itself, but for one that is stopped
                self._children[pid] = lambda _: self._keeper.give_up(start.reservation)
                os.kill(pid, signal.SIGKILL)
            else:
                self._keeper.give_up(start.reservation)
            return
        box.start = None
        box.code = start.code
        if not start.init:
            self._spares.close()  # it could not make a PID 1, and is asked again
        if pid:
            box.init = pid
            self._children[pid] = lambda code: self._init_ended(box, code)
            if box.unwanted:
                box.kill()
            else:
                # It then makes sure that this end is open: so it stays while PID 1 lives.
                _send(start.link, pid.to_bytes(4, "little"))
                self._keeper.began(box.name, pid)
        if not box.alive:
            self._ended(box)

    def _init_ended(self, box: Box, code: int) -> None:
        box.init = 0
        box.code = code
        if code == 0 and not box.unwanted:
            # It ends by itself when nobody holds its socket any more: a client that forgot it, or
            # that has no descriptor left to say more.
            self._close(box.name, None)
        else:
            self._ended(box)

    def _end(self, box: Box, reply: socket.socket) -> None:
        box.waiting.append(reply)
        if box.alive:
            box.kill()
        else:
            self._ended(box)

    def _close(self, name: str, reply: socket.socket | None) -> None:
        box = self._boxes.get(name)
        if box is None:
            return
        under_way = box.closing is not None
        box.closing = [*(box.closing or []), *([reply] if reply is not None else [])]
        if box.alive:
            box.kill()
        elif not under_way:
            self._ended(box)

    def _ended(self, box: Box) -> None:
        """All its processes are gone: the kernel lets PID 1 go after everything below it."""
        self._keeper.ended(box.name, killed=box.code == -signal.SIGKILL and not box.unwanted)
        if box.reservation is not None:
            self._keeper.give_up(box.reservation)
            box.reservation = None
        if box.link is not None:
            box.link.close()
            box.link = None
        for reply in box.waiting:
            _answer(reply, "ended", str(box.code))
        box.waiting = []
        if box.closing is None:
            return
        if cleanup.remove_untouched(box.path):
            self._removed(box)
            return
        try:
            # In a process of its own: a tree may be large, and its owners several ids.
            space = self._space(box.spec)
            self._fork(
                lambda: cleanup.remove(box.spec, space, box.path),
                lambda _: self._removed(box),
                keep=(space, box.home.lock),
            )
        except OSError:
            self._removed(box)  # what is left is removed by the next server

    def _removed(self, box: Box) -> None:
        del self._boxes[box.name]
        self._homes.leave(box.home)
        for reply in box.closing or []:
            _answer(reply, "closed", str(box.code))

    def _copy(self, source: Box, name: str, reply: socket.socket) -> None:
        """A sandbox without processes whose upper directory is a copy of that of ``source``."""
        box: Box | None = None

        def done(code: int) -> None:
            assert box is not None
            box.filling = False
            if code == 0 and not box.unwanted:
                _answer(reply, "copied", box.path)
            else:
                _answer(reply, "failed")
                if box.unwanted:
                    self._ended(box)
                else:
                    self._close(name, None)

        try:
            box = self._make(source.spec, name)
            paths = os.path.join(source.path, "upper"), os.path.join(box.path, "upper")
            space = self._space(source.spec)
            self._fork(
                lambda: cleanup.copy(source.spec, space, *paths),
                done,
                keep=(space, box.home.lock),
            )
            box.filling = True
        except OSError as error:
            _answer(reply, "failed", f"{error.strerror} ({error.filename})")
            self._close(name, None)

    def _fork(
        self, child: Callable[[], None], finish: Callable[[int], None], *, keep: Sequence[int]
    ) -> int:
        """Run ``child`` in a fork of this process, and ``finish`` here when it has ended. Of what
        is open, the fork has but ``keep`` (-1 is nothing): a client that waits for an answer is to
        see at once that this process was killed, and a starter that there will be no orders.
        """
        pid = os.fork()
        if pid:
            self._children[pid] = finish
            return pid
        code = 1
        try:
            self._wakeup.close()
            linux.close_all_but([0, 1, 2, *(fd for fd in keep if fd >= 0)])
            child()
            code = 0
        except BaseException as error:  # noqa: BLE001 - the process ends here
            linux.log_exception(error)  # os._exit would lose it; the client quotes this log
        finally:
            os._exit(code)


def _answer(reply: socket.socket, kind: str, *fields: str) -> None:
    with reply:
        _send(reply, b"\0".join(word.encode() for word in (kind, *fields)))


def _send(sock: socket.socket, data: bytes) -> None:
    try:
        sock.send(data, socket.MSG_NOSIGNAL)
    except OSError:
        pass  # who asked is gone, or PID 1 has ended, which is seen next


def main() -> None:
    """Entry of the program: standard input is the socket for requests, the arguments are the place
    of the package (for the bootstrap) and the client's process id.
    """
    gc.disable()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        # The terminal's and the job scheduler's signals are for the client; its end is what ends
        # us.
        signal.signal(number, signal.SIG_IGN)
    # What a client may have set for itself and a new program inherits: children that vanish unseen,
    # blocked signals, a mask that would keep other users of the sandbox out of its root directory.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)
    # Each sandbox takes one, and without one for a moment all of them would suffer.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    client = int(sys.argv[2])
    try:
        handle = os.pidfd_open(client)
    except ProcessLookupError:
        return
    if os.getppid() != client:  # it ended before there was a handle: the number may be another's
        return
    with socket.socket(fileno=os.dup(0)) as requests:
        os.dup2(os.open("/dev/null", os.O_RDWR), 0)
        # One for all sandboxes, in which no program can look up or make a key: a user may have 200
        # keys (kernel.keys.maxkeys), and with a keyring for each sandbox only as many of them.
        linux.new_session_keyring()
        linux.become_subreaper()
        wire.send(requests, "hello")
        gc.freeze()
        Server(requests, handle).serve()
