"""Git's objects of a checkout, made from its files and its index.

The objects of a base commit hold, compressed, what lies in the work tree as files. A source layer
leaves them out, and each node makes them when it unpacks, as it does with byte-code. They check
themselves: every name is the SHA-1 of the content (gitformat-index(5), gitformat-loose(5)).
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

_HEADER = struct.Struct(">4sII")
#: ctime s, ns; mtime s, ns; dev; ino; mode; uid; gid; size; object id; flags
INDEX_ENTRY = struct.Struct(">IIIIIIIIII20sH")
#: Of these, what tells of content.
_TELLING = struct.Struct(">24xI12x20sH")
_EXTENDED = 0x4000
#: Bytes of a commit in front of its message: 1,000 parents.
_LONGEST_HEADER = 1 << 16
_COMMITTER = re.compile(rb"^committer .* (\d{1,15}) [+-]\d{4}$", re.MULTILINE)
#: Bytes of a path: git cannot check out what the system cannot open.
_PATH_MAX = 4096
_STAGE = 0x3000

#: Modes of an index that stand for no blob: a submodule's commit.
GITLINK = 0o160000
SYMLINK = 0o120000


class IndexEntry(NamedTuple):
    """One file of an index: its mode as git has it, and the name of its blob."""

    path: bytes
    mode: int
    object_id: bytes


def walk_index(body: bytes | bytearray) -> Iterator[tuple[int, int, int]]:
    """Where each entry of an index of version 2 or 3 begins, and where its path begins and ends;
    raises ``ValueError``. The checksum at the end is not part of ``body``.
    """
    try:
        signature, version, count = _HEADER.unpack_from(body)
        if signature != b"DIRC" or version not in (2, 3):
            raise ValueError(f"not a git index of version 2 or 3 (version {version})")
        position = _HEADER.size
        for _ in range(count):
            flags = body[position + INDEX_ENTRY.size - 2] << 8
            start = position + INDEX_ENTRY.size + (2 if flags & _EXTENDED else 0)
            end = body.index(b"\0", start)
            yield position, start, end
            position += (end - position + 8) // 8 * 8
    except (struct.error, IndexError) as error:
        raise ValueError(f"the index ends early ({error})") from None


def read_index(data: bytes) -> list[IndexEntry]:
    """The entries of an index of version 2 or 3, in its order; raises ``ValueError``."""
    if len(data) < _HEADER.size + 20:
        raise ValueError("the index is too short")
    body = data[:-20]
    if hashlib.sha1(body, usedforsecurity=False).digest() != data[-20:]:
        raise ValueError("the index does not have the checksum that it ends with")
    entries: list[IndexEntry] = []
    for position, start, end in walk_index(body):
        mode, object_id, flags = _TELLING.unpack_from(body, position)
        if flags & _STAGE:
            raise ValueError("the index holds a conflict")
        if end - start > _PATH_MAX:
            raise ValueError(f"the index holds a path of more than {_PATH_MAX} bytes")
        entries.append(IndexEntry(body[start:end], mode, object_id))
    return entries


class Trees(NamedTuple):
    """The tree objects of an index: contents by name (20 bytes), and the name of the root."""

    contents: Mapping[bytes, bytes]
    root: bytes


def trees(entries: Iterable[IndexEntry]) -> Trees:
    """The trees that ``git write-tree`` would make; raises ``ValueError`` for entries that are not
    in the order of an index.
    """
    contents: dict[bytes, bytes] = {}
    # The directories from the root to that of the current entry, each with what it holds so far:
    # the order of an index is that of the lines of every tree, because a directory sorts in a tree
    # as if it ended in "/".
    names, lines = [b""], [bytearray()]
    here = last = b""

    def close() -> bytes:
        content = bytes(lines.pop())
        name = names.pop()
        object_id = name_of(b"tree", content)
        contents[object_id] = content
        if lines:
            lines[-1] += b"40000 %b\0%b" % (name, object_id)
        return object_id

    for path, mode, object_id in entries:
        if path <= last:
            raise ValueError(f"the index is not in order at {os.fsdecode(path)!r}")
        last = path
        directory, _, name = path.rpartition(b"/")
        if directory != here:
            way = directory.split(b"/") if directory else []
            common = _in_common(way, names[1:])
            while len(names) > common + 1:
                close()
            for part in way[common:]:
                names.append(part)
                lines.append(bytearray())
            here = directory
        lines[-1] += b"%o %b\0%b" % (mode, name, object_id)
    while len(names) > 1:
        close()
    return Trees(contents, close())


def _in_common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """How many parts two paths begin with alike."""
    count = 0
    for part, counterpart in zip(one, other, strict=False):
        if part != counterpart:
            break
        count += 1
    return count


def name_of(kind: bytes, content: bytes) -> bytes:
    """The 20 bytes by which git names an object."""
    found = hashlib.sha1(b"%s %d\0" % (kind, len(content)), usedforsecurity=False)
    found.update(content)
    return found.digest()


def loose(kind: bytes, content: bytes) -> bytes:
    """The content of the file that holds an object."""
    # Level 1: checkouts read objects once, if at all, and a node makes thousands of them.
    return zlib.compress(b"%s %d\0%s" % (kind, len(content), content), 1)


def tree_of_commit(file: bytes) -> bytes:
    """The name of the tree of a commit, from the loose object's file; raises ``ValueError``."""
    body = _commit(file, 128)  # what names the tree is in front
    return bytes.fromhex(body[5:45].decode("ascii", "replace"))


def date_of_commit(file: bytes) -> int:
    """When a commit was made, in unix seconds, from the loose object's file; raises
    ``ValueError``.
    """
    header, _, _ = _commit(file, _LONGEST_HEADER).partition(b"\n\n")
    found = _COMMITTER.search(header)
    if found is None:
        raise ValueError("the commit has no committer")
    return int(found[1])


def _commit(file: bytes, size: int) -> bytes:
    """The beginning of the content of a commit."""
    try:
        text = zlib.decompressobj().decompress(file, size)
    except zlib.error as error:
        raise ValueError(f"the commit cannot be decompressed: {error}") from None
    header, _, body = text.partition(b"\0")
    if not header.startswith(b"commit ") or not body.startswith(b"tree "):
        raise ValueError("it is not a commit")
    return body


def commit_of(reference: str, text: str) -> str:
    """The hex name in the file of a reference, or of ``reference`` in ``packed-refs``; raises
    ``ValueError``.
    """
    for line in text.splitlines():
        name, _, ref = line.partition(" ")
        if ref in ("", reference) and len(name) == 40:
            return name
    raise ValueError(f"git has no reference {reference!r}")


def file_name(name: bytes) -> str:
    """Where an object lies below ``.git/objects``."""
    text = name.hex()
    return f"{text[:2]}/{text[2:]}"


def wanted(entries: Sequence[IndexEntry]) -> dict[bytes, list[IndexEntry]]:
    """By name of a blob, the entries whose files hold it."""
    found: dict[bytes, list[IndexEntry]] = {}
    for entry in entries:
        if entry.mode != GITLINK:
            found.setdefault(entry.object_id, []).append(entry)
    return found
