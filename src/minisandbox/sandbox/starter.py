"""What a fork of the server does: start one sandbox, remove a tree, copy one.

``start`` stages the mounts with the caller's rights, makes the namespaces and PID 1 in them, and
ends: its mount namespace, and all that was staged in it, goes with it, while PID 1 keeps a copy and
becomes the server's child. Invariant: when a start fails at whatever step, nothing is mounted
anywhere, for the only places where something was are namespaces that are gone.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket

from minisandbox import linux, removal
from minisandbox.sandbox import copying, init, rootfs, scratch, wire
from minisandbox.sandbox.limits import cgroups, rlimits

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)

#: A group that no command has as its saved one, for execve(2) sets that to the effective one.
_NOBODYS_GROUP = 65_534

#: What programs inside may do in their own user namespace: the set that container engines grant,
#: without raw sockets. Without CAP_SYS_ADMIN no mount can be undone, and without CAP_SYS_PTRACE
#: programs cannot look into PID 1 and the monitors, which hold more.
_CAPABILITIES = frozenset(
    {
        0,  # CHOWN
        1,  # DAC_OVERRIDE
        3,  # FOWNER
        4,  # FSETID
        5,  # KILL
        6,  # SETGID
        7,  # SETUID
        8,  # SETPCAP
        10,  # NET_BIND_SERVICE
        18,  # SYS_CHROOT
        27,  # MKNOD
        29,  # AUDIT_WRITE
        31,  # SETFCAP
    }
)


def start(
    spec: dict[str, Any], space: int, box: str, control: socket.socket, link: socket.socket
) -> None:
    """Start PID 1 and tell the server its process id through ``link``; what fails is told through
    ``control``. ``space`` is the user namespace that the sandbox's shall be below, if any.
    """
    try:
        _start(spec, space, box, control, link)
    except rootfs.Refused as error:
        _refuse(control, error)


def refuse(control: socket.socket, step: str, error: OSError) -> None:
    """Tell the client that a start failed before it began."""
    _refuse(control, rootfs.Refused(step, error))


def _refuse(control: socket.socket, error: rootfs.Refused) -> None:
    try:
        wire.send(control, "refused", error.step, str(error.number), error.detail)
    except OSError:
        pass  # the client has given up


def _start(
    spec: dict[str, Any], space: int, box: str, control: socket.socket, link: socket.socket
) -> None:
    root = spec["kind"] == "root"
    try:
        # First of all: PID 1 and what is staged are born in the groups, and from within the
        # namespaces they cannot be entered.
        cgroups.enter(spec["groups"])
    except OSError as error:
        raise rootfs.Refused("groups", error) from error
    try:
        os.chdir(box)
        for name in ("upper", "work", "root"):
            os.mkdir(name, 0o755)
        for name in (".", "upper", "work", "root") if root else ():
            os.chown(name, spec["uids"][0][1], spec["gids"][0][1])
    except OSError as error:
        raise rootfs.Refused("scratch", error) from error
    if root:
        rootfs.unshare_mounts()
        rootfs.stage(spec)
    namespaces = _NAMESPACES | (linux.CLONE_NEWNET if spec["network"] == "none" else 0)
    # Ends of a socket over which PID 1 gets its /proc, where it may not mount one and root may.
    proc = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) if _must_hand_proc(spec) else ()

    def child() -> None:
        for end in proc[:1]:
            end.close()
        _become_init(spec, box, control, link, proc[1] if proc else None)

    uids, gids = spec["uids"], spec["gids"]
    if space >= 0:
        # In two ranges, as in that namespace: one may not span several of its parent's.
        uids = gids = ((0, 0, 1), (1, 1, spec["ids"] - 1))
    try:
        if space >= 0:
            linux.enter_namespace(space, linux.CLONE_NEWUSER)
            os.close(space)
        pid = linux.clone_mapped(uids, gids, namespaces=namespaces, child=child)
    except OSError as error:
        raise rootfs.Refused("namespaces", error) from error
    # It becomes the server's child when this process ends, which is now.
    link.send(pid.to_bytes(4, "little"), socket.MSG_NOSIGNAL)
    if proc:
        proc[1].close()
        _hand_proc(pid, proc[0])


def _must_hand_proc(spec: dict[str, Any]) -> bool:
    return spec["kind"] == "root" and rootfs.is_proc_covered()


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


def _become_init(
    spec: dict[str, Any],
    box: str,
    control: socket.socket,
    link: socket.socket,
    proc: socket.socket | None,
) -> None:
    """Be PID 1: build the root, wait until the server is the parent, serve commands; never
    returns. Through ``proc`` comes a /proc, if it is handed out.
    """
    code = 1
    try:
        try:
            if spec["kind"] != "root":
                rootfs.stage(spec)
            handed = wire.receive(proc)[1] if proc is not None else []
            rootfs.enter(spec, handed[0] if handed else None)
            listening = _listen(spec["listen"])
        except rootfs.Refused as error:
            _refuse(control, error)
            return
        word = link.recv(4)  # from the server, when it has taken this process over
        linux.set_parent_death_signal(signal.SIGKILL)
        if len(word) != 4 or not _is_open(link):
            return  # the server has ended, maybe before it could be the parent whose death is told
        linux.close_all_but((control.fileno(), *(sock.fileno() for sock in listening)))
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        if null > 2:
            os.close(null)
        os.umask(0o022)
        os.setsid()
        linux.erase_command_line(b"minisandbox-init")
        if spec["ids"] > _NOBODYS_GROUP:
            # prlimit(2) asks for no capability where all ids are the caller's: root inside could
            # leave this process and its monitors, which inherit it, without descriptors or time.
            os.setresgid(-1, -1, _NOBODYS_GROUP)
        rlimits.limit_init(spec["limits"])
        if os.sched_getaffinity(0) != set(spec["processors"]):
            os.sched_setaffinity(0, spec["processors"])
        linux.limit_capabilities(_CAPABILITIES)
        linux.forbid_new_privileges()
        try:
            linux.install_filter(spec["policy"])
        except OSError as error:
            _refuse(control, rootfs.Refused("syscalls", error))
            return
        _report_ready(spec, box, control, listening, int.from_bytes(word, "little"))
        gc.freeze()  # monitors are forks: what is never collected stays shared
        init.serve_inside(control, spec["ids"], spec["limits"])
        code = 0
    except BaseException as error:  # noqa: BLE001 - the process ends here
        wire.send(control, "failed", linux.describe_exception(error))
    finally:
        os._exit(code)


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


def _is_open(link: socket.socket) -> bool:
    try:
        return bool(link.recv(1, socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True


def remove(spec: dict[str, Any], space: int, path: str) -> None:
    """Remove what a sandbox left, whoever of its ids it belongs to."""
    if space >= 0:
        _become_inside_root(space)
    _remove(spec, path)


def remove_stale(spec: dict[str, Any], space: int, stale: list[scratch.Stale]) -> None:
    """Remove what other servers left; what cannot be removed is left for later."""
    if space >= 0:
        _become_inside_root(space)
    for path, _ in stale:
        try:
            for part in scratch.parts(path):
                _remove(spec, part)
            scratch.remove_empty(path)
        except OSError:
            continue


def copy(spec: dict[str, Any], space: int, source: str, target: str) -> None:
    """Copy an upper directory, whoever of the sandbox's ids its files belong to. Ends this process
    if that fails: cp has said why in the log, which the client quotes.
    """
    if space >= 0:
        _become_inside_root(space)
    if spec["kind"] == "single":
        code = _act_mapped(spec, lambda: os._exit(copying.copy_tree(source, target)))
    else:
        code = copying.copy_tree(source, target)
    if code != 0:
        os._exit(1)


def _remove(spec: dict[str, Any], path: str) -> None:
    try:
        removal.remove(path)
    except PermissionError:
        if spec["kind"] != "single":
            raise
        code = _act_mapped(spec, lambda: removal.remove(path))
        if code != 0:
            reason = f"the process that acts for the sandbox ended with {code}"
            raise OSError(errno.EIO, reason, path) from None


def _become_inside_root(space: int) -> None:
    linux.enter_namespace(space, linux.CLONE_NEWUSER)
    linux.become_inside_root(groups=True)


def _act_mapped(spec: dict[str, Any], action: Callable[[], None]) -> int:
    """Run ``action`` as root of the sandbox's map; returns the exit code of the fork that did."""
    child = linux.fork_mapped(spec["uids"], spec["gids"], map_writers=None, child=action)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
