"""Having a sandbox started by the server, and the client's ends of what connects them."""

from __future__ import annotations

import errno
import os
import platform
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minisandbox import linux
from minisandbox.errors import HostUnsupported, InvalidInput, MiniSandboxError
from minisandbox.idmap import IdMap
from minisandbox.sandbox import base, connection, orders, refusals, wire
from minisandbox.sandbox.connection import Server
from minisandbox.sandbox.limits.declared import memory_file_systems
from minisandbox.sandbox.limits.ledger import Ledger
from minisandbox.sandbox.profile import Profile
from minisandbox.sandbox.seccomp import notify, policy
from minisandbox.sandbox.snapshots import Kept
from minisandbox.sandbox.watching import Watcher

#: What overlayfs takes (OVL_MAX_STACK), less the skeleton.
MAX_LAYERS = 499
#: Seconds that a start which failed waits for what it leaves to be removed: a process that waits
#: for a disk cannot be ended.
_PATIENCE = 10.0
#: Seconds before a second try, and for it, whatever the first has taken.
_MOMENT = 0.1
#: Seconds in which a PID 1 answers that nothing outside has stopped.
_ANSWERS = 1.0
_LEAST = 1.0


class _Again(Exception):
    """A start may succeed when it is tried again; ``error`` is what is to be said if it does
    not.
    """

    def __init__(self, error: MiniSandboxError) -> None:
        self.error = error


def _lost(reason: str) -> _Again:
    """Something killed a process that a start depends on, and nobody is left to say more."""
    return _Again(HostUnsupported("starting a sandbox", reason, "run `minisandbox doctor`"))


class Link:
    """A sandbox that was started: ``control`` reaches its PID 1, ``server`` what started it."""

    def __init__(self, server: Server, name: str, control: socket.socket) -> None:
        self.server = server
        self.name = name
        self.control = control
        self.box = Path()
        self.init_pid = 0
        self.listeners: dict[int, socket.socket] = {}
        self.watcher: Watcher | None = None
        self.unwatched = ""
        self.limits = Ledger("")
        self.upper_in_memory = False
        self.logged = server.log_size()
        self._last_words = ""

    def alive(self) -> bool:
        """Whether PID 1 still holds its end."""
        return wire.is_connected(self.control)

    def serves(self) -> bool:
        """Whether PID 1 is there, by its own answer: a process that it was just forking when it was
        killed holds a copy of its end for a moment longer.
        """
        if not self.alive():
            return False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                try:
                    wire.send(
                        self.control, "ping", fds=[theirs.fileno()], flags=socket.MSG_DONTWAIT
                    )
                except BlockingIOError:
                    return True  # something outside has stopped it a while ago
                except OSError:
                    return False
            ours.settimeout(_ANSWERS)
            try:
                return bool(wire.receive(ours)[0])
            except TimeoutError:
                return True  # something outside has stopped it, or the machine is busy

    def end_processes(self) -> None:
        """End PID 1 and with it every process of the sandbox; returns when they are gone."""
        self.server.ask("end", self.name)
        self._release()

    def is_idle(self) -> bool:
        """Whether ending PID 1 would lose nothing but it; false too when it does not answer."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                wire.send(self.control, "idle", fds=[theirs.fileno()])
            return wire.receive(ours)[0] == ["idle"]

    def keep(self) -> Kept:
        """End every process; the upper directory stays for whoever needs it."""
        self.end_processes()
        self.control.close()
        return Kept(self.server, self.name, self.box / "upper")

    def copy(self) -> Kept:
        """A copy of the upper directory as it is now; raises ``OSError``."""
        name, logged = self.server.name(), self.server.log_size()
        answer = self.server.ask("copy", self.name, name)
        if answer[0] != "copied":
            tail = " ".join(answer[1:]) or self.server.log_tail(logged)
            raise OSError(errno.EIO, f"the upper directory cannot be copied: {tail}")
        return Kept(self.server, name, Path(answer[1]) / "upper")

    def drop(self) -> None:
        """Like :meth:`close`, without waiting where nothing of this process's depends on it."""
        if self.watcher is not None or self.listeners:
            self.close()
            return
        try:
            self.server.send("drop", self.name, fds=())
        finally:
            self.control.close()

    def last_words(self) -> str:
        """What PID 1 said of its own end, or the server of its; empty where something killed it."""
        if not self._last_words:
            try:
                fields, fds = wire.receive(self.control, socket.MSG_DONTWAIT)
            except OSError:
                return ""
            for fd in fds:
                os.close(fd)
            self._last_words = " ".join(fields[1:])
        if self._last_words or self.server.alive:
            return self._last_words
        return self.server.last_words() or "the server of sandboxes was killed"

    def close(self, patience: float | None = None) -> None:
        """End everything and wait until the directory is removed, at most ``patience`` seconds;
        raises ``OSError`` if there is no server left to do it, or it takes longer.
        """
        if self.server.owner != os.getpid():
            # A fork of the client's: the sandbox is the client's still, and so is its removal.
            self.control.close()
            return
        try:
            # The kernel ends everything below PID 1 when that sees the end of its client.
            self.control.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        try:
            self.server.ask("close", self.name, patience=patience)
        finally:
            self._release()
            self.control.close()

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
    layers: Sequence[Path],
    scratch: Path,
    idmap: IdMap,
    profile: Profile,
    *,
    packed: Sequence[Path] | None,
    timeout: float,
) -> Link:
    """Start a sandbox and return when PID 1 serves; raises what :func:`refusals.explain` makes of
    failures. ``packed`` are the directories of a packed base; without, the host is the base.
    """
    spec = _spec(layers, scratch, idmap, profile, packed)
    try:
        return _launch_twice(spec, profile, timeout)
    except OSError as error:  # what this process is short of: descriptors, memory
        detail = refusals.describe(error)
        raise refusals.explain("processes", error.errno or errno.EIO, detail) from error


def _launch_twice(spec: dict[str, Any], profile: Profile, timeout: float) -> Link:
    deadline = time.monotonic() + timeout
    try:
        return _launch(connection.current(timeout), spec, profile, timeout)
    except _Again:
        pass
    # What was killed may have waited for orders for a minute; or it was the server a moment ago,
    # and until now a fork of it held its socket, so that nobody could see that. Where processes
    # could not be had, the server lets its spare ones go, which takes a moment.
    time.sleep(_MOMENT)
    left = max(deadline - time.monotonic(), _LEAST)
    try:
        return _launch(connection.current(left), spec, profile, left)
    except _Again as again:
        raise again.error from again.__cause__


def _launch(server: Server, spec: dict[str, Any], profile: Profile, timeout: float) -> Link:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = Link(server, server.name(), ours)
    link.upper_in_memory = profile.upper == "memory"
    if not profile.watch:
        link.unwatched = "the profile does not ask for it"
    elif not spec["filter"]:
        link.unwatched = f"no system call numbers are known for {platform.machine()}"
    try:
        request = orders.make(spec)
        try:
            with theirs:
                try:
                    server.send("start", link.name, fds=[request, theirs.fileno()])
                except BrokenPipeError as error:
                    raise _lost("the server of sandboxes was killed") from error
            _take_over(link, spec, *_await_ready(link, request, timeout))
        finally:
            os.close(request)
    except BaseException:
        theirs.close()
        try:
            link.close(_PATIENCE)
        except OSError:
            pass  # the server was killed, which is what is told already
        raise
    return link


def check_count(layers: int) -> None:
    """Raise ``InvalidInput`` for more layers than can be stacked."""
    if layers > MAX_LAYERS:
        raise InvalidInput(
            "layers", f"{layers} are too many", f"join some; at most {MAX_LAYERS} stack"
        )


def _spec(
    layers: Sequence[Path],
    scratch: Path,
    idmap: IdMap,
    profile: Profile,
    packed: Sequence[Path] | None,
) -> dict[str, Any]:
    below = packed or ()
    check_count(len(layers) + len(below))
    nothing: list[str] = []
    binds = [(*bind, "", nothing) for bind in base.host_binds()] if packed is None else []
    for bind in profile.binds:
        for tree in (bind.source, *bind.under):
            if not tree.exists():
                raise InvalidInput(str(tree), "cannot be bound, it does not exist")
        # ``beneath`` is walked by the starter alone, which binds the very descriptor that it
        # reached: a layer may have a link there, and what is looked up twice may change between.
        under = [str(tree.resolve()) for tree in bind.under]
        source = str(bind.source.resolve())
        binds.append((source, bind.target, bind.writable, bind.beneath, under))
    place = _directory(scratch)
    try:
        skeleton = base.ensure_skeleton(scratch, profile, idmap, packed=packed is not None)
    except OSError as error:
        raise refusals.explain("scratch", error.errno or 0, refusals.describe(error)) from error
    return {
        "scratch": place,
        "lowers": [_directory(path) for path in (*reversed(layers), skeleton, *reversed(below))],
        "kind": idmap.kind,
        "ids": idmap.count,
        "uids": idmap.uid_extents,
        "gids": idmap.gid_extents,
        "map_writers": idmap.map_writers,
        "binds": binds,
        "network": profile.network,
        "blackhole": profile.blackhole,
        "hostname": profile.hostname,
        "redirect_dir": profile.redirect_dir,
        "listen": list(profile.listen),
        "limits": profile.limits.identity(),
        "upper": profile.upper,
        "sizes": memory_file_systems(profile.limits, upper_in_memory=profile.upper == "memory"),
        "policy": policy.compiled(platform.machine(), nested=profile.nested),
        "filter": notify.report_connections(platform.machine()) if profile.watch else b"",
    }


def _directory(path: Path) -> str:
    """``path`` for the server, whose working directory is another; raises ``InvalidInput``."""
    if not os.path.isdir(path):
        raise InvalidInput(
            str(path), "is not a directory", "unpack the layer, or make the directory"
        )
    # As it is written: what `..` leads to behind a link is the kernel's to say.
    return os.path.join("" if path.is_absolute() else os.getcwd(), path)


def _await_ready(link: Link, request: int, timeout: float) -> tuple[int, list[int]]:
    """What PID 1 says when it serves: errno of the filter it could not have, and descriptors."""
    link.control.settimeout(timeout)
    try:
        fields, fds = wire.receive(link.control)
    except TimeoutError:
        step = refusals.MECHANISMS.get(orders.step(request), "control groups and namespaces")
        reason = f"it was not ready after {timeout:g} s; what took so long was {step}"
        raise HostUnsupported(
            "starting a sandbox", reason, "raise start_timeout if storage is slow"
        ) from None
    if fields[:1] == ["refused"]:
        number = int(fields[2])
        explained = refusals.explain(fields[1], number, fields[3])
        raise _Again(explained) if number == errno.EAGAIN else explained
    if not fields:
        raise _lost(_reason_in_log(link))
    if fields[:1] != ["ready"]:
        raise HostUnsupported(
            "starting a sandbox", " ".join(fields[1:]), "run `minisandbox doctor`"
        )
    link.control.settimeout(None)
    link.box = Path(fields[1])
    link.limits = Ledger(fields[1])
    link.init_pid = int(fields[2])
    return int(fields[3]), fds


def _reason_in_log(link: Link) -> str:
    try:
        link.server.ask("close", link.name)  # when that is done, all has been logged
    except OSError:  # the server has ended, and maybe logged why
        return link.last_words()
    return link.server.log_tail(link.logged) or "its first process was killed"


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
        try:
            link.watcher = Watcher(fds[-1])
        except RuntimeError as error:
            raise HostUnsupported(
                "starting a sandbox that is watched",
                f"this process gets no more threads ({error})",
                "raise its limits on processes and memory (`ulimit -u`, `ulimit -v`)",
            ) from error
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
