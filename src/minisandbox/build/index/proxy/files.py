"""The files of the index on disk, shared by all builds of a machine, and their way there.

``<root>/<sha256>/<filename>``. Invariant: what bears its final name had its digest when it got it,
and is hashed again before a process first uses it; a damaged one is fetched again. ``flock`` on
``<root>/<sha256>/.lock`` keeps two processes from fetching one file; a killed one leaves a file
named ``.*.tmp``, which the next holder of the lock removes.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from minisandbox import atomic
from minisandbox.errors import StageFailed

_PIECE = 256 << 10
#: The end of a file that nobody gets before its digest is known to be right.
_HELD_BACK = 4096
#: Files that one proxy fetches at a time; more waits for its turn.
_AT_ONCE = 8

#: Starts an attempt, writes a piece of one; then fetches a file with them, false if it is not
#: there.
Start = Callable[[], object]
Write = Callable[[bytes], object]
Copy = Callable[[Start, Write], bool]
Failed = Callable[[StageFailed | OSError], object]


class FileCache:
    """Files by digest and name; safe between threads and processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._checked: dict[Path, tuple[int, int, int, int]] = {}

    def path(self, sha256: str, filename: str) -> Path:
        """Where the file is, if it is there."""
        return self.root / sha256 / filename

    def find(self, sha256: str, filename: str) -> Path | None:
        """The file with the right content, or ``None``."""
        path = self.path(sha256, filename)
        try:
            with path.open("rb") as file:
                stamp = _stamp(os.fstat(file.fileno()))
                if self._checked.get(path) == stamp:
                    return path
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    return None
        except FileNotFoundError:
            return None
        self._checked[path] = stamp
        return path

    def trust(self, path: Path) -> Path:
        """Note that the caller hashed what is at ``path`` while writing it."""
        self._checked[path] = _stamp(path.stat())
        return path

    def keep(self, source: Path, sha256: str, filename: str) -> Path:
        """Move a file whose digest is ``sha256`` in."""
        with self.locked(sha256):
            path = self.find(sha256, filename)
            if path is None:
                path = self.path(sha256, filename)
                with atomic.replacing(path) as temporary:
                    os.replace(source, temporary)
                self.trust(path)
            return path

    @contextmanager
    def locked(self, sha256: str) -> Generator[None]:
        """Keep everybody else from fetching the file, and clear away what a killed one left."""
        folder = self.root / sha256
        with atomic.locked(folder / ".lock"):
            for leftover in folder.glob(".*.tmp"):
                leftover.unlink()
            yield


def _stamp(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class Download:
    """One file on its way into the cache; any number of readers follow it.

    It goes on without them: a reader that stalls or leaves keeps nobody else waiting. ``sha256``
    and ``size`` are what the index promises (empty and ``None`` where it promises nothing; then
    readers get nothing before the whole file is there).
    """

    def __init__(
        self, cache: FileCache, filename: str, *, sha256: str, size: int | None, copy: Copy
    ) -> None:
        self.filename = filename
        self.sha256 = sha256
        self.size = size
        self._cache = cache
        self._copy = copy
        self._changed = threading.Condition()
        self._path: Path | None = None
        self._temporary: Path | None = None
        self._written = 0
        #: Rises when an attempt contradicts the one before: whoever read that cannot go on.
        self._attempt = 0
        self._ended = False
        self._absent = False
        self._failure: StageFailed | OSError | None = None

    def run(self, turn: threading.Semaphore, failed: Failed) -> None:
        """Fetch the file, in a thread of its own; readers learn how it ended."""
        try:
            with turn:
                path = self._fetch_promised() if self.sha256 else self._fetch_unknown()
            with self._changed:
                self._path = path
                self._absent = path is None
                if path is not None:
                    self.size = path.stat().st_size
        except (StageFailed, OSError) as failure:
            failed(failure)  # its readers may be gone, or got their status line already
            self._failure = failure
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _fetch_promised(self) -> Path | None:
        with self._cache.locked(self.sha256):
            found = self._cache.find(self.sha256, self.filename)
            if found is not None:
                return found
            path = self._cache.path(self.sha256, self.filename)
            path.unlink(missing_ok=True)  # damaged
            try:
                with atomic.replacing(path) as temporary:
                    if not self._fill(temporary):
                        raise _Absent
            except _Absent:
                return None
            return self._cache.trust(path)

    def _fetch_unknown(self) -> Path | None:
        # The folder has the form of all others, so that a killed download is cleared away there.
        place = hashlib.sha256(f"no digest: {self.filename}".encode()).hexdigest()
        with self._cache.locked(place):
            descriptor, name = tempfile.mkstemp(
                prefix=".", suffix=".tmp", dir=self._cache.root / place
            )
            os.close(descriptor)
            temporary = Path(name)
            try:
                if not self._fill(temporary):
                    return None
                with temporary.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                path = self._cache.keep(temporary, sha256, self.filename)
            finally:
                temporary.unlink(missing_ok=True)
        self.sha256 = sha256
        return path

    def _fill(self, temporary: Path) -> bool:
        """Write the file; raises ``StageFailed`` where it is not the promised one."""
        digest = hashlib.sha256()
        position = 0
        with temporary.open("w+b", buffering=0) as out:

            def start() -> None:
                nonlocal digest, position
                digest = hashlib.sha256()
                position = 0
                with self._changed:
                    self._temporary = temporary

            def write(piece: bytes) -> None:
                nonlocal position
                digest.update(piece)
                # What an attempt before this one wrote and this one repeats, stays: readers of it
                # then do not notice that the transfer broke.
                again = os.pread(out.fileno(), len(piece), position)
                if piece[: len(again)] != again:
                    with self._changed:
                        self._attempt += 1
                        self._written = position
                    out.truncate(position)
                    again = b""
                out.seek(position + len(again))
                view = memoryview(piece)[len(again) :]
                while view:
                    view = view[out.write(view) :]
                position += len(piece)
                with self._changed:
                    self._written = max(self._written, position)
                    self._changed.notify_all()

            if not self._copy(start, write):
                return False
            out.truncate(position)
            self._written = position
        self._check(digest.hexdigest())
        return True

    def _check(self, actual: str) -> None:
        if self.sha256 and actual != self.sha256:
            wrong = f"sha256 {actual}, but the index promises {self.sha256}"
        elif self.sha256 and self.size is not None and self._written != self.size:
            wrong = f"{self._written} bytes, but the index promises {self.size}"
        else:
            return
        raise StageFailed(
            "index",
            f"{self.filename} has {wrong}",
            hint="a proxy or mirror serves something else; set PIP_INDEX_URL to another index",
        )

    def usable(self) -> bool:
        """Whether it can still be followed: it runs, or its file is there and undamaged."""
        with self._changed:
            if not self._ended:
                return True
            if self._path is None:
                return False
        return self._cache.find(self.sha256, self.filename) is not None

    def begun(self) -> bool:
        """Wait until something can be read; false where the server does not have the file.

        Raises ``StageFailed`` or ``OSError`` where it could not be fetched.
        """
        with self._changed:
            self._changed.wait_for(self._readable)
            if self._failure is not None:
                raise self._failure
            return not self._absent

    def whole(self) -> Path | None:
        """Wait for the end; the file in the cache, ``None`` where the server does not have it.

        Raises ``StageFailed`` or ``OSError`` where it could not be fetched.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended)
            if self._failure is not None:
                raise self._failure
            return self._path

    def _readable(self) -> bool:
        promised = self.sha256 and self.size is not None
        return self._ended or bool(promised and self._written > _HELD_BACK)

    def pieces(self, at_end: Callable[[], object]) -> Iterator[bytes]:
        """The content while it arrives; ends short where the rest cannot be had.

        ``at_end`` is called before the last piece is given away, which is not before the digest
        was found right.
        """
        with self._changed:
            attempt, source = self._attempt, self._path or self._temporary
        if source is None:
            return
        try:
            file = source.open("rb")
        except FileNotFoundError:  # it got its final name meanwhile, or failed
            with self._changed:
                self._changed.wait_for(lambda: self._ended)
            if self._path is None:
                return
            file = self._path.open("rb")
        position = 0
        with file:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._ended or self._safe() > position)  # noqa: B023
                    if self._path is None and self._ended:
                        return
                    if position and self._attempt != attempt:
                        return  # what was given away is not the beginning of what comes now
                    attempt = self._attempt
                    whole = self._path is not None
                    limit = os.fstat(file.fileno()).st_size if whole else self._safe()
                piece = file.read(min(_PIECE, limit - position))
                position += len(piece)
                last = whole and position == limit
                if last:
                    at_end()
                if piece:
                    yield piece
                if last or not piece:
                    return

    def _safe(self) -> int:
        return max(0, self._written - _HELD_BACK)


class _Absent(Exception):
    """Leaves the block that would have made the file."""


class Downloads:
    """The downloads of one proxy: one a file, however many ask for it."""

    def __init__(self, cache: FileCache, failed: Failed) -> None:
        self.cache = cache
        self._failed = failed
        self._lock = threading.Lock()
        self._turn = threading.Semaphore(_AT_ONCE)
        self._running: dict[tuple[str, str], Download] = {}
        self._threads: set[threading.Thread] = set()

    def get(self, key: tuple[str, str], *, sha256: str, size: int | None, copy: Copy) -> Download:
        """The download of the file that ``key`` names in this build (project and file name).

        One that ended well is not started again; for files without a promised digest, this is what
        makes one build see one content.
        """
        with self._lock:
            download = self._running.get(key)
            if download is None or not download.usable():
                if download is not None:
                    sha256 = sha256 or download.sha256
                download = Download(self.cache, key[1], sha256=sha256, size=size, copy=copy)
                self._running[key] = download
                # A daemon: a server that says nothing must not hold the process at its end.
                thread = threading.Thread(
                    target=self._run, args=(download,), name=f"fetch {key[1]}", daemon=True
                )
                self._threads.add(thread)
                thread.start()
        return download

    def _run(self, download: Download) -> None:
        try:
            download.run(self._turn, self._failed)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def join(self, seconds: float) -> None:
        """Wait for those that still run, not longer than ``seconds`` in all."""
        with self._lock:
            threads = list(self._threads)
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
