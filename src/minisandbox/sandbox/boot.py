"""The way of PID 1 from its birth in new namespaces to where it serves commands.

It is born before its sandbox is asked for (see ``starter``), and waits for its orders in the mount
namespace of the host. Root's starter then hands it one in which everything is staged; with the
rights of anybody else it stages everything itself.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket

from minisandbox import linux
from minisandbox.sandbox import early, hardening, init, orders, rootfs, wire

TYPE_CHECKING = False  # the typing module costs the start of the server some milliseconds
if TYPE_CHECKING:
    from typing import Any


def become_init(starter: socket.socket, link: socket.socket, kind: dict[str, Any]) -> None:
    """Be PID 1: wait for orders of the ``starter``, build the root, wait until the server at
    ``link`` is the parent, serve commands; returns only where there are no orders. ``kind`` is what
    is known of the sandbox before.
    """
    connected = _prepare(kind)
    monitor = _early_monitor(kind["ids"])
    proc = None
    fields, fds = wire.receive(starter)
    if fields[:1] == ["proc"]:
        (proc,) = fds
        fields, fds = wire.receive(starter)
    starter.close()
    if fields[:1] != ["start"]:
        return  # nobody asks for a sandbox any more
    spec_fd, control_fd, *handed = fds
    control = wire.channel(control_fd)
    code = 1
    try:
        if not connected:
            rootfs.bring_up_loopback()  # what the host was short of then it may have now
        spec = orders.follow(spec_fd)
        if spec["blackhole"]:
            rootfs.make_blackhole()
        if monitor is not None and spec["filter"]:
            # It would be without the filter that reports, whose listener only PID 1 can hand out.
            monitor.dismiss()
            monitor = None
        if handed:
            rootfs.join(*handed)
        else:
            rootfs.unshare_mounts()
            rootfs.detach_from_host()
            rootfs.stage(spec, fields[1])
        rootfs.enter(spec, proc)
        if monitor is not None:
            monitor.join(spec_fd)  # and be hardened, while this process is
        listening = _listen(spec["listen"])
        word = link.recv(4)  # from the server, when it has taken this process over
        linux.set_parent_death_signal(signal.SIGKILL)
        if len(word) != 4 or not wire.is_connected(link):
            return  # the server has ended, maybe before it could be the parent whose death is told
        kept = [control, *listening] + ([] if monitor is None else [monitor.link])
        hardening.harden(spec, [sock.fileno() for sock in kept])
        _report_ready(spec, fields[1], control, listening, int.from_bytes(word, "little"))
        gc.freeze()  # monitors are forks: what is never collected stays shared
        first = None if monitor is None else (monitor.pid, monitor.link)
        init.serve_inside(control, kind["ids"], spec["limits"], first)
        code = 0
    except rootfs.Refused as error:
        refuse(control, error)
    except BaseException as error:  # noqa: BLE001 - the process ends here
        wire.send(control, "failed", linux.describe_exception(error))
    finally:
        os._exit(code)


def _early_monitor(ids: int) -> early.EarlyMonitor | None:
    try:
        return early.EarlyMonitor(ids)
    except OSError:
        return None  # no process to be had now: the first command asks for one again


def _prepare(kind: dict[str, Any]) -> bool:
    """Do all that needs no orders; whether that includes the loopback device."""
    os.umask(0o022)
    os.setsid()
    linux.erase_command_line(b"minisandbox-init")
    hardening.limit_capabilities()
    if os.sched_getaffinity(0) != set(kind["processors"]):
        os.sched_setaffinity(0, kind["processors"])
    try:
        if kind["network"] == "none":
            rootfs.bring_up_loopback()
    except rootfs.Refused:
        return False
    return True


def refuse(control: socket.socket, error: rootfs.Refused) -> None:
    """Tell the client which step of a start failed."""
    try:
        wire.send(control, "refused", error.step, str(error.number), error.detail)
    except OSError:
        pass  # the client has given up


def _listen(ports: list[int]) -> list[socket.socket]:
    """Listening sockets in this network namespace, for the client outside of it."""
    listening: list[socket.socket] = []
    for port in ports:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.append(sock)
        try:
            sock.bind(("127.0.0.1", port))
            sock.listen()
        except OSError as error:
            named = OSError(error.errno, error.strerror, f"port {port}")
            raise rootfs.Refused("listen", named) from error
    return listening


def _report_ready(
    spec: dict[str, Any], box: str, control: socket.socket, listening: list[socket.socket], pid: int
) -> None:
    """Hand out the sockets and the listener of the filter, and keep no copy: with one here,
    programs would wait for a client that has stopped to answer.
    """
    fds = [sock.detach() for sock in listening]
    refusal = 0
    if spec["filter"]:
        try:
            fds.append(linux.install_reporting_filter(spec["filter"]))
        except OSError as error:
            refusal = error.errno or errno.ENOSYS
    wire.send(control, "ready", box, str(pid), str(refusal), fds=fds)
    for fd in fds:
        os.close(fd)
