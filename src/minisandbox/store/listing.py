"""What a layer holds, without the content: one entry a member of its tar."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import zstandard

from minisandbox.archive import Members
from minisandbox.archive.members import Kind, Member

#: Of the bytes that ``encode`` makes.
_VERSION = 1
#: Bytes of a listing: more than any layer that ``archive.Limits`` lets in could need.
_LIMIT = 1 << 31


class Entry(NamedTuple):
    """One member of a layer, as it is in the tar: nobody has checked that its path is harmless.

    ``path`` has no trailing slash; ``mtime`` is nanoseconds since the epoch; ``linkname`` is where
    a symbolic link points, or the earlier member that a hard link is; ``content`` is the SHA-256
    of a regular file in hex, else empty.
    """

    path: bytes
    type: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    linkname: bytes
    size: int
    content: str
    xattrs: Mapping[bytes, bytes]

    @classmethod
    def of(cls, member: Member) -> Entry:
        """The entry of a member whose content was not read yet."""
        return cls(
            member.path,
            member.kind,
            member.mode,
            member.uid,
            member.gid,
            member.mtime,
            member.target,
            member.size,
            "",
            member.xattrs,
        )

    @property
    def member(self) -> Member:
        """What it says, but for the content."""
        return Member(
            self.path,
            self.type,
            self.mode,
            self.uid,
            self.gid,
            self.mtime,
            self.size,
            self.linkname,
            self.xattrs,
        )


class Recording:
    """Passes members on and keeps a listing of them; content is hashed on its way."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self.entries: list[Entry] = []

    def __iter__(self) -> Iterator[Member]:
        for member in self._members:
            self.entries.append(Entry.of(member))
            yield member

    def content(self) -> Iterator[bytes]:
        """The content of the current member; :attr:`last` is its digest once it has been read."""
        digest = hashlib.sha256()
        for chunk in self._members.content():
            digest.update(chunk)
            yield chunk
        self.entries[-1] = self.entries[-1]._replace(content=digest.hexdigest())

    def last(self) -> str:
        """The digest of the member whose content was read last."""
        return self.entries[-1].content


def encode(entries: Iterable[Entry]) -> bytes:
    """A listing as bytes, for a node to keep."""
    rows = [
        [
            os.fsdecode(entry.path),
            entry.type.value.decode(),
            entry.mode,
            entry.uid,
            entry.gid,
            entry.mtime,
            os.fsdecode(entry.linkname),
            entry.size,
            entry.content,
            {os.fsdecode(name): value.hex() for name, value in entry.xattrs.items()},
        ]
        for entry in entries
    ]
    return zstandard.compress(json.dumps({"version": _VERSION, "rows": rows}).encode(), 3)


def decode(data: bytes) -> list[Entry]:
    """What ``encode`` made; raises ``ValueError``, also for what another version of it made."""
    try:
        told = json.loads(zstandard.decompress(data, max_output_size=_LIMIT))
        if not isinstance(told, dict) or cast("dict[str, Any]", told).get("version") != _VERSION:
            raise ValueError("it is a listing of another version")
        rows = cast("dict[str, Any]", told)["rows"]
        return [
            Entry(
                os.fsencode(path),
                Kind(kind.encode()),
                mode,
                uid,
                gid,
                mtime,
                os.fsencode(linkname),
                size,
                content,
                {os.fsencode(name): bytes.fromhex(value) for name, value in xattrs.items()},
            )
            for path, kind, mode, uid, gid, mtime, linkname, size, content, xattrs in rows
        ]
    except (zstandard.ZstdError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no listing: {error}") from None
