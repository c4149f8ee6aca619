"""The host as the base of a sandbox: what it is, and the skeleton that lies below all layers, or
above the packed base where there is one.

The skeleton is an ordinary directory with links to /usr and a curated /etc, so that files in it can
be changed inside a sandbox like any others (they are copied up). Invariant: nothing in it names a
user, host or service of this machine; what is taken from the host's /etc describes its software,
not its site.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minisandbox.idmap import IdMap, remove_tree
from minisandbox.sandbox import skeleton
from minisandbox.sandbox.limits import processors
from minisandbox.sandbox.profile import Profile

_MERGEABLE = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DEVELOPMENT = re.compile(rb"-(dev|devel|headers)$|^(gcc|g\+\+|binutils|make|cmake|clang)")


@functools.cache
def base_identity() -> dict[str, str]:
    """What an environment built on this host was compiled against; goes into its key.

    ``packages`` is the digest of the installed development packages and compilers with their
    versions, or of the state of the package database where reading it takes long (rpm), or
    "unknown".
    """
    release = _os_release()
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    return {
        "kind": "host",
        "os": release.get("ID", "linux"),
        "os_version": release.get("VERSION_ID", release.get("BUILD_ID", "rolling")),
        "libc": libc or "musl",
        "arch": platform.machine(),
        "packages": _packages(),
    }


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _packages() -> str:
    found: list[bytes] = []
    dpkg, apk = Path("/var/lib/dpkg/status"), Path("/lib/apk/db/installed")
    try:
        if dpkg.exists():
            found = _listed(dpkg.read_bytes(), rb"Package: (.+)", rb"Version: (.+)")
        elif apk.exists():
            found = _listed(apk.read_bytes(), rb"P:(.+)", rb"V:(.+)")
        else:
            for name in ("rpmdb.sqlite", "Packages.db", "Packages"):
                for home in ("/usr/lib/sysimage/rpm", "/var/lib/rpm"):
                    if os.path.exists(os.path.join(home, name)):
                        status = os.stat(os.path.join(home, name))
                        found = [b"%d %d" % (status.st_size, status.st_mtime_ns)]
    except OSError:
        return "unknown"
    import hashlib  # OpenSSL: slow to load, and not needed to start a sandbox

    return "sha256:" + hashlib.sha256(b"\n".join(sorted(found))).hexdigest() if found else "unknown"


def _listed(database: bytes, package: bytes, version: bytes) -> list[bytes]:
    found: list[bytes] = []
    for paragraph in database.split(b"\n\n"):
        name = re.search(rb"^" + package + rb"$", paragraph, re.MULTILINE)
        if name and _DEVELOPMENT.search(name[1]):
            number = re.search(rb"^" + version + rb"$", paragraph, re.MULTILINE)
            found.append(name[1] + b" " + (number[1] if number else b""))
    return found


@functools.cache
def host_binds() -> list[tuple[str, str, bool]]:
    """The host directories every sandbox on this base sees, read-only: source, target, writable."""
    real = [
        name for name in _MERGEABLE if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")
    ]
    return [(f"/{name}", f"/{name}", False) for name in ("usr", *real)]


def ensure_skeleton(scratch: Path, profile: Profile, idmap: IdMap, *, packed: bool) -> Path:
    """The skeleton for this profile and id map, made below ``scratch`` where it is missing: that
    of this host, or the one that goes above a ``packed`` base.
    """
    links = {} if packed else _links()
    taken = None if packed else skeleton.stamp()
    cpus = processors.visible(profile.limits.cpus)
    stamp = (taken, tuple(links.items()), profile.hostname, profile.network, cpus)
    plan = _plan(stamp, profile.hostname, profile.network, cpus, packed)
    target = scratch / f"base-{plan[0]}-{idmap.key}"
    if not target.is_dir():
        from minisandbox import atomic

        def fill(work: Path) -> None:
            try:
                skeleton.build(work, plan[1], links, _owner(idmap))
            except BaseException:
                remove_tree(work, idmap)
                raise

        atomic.ensure_directory(target, scratch / ".base.lock", fill)
    return target


def _links() -> dict[str, str]:
    """What the host's root directory has of merged /usr: targets of links, nothing for others."""
    found: dict[str, str] = {}
    for name in _MERGEABLE:
        if os.path.islink(f"/{name}"):
            found[name] = os.readlink(f"/{name}")
        elif os.path.isdir(f"/{name}"):
            found[name] = ""
    return found


@functools.lru_cache(maxsize=16)
def _plan(
    stamp: Any, hostname: str, network: str, cpus: int, packed: bool
) -> tuple[str, list[skeleton.Entry]]:
    # Keyed by the dates of what is read, so that reading a thousand small files is done once a
    # process.
    entries = skeleton.entries(hostname, host_network=network == "host", cpus=cpus, packed=packed)
    import hashlib

    text = repr([stamp[1], entries]).encode()
    return hashlib.sha256(text).hexdigest()[:16], entries


def _owner(idmap: IdMap) -> Callable[[str], None]:
    if idmap.kind != "root":
        return lambda _: None  # the caller's own id is id 0 inside
    uid, gid = idmap.host_uid(0), idmap.host_gid(0)
    return lambda path: os.chown(path, uid, gid, follow_symlinks=False)
