"""Archives for tests, honest and other: members by ``tarfile``, headers and their extensions by
hand.
"""

from __future__ import annotations

import io
import tarfile


class Entry(tarfile.TarInfo):
    """A member and its content; zeros where only a size is given."""

    content = b""


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> Entry:
    info = Entry(name)
    info.type = kind
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def tar(*entries: Entry, style: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of ``entries``; those that have a size get that many bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=style) as archive:
        for info in entries:
            content = info.content or bytes(info.size)
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return out.getvalue()


def file(name: str, content: int | bytes = 0, **fields: object) -> Entry:
    """A file with this content, or so many zeros."""
    if isinstance(content, int):
        return entry(name, size=content, **fields)
    return entry(name, size=len(content), content=content, **fields)


def symlink(name: str, target: str) -> Entry:
    return entry(name, tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> Entry:
    return entry(name, tarfile.LNKTYPE, linkname=target)


def directory(name: str) -> Entry:
    return entry(name, tarfile.DIRTYPE, mode=0o755)


def block(name: bytes = b"f", *, field: slice | None = None, value: bytes = b"") -> bytes:
    """One header of an empty file, with some bytes replaced and the checksum made right again."""
    header = bytearray(tar(file(name.decode()), style=tarfile.USTAR_FORMAT)[:512])
    if field is not None:
        header[field] = value.ljust(field.stop - field.start, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def pax(body: bytes, flag: bytes = b"x", size: int | None = None) -> bytes:
    head = bytearray(block(b"pax", field=slice(156, 157), value=flag))
    head[124:136] = b"%011o\0" % (len(body) if size is None else size)
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + body + bytes(-len(body) % 512)


def record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    length += len(str(length + len(str(length))))
    return b"%d %b=%b\n" % (length, key, value)


END = bytes(1024)
