"""Says in a sentence what the file system under a store refused; carries errors out of children."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from minisandbox.errors import MiniSandboxError
from minisandbox.idmap import IdMap, call_mapped

T = TypeVar("T")

#: What only writing can meet; packing reads a tree at the same time, whose errors are another
#: matter.
WRITE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})

#: What this process lacks, whatever it wanted to read: nothing is damaged.
PROCESS_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_FULL = "free some space there, or use a directory on another file system"
_FORBIDDEN = "make it accessible for this user, or use another directory"
_REMEDIES = {
    errno.EMFILE: (
        "allow more open files (`ulimit -n`); a store of many packs needs fewer after "
        "`minisandbox store pack --all`"
    ),
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: _FORBIDDEN,
}


class StoreUnusable(MiniSandboxError):
    """The file system under a store refuses: full, read-only, not permitted, broken.

    ``errno`` is the kernel's; the ``OSError`` is the cause.
    """

    def __init__(self, operation: str, path: Path, error: OSError, *, remedy: str = "") -> None:
        self.operation = operation
        self.path = path
        self.errno = error.errno or 0
        reason = error.strerror or str(error)
        remedy = remedy or _REMEDIES.get(self.errno, "")
        super().__init__(f"cannot {operation} {path}: {reason}" + (f"; {remedy}" if remedy else ""))


def readable(path: bytes) -> str:
    """A path of a layer for a sentence: one that would break the line, or write to the terminal,
    as Python writes it.
    """
    text = os.fsdecode(path)
    return text if text.isprintable() else repr(text)


@contextmanager
def explained(operation: str, path: Path, only: Collection[int] | None = None) -> Generator[None]:
    """Turn an ``OSError`` of the block (of the errnos ``only``) into ``StoreUnusable``."""
    try:
        yield
    except ChildProcessError:
        raise  # Says itself what died; no file system refused anything.
    except OSError as error:
        if only is not None and error.errno not in only:
            raise
        raise StoreUnusable(operation, path, error) from error


@dataclass(frozen=True)
class _Raised:
    """An error of ours as a value: pickle would hand its constructor the wrong arguments."""

    kind: type[MiniSandboxError]
    sentence: str
    fields: dict[str, Any]


def call_carrying(idmap: IdMap, function: Callable[[], T]) -> T:
    """``call_mapped`` from which ``MiniSandboxError`` arrives with its class and fields."""

    def guarded() -> T | _Raised:
        try:
            return function()
        except MiniSandboxError as error:
            if not idmap.sees_inside:
                raise
            return _Raised(type(error), str(error), dict(vars(error)))

    answer = call_mapped(idmap, guarded)
    if isinstance(answer, _Raised):
        error = answer.kind.__new__(answer.kind, answer.sentence)
        error.__dict__.update(answer.fields)
        raise error
    return answer


@contextmanager
def reachable(directory: Path) -> Generator[Path]:
    """A path of ``directory`` that a mapped child can use whatever lies on the way.

    The child gives up the groups of its parent, and with them the right to pass through directories
    that are open to a group only.
    """
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
