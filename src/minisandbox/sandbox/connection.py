"""The client's connection to its fork server, which is made when the first sandbox is started.

One for each client process: a process that was forked from a client starts a server of its own, and
so does one that has changed its ids, its mounts or its root directory since, for a server does
things with the rights, and finds the directories, that it was started with.
"""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from minisandbox.errors import HostUnsupported
from minisandbox.sandbox import wire

#: Empty packages stand in for the two whose __init__ imports what only clients need. Only the
#: server's own modules are loaded.
_BOOTSTRAP = """\
import sys
for name, path in (("minisandbox", sys.argv[1]), ("minisandbox.sandbox", sys.argv[1] + "/sandbox")):
    sys.modules[name] = package = type(sys)(name)
    package.__path__ = [path]
from minisandbox.sandbox.server import main
main()
"""
_PACKAGE = str(Path(__file__).resolve().parents[1])

#: Seconds that the end of this program waits for the server to remove what is left.
_LAST_WAIT = 10.0
#: Seconds that a process whose sockets are closed may need to be gone.
_MOMENT = 1.0


class Server:
    """A live connection. Several threads may use it: each request brings a channel of its own."""

    def __init__(self, process: subprocess.Popen[bytes], requests: socket.socket, log: int) -> None:
        self.process = process
        self.owner = os.getpid()
        self._requests = requests
        self._log = log
        # Sandboxes that died quote it, also in what other modules do at the program's end.
        weakref.finalize(self, os.close, log).atexit = False
        self._numbers = itertools.count(1)

    @classmethod
    def start(cls, timeout: float) -> Server:
        """Start a server; raises ``HostUnsupported`` if it does not answer in ``timeout``
        seconds.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log = os.memfd_create("log")
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _PACKAGE, str(os.getpid())],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    cwd="/",
                    env={
                        name: os.environ[name]
                        for name in ("LD_LIBRARY_PATH",)
                        if name in os.environ
                    },
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                os.close(log)
                raise HostUnsupported(
                    "the server of sandboxes",
                    f"{sys.executable or 'sys.executable'} cannot be started: {error.strerror}",
                    "sys.executable must be the Python interpreter",
                ) from error
        server = cls(process, ours, log)
        ours.settimeout(timeout)
        try:
            said = wire.receive(ours)[0]
            reason = "" if said else "it ended"
        except TimeoutError:
            reason = f"it was not ready after {timeout:g} s"
        if reason:
            process.kill()
            tail = server.log_tail() or "nothing logged"
            server.close(0)
            raise HostUnsupported(
                "the server of sandboxes", f"{reason}: {tail}", "raise start_timeout if it is slow"
            )
        ours.settimeout(None)
        return server

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        # Not by waitpid(2): a program that ignores SIGCHLD would be told that it has no child.
        # The socket is closed when it was found dead, or where it is the parent's.
        return wire.is_connected(self._requests)

    def name(self) -> str:
        """A name for a new sandbox, unique for this server."""
        return str(next(self._numbers))

    def send(self, kind: str, *fields: str, fds: Sequence[int]) -> None:
        """Send a request; raises ``OSError`` when the server is gone."""
        wire.send(self._requests, kind, *fields, fds=fds)

    def ask(self, kind: str, *fields: str, patience: float | None = None) -> list[str]:
        """Send a request and wait for its answer, at most ``patience`` seconds; raises ``OSError``
        when the server is gone, ``TimeoutError`` among them.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                self.send(kind, *fields, fds=[theirs.fileno()])
            ours.settimeout(patience)
            answer = wire.receive(ours)[0]
        if not answer:
            raise BrokenPipeError("the server of sandboxes was killed")
        return answer

    def log_size(self) -> int:
        """How much has been logged so far, for :meth:`log_tail`."""
        return os.fstat(self._log).st_size

    def log_tail(self, since: int = 0) -> str:
        """The last lines that the server and its forks wrote about themselves, of those after the
        first ``since`` bytes.
        """
        written = wire.read_all(self._log)[since:][-4000:]
        return " ".join(written.decode("utf-8", "replace").strip().splitlines()[-3:])

    def last_words(self) -> str:
        """What it logged when it ended; nothing where it was killed, or has not ended."""
        try:
            code = self.process.wait(_MOMENT)
        except subprocess.TimeoutExpired:
            return ""
        return "" if code < 0 else self.log_tail()

    def close(self, patience: float) -> None:
        """Tell the server to end, with all its sandboxes, and wait at most ``patience`` seconds."""
        try:
            # Not only close: a forked child of this program may hold a copy of the descriptor.
            self._requests.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.forget()
        try:
            self.process.wait(patience or None)
        except subprocess.TimeoutExpired:
            self.process.returncode = 0  # it goes on removing; Popen must not warn of that

    def forget(self) -> None:
        """Close this process's end, and leave the server alone."""
        self._requests.close()


_lock = threading.Lock()
#: By what a server is started with.
_servers: dict[tuple[int, ...], Server] = {}


def current(timeout: float) -> Server:
    """The server of this process, started where there is none; raises ``HostUnsupported``."""
    try:
        mounts = os.stat("/proc/self/ns/mnt").st_ino
    except FileNotFoundError:
        raise HostUnsupported(
            "the server of sandboxes", "there is no /proc here", "mount one, also in a chroot"
        ) from None
    root = os.stat("/")
    key = (os.geteuid(), os.getegid(), mounts, root.st_dev, root.st_ino)
    with _lock:
        server = _servers.get(key)
        if server is not None and not server.alive:
            server.close(0)
            server = None
        if server is None:
            server = _servers[key] = Server.start(timeout)
        return server


def _forget() -> None:
    """In a forked child: the servers are the parent's."""
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    for server in _servers.values():
        server.forget()
        server.process.returncode = 0
    _servers.clear()


def _close() -> None:
    for server in tuple(_servers.values()):  # a daemon thread may be starting one
        server.close(_LAST_WAIT)
    _servers.clear()


os.register_at_fork(after_in_child=_forget)
atexit.register(_close)
