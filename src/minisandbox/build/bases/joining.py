"""The files of many Debian packages as one tar, and what dpkg has to know of them.

What ``dpkg --unpack`` would do, without dpkg and without root: the archive's own format is read
here, so a base can be built on any distribution. Left out is what slim images leave out too:
documentation but for licences, translations. Every file is root's; who else owns one is decided by
installation scripts, and those may only say so where there are more ids than one.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from debian.arfile import ArError
from debian.debfile import DebFile

from minisandbox.errors import StageFailed

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: Directories that are links into /usr; packages of that time still have files in the former.
_MERGED = frozenset({"bin", "sbin", "lib", "lib32", "lib64", "libx32"})
_LEFT_OUT = re.compile(
    r"usr/share/(doc/(?!.*/copyright$)[^/]+/.|doc-base/.|man/.|info/.|lintian/.|bug/.|gnome/help/."
    r"|locale/(?!en|locale\.alias)[^/]+/.)"
)
_INFO = "var/lib/dpkg/info"
_PIECE = 1 << 20
#: What reading a file that is no package, or a damaged one, ends with.
_DAMAGED = (ArError, tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, KeyError, ValueError)


@dataclass(frozen=True)
class Package:
    """What dpkg keeps of one package: ``stanza`` of its status, ``triggers`` that it waits for
    (name, then the package with a suffix that says how), ``has_preinst``, ``conffiles`` (paths).
    """

    name: str
    stanza: str
    triggers: tuple[tuple[str, str], ...]
    has_preinst: bool
    conffiles: tuple[str, ...]


@contextmanager
def _opened(path: Path) -> Generator[DebFile]:
    try:
        with DebFile(path) as deb:
            yield deb
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk; without a number it is one of the archive's format
        said = f"{error or 'it is cut off'}".split("\n")[0]
        raise StageFailed(
            "base",
            f"{path.name} is no package that can be read: {type(error).__name__}: {said}",
            hint="make the lock of the base again",
        ) from error


def described(path: Path, *, placed: bool = True) -> Package:
    """What a package file says of itself. Where its configuration files are not ``placed`` yet,
    dpkg does that when it configures the package. Raises ``StageFailed``.
    """
    with _opened(path) as deb:
        fields = dict(deb.debcontrol())
        scripts = _scripts(deb)
        conffiles = _lines(scripts.get("conffiles", b""))
        states = [_md5(deb, name) if placed else "newconffile" for name in conffiles]
        pairs = zip(conffiles, states, strict=True)
        listed = "".join(f" {name} {state}\n" for name, state in pairs)
        kept = "".join(f"{key}: {value}\n" for key, value in fields.items() if key != "Package")
        stanza = f"Package: {fields['Package']}\nStatus: install ok unpacked\n{kept}"
        if listed:
            stanza += f"Conffiles:\n{listed}"
        named = _info_name(fields)
        triggers = [_trigger(line, named) for line in _lines(scripts.get("triggers", b""))]
        waited = tuple(trigger for trigger in triggers if trigger is not None)
        return Package(named, stanza, waited, "preinst" in scripts, tuple(conffiles))


def _md5(deb: DebFile, name: str) -> str:
    content = deb.data.get_content(name)
    # dpkg's own digest for files that people may have changed; not one that anything depends on.
    return hashlib.md5(content or b"", usedforsecurity=False).hexdigest()


def _scripts(deb: DebFile) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    archive = deb.control.tgz()
    for member in archive.getmembers():
        file = archive.extractfile(member) if member.isreg() else None
        if file is not None:
            found[member.name.removeprefix("./")] = file.read()
    return found


def _lines(text: bytes) -> list[str]:
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "remove-on-upgrade"))]


def _trigger(line: str, package: str) -> tuple[str, str] | None:
    kind, _, name = line.partition(" ")
    if kind not in ("interest", "interest-await", "interest-noawait"):
        return None  # it activates triggers of others, which it does when it is configured
    return name.strip(), package + ("/noawait" if kind == "interest-noawait" else "")


def _info_name(fields: Mapping[str, str]) -> str:
    name = fields["Package"]
    return f"{name}:{fields['Architecture']}" if fields.get("Multi-Arch") == "same" else name


class Joined(io.RawIOBase):
    """The packages as one tar stream that can be read once; reading raises ``StageFailed``."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._pieces = _pieces(paths)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Some of the next bytes; none at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        view = memoryview(buffer).cast("B")
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _pieces(paths: Sequence[Path]) -> Iterator[bytes]:
    seen: set[str] = set()
    for path in paths:
        yield from _package_pieces(path, seen)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _package_pieces(path: Path, seen: set[str]) -> Iterator[bytes]:
    with _opened(path) as deb:
        name = _info_name(dict(deb.debcontrol()))
        listed = ["/."]
        archive = deb.data.tgz()
        for member in archive:
            inside = _normal(member.name)
            if not inside:
                continue
            listed.append("/" + member.name.removeprefix("./").rstrip("/"))
            top = inside.partition("/")[0]
            if top in _MERGED:
                if top not in seen:
                    seen.add(top)
                    yield _header(_link(top))
                inside = f"usr/{inside}"
            if _LEFT_OUT.match(inside) or (inside in seen and not member.isdir()):
                continue
            seen.add(inside)
            member.name = inside
            if member.islnk():
                target = _normal(member.linkname)
                member.linkname = f"usr/{target}" if target.split("/")[0] in _MERGED else target
            yield from _member(member, archive.extractfile(member) if member.isreg() else None)
        for kind, content in _scripts(deb).items():
            if kind != "control":
                yield from _own(f"{_INFO}/{name}.{kind}", content)
        lines = "".join(f"{line}\n" for line in listed)
        yield from _own(f"{_INFO}/{name}.list", lines.encode("utf-8", "surrogateescape"))


def _normal(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _link(name: str) -> tarfile.TarInfo:
    link = tarfile.TarInfo(name)
    link.type, link.linkname, link.mode = tarfile.SYMTYPE, f"usr/{name}", 0o777
    return link


def _own(name: str, content: bytes) -> Iterator[bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o755 if name.endswith(_SCRIPTS) else 0o644
    yield from _member(member, io.BytesIO(content))


_SCRIPTS = ("preinst", "postinst", "prerm", "postrm", "config")


def _member(member: tarfile.TarInfo, file: IO[bytes] | None) -> Iterator[bytes]:
    yield _header(member)
    if file is None:
        return
    while piece := file.read(_PIECE):
        yield piece
    if excess := member.size % tarfile.BLOCKSIZE:
        yield bytes(tarfile.BLOCKSIZE - excess)


def _header(member: tarfile.TarInfo) -> bytes:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.pax_headers = {}  # would be written in place of what is said here
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
