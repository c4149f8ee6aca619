"""What a sandbox is started with, as data that goes into records.

A result is only comparable with another one of the same profile: loosening it for one repository
has changed the test results of another. So a profile has an identity, and records carry its digest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from minisandbox.errors import InvalidInput
from minisandbox.sandbox.limits.declared import Limits
from minisandbox.sandbox.seccomp import policy

#: ``none``: a network namespace with nothing but a loopback device. ``host``: the host's network,
#: with every service on its loopback and every abstract socket; only for trusted code.
Network = Literal["none", "host"]

#: Where what a sandbox writes is kept: below the scratch directory, or in a memory file system that
#: is as large as the limit on disk.
Upper = Literal["disk", "memory"]

#: Raised when the meaning of a profile changes (mounts, capabilities, masks), so that digests
#: change too. The system calls have a digest of their own.
ISOLATION_VERSION = 2

#: All listening sockets of a profile go through one packet.
MOST_LISTENING = 16


@dataclass(frozen=True)
class Bind:
    """A directory or file of the host shown inside at ``target``; read-only unless ``writable``.

    Files that belong to host ids outside the sandbox's id map look like nobody's and cannot be
    written even then. A missing target is made, in the upper directory.

    ``source`` is the caller's word: links on the way are followed, and mounts below it come along.
    For a directory in a tree that the caller did not make, such as an unpacked layer, ``source`` is
    the tree and ``beneath`` the way from there, on which no link is followed and no mount is
    crossed; such a bind is never writable and brings no mount along. ``under`` are further trees,
    top first, whose ``beneath`` shows through it as the layers of a sandbox do, whiteouts included.
    """

    source: Path
    target: str
    writable: bool = False
    beneath: str = ""
    under: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.under and not self.beneath:
            raise InvalidInput("bind", "only what lies beneath layers can lie under each other")
        if self.beneath and self.writable:
            raise InvalidInput("bind", f"{self.beneath!r} of a layer cannot be writable")
        if not self.target.startswith("/") or ".." in self.target.split("/") or "\0" in self.target:
            raise InvalidInput(
                "bind target", f"{self.target!r} is not an absolute path without '..'"
            )


@dataclass(frozen=True)
class Profile:
    """How much of the host a sandbox sees.

    ``redirect_dir`` lets a root caller's sandbox rename directories of lower layers. Sandboxes
    whose upper directory is packed into a layer turn it off: a redirect is an extended attribute,
    which a tar layer cannot carry. Without it such a rename is ``EXDEV``, as in Docker, and ``mv``
    copies.

    ``listen`` names TCP ports at 127.0.0.1 inside whose listening sockets the client gets
    (``Sandbox.listeners``): with network ``none``, what it serves there is all that programs
    inside can reach. ``watch`` records the connections that they try (``Sandbox.attempts``).

    ``blackhole`` lets what programs send to IPv4 addresses outside vanish, so that connections time
    out, where without it they fail at once ("network is unreachable"): for tests of timeouts.

    ``nested`` lets programs make user namespaces inside, with every capability there, and so reach
    much more of the kernel: for repositories whose tests need it (browsers, container tools).

    ``upper`` in ``memory`` makes the kernel enforce the limits on disk and inodes, and counts what
    is written as memory, of which it takes half at most. Such a sandbox cannot be sealed, copied or
    packed. For ordinary users it needs Linux 6.6.
    """

    network: Network = "none"
    binds: tuple[Bind, ...] = ()
    hostname: str = "testbed"
    redirect_dir: bool = True
    listen: tuple[int, ...] = ()
    watch: bool = False
    nested: bool = False
    limits: Limits = field(default_factory=Limits)
    upper: Upper = "disk"
    blackhole: bool = False

    def __post_init__(self) -> None:
        if self.network not in ("none", "host"):
            raise InvalidInput(
                "profile", f"network {self.network!r} is unknown", "use 'none' or 'host'"
            )
        if self.upper not in ("disk", "memory"):
            raise InvalidInput(
                "profile", f"upper {self.upper!r} is unknown", "use 'disk' or 'memory'"
            )
        for name in ("redirect_dir", "watch", "nested", "blackhole", "limits"):
            value: Any = getattr(self, name)
            if not isinstance(value, Limits if name == "limits" else bool):
                # The word "false" would be true.
                remedy = "use Limits(...)" if name == "limits" else "use True or False"
                raise InvalidInput("profile", f"{name} is {value!r}", remedy)
        label = self.hostname.replace("-", "").replace(".", "")
        if not (label.isascii() and label.isalnum() and len(self.hostname) <= 63):
            raise InvalidInput("profile", f"{self.hostname!r} cannot be a host name")
        if self.blackhole and self.network != "none":
            raise InvalidInput(
                "profile", "blackhole needs a network of its own", "use network 'none' with it"
            )
        self._check_listen()

    def _check_listen(self) -> None:
        if self.listen and self.network != "none":
            raise InvalidInput(
                "profile",
                f"listening at {self.listen[0]} would open that port of the host",
                "use network 'none' with `listen`",
            )
        for port in self.listen:
            if not 1 <= port <= 65_535:
                raise InvalidInput("profile", f"port {port} cannot be listened at", "use 1..65535")
        if len(set(self.listen)) < len(self.listen):
            raise InvalidInput("profile", f"listen names a port twice: {sorted(self.listen)}")
        if len(self.listen) > MOST_LISTENING:
            raise InvalidInput(
                "profile", f"listen names {len(self.listen)} ports", f"use {MOST_LISTENING} at most"
            )

    @property
    def reaches_out(self) -> bool:
        """Whether programs inside can change anything that is not the sandbox's own."""
        return self.network == "host" or any(bind.writable for bind in self.binds)

    def identity(self) -> dict[str, Any]:
        """What decides how code behaves under this profile: the same on every host."""
        return {
            "isolation": ISOLATION_VERSION,
            "network": self.network,
            "binds": sorted([bind.target, bind.writable] for bind in self.binds),
            "hostname": self.hostname,
            "redirect_dir": self.redirect_dir,
            "listen": sorted(self.listen),
            "watch": self.watch,
            "syscalls": policy.digest(nested=self.nested),
            "nested": self.nested,
            "limits": self.limits.identity(),
            "upper": self.upper,
            # Only where it is there: digests of profiles without one stay what they were.
            **({"blackhole": True} if self.blackhole else {}),
        }

    def digest(self) -> str:
        """``sha256:<hex>`` of the canonical JSON of :meth:`identity`."""
        import hashlib  # slow to load (OpenSSL), and only wanted where records are written
        import json

        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
