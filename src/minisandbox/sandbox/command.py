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
    from typing import Any


def serve_request(fds: list[int], ids: int) -> None:
    """Do the request in memory file ``fds[1]`` and answer on the socket ``fds[0]``."""
    request = wire.unpack(wire.read_all(fds[1]))
    os.close(fds[1])
    with socket.socket(fileno=fds[0]) as channel:
        try:
            if request["operation"] == "run":
                _run(request, channel, fds[2:], ids)
            elif request["operation"] == "freeze":
                freezing.serve(channel)
            elif request["operation"] == "serve":
                service.serve(request, channel, fds[2:], ids)
            elif request["operation"] == "session":
                shell.serve(request, channel, fds[2:], ids)
            else:
                transfer.serve(request, channel, fds[2:], ids)
        except answers.Refusal as refusal:
            answers.answer(channel, "error", str(refusal.number), refusal.operation, refusal.path)
        except OSError as error:
            name = os.fsdecode(error.filename) if error.filename is not None else ""
            answers.answer(
                channel, "error", str(error.errno or errno.EIO), request["operation"], name
            )


def _run(request: dict[str, Any], channel: socket.socket, files: list[int], ids: int) -> None:
    account = answers.settle_account(request, ids)
    at: int = request["stdin"]
    stdin = files[at] if at >= 0 else os.open("/dev/null", os.O_RDONLY)
    linux.become_subreaper()
    if request["pty"]:
        master, slave = spawning.open_terminal(request["size"])
        ours, streams = [master], (slave, slave, slave)
    else:
        ours, streams = _pipes(request, stdin, account.uid)
    wire.send(channel, "streams", fds=ours)
    wakeup = processes.ChildWakeup()
    at = request["script"]
    pid = spawning.start(request, streams, files[at] if at >= 0 else -1, account, ids)
    for fd in {*streams, *files}:
        os.close(fd)
    if pid > 0:
        _watch(pid, channel, wakeup, ours)
    else:
        answers.answer(channel, "exit", str(-pid))


def _pipes(request: dict[str, Any], stdin: int, uid: int) -> tuple[list[int], tuple[int, int, int]]:
    # Made inside, and given to the user: a pipe of the host's could not be opened again as
    # /dev/stdout.
    out_read, out_write = os.pipe()
    if request["merge"]:
        ours, streams = [out_read], (stdin, out_write, out_write)
    else:
        error_read, error_write = os.pipe()
        ours, streams = [out_read, error_read], (stdin, out_write, error_write)
    if uid != 0:
        for fd in {*streams[1:]}:
            os.fchown(fd, uid, -1)
    return ours, streams


def _watch(
    pid: int, channel: socket.socket, wakeup: processes.ChildWakeup, ours: list[int]
) -> None:
    """Wait for the shell; then, if it left processes behind, drain what they print until they
    end.
    """
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    poller.register(wakeup.fileno(), select.POLLIN)
    running, listening, open_pipes = True, True, set(ours)
    while True:
        ready = {fd for fd, _ in poller.poll()}
        wakeup.clear()
        for ended, code in processes.reap():
            if ended == pid:
                running = False
                answers.answer(channel, "exit", answers.exit_code(code))
        if listening and channel.fileno() in ready:
            fields, _ = wire.receive(channel)
            if running:  # "kill", or the client is gone
                processes.end_descendants()
                answers.answer(channel, "exit", str(128 + 9))
                return
            if not fields:
                listening = False
                poller.unregister(channel)
                for fd in open_pipes:
                    os.set_blocking(fd, False)
                    poller.register(fd, select.POLLIN)
        if not running and not processes.has_children():
            return
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
