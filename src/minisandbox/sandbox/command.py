"""One request inside a sandbox: the monitor process that PID 1 forks for it.

A monitor is a child subreaper: whatever its command starts stays below it, so a timeout ends
exactly that command's tree. When the shell ends, the monitor says so at once, whoever still holds
its pipes; if processes were left in the background it stays to read (and drop) what they print, or
they would die of SIGPIPE. When the client goes away before the command has ended, the tree is ended
too. Runs after the root has changed: nothing may be imported here when a function runs.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket

from minisandbox import linux
from minisandbox.sandbox import (
    answers,
    freezing,
    processes,
    service,
    shell,
    spawning,
    transfer,
    wire,
)

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Prepared:
    """What a monitor has and is before it knows its request, while nobody waits for it yet."""

    def __init__(self) -> None:
        linux.become_subreaper()
        self.wakeup = processes.ChildWakeup()
        #: Says that the monitor can serve again, or is None where it must not.
        self.free: Callable[[], None] | None = None
        self.renew()

    def renew(self) -> None:
        """Be as new for the next request, when all other descriptors have been closed."""
        os.chdir("/")
        self.null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        # Made inside, and given to the user: a pipe of the host's could not be opened again as
        # /dev/stdout.
        self.stdout, self.stderr = os.pipe(), os.pipe()


def serve_request(fds: list[int], ids: int, prepared: Prepared) -> bool:
    """Do the request in memory file ``fds[1]`` and answer on the socket ``fds[0]``.

    Whether this process can serve another one, of which it then has said so; descriptors are left
    open.
    """
    request = wire.unpack(wire.read_all(fds[1]))
    with wire.channel(fds[0]) as channel:
        try:
            if request["operation"] == "run":
                return _run(request, channel, fds[2:], ids, prepared)
            if request["operation"] == "freeze":
                freezing.serve(channel)
            elif request["operation"] == "serve":
                service.serve(request, channel, fds[2:], ids, prepared.wakeup)
            elif request["operation"] == "session":
                shell.serve(request, channel, fds[2:], ids, prepared.wakeup)
            else:
                transfer.serve(request, channel, fds[2:], ids)
        except answers.Refusal as refusal:
            answers.answer(channel, "error", str(refusal.number), refusal.operation, refusal.path)
        except OSError as error:
            name = os.fsdecode(error.filename) if error.filename is not None else ""
            answers.answer(
                channel, "error", str(error.errno or errno.EIO), request["operation"], name
            )
    return False


def _run(
    request: dict[str, Any],
    channel: socket.socket,
    files: list[int],
    ids: int,
    prepared: Prepared,
) -> bool:
    account = answers.settle_account(request, ids)
    at: int = request["stdin"]
    stdin = files[at] if at >= 0 else prepared.null
    writers: list[int] = []
    if request["pty"]:
        master, slave = spawning.open_terminal(request["size"])
        ours, streams, done = [master], (slave, slave, slave), [slave]
    else:
        pipes = [prepared.stdout] if request["merge"] else [prepared.stdout, prepared.stderr]
        ours, writers = [pipe[0] for pipe in pipes], [pipe[1] for pipe in pipes]
        streams, done = (stdin, writers[0], writers[-1]), [stdin]
        for fd in writers if account.uid != 0 else ():
            os.fchown(fd, account.uid, -1)
    wire.send(channel, "streams", fds=ours)
    at = request["script"]
    pid = spawning.start(request, streams, files[at] if at >= 0 else -1, account, ids)
    for fd in {*done, *files}:
        os.close(fd)
    # The writers stay open until the end is told: the ends of the pipes would wake the client twice
    # more.
    if pid > 0:
        return _watch(pid, channel, prepared, ours, writers)
    return _end(channel, -pid, prepared)


def _end(channel: socket.socket, code: int, prepared: Prepared) -> bool:
    """Say that the command has ended and left nothing behind."""
    if prepared.free is not None:
        prepared.free()
    answers.answer(channel, "exit", str(code))
    return prepared.free is not None


def _watch(
    pid: int, channel: socket.socket, prepared: Prepared, ours: list[int], writers: list[int]
) -> bool:
    """Wait for the shell; then, if it left processes behind, drain what they print until they
    end.
    """
    wakeup = prepared.wakeup
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    poller.register(wakeup.fileno(), select.POLLIN)
    running, listening, open_pipes = True, True, set(ours)
    while True:
        ready = {fd for fd, _ in poller.poll()}
        wakeup.clear()
        code = dict(processes.reap()).get(pid)
        if running and code is not None:
            running = False
            if not processes.has_children():
                return _end(channel, int(answers.exit_code(code)), prepared)
            answers.answer(channel, "exit", answers.exit_code(code))
            for fd in writers:
                os.close(fd)
        if listening and channel.fileno() in ready:
            fields, _ = wire.receive(channel)
            if running:  # "kill", or the client is gone
                processes.end_descendants()
                return _end(channel, 128 + signal.SIGKILL, prepared)
            if not fields:
                listening = False
                poller.unregister(channel)
                for fd in open_pipes:
                    os.set_blocking(fd, False)
                    poller.register(fd, select.POLLIN)
        if not running and not processes.has_children():
            return False
        if not listening:
            _discard(open_pipes & ready, open_pipes, poller)


def _discard(ready: set[int], open_pipes: set[int], poller: select.poll) -> None:
    for fd in ready:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            continue
        except OSError:  # a terminal whose other side is closed
            data = b""
        if not data:
            poller.unregister(fd)
            open_pipes.discard(fd)
            os.close(fd)
