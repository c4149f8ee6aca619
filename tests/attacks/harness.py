"""The outside of the attacks: who is attacked, what the attacker is told, and the controls.

An attack that ends as ``broken`` is the programmer's fault. Only what reaches its goal where no
sandbox is in the way can be held by one.
"""

from __future__ import annotations

import array
import ctypes
import hashlib
import io
import json
import os
import secrets
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from attacks import every
from attacks.table import Actor, Facts

#: Where contenders put the packed attacks.
PLACE = "/opt/attacks.pyz"
_SECONDS = 120


@dataclass(frozen=True)
class Outcome:
    """How an attack ended: ``through``, ``held`` or ``broken``, and what was got, or the reason."""

    kind: str
    detail: str


def outcomes(output: bytes, names: Sequence[str]) -> dict[str, Outcome]:
    """How each attack ended, from what the program printed."""
    text = output.decode("utf-8", "replace")
    found = dict.fromkeys(names, Outcome("broken", f"no outcome: {text[-1000:]}"))
    for line in text.splitlines():
        if line.startswith("{") and every.MARK in line:
            name, kind, detail = json.loads(line)[every.MARK]
            found[name] = Outcome(kind, detail)
    return found


def packed() -> bytes:
    """The package as one file that a Python runs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(Path(__file__).parent.glob("*.py")):
            if path.name not in ("harness.py", "contenders.py", "__main__.py"):
                archive.write(path, f"attacks/{path.name}")
        archive.write(Path(__file__).with_name("__main__.py"), "__main__.py")
    return buffer.getvalue()


def argv(python: str, place: str, facts: Facts, names: Sequence[str]) -> list[str]:
    """The command that runs attacks."""
    return [python, "-I", place, json.dumps(facts, default=vars), *names]


def run_all(names: Sequence[str], run: Callable[[list[str], bool], bytes]) -> dict[str, Outcome]:
    """Run attacks: together those that need no terminal, and together those that do.

    ``run`` gets names, and whether they get a terminal, and returns what was printed.
    """
    found: dict[str, Outcome] = {}
    for terminal in (False, True):
        some = [name for name in names if every.TABLE[name].terminal == terminal]
        if some:
            found.update(outcomes(run(some, terminal), some))
    return found


def actor_argv(python: str, place: str, folder: str) -> tuple[str, list[str]]:
    """A new token, and the command that holds it."""
    token = f"token-{secrets.token_hex(12)}"
    key = str(secrets.randbelow(1 << 30) + 1)
    variable = ["env", f"MINISANDBOX_ATTACK={token}"]
    return token, [*variable, python, "-I", place, "--actor", token, folder, key]


def actor_of(line: str | bytes, token: str) -> Actor:
    """What an actor said about itself, with its number as this process counts."""
    return replace(Actor(**json.loads(line)), pid=_host_pid(token))


def _host_pid(token: str) -> int:
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[2:3] and words[2].endswith(b".pyz") and token.encode() in words:
            return int(name)
    raise LookupError(f"no process holds {token}")


class Host:
    """An actor on the host, a secret file, and descriptors that were left open."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.place = str(folder / "attacks.pyz")
        Path(self.place).write_bytes(packed())
        self.actor = self._actor(stack)
        self._other = self._actor(stack)
        secret = folder / "ssh" / "id_ed25519"
        secret.parent.mkdir(mode=0o700)
        secret.write_text(self.actor.token)
        secret.chmod(0o600)
        self.leaked = [os.open("/", os.O_RDONLY), os.open(secret, os.O_RDONLY)]
        for fd in self.leaked:
            os.set_inheritable(fd, True)
            stack.callback(os.close, fd)
        self._plain = {
            "secret": str(secret),
            "handle": _handle(str(secret)),
            "disk": _disk(),
            "device": _device(_disk(), "/dev/loop0", "/dev/loop1"),
            "namespaces": {
                name: os.readlink(f"/proc/self/ns/{name}")
                for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
            },
            "run": _entry("/run", *sorted(set(os.listdir("/run")) - {"lock", "shm", "user"})),
            "program": _entry("/usr/lib", "os-release"),
            "set_uid": _entry("/usr/bin", *filter(_set_uid, ("su", "newgrp", "passwd"))),
            "shadow": _digest("/etc/shadow"),
        }

    def _actor(self, stack: ExitStack) -> Actor:
        token, command = actor_argv(sys.executable, self.place, str(self.folder))
        return stack.enter_context(talking(command, token))

    def facts(self, neighbour: Actor, guardians: Sequence[int]) -> Facts:
        """What an attacker is told that has this neighbour and these guardians."""
        return Facts(self.actor, neighbour, guardians=tuple(guardians), **self._plain)  # type: ignore[arg-type]

    def controls(self, names: Sequence[str]) -> dict[str, Outcome]:
        """Try attacks where nothing is in the way but the rights of the caller."""
        facts = self.facts(self._other, [self.actor.pid])

        def run(some: list[str], terminal: bool) -> bytes:
            command = argv(sys.executable, self.place, facts, some)
            command.insert(command.index(self.place) + 1, "--control")
            return execute(command, terminal, self.leaked)

        return run_all(names, run)


def execute(command: Sequence[str], terminal: bool, leaked: Sequence[int] = ()) -> bytes:
    """Run a program of the host's, with the controlling terminal of its own or without one."""
    pair = os.openpty() if terminal else ()
    prefix = ["setsid", "--wait", "--ctty"] if terminal else []
    try:
        return subprocess.run(
            [*prefix, *command],
            stdin=pair[1] if terminal else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=leaked,
            timeout=_SECONDS,
            check=False,
        ).stdout
    finally:
        for fd in pair:
            os.close(fd)


@contextmanager
def talking(command: Sequence[str], token: str) -> Iterator[Actor]:
    """An actor that lives until the block ends; ``command`` may start it in a sandbox."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        line = process.stdout.readline()
        if not line.startswith(b"{"):
            process.wait(_SECONDS)
            raise RuntimeError((line + process.stderr.read()).decode())
        actor = actor_of(line, token)
        try:
            yield actor
        finally:
            os.kill(actor.pid, 15)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def host() -> Generator[Host]:
    """Everything on the host, removed afterwards."""
    with ExitStack() as stack:
        # Not in /tmp, which some recipes show: that is another attack.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="attacks-", dir="/var/tmp"))
        yield Host(Path(folder), stack)


def _handle(path: str) -> tuple[int, str]:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = array.array("i", [128, 0, *[0] * 32])
    address, _ = buffer.buffer_info()
    mount = ctypes.c_int()
    if libc.name_to_handle_at(
        -100, path.encode(), ctypes.c_void_p(address), ctypes.byref(mount), 0
    ):
        return 0, ""
    return buffer[1], buffer[2:].tobytes()[: buffer[0]].hex()


def _disk() -> str:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        source = fields[fields.index("-") + 2]
        if fields[4] == "/" and Path(source).is_block_device():
            return source
    return ""


def _device(*paths: str) -> tuple[str, int, int]:
    """The first block device that can be opened; some hosts forbid root its disk."""
    for path in filter(os.path.exists, paths):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        except OSError:
            continue
        number = os.stat(path).st_rdev
        return path, os.major(number), os.minor(number)
    return "/dev/loop0", 7, 0


def _entry(folder: str, *names: str) -> tuple[str, int, int]:
    """The first of names that may be none."""
    if not names:
        return "", 0, 0
    status = os.stat(f"{folder}/{names[0]}")
    return f"{folder}/{names[0]}", status.st_dev, status.st_ino


def _set_uid(name: str) -> bool:
    path = f"/usr/bin/{name}"
    return os.path.exists(path) and bool(os.stat(path).st_mode & stat.S_ISUID)


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except PermissionError:
        return "it is root's"
