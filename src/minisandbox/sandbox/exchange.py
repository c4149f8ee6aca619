"""Files in and out, the client's side: what ``transfer`` does inside, asked for and checked.

Invariant: what comes out of a sandbox is bounded before it is kept, and leaves nothing where it
fails. What the arguments mean is told by the methods of ``Sandbox`` that call this.
"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import BinaryIO

from minisandbox.errors import SandboxFileError
from minisandbox.sandbox import arguments, trees, wire
from minisandbox.sandbox.requests import Requests
from minisandbox.sandbox.staging import Staging
from minisandbox.sandbox.steps import finish

#: Bytes that are read at once.
_CHUNK = 1 << 20
_BITS = "give permission bits, such as 0o644"


def read(requests: Requests, path: str, *, max_bytes: int, user: str | int | None) -> bytes:
    """Do ``Sandbox.read_file``."""
    most = arguments.size("max_bytes", max_bytes)
    request = {
        "operation": "read",
        "path": requests.absolute(path),
        "user": arguments.user("user", user),
    }
    _, channel = requests.send(request, [])
    with channel:
        _, (fd,) = _answer(requests, channel, "file")
        with open(fd, "rb") as file:
            size = os.fstat(fd).st_size
            # One that is too large need not be read for that to be known.
            data = _read(file, max(size + 1, _CHUNK), most + 1 if size <= most else 0)
    if max(size, len(data)) > most:
        reason = f"it is larger than max_bytes, {most:,}; raise that"
        raise SandboxFileError("read", path, errno.EFBIG, reason)
    return data


def write(
    requests: Requests, path: str, data: bytes | str, *, mode: int, user: str | int | None
) -> None:
    """Do ``Sandbox.write_file``."""
    content = arguments.content("data", data)
    request = {
        "operation": "write",
        "path": requests.absolute(path),
        "mode": arguments.whole("mode", mode, least=0, most=0o7777, remedy=_BITS),
        "user": arguments.user("user", user),
    }
    _, channel = requests.send(request, [wire.memory_file("data", content)])
    with channel:
        _answer(requests, channel, "done")


def upload(requests: Requests, local: str | Path, remote: str) -> None:
    """Do ``Sandbox.upload``."""
    source = arguments.host_path("local", local)
    request = {"operation": "upload", "path": requests.absolute(remote, where="remote")}
    read_end, write_end = os.pipe()
    try:
        _, channel = requests.send(request, [read_end])
    except BaseException:
        os.close(write_end)
        raise
    with channel:
        try:
            trees.send(source, write_end)
        except BrokenPipeError:
            pass  # the other side has stopped reading; it says why
        finally:
            os.close(write_end)
        _answer(requests, channel, "done")


def download(
    requests: Requests, remote: str, local: str | Path, *, max_bytes: int, max_entries: int
) -> None:
    """Do ``Sandbox.download``."""
    path = requests.absolute(remote, where="remote")
    target = arguments.host_path("local", local)
    most = arguments.size("max_bytes", max_bytes)
    entries = arguments.size("max_entries", max_entries)
    read_end, write_end = os.pipe()
    with open(read_end, "rb", buffering=_CHUNK) as stream:
        _, channel = requests.send({"operation": "download", "path": path}, [write_end])
        with channel, Staging(target) as staging:
            receiver = trees.Receiver(
                staging.path, mode_mask=0o777, max_bytes=most, max_entries=entries
            )
            try:
                receiver.receive(stream)
            except trees.TooMuch as error:
                place = os.path.join(path, *error.below)
                reason = f"{error.reason}; raise that, or download less"
                raise SandboxFileError("download", place, errno.EFBIG, reason) from None
            except OSError as error:
                if error.errno != trees.CUT:
                    place = error.filename or os.fspath(target)
                    raise OSError(error.errno, error.strerror, place) from error
                _answer(requests, channel, "done")  # raises the reason for which it was cut
                raise
            finally:
                receiver.close()
            _answer(requests, channel, "done")
            staging.put_in_place()


def _answer(
    requests: Requests, channel: socket.socket, expected: str
) -> tuple[list[str], list[int]]:
    return finish(requests.reply(channel, expected))


def _read(file: BinaryIO, step: int, most: int) -> bytes:
    """What is to be read, at most ``most`` bytes, by ``step`` at once: what the kernel makes up as
    it is read has no size, and files may grow.
    """
    parts: list[bytes] = []
    while most and (part := file.read(min(step, most))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)
