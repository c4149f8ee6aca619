"""What server and client of a sandbox know of its limits in common: one small file beside its upper
directory.

The server writes it before the start and appends a line before it ends anything, so whoever sees
processes end can read why. The client only reads. Lines: ``limit <name> <word>``, ``events <path>``
(the kernel's count of processes killed for memory), ``stopped <name> <why>`` (all processes but
PID 1 were ended), ``died <name> <why>`` (the sandbox was).
"""

from __future__ import annotations

import os

from minisandbox.sandbox.limits import cgroups

#: Of the file, in the directory of the sandbox.
NAME = "limits"
#: Every limit there is, in the order in which people read them.
LIMITS = ("memory", "cpus", "processes", "disk", "inodes", "open_files", "time")
ENFORCED, WATCHED, NONE = "enforced", "watched", "none"


def begin(path: str, words: dict[str, str], events: str) -> None:
    """Write the file of a sandbox that is about to start."""
    lines = [f"limit {name} {words[name]}\n" for name in LIMITS]
    _append(path, "".join(lines) + (f"events {events}\n" if events else ""))


def note(path: str, what: str, limit: str, why: str) -> None:
    """Add that a limit ended something; ``what`` is ``stopped`` or ``died``."""
    _append(path, f"{what} {limit} {why}\n")


def _append(path: str, text: str) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    name = os.path.join(path, NAME)
    fd = os.open(name, flags, 0o600)
    try:
        os.write(fd, text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from error
    finally:
        os.close(fd)


class Ledger:
    """The file as the client reads it; what was read last stays when the file is gone. Empty where
    ``path``, the directory of the sandbox, is.
    """

    def __init__(self, path: str) -> None:
        # Without a directory there is no file: that of this name in the working one is another's.
        self._path = os.path.join(path, NAME) if path else ""
        self._lines: list[str] = []
        self._size = -1
        #: The kernel's count of processes killed for memory; empty where it keeps none.
        self.events = ""
        self.words: dict[str, str] = dict.fromkeys(LIMITS, NONE)
        for line in self._read():
            kind, _, rest = line.partition(" ")
            if kind == "limit":
                name, _, word = rest.partition(" ")
                self.words[name] = word
            elif kind == "events":
                self.events = rest

    def mark(self) -> tuple[int, int]:
        """Where things stand now, for :meth:`since`."""
        return len(self._read()), cgroups.kills(self.events) if self.events else 0

    def since(self, mark: tuple[int, int]) -> str:
        """The limit for which something was ended since ``mark``, or nothing."""
        for line in reversed(self._read()[mark[0] :]):
            return line.split(" ", 2)[1]
        return "memory" if self.events and cgroups.kills(self.events) > mark[1] else ""

    def cause_of_death(self) -> tuple[str, str]:
        """The limit for which the sandbox was ended, and why as a clause; nothing if it was not."""
        for line in reversed(self._read()):
            if line.startswith("died "):
                _, limit, why = line.split(" ", 2)
                return limit, why
            if line.startswith("limit "):  # what was before a new start is of no account
                break
        return "", ""

    def _read(self) -> list[str]:
        try:
            size = os.stat(self._path).st_size
            if size != self._size:
                with open(self._path, encoding="utf-8", errors="surrogateescape") as file:
                    self._lines = file.read().splitlines()
                self._size = size
        except FileNotFoundError:
            pass
        return self._lines
