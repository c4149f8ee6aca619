"""What a layer holds, without the content: one entry a member of its tar."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import zstandard

from minisandbox.archive import Members
from minisandbox.archive.members import Kind, Member

#: Bytes of a listing: more than any layer that ``archive.Limits`` lets in could need.
_LIMIT = 1 << 31


class Entry(NamedTuple):
    """A member, and for a regular file the SHA-256 of its content in hex, else nothing."""

    member: Member
    content: str


class Recording:
    """Passes members on and keeps a listing of them; content is hashed on its way."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self.entries: list[Entry] = []

    def __iter__(self) -> Iterator[Member]:
        for member in self._members:
            self.entries.append(Entry(member, ""))
            yield member

    def content(self) -> Iterator[bytes]:
        """The content of the current member; :attr:`last` is its digest once it has been read."""
        digest = hashlib.sha256()
        for chunk in self._members.content():
            digest.update(chunk)
            yield chunk
        self.entries[-1] = Entry(self.entries[-1].member, digest.hexdigest())

    def last(self) -> str:
        """The digest of the member whose content was read last."""
        return self.entries[-1].content


def encode(entries: Iterable[Entry]) -> bytes:
    """A listing as bytes, for a node to keep."""
    rows = [
        [
            os.fsdecode(member.path),
            member.kind.value.decode(),
            member.mode,
            member.uid,
            member.gid,
            member.mtime,
            member.size,
            os.fsdecode(member.target),
            {os.fsdecode(name): value.hex() for name, value in member.xattrs.items()},
            content,
        ]
        for member, content in entries
    ]
    return zstandard.compress(json.dumps(rows).encode(), 3)


def decode(data: bytes) -> list[Entry]:
    """What ``encode`` made; raises ``ValueError``."""
    try:
        rows = json.loads(zstandard.decompress(data, max_output_size=_LIMIT))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    return [
        Entry(
            Member(
                os.fsencode(path),
                Kind(kind.encode()),
                mode,
                uid,
                gid,
                mtime,
                size,
                os.fsencode(target),
                {os.fsencode(name): bytes.fromhex(value) for name, value in xattrs.items()},
            ),
            content,
        )
        for path, kind, mode, uid, gid, mtime, size, target, xattrs, content in rows
    ]
