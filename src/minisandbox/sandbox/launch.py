"""Starting the supervisor of one sandbox, and the client's ends of what connects them."""

from __future__ import annotations

import errno
import os
import platform
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from minisandbox import linux
from minisandbox.errors import HostUnsupported, InvalidInput
from minisandbox.idmap import IdMap
from minisandbox.sandbox import base, refusals, wire
from minisandbox.sandbox.profile import Profile
from minisandbox.sandbox.seccomp import notify, policy
from minisandbox.sandbox.watching import Watcher

#: What overlayfs takes (OVL_MAX_STACK), less the skeleton.
MAX_LAYERS = 499

#: Empty packages stand in for the two whose __init__ imports what only clients need: with them a
#: start takes twice as long. Only the supervisor's own modules are loaded.
_BOOTSTRAP = """\
import sys
for name, path in (("minisandbox", sys.argv[1]), ("minisandbox.sandbox", sys.argv[1] + "/sandbox")):
    sys.modules[name] = package = type(sys)(name)
    package.__path__ = [path]
from minisandbox.sandbox.supervisor import main
main()
"""
_PACKAGE = str(Path(__file__).resolve().parents[1])


class Link:
    """A live connection to a supervisor: ``control`` reaches PID 1, ``lease`` the supervisor
    itself.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        lease: socket.socket,
        log: int,
    ) -> None:
        self.process = process
        self.control = control
        self.lease = lease
        self.box = Path()
        self.init_pid = 0
        self.listeners: dict[int, socket.socket] = {}
        self.watcher: Watcher | None = None
        self.unwatched = ""
        self._log = log

    def alive(self) -> bool:
        """Whether PID 1 still holds its end."""
        poller = select.poll()
        poller.register(self.control, select.POLLRDHUP)
        return not poller.poll(0)

    def end_processes(self) -> None:
        """End PID 1 and with it every process of the sandbox; returns when they are gone."""
        self.control.shutdown(socket.SHUT_RDWR)
        while self.lease.recv(1) not in (b"e", b""):
            pass
        self._release()

    def log_tail(self) -> str:
        """The last lines that supervisor and PID 1 wrote about themselves."""
        lines = wire.read_all(self._log)[-4000:].decode("utf-8", "replace").strip().splitlines()
        return " ".join(lines[-3:])

    def close(self) -> None:
        """End everything and wait until the supervisor has removed the scratch directory."""
        for sock in (self.control, self.lease):
            try:
                # Not only close: a forked child of this program may hold copies of the descriptors.
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.process.wait()
        self._release()
        self.control.close()
        self.lease.close()
        os.close(self._log)

    def _release(self) -> None:
        # After the end of the processes: until then the watcher must answer them.
        if self.watcher is not None:
            self.watcher.stop()
        for sock in self.listeners.values():
            if sock.fileno() != -1:
                try:
                    sock.shutdown(socket.SHUT_RDWR)  # a close alone wakes no thread in accept
                except OSError:
                    pass  # the caller did so already
                sock.close()


def launch(
    layers: Sequence[Path], scratch: Path, idmap: IdMap, profile: Profile, *, timeout: float
) -> Link:
    """Start a sandbox and return when PID 1 serves; raises what :func:`refusals.explain` makes of
    failures.
    """
    spec = _spec(layers, scratch, idmap, profile)
    with ExitStack() as ours, ExitStack() as theirs:
        pairs = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET), socket.socketpair())
        control, lease = (ours.enter_context(pair[0]) for pair in pairs)
        spec["control"], spec["lease"] = (theirs.enter_context(pair[1]).fileno() for pair in pairs)
        log = os.memfd_create("log")
        ours.callback(os.close, log)
        request = wire.memory_file("spec", wire.pack(spec))
        theirs.callback(os.close, request)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _PACKAGE],
            stdin=request,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            pass_fds=(spec["control"], spec["lease"]),
            start_new_session=True,
        )
        ours.pop_all()
    link = Link(process, control, lease, log)
    if not profile.watch:
        link.unwatched = "the profile does not ask for it"
    elif not spec["filter"]:
        link.unwatched = f"no system call numbers are known for {platform.machine()}"
    try:
        _take_over(link, spec, *_await_ready(link, timeout))
    except BaseException:
        link.close()
        raise
    return link


def _spec(layers: Sequence[Path], scratch: Path, idmap: IdMap, profile: Profile) -> dict[str, Any]:
    for path in (*layers, scratch):
        if not path.is_dir():
            raise InvalidInput(
                str(path), "is not a directory", "unpack the layer, or make the directory"
            )
    if len(layers) > MAX_LAYERS:
        raise InvalidInput(
            "layers", f"{len(layers)} are too many", f"join some; at most {MAX_LAYERS} stack"
        )
    binds = [(*bind, "") for bind in base.host_binds()]
    for bind in profile.binds:
        if not bind.source.exists():
            raise InvalidInput(str(bind.source), "cannot be bound, it does not exist")
        # ``beneath`` is walked by the supervisor alone, which binds the very descriptor that it
        # reached: a layer may have a link there, and what is looked up twice may change between.
        binds.append((str(bind.source.resolve()), bind.target, bind.writable, bind.beneath))
    scratch = scratch.resolve()
    try:
        skeleton = base.ensure_skeleton(scratch, profile, idmap)
    except OSError as error:
        raise refusals.explain("scratch", error.errno or 0, refusals.describe(error)) from error
    lowers = [*reversed(layers), skeleton]
    return {
        "scratch": str(scratch),
        "lowers": [str(path.resolve()) for path in lowers],
        "kind": idmap.kind,
        "ids": idmap.count,
        "uids": idmap.uid_extents,
        "gids": idmap.gid_extents,
        "map_writers": idmap.map_writers,
        "binds": binds,
        "network": profile.network,
        "hostname": profile.hostname,
        "redirect_dir": profile.redirect_dir,
        "listen": list(profile.listen),
        "policy": policy.compiled(platform.machine(), nested=profile.nested),
        "filter": notify.report_connections(platform.machine()) if profile.watch else b"",
    }


def _await_ready(link: Link, timeout: float) -> tuple[int, list[int]]:
    """What PID 1 says when it serves: errno of the filter it could not have, and descriptors."""
    link.control.settimeout(timeout)
    try:
        fields, fds = wire.receive(link.control)
    except TimeoutError:
        link.process.send_signal(signal.SIGKILL)
        reason = f"it was not ready after {timeout:g} s: {link.log_tail() or 'nothing logged'}"
        raise HostUnsupported(
            "starting a sandbox", reason, "raise start_timeout if storage is slow"
        ) from None
    if fields[:1] == ["refused"]:
        raise refusals.explain(fields[1], int(fields[2]), fields[3])
    if fields[:1] != ["ready"]:
        code = link.process.wait()
        reason = link.log_tail() or f"the supervisor ended with {code} and said nothing"
        raise HostUnsupported("starting a sandbox", reason, "run `minisandbox doctor`")
    link.control.settimeout(None)
    link.box = Path(fields[1])
    return int(fields[2]), fds


def _take_over(link: Link, spec: dict[str, Any], refusal: int, fds: list[int]) -> None:
    """Make ``link`` the owner of what PID 1 handed out: listening sockets, listener of the
    filter.
    """
    ports: list[int] = spec["listen"]
    watches = bool(spec["filter"]) and not refusal
    if len(fds) != len(ports) + watches:
        for fd in fds:
            os.close(fd)
        reason = f"of {len(ports) + watches} descriptors {len(fds)} arrived"
        raise HostUnsupported("starting a sandbox", reason, "raise the limit on open files")
    for port, fd in zip(ports, fds, strict=False):
        link.listeners[port] = socket.socket(fileno=fd)
    if watches:
        link.watcher = Watcher(fds[-1])
    pid = link.lease.recv(4)
    if len(pid) != 4:
        raise HostUnsupported(
            "starting a sandbox", link.log_tail() or "it died", "run `minisandbox doctor`"
        )
    link.init_pid = int.from_bytes(pid, "little")
    if watches:
        link.unwatched = _unreadable(link.init_pid)
    elif spec["filter"]:
        link.unwatched = refusals.explain_unwatched(refusal)


def _unreadable(pid: int) -> str:
    """Why the addresses that programs below ``pid`` connect to could not be read, or nothing."""
    try:
        linux.read_memory(pid, 0, 1)
    except OSError as error:
        # Nothing is mapped at 0: EFAULT says that all but the address was in order.
        return "" if error.errno == errno.EFAULT else refusals.explain_unreadable(error)
    return ""
