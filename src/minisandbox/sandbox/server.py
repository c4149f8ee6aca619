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
from minisandbox.sandbox import processes, scratch, starter, wire
from minisandbox.sandbox.limits.keeper import Keeper

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


#: How many descriptors come with each kind of request.
_DESCRIPTORS = {"start": 2, "drop": 0, "end": 1, "close": 1, "copy": 1}


class Box:
    """One sandbox: its directory, and the processes that the server waits for."""

    def __init__(self, spec: dict[str, Any], home: scratch.Home, name: str) -> None:
        self.spec = spec
        self.home = home
        self.name = name
        self.path = os.path.join(home.path, name)
        self.starter = 0
        self.init = 0
        #: Whether a fork writes to its directory, which is not ended but waited for.
        self.filling = False
        #: Connected to PID 1.
        self.link: socket.socket | None = None
        #: How its PID 1 ended (negative: the signal); None while it has not.
        self.code: int | None = None
        #: Who wants to know that all its processes have ended.
        self.waiting: list[socket.socket] = []
        #: Who wants to know that its directory is gone; None while it shall stay.
        self.closing: list[socket.socket] | None = None

    @property
    def unwanted(self) -> bool:
        """Whether the client has asked for its end."""
        return self.closing is not None or bool(self.waiting)

    @property
    def alive(self) -> bool:
        """Whether a process of it may be left."""
        return bool(self.starter or self.init or self.filling)

    def kill(self) -> None:
        """End its processes; SIGCHLD comes when they are gone."""
        # Both are children that were not collected, so no other process has their numbers.
        for pid in (self.starter, self.init):
            if pid:
                os.kill(pid, signal.SIGKILL)


class Server:
    """What is running, and what is done for each request."""

    def __init__(self, requests: socket.socket, client: int) -> None:
        """``client`` is a pidfd of the client's."""
        self._requests = requests
        self._client = client
        self._boxes: dict[str, Box] = {}
        self._homes: dict[str, scratch.Home] = {}
        #: What is to be done when a child ends, with its exit code.
        self._children: dict[int, Callable[[int], None]] = {}
        #: Codes of children that ended before their numbers were known: each PID 1 is a grandchild
        #: until its starter has ended.
        self._strangers: dict[int, int] = {}
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
            ready = {fd for fd, _ in poller.poll(self._keeper.wait())}
            if self._wakeup.fileno() in ready:
                self._wakeup.clear()
                self._collect()
            self._keeper.look()
            if leaving or not {self._requests.fileno(), self._client} & ready:
                continue
            if self._client in ready or not self._handle():
                leaving = True
                poller.unregister(self._requests.fileno())
                poller.unregister(self._client)
                for name in list(self._boxes):
                    self._close(name, None)
        self._keeper.close()

    def _collect(self) -> None:
        # One at a time: what is done for one child may signal the next, which must not be collected
        # before.
        while (ended := processes.reap_one()) is not None:
            pid, code = ended
            finish = self._children.pop(pid, None)
            if finish is not None:
                finish(code)
            else:
                self._strangers[pid] = code
        if not any(box.starter for box in self._boxes.values()):
            self._strangers.clear()

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
        spec = wire.unpack(wire.read_all(spec_fd))
        os.close(spec_fd)
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            starter.refuse(control, "processes", error)
            return
        with theirs:
            try:
                box = self._make(spec, name)
                space = self._space(spec)
                spec = self._keeper.admit(name, spec, box.path)

                def child() -> None:
                    keep = (0, 1, 2, control.fileno(), theirs.fileno(), space)
                    linux.close_all_but([fd for fd in keep if fd >= 0])
                    starter.start(spec, space, box.path, control, theirs)

                box.starter = self._fork(child, lambda _: self._starter_ended(box))
                box.link = ours
            except OSError as error:
                ours.close()
                named = isinstance(error, linux.NamespacesRefused)
                step = "namespaces" if named else "processes" if name in self._boxes else "scratch"
                starter.refuse(control, step, error)
                self._close(name, None)

    def _make(self, spec: dict[str, Any], name: str) -> Box:
        """A sandbox without processes, with its directory."""
        place = spec["scratch"]
        home = self._homes.get(place)
        if home is None:
            home = self._homes[place] = scratch.create(place)
            stale = scratch.take_stale(place)
            if stale:
                try:
                    space = self._space(spec)
                    self._fork(lambda: starter.remove_stale(spec, space, stale), lambda _: None)
                finally:
                    scratch.let_go(stale)
        box = Box(spec, home, name)
        home.users += 1
        try:
            os.mkdir(box.path, 0o700)
        except OSError:
            self._leave(home)
            raise
        self._boxes[name] = box
        return box

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

    def _starter_ended(self, box: Box) -> None:
        """Take over PID 1, if the starter came that far: this process is its parent from now on."""
        box.starter = 0
        assert box.link is not None
        try:
            word = box.link.recv(4, socket.MSG_DONTWAIT)
        except BlockingIOError:
            word = b""
        pid = int.from_bytes(word, "little")
        if pid in self._strangers:
            box.code = self._strangers.pop(pid)
        elif pid:
            box.init = pid
            self._children[box.init] = lambda code: self._init_ended(box, code)
            if box.unwanted:
                box.kill()
            else:
                # It then makes sure that this end is open: so it stays while PID 1 lives.
                _send(box.link, word)
                self._keeper.began(box.name, box.init)
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
        if box.link is not None:
            box.link.close()
            box.link = None
        for reply in box.waiting:
            _answer(reply, "ended", str(box.code))
        box.waiting = []
        if box.closing is None:
            return
        try:
            # In a process of its own: a tree may be large, and its owners several ids.
            space = self._space(box.spec)
            self._fork(
                lambda: starter.remove(box.spec, space, box.path), lambda _: self._removed(box)
            )
        except OSError:
            self._removed(box)  # what is left is removed by the next server

    def _removed(self, box: Box) -> None:
        del self._boxes[box.name]
        self._leave(box.home)
        for reply in box.closing or []:
            _answer(reply, "closed", str(box.code))

    def _leave(self, home: scratch.Home) -> None:
        home.users -= 1
        if not home.users:
            del self._homes[home.scratch]
            home.drop()

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
            self._fork(lambda: starter.copy(source.spec, space, *paths), done)
            box.filling = True
        except OSError as error:
            _answer(reply, "failed", f"{error.strerror} ({error.filename})")
            self._close(name, None)

    def _fork(self, child: Callable[[], None], finish: Callable[[int], None]) -> int:
        """Run ``child`` in a fork of this process, and ``finish`` here when it has ended."""
        pid = os.fork()
        if pid:
            self._children[pid] = finish
            return pid
        code = 1
        try:
            self._wakeup.close()
            self._requests.close()  # or the client could not see the end of this process
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
