"""One background service inside a sandbox: the monitor of a ``popen``.

Like that of a command it is a subreaper, but it lives as long as its client wants the service, and
what the service prints goes through it: a client that does not read holds nothing up.
Runs after the root has changed: nothing may be imported here when a function runs.
"""

from __future__ import annotations

import os
import select
import signal
import socket

from minisandbox.sandbox import answers, processes, spawning, wire
from minisandbox.sandbox.relay import Relay

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from typing import Any

#: Milliseconds: as good as for ever.
_LONG = 1e8
#: Bytes of each stream that are kept for a client that reads slowly or not at all.
KEPT_UNREAD = 1 << 20


def serve(
    request: dict[str, Any],
    channel: socket.socket,
    files: list[int],
    ids: int,
    wakeup: processes.ChildWakeup,
) -> None:
    """Start the command and watch over it until it and all it left are gone, or the client is."""
    account = answers.settle_account(request, ids)
    terminal, keyboard = -1, None
    if request["pty"]:
        terminal, slave = spawning.open_terminal(request["size"])
        if account.uid != 0:
            os.fchown(slave, account.uid, -1)
        typed, keys = os.pipe()
        screen, shown = os.pipe()
        theirs, streams = [keys, screen], (slave, slave, slave)
        relays = [Relay(os.dup(terminal), shown, KEPT_UNREAD)]
        keyboard = Relay(typed, os.dup(terminal), None)
    else:
        theirs, streams, relays = _pipes(request, files, account.uid)
    wire.send(channel, "streams", fds=theirs)
    at: int = request["script"]
    pid = spawning.start(request, streams, files[at] if at >= 0 else -1, account, ids)
    for fd in {*streams, *files, *theirs}:
        os.close(fd)
    service = _Service(channel, wakeup, relays, keyboard, terminal)
    if pid > 0:
        answers.answer(channel, "started", str(pid))
        service.pid = pid
    else:
        service.end(-pid)
    service.watch()


def _pipes(
    request: dict[str, Any], files: list[int], uid: int
) -> tuple[list[int], spawning.Streams, list[Relay]]:
    """The client's ends, the service's, and what passes on between them.

    Made inside, and given to the user: a pipe of the host's could not be opened again as
    /dev/stdout.
    """
    theirs: list[int] = []
    at: int = request["stdin"]
    if request["open_stdin"]:
        stdin, write_end = os.pipe()
        theirs.append(write_end)
    else:
        stdin = os.dup(files[at]) if at >= 0 else os.open("/dev/null", os.O_RDONLY)
    writers: list[int] = []
    relays: list[Relay] = []
    for _ in range(1 if request["merge"] else 2):
        source, writer = os.pipe()
        reader, sink = os.pipe()
        writers.append(writer)
        theirs.append(reader)
        relays.append(Relay(source, sink, KEPT_UNREAD))
    if uid != 0:
        for fd in (*writers, *([stdin] if request["open_stdin"] else [])):
            os.fchown(fd, uid, -1)
    return theirs, (stdin, writers[0], writers[-1]), relays


class _Service:
    """The state of the monitor."""

    def __init__(
        self,
        channel: socket.socket,
        wakeup: processes.ChildWakeup,
        relays: list[Relay],
        keyboard: Relay | None,
        terminal: int,
    ) -> None:
        self.pid = 0
        self._channel = channel
        self._wakeup = wakeup
        self._relays = relays
        self._keyboard = keyboard
        self._terminal = terminal

    def watch(self) -> None:
        """Serve the client until nothing is left to be served."""
        while self.pid or processes.has_children() or not all(r.through for r in self._relays):
            poller = select.poll()
            poller.register(self._channel, select.POLLIN)
            poller.register(self._wakeup.fileno(), select.POLLIN)
            busy = [*self._relays, *([self._keyboard] if self._keyboard is not None else [])]
            waits = [relay.register(poller) for relay in busy]
            ready = {fd for fd, _ in poller.poll(min(w for w in (*waits, _LONG) if w is not None))}
            for relay in busy:
                relay.handle(ready)
            self._wakeup.clear()
            for pid, status in processes.reap():
                if pid == self.pid:
                    self.end(int(answers.exit_code(status)))
            if self._channel.fileno() in ready and not self._obey():
                return

    def end(self, code: int) -> None:
        """Say how the service ended; what it left in the background may go on."""
        self.pid = 0
        if self._keyboard is not None:
            self._keyboard.abandon()
            self._keyboard = None
        for relay in self._relays:
            relay.finish()
        answers.answer(self._channel, "exit", str(code))

    def _obey(self) -> bool:
        """Do what the client asks for; whether it may ask for more."""
        fields, _ = wire.receive(self._channel)
        if fields[:1] == ["signal"]:
            if self.pid:
                try:
                    os.killpg(self.pid, int(fields[1]))
                except ProcessLookupError:
                    pass  # it has ended, and is about to be collected
        elif fields[:1] == ["resize"]:
            if self._terminal != -1:
                spawning.set_size(self._terminal, (int(fields[1]), int(fields[2])))
        else:  # "kill", or the client is gone
            processes.end_descendants()
            if self.pid:
                self.end(128 + signal.SIGKILL)
            answers.answer(self._channel, "gone")  # what it printed can still be read
        return bool(fields)
