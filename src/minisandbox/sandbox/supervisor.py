"""The process that starts one sandbox, outlives it, and cleans up behind it.

Started by the client as a program of its own: no sandbox is a fork of a program that may be a
trainer with threads and gigabytes. (``idmap.call_mapped``, with which an ordinary user's map is
tried and its layers are unpacked, packed and removed, does fork the client.) It stays outside the
namespaces with the caller's ids. Chain of life: the client holds the ``lease`` socket; when it
closes, by intent or by the client's death, the supervisor kills PID 1, the kernel kills everything
in its pid namespace, and the supervisor removes the scratch directory. When the supervisor itself
is killed, PID 1 goes with it (PR_SET_PDEATHSIG).
Invariant: everything the sandbox side needs is imported before the root changes, so this module and
its imports stay small.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import signal
import socket
import sys

from minisandbox import linux, removal
from minisandbox.sandbox import init, rootfs, scratch, wire

TYPE_CHECKING = False  # the typing module costs every start some milliseconds
if TYPE_CHECKING:
    from typing import Any

_NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)

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


def serve(spec: dict[str, Any], control: socket.socket, lease: socket.socket) -> None:
    """Run one sandbox from start to removal; failures of the start are told through ``control``."""
    try:
        box, lock = scratch.create(spec["scratch"])
    except OSError as error:
        _refuse(control, rootfs.Refused("scratch", error))
        return
    try:
        try:
            pid = _start(spec, box, control)
        except rootfs.Refused as error:
            _refuse(control, error)
            return
        except (OSError, EOFError):
            # PID 1 has said why before it ended, unless it died: then the client sees the end of
            # the stream.
            return
        finally:
            control.close()
        _outlive(spec, box, pid, lease)
    finally:
        # Where unmounting fails nothing may be removed: below a mount are the caller's own files.
        _leave(spec, box)
        scratch.finish_last(box, lambda path: _remove(spec, path))
        os.close(lock)


def _refuse(control: socket.socket, error: rootfs.Refused) -> None:
    wire.send(control, "refused", error.step, str(error.number), error.detail)


def _start(spec: dict[str, Any], box: str, control: socket.socket) -> int:
    """Start PID 1 and return its pid once it has been let go."""
    root = spec["kind"] == "root"
    os.chdir(box)
    try:
        for name in ("upper", "work", "root"):
            os.mkdir(name, 0o755)
        for name in (".", "upper", "work", "root") if root else ():
            os.chown(name, spec["uids"][0][1], spec["gids"][0][1])
    except OSError as error:
        raise rootfs.Refused("scratch", error) from error
    if root:
        rootfs.unshare_mounts()
        rootfs.stage(spec)
    linux.become_subreaper()
    namespaces = _NAMESPACES | (linux.CLONE_NEWNET if spec["network"] == "none" else 0)
    ours, theirs = socket.socketpair()

    def child() -> None:
        pid = os.fork()
        if pid:
            theirs.sendall(pid.to_bytes(4, "little"))
            return
        ours.close()
        _become_init(spec, box, control, theirs)

    try:
        middle = linux.fork_mapped(
            spec["uids"],
            spec["gids"],
            map_writers=spec["map_writers"],
            namespaces=namespaces,
            child=child,
        )
    except OSError as error:
        raise rootfs.Refused("namespaces", error) from error
    theirs.close()
    # The child in between ends at once, and PID 1 becomes ours: one process less per sandbox.
    os.waitpid(middle, 0)
    with ours:
        pid = int.from_bytes(ours.recv(4), "little")
        if not pid:
            raise EOFError
        ours.sendall(b"g")
    return pid


def _become_init(spec: dict[str, Any], box: str, control: socket.socket, go: socket.socket) -> None:
    """Be PID 1: wait until the supervisor is the parent, build the root, serve commands; never
    returns.
    """
    code = 1
    try:
        if go.recv(1) != b"g":
            return
        linux.set_parent_death_signal(signal.SIGKILL)
        try:
            if spec["kind"] != "root":
                rootfs.stage(spec)
            rootfs.enter(spec)
            listening = _listen(spec["listen"])
        except rootfs.Refused as error:
            _refuse(control, error)
            return
        linux.close_all_but((2, control.fileno(), *(sock.fileno() for sock in listening)))
        for fd in (0, 1):
            os.dup2(os.open("/dev/null", os.O_RDWR), fd)
        os.umask(0o022)
        os.setsid()
        linux.new_session_keyring()
        linux.erase_command_line(b"minisandbox-init")
        linux.limit_capabilities(_CAPABILITIES)
        linux.forbid_new_privileges()
        try:
            linux.install_filter(spec["policy"])
        except OSError as error:
            _refuse(control, rootfs.Refused("syscalls", error))
            return
        _report_ready(spec, box, control, listening)
        gc.freeze()  # monitors are forks: what is never collected stays shared
        init.serve_inside(control, spec["ids"])
        code = 0
    except BaseException as error:  # noqa: BLE001 - the process ends here
        linux.log_exception(error)  # os._exit would lose it; this is the log the client quotes
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
    spec: dict[str, Any], box: str, control: socket.socket, listening: list[socket.socket]
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
    wire.send(control, "ready", box, str(refusal), fds=fds)
    for fd in fds:
        os.close(fd)


def _outlive(spec: dict[str, Any], box: str, pid: int, lease: socket.socket) -> None:
    """Wait for PID 1 and for the lease, whichever ends first; the scratch directory stays for the
    lease.
    """
    lease.sendall(pid.to_bytes(4, "little"))
    scratch.remove_stale(
        spec["scratch"], lambda path: scratch.finish_last(path, lambda part: _remove(spec, part))
    )
    handle = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    poller.register(lease, select.POLLIN)
    alive = True
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if alive and lease.fileno() in ready:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        if alive and (handle in ready or lease.fileno() in ready):
            os.waitpid(pid, 0)  # returns when everything in the pid namespace is gone
            alive = False
            poller.unregister(handle)
            os.close(handle)
            _leave(spec, box)
            try:
                lease.sendall(b"e")
            except OSError:
                return
        if lease.fileno() in ready:
            return


def _leave(spec: dict[str, Any], box: str) -> None:
    os.chdir("/")
    if spec["kind"] == "root":  # those of the other kinds went with the namespace of PID 1
        rootfs.unstage(spec, box)


def _remove(spec: dict[str, Any], path: str) -> None:
    try:
        removal.remove(path)
    except PermissionError:
        if spec["kind"] == "root":
            raise
        child = linux.fork_mapped(
            spec["uids"],
            spec["gids"],
            map_writers=spec["map_writers"],
            namespaces=0,
            child=lambda: removal.remove(path),
        )
        os.waitpid(child, 0)


def main() -> None:
    """Entry of the program: the spec is a memory file on standard input."""
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
    spec = wire.unpack(wire.read_all(0))
    with (
        socket.socket(fileno=spec["control"]) as control,
        socket.socket(fileno=spec["lease"]) as lease,
    ):
        control.set_inheritable(False)
        lease.set_inheritable(False)
        serve(spec, control, lease)
    sys.exit(0)
