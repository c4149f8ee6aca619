"""The files of the skeleton: directories, links and a curated /etc.

Taken from the host: what installed software needs to find itself (loader cache, alternatives,
certificates). Written here: everything that would otherwise tell who and where the host is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

#: Path below the root, mode, and content: bytes of a file, target of a link, or None for a
#: directory.
Entry = tuple[str, int, "bytes | str | None"]

#: Raised with each change of what is written here, so that skeletons of earlier versions are not
#: reused.
VERSION = 2

_DIRECTORIES = {
    "dev": 0o755,
    "etc": 0o755,
    "etc/skel": 0o755,
    "home": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "proc": 0o555,
    "root": 0o700,
    "run": 0o755,
    "srv": 0o755,
    "sys": 0o755,
    "sys/devices": 0o755,
    "sys/devices/system": 0o755,
    "sys/devices/system/cpu": 0o755,
    "tmp": 0o1777,
    "usr": 0o755,
    "var": 0o755,
    "var/cache": 0o755,
    "var/lib": 0o755,
    "var/log": 0o755,
    "var/spool": 0o755,
    "var/tmp": 0o1777,
}

#: Below the host's /etc; directories with all that is in them. Missing and unreadable ones are left
#: out.
_FROM_HOST = (
    "adduser.conf",
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "deluser.conf",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "login.defs",
    "magic",
    "magic.mime",
    "mime.types",
    "os-release",
    "pam.d",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "redhat-release",
    "rpc",
    "security",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "alpine-release",
)
#: A certificate bundle is 0.5 MB; anything far beyond that is not what this list is about.
_MAX_FILE = 8 << 20

_PASSWD = """\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
sync:x:4:65534:sync:/bin:/bin/sync
games:x:5:60:games:/usr/games:/usr/sbin/nologin
man:x:6:12:man:/var/cache/man:/usr/sbin/nologin
lp:x:7:7:lp:/var/spool/lpd:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
backup:x:34:34:backup:/var/backups:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUP = """\
root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
adm:x:4:
tty:x:5:
disk:x:6:
lp:x:7:
mail:x:8:
man:x:12:
sudo:x:27:
www-data:x:33:
backup:x:34:
shadow:x:42:
utmp:x:43:
video:x:44:
staff:x:50:
games:x:60:
users:x:100:
nogroup:x:65534:
"""
_PROFILE = "# Nothing here changes the environment: PATH is what the caller of the sandbox set.\n"
_NSSWITCH = """\
passwd: files
group: files
shadow: files
hosts: files dns
networks: files
protocols: files
services: files
ethers: files
rpc: files
"""
_GITCONFIG = "[safe]\n\tdirectory = *\n[gc]\n\tauto = 0\n[advice]\n\tdetachedHead = false\n"


def stamp() -> tuple[tuple[str, int], ...]:
    """The dates of what is taken from the host: when it is unchanged, so is what :func:`entries`
    says.
    """
    found: list[tuple[str, int]] = []
    for name in (*_FROM_HOST, "resolv.conf"):
        try:
            found.append((name, os.stat(f"/etc/{name}").st_mtime_ns))
        except OSError:
            continue
    return tuple(found)


def entries(hostname: str, *, host_network: bool, cpus: int, packed: bool) -> list[Entry]:
    """All entries of the skeleton but the links for merged /usr, parents before children.

    Above a ``packed`` base: nothing of the host's, and no account, of which that has its own.
    """
    found: list[Entry] = [(name, mode, None) for name, mode in _DIRECTORIES.items()]
    made = set(_DIRECTORIES)
    for name in () if packed else _FROM_HOST:
        found.extend(_taken(f"etc/{name}", made))
    shadow = "".join(f"{row.split(':')[0]}:*:19000:0:99999:7:::\n" for row in _PASSWD.splitlines())
    texts = {
        "profile": _PROFILE,
        "host.conf": "multi on\n",
        "gitconfig": _GITCONFIG,
        "hostname": f"{hostname}\n",
        "hosts": f"127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost {hostname}\n",
        "resolv.conf": _resolv_conf() if host_network else "# this sandbox has no name servers\n",
        "inputrc": "set enable-bracketed-paste off\n",
    }
    if not packed:
        texts |= {"passwd": _PASSWD, "group": _GROUP, "nsswitch.conf": _NSSWITCH}
    found.extend((f"etc/{name}", 0o644, text.encode()) for name, text in sorted(texts.items()))
    # Where the C library looks for the number of processors before it asks for the affinity.
    # Without it, it counts those of the host in /proc/stat (glibc, get_nprocs(3)).
    numbers = f"0-{cpus - 1}\n" if cpus > 1 else "0\n"
    names = ("online", "possible", "present")
    found.extend((f"sys/devices/system/cpu/{name}", 0o444, numbers.encode()) for name in names)
    if not packed:
        found.append(("etc/shadow", 0o640, shadow.encode()))
    found.append(("etc/mtab", 0o777, "../proc/self/mounts"))
    found.append(("var/run", 0o777, "../run"))
    return found


def _resolv_conf() -> str:
    try:
        return Path("/etc/resolv.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _taken(path: str, made: set[str]) -> list[Entry]:
    found: list[Entry] = []
    try:
        status = os.lstat(f"/{path}")
        if stat.S_ISDIR(status.st_mode):
            found.extend(_parents(f"{path}/.", made))
            for name in sorted(os.listdir(f"/{path}")):
                found.extend(_taken(f"{path}/{name}", made))
            return found
        if stat.S_ISLNK(status.st_mode):
            entry: Entry = (path, 0o777, os.readlink(f"/{path}"))
        elif (
            stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_FILE and status.st_mode & 0o004
        ):
            entry = (path, stat.S_IMODE(status.st_mode) & 0o755, Path("/", path).read_bytes())
        else:
            return []
    except OSError:
        return []
    return [*_parents(path, made), entry]


def _parents(path: str, made: set[str]) -> list[Entry]:
    found: list[Entry] = []
    parts = path.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        name = "/".join(parts[:depth])
        if name not in made:
            made.add(name)
            found.append((name, 0o755, None))
    return found


def build(root: Path, plan: list[Entry], links: dict[str, str], own: Callable[[str], None]) -> None:
    """Write the skeleton to ``root``, which must not exist; ``own`` gives each path its owner.

    ``links`` are what the root directory itself has of merged /usr (``bin``): a link's target, or
    nothing for a directory.
    """
    os.mkdir(root)
    own(os.fspath(root))
    os.chmod(root, 0o755)
    whole: list[Entry] = [
        *plan,
        *((name, 0o777 if target else 0o755, target or None) for name, target in links.items()),
    ]
    for name, mode, content in whole:
        path = os.path.join(root, name)
        if content is None:
            os.mkdir(path)
        elif isinstance(content, str):
            os.symlink(content, path)
        else:
            Path(path).write_bytes(content)
        own(path)
        if not isinstance(content, str):
            os.chmod(
                path, mode
            )  # after the owner: chown clears set-id bits, mkdir is cut by the umask
