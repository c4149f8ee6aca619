"""PID 1 of a sandbox: reaps every orphan, and forks one monitor for each request of the client.

It runs no request itself, so nothing a command does can block it, and the kernel lets no signal
from inside the pid namespace reach it. When the client's socket closes it ends, and the kernel ends
everything else.
"""

from __future__ import annotations

import os
import select
import signal
import socket

from minisandbox import linux
from minisandbox.sandbox import command, processes, wire


def serve_inside(control: socket.socket, ids: int) -> None:
    """Serve until ``control`` closes. ``ids`` is how many ids exist inside."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    wakeup = processes.ChildWakeup()
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wakeup.fileno(), select.POLLIN)
    monitors: dict[int, str] = {}
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if wakeup.fileno() in ready:
            wakeup.clear()
        for pid, _ in processes.reap():
            monitors.pop(pid, None)
        if control.fileno() not in ready:
            continue
        fields, fds = wire.receive(control)
        if not fields:
            return
        try:
            if fields[0] == "start":
                pid = _start_monitor(wakeup, fds, ids)
                if pid:
                    monitors[pid] = fields[1]
            elif fields[0] == "kill":
                for pid in [pid for pid, name in monitors.items() if name == fields[1]]:
                    processes.signal_tree(pid, signal.SIGKILL)
        finally:
            for fd in fds:
                os.close(fd)


def _start_monitor(wakeup: processes.ChildWakeup, fds: list[int], ids: int) -> int:
    try:
        pid = os.fork()
    except OSError as error:
        with socket.socket(fileno=os.dup(fds[0])) as channel:
            wire.send(channel, "error", str(error.errno), "start a process", "")
        return 0
    if pid:
        return pid
    try:
        wakeup.close()
        linux.close_all_but((0, 1, 2, *fds))
        # A monitor outlives PID 1 for no moment: the kernel kills the whole namespace with it.
        command.serve_request(fds, ids)
    except BaseException as error:  # noqa: BLE001 - the process ends here
        linux.log_exception(error)  # os._exit would lose it; this is the log the client quotes
    finally:
        os._exit(1)
    return 0
