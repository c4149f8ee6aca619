"""What a fork of the server does to start one sandbox.

Half of it asks for nothing but the kind of sandbox: to enter the control groups, for which the
kernel may wait ten milliseconds, and to make the namespaces, with the process in them that will be
PID 1. The server has that done in advance (``spares``). With its orders come the layers and
whoever waits: it stages the mounts with the caller's rights, sends PID 1 on, and ends. Its mount
namespace, and all that was staged in it, goes with it, while PID 1 keeps a copy and becomes the
server's child.

Invariant: when a start fails at whatever step, nothing is mounted anywhere, for the only places
where something was are namespaces that are gone.
"""

from __future__ import annotations

import os
import select
import signal
import socket

from minisandbox import linux
from minisandbox.sandbox import boot, orders, rootfs, wire
from minisandbox.sandbox.limits import cgroups

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: All but the mount namespace, which PID 1 gets when the mounts are staged: one made before would
#: know nothing of what the host has mounted since.
_NAMESPACES = linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP


class Starter:
    """One start, from the side of the process that makes it. ``kind`` is that of the sandbox as
    ``spares`` describes it; ``space`` is the user namespace that the sandbox's shall be below, if
    not -1; ``orders`` come from the server, and ``link`` is what PID 1 will say and hear there.
    """

    def __init__(
        self, kind: dict[str, Any], space: int, orders: socket.socket, link: socket.socket
    ) -> None:
        self._kind = kind
        self._space = space
        self._orders = orders
        self._link = link
        self._to_init: socket.socket | None = None
        self._init = 0
        self._inside = -1
        self._prepared = 0
        self._steps: tuple[Callable[[], None], ...] = (
            self._enter_groups,
            self._enter_space,
            self._make_init,
        )

    def start(self) -> None:
        """Prepare everything, wait for the orders, and follow them."""
        try:
            self._prepare()
        except rootfs.Refused:
            pass  # for now: maybe the host is short of something. It is tried again when it counts.
        if not self._is_asked():
            return
        fields, fds = wire.receive(self._orders)
        if not fields:
            return  # nobody asks for a sandbox any more, or the server has ended
        spec_fd, control = fds[0], wire.channel(fds[1])
        try:
            self._prepare()
            assert self._to_init is not None
            spec = orders.follow(spec_fd)
            self._make_directories(fields[1])
            handed = self._stage(spec, fields[1]) if self._kind["kind"] == "root" else []
            fds = [spec_fd, control.fileno(), *handed]
            wire.send(self._to_init, "start", fields[1], fds=fds)
        except BrokenPipeError:
            pass  # PID 1 was killed a moment ago: nobody answers the client
        except rootfs.Refused as error:
            boot.refuse(control, error)
        except OSError as error:  # of what lies between the steps: descriptors, most of all
            boot.refuse(control, rootfs.Refused(orders.step(spec_fd) or "namespaces", error))
        # PID 1 becomes the server's child when this process ends, which is now.

    def _is_asked(self) -> bool:
        """Wait for orders; False where PID 1 was killed meanwhile, and the server must make another
        starter.
        """
        if self._to_init is None:
            return True
        poller = select.poll()
        poller.register(self._to_init, select.POLLRDHUP)
        poller.register(self._orders, select.POLLIN)
        return self._to_init.fileno() not in {fd for fd, _ in poller.poll()}

    def _prepare(self) -> None:
        """Do the steps that have not been done."""
        while self._prepared < len(self._steps):
            self._steps[self._prepared]()
            self._prepared += 1

    def _enter_groups(self) -> None:
        # First of all: what is born from now on is born in the groups, and from within the
        # namespaces they cannot be entered.
        try:
            cgroups.enter(self._kind["groups"])
        except OSError as error:
            raise rootfs.Refused("groups", error) from error

    def _enter_space(self) -> None:
        if self._space >= 0:
            try:
                linux.enter_namespace(self._space, linux.CLONE_NEWUSER)
            except OSError as error:
                raise rootfs.Refused("namespaces", error) from error
            os.close(self._space)

    def _make_init(self) -> None:
        kind = self._kind
        uids, gids = kind["uids"], kind["gids"]
        if self._space >= 0:
            # In two ranges, as in that namespace: one may not span several of its parent's.
            uids = gids = ((0, 0, 1), (1, 1, kind["ids"] - 1))
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise rootfs.Refused("processes", error) from error

        def child() -> None:
            ours.close()
            self._orders.close()
            boot.become_init(theirs, self._link, kind)

        try:
            pid = linux.clone_mapped(uids, gids, namespaces=self._namespaces(), child=child)
        except OSError as error:
            ours.close()
            raise rootfs.Refused("namespaces", error) from error
        finally:
            theirs.close()
        try:
            self._inside = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            self._link.send(pid.to_bytes(4, "little"), socket.MSG_NOSIGNAL)
        except OSError as error:
            ours.close()
            os.kill(pid, signal.SIGKILL)  # when this step is done again, there is to be one
            os.waitpid(pid, 0)
            raise rootfs.Refused("namespaces", error) from error
        self._to_init, self._init = ours, pid

    def _namespaces(self) -> int:
        return _NAMESPACES | (linux.CLONE_NEWNET if self._kind["network"] == "none" else 0)

    def _make_directories(self, box: str) -> None:
        kind = self._kind
        orders.at("scratch")
        try:
            for name in ("upper", "work"):
                path = os.path.join(box, name)
                os.mkdir(path, 0o755)
                if kind["kind"] == "root":
                    os.chown(path, kind["uids"][0][1], kind["gids"][0][1])
        except OSError as error:
            raise rootfs.Refused("scratch", error) from error

    def _stage(self, spec: dict[str, Any], box: str) -> list[int]:
        """Mount what needs the caller's rights; returns the mount namespace for PID 1 to join, and
        the staging directory in it. Where the host's /proc is covered PID 1 may not mount one, and
        root may: it is handed out.

        Everything is staged in a namespace of this process's. That of PID 1 is a copy of it that
        belongs to the user namespace of the sandbox, where the kernel lets nobody undo or change
        what was mounted outside of it (mount_namespaces(7)).
        """
        if rootfs.is_proc_covered():
            assert self._to_init is not None
            _hand_proc(self._init, self._to_init)
        rootfs.unshare_mounts()
        rootfs.detach_from_host()
        rootfs.stage(spec, box)
        try:
            linux.enter_namespace(self._inside, linux.CLONE_NEWUSER)
        except OSError as error:
            raise rootfs.Refused("namespaces", error) from error
        rootfs.unshare_mounts()
        return [
            os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC),
            os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC),
        ]


def _hand_proc(pid: int, channel: socket.socket) -> None:
    """Make a /proc of the pid namespace of ``pid`` in the mount namespace of this process, which is
    root's own, and send it to PID 1.
    """

    def make() -> None:
        wire.send(channel, "proc", fds=[rootfs.new_proc()])

    def enter() -> None:
        linux.enter_pid_namespace(pid)
        _wait_for(make)

    _wait_for(enter)


def _wait_for(action: Callable[[], None]) -> None:
    """Run ``action`` in a fork, and return when that has ended, however it did."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - PID 1 misses what was to come, and says so
            linux.log_exception(error)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
