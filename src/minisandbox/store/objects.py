"""Puts the git objects that a source layer left out into the unpacked layer."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minisandbox import linux
from minisandbox.closing import Closing
from minisandbox.idmap import IdMap
from minisandbox.store import gitobjects
from minisandbox.store.faults import readable
from minisandbox.store.gitobjects import IndexEntry
from minisandbox.store.links import Links, Whiteouts

GIT = "testbed/.git"
OBJECTS = f"{GIT}/objects"
_GIT, _OBJECTS = GIT.encode(), OBJECTS.encode()

#: Bytes of a file that could be an index, a reference or a blob; git itself holds a blob in memory.
_LIMIT = 2 << 30
#: Bytes of what names a commit (a path at most), and of a file of references.
_HEAD_LIMIT, _REFERENCES_LIMIT = 1 << 13, 64 << 20
_MODE = 0o444


class Checkout(Closing):
    """Reads files of an unpacked checkout, given as directories, the top one first.

    The content is not trusted: no link is followed, and nothing but regular files is read.
    """

    def __init__(self, trees: Sequence[Path]) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._roots: list[int] = []
        try:
            for tree in trees:
                self._roots.append(os.open(tree, flags))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the directories."""
        while self._roots:
            os.close(self._roots.pop())

    def read(self, path: str, limit: int = _LIMIT) -> bytes | None:
        """The content of a regular file of at most ``limit`` bytes; None where there is none."""
        fd = self._open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        if fd is None:
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                return None
            with open(fd, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(fd)

    def target(self, path: str) -> bytes | None:
        """Where a symbolic link points; None where there is none."""
        fd = self._open(path, os.O_PATH | os.O_NOFOLLOW)
        if fd is None:
            return None
        try:
            if not stat.S_ISLNK(os.fstat(fd).st_mode):
                return None
            return os.readlink(b"", dir_fd=fd)
        finally:
            os.close(fd)

    def _open(self, path: str, flags: int) -> int | None:
        """What an overlay of the directories shows at a path; None where that is nothing, or
        nothing that can be opened so.
        """
        for root in self._roots:
            try:
                return linux.open_beneath(root, path, flags)
            except FileNotFoundError:
                continue  # only what a directory does not have at all is that of the next
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                return None
        return None


#: What answers where a path leads to no file: through a file or link, upwards, too far, or to a
#: whiteout, which is a device that is not there.
_ABSENT = frozenset(
    {errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EXDEV, errno.ENAMETOOLONG}
)


@dataclass(frozen=True)
class Missing:
    """The objects that a checkout has no file for, by name (20 bytes)."""

    blobs: Mapping[bytes, Sequence[IndexEntry]]
    trees: Mapping[bytes, bytes]

    @property
    def names(self) -> frozenset[bytes]:
        """All of them."""
        return frozenset(self.blobs) | frozenset(self.trees)

    def content(self, name: bytes, checkout: Checkout) -> bytes:
        """The file of an object; raises ``ValueError`` where the work tree does not hold it."""
        if name in self.trees:
            return gitobjects.loose(b"tree", self.trees[name])
        for entry in self.blobs[name]:
            path = f"testbed/{os.fsdecode(entry.path)}"
            link = entry.mode == gitobjects.SYMLINK
            content = checkout.target(path) if link else checkout.read(path)
            if content is not None and gitobjects.name_of(b"blob", content) == name:
                return gitobjects.loose(b"blob", content)
        raise ValueError(f"{readable(self.blobs[name][0].path)} is not what git's index says it is")


def missing(paths: Collection[bytes], checkout: Checkout) -> Missing | None:
    """What a checkout's ``.git`` lacks, or None where it lacks nothing.

    ``paths`` are those of all members of its layer. Raises ``ValueError`` where index and commit do
    not go together.
    """
    if _GIT + b"/index" not in paths or _GIT + b"/HEAD" not in paths:
        return None
    below = [path for path in paths if path.startswith(_OBJECTS)]
    packs = _OBJECTS + b"/pack/"
    if any(path.startswith(packs) for path in below):
        return None  # a history came along, in packs that hold everything
    index = checkout.read(f"{GIT}/index")
    if index is None:
        raise ValueError("its index is no file")
    entries = gitobjects.read_index(index)
    trees = gitobjects.trees(entries)
    blobs = gitobjects.wanted(entries)
    kept = {name for path in below if (name := object_at(path)) is not None}
    lacking = Missing(
        {name: blobs[name] for name in blobs.keys() - kept},
        {name: trees.contents[name] for name in trees.contents.keys() - kept},
    )
    if lacking.names:
        _check(trees.root, paths, checkout)
    return lacking


def _check(root: bytes, paths: Collection[bytes], checkout: Checkout) -> None:
    """Raise ``ValueError`` unless ``HEAD`` is at a commit of the tree ``root``, and objects have
    their place.
    """
    if _OBJECTS not in paths:
        raise ValueError(f"it does not list the directory {OBJECTS}")
    text = checkout.read(f"{GIT}/HEAD", _HEAD_LIMIT)
    if text is None:
        raise ValueError("its HEAD is none of git's")
    head = text.decode("utf-8", "replace").strip()
    if head.startswith("ref: "):
        name = head.removeprefix("ref: ")
        place = next(
            (place for place in (name, "packed-refs") if f"{GIT}/{place}".encode() in paths), ""
        )
        text = checkout.read(f"{GIT}/{place}", _REFERENCES_LIMIT) if place else None
        head = gitobjects.commit_of(name, (text or b"").decode("utf-8", "replace"))
    file = f"{OBJECTS}/{head[:2]}/{head[2:]}"
    if file.encode() not in paths:
        raise ValueError(f"the commit {head[:40]!r} is not there")
    if gitobjects.tree_of_commit(checkout.read(file) or b"") != root:
        raise ValueError(f"the files of its index are not those of the commit {head}")


def object_at(path: bytes) -> bytes | None:
    """The name of the object that a path of a checkout holds."""
    if not path.startswith(_OBJECTS + b"/"):
        return None
    fan, _, rest = path[len(_OBJECTS) + 1 :].partition(b"/")
    if (len(fan), len(rest)) != (2, 38) or set(fan + rest) - set(b"0123456789abcdef"):
        return None
    return bytes.fromhex((fan + rest).decode("ascii"))


class Writer:
    """Writes objects below ``testbed/.git/objects`` of a layer, as links to a pool where it has
    them.
    """

    def __init__(self, tree: Path, pool: Path, idmap: IdMap, date: int) -> None:
        self._tree = tree
        self._pool = Links(pool)
        self._date = date * 1_000_000_000
        self._owner = (idmap.host_uid(0), idmap.host_gid(0)) if idmap.kind == "root" else None
        self._made: list[str] = []

    def write(
        self, names: Collection[bytes], content: Callable[[bytes], bytes], gone: Collection[bytes]
    ) -> None:
        """Make the objects ``names``, and whiteouts of those ``gone`` from the layer below."""
        with self._objects() as objects:
            self._write(objects, names, content, gone)

    @contextmanager
    def _objects(self) -> Generator[int]:
        """The directory of the objects."""
        root = os.open(self._tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            objects = linux.open_beneath(root, OBJECTS, os.O_RDONLY | os.O_DIRECTORY)
        finally:
            os.close(root)
        try:
            yield objects
        finally:
            os.close(objects)

    def _write(
        self,
        objects: int,
        names: Collection[bytes],
        content: Callable[[bytes], bytes],
        gone: Collection[bytes],
    ) -> None:
        whiteouts = Whiteouts(objects)
        for fan, members in _by_fan(names, gone):
            try:
                os.mkdir(fan, 0o755, dir_fd=objects)
            except FileExistsError:
                pass
            directory = _open_fan(objects, fan)
            try:
                for rest, name in members:
                    if name is None:
                        whiteouts.add(rest, fan, directory)
                    elif not self._pool.take(f"{fan}/{rest}", rest, directory):
                        self._make(rest, content(name), directory)
                        self._made.append(f"{fan}/{rest}")
                self._dress(directory, 0o755)
            finally:
                os.close(directory)
        os.utime(objects, ns=(self._date, self._date))

    def _make(self, name: str, content: bytes, directory: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            self._dress(fd, _MODE)
        finally:
            os.close(fd)

    def _dress(self, fd: int, mode: int) -> None:
        if self._owner is not None:
            os.chown(fd, *self._owner)
        os.chmod(fd, mode)
        os.utime(fd, ns=(self._date, self._date))

    def share(self) -> None:
        """Let others link to what was made, which is on disk by now."""
        if not self._made:
            return
        with self._objects() as objects:
            for name in self._made:
                self._pool.give(name, objects, name)


def _open_fan(objects: int, name: str) -> int:
    try:
        return linux.open_beneath(objects, name, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        raise ValueError(f"{OBJECTS}/{name} is no directory") from None


def _by_fan(
    names: Collection[bytes], gone: Collection[bytes]
) -> Iterator[tuple[str, list[tuple[str, bytes | None]]]]:
    """Objects by the directory they lie in; None stands for a whiteout."""
    fans: dict[str, list[tuple[str, bytes | None]]] = {}
    for name in names:
        text = name.hex()
        fans.setdefault(text[:2], []).append((text[2:], name))
    for name in gone:
        text = name.hex()
        fans.setdefault(text[:2], []).append((text[2:], None))
    yield from sorted(fans.items())
