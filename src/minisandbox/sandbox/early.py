"""The first monitor of a sandbox, forked before there is anything to serve.

A fork of Python takes a millisecond, for which the first command would have to wait.

It joins the mount namespace of PID 1 when that has its root, and gives up all that PID 1 gives up.
The first command is its own, and PID 1 makes no other monitor before this one says ``joined``: no
program of the sandbox ever meets a process that has given up less.
"""

from __future__ import annotations

import os
import signal
import socket

from minisandbox import linux
from minisandbox.sandbox import hardening, init, orders, wire


class EarlyMonitor:
    """The monitor, from the side of PID 1. Raises ``OSError`` where no process can be had."""

    def __init__(self, ids: int) -> None:
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self.pid = os.fork()
            except OSError:
                self.link.close()
                raise
            if self.pid == 0:
                try:
                    linux.close_all_but([0, 1, 2, theirs.fileno()])
                    _become_monitor(theirs, ids)
                except BaseException as error:  # noqa: BLE001 - PID 1 sees its end, and does without
                    linux.log_exception(error)
                finally:
                    os._exit(1)

    def join(self, spec: int) -> None:
        """Have it join this process's mount namespace; ``spec`` is the file with the sandbox's."""
        mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            wire.send(self.link, "join", fds=[mounts, spec])
        except BrokenPipeError:
            pass  # it was killed, which PID 1 sees as soon as it serves
        finally:
            os.close(mounts)

    def dismiss(self) -> None:
        """End it, and leave nothing of it: a sandbox in which something is left is not idle."""
        self.link.close()
        os.kill(self.pid, signal.SIGKILL)  # it may be stopped
        os.waitpid(self.pid, 0)


def _become_monitor(link: socket.socket, ids: int) -> None:
    fds = wire.receive(link)[1]
    if len(fds) != 2:
        return  # the sandbox does without
    mounts, spec_fd = fds
    spec = orders.read(spec_fd)
    linux.enter_namespace(mounts, linux.CLONE_NEWNS)
    os.chdir("/")
    hardening.harden(spec, [link.fileno()])
    wire.send(link, "joined")
    init.be_first_monitor(link, ids, spec["limits"])
