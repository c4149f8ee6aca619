"""The proxy itself: answers one build's installers on a socket that was made for it.

What is on the other side is untrusted: it gets GET and HEAD of two kinds of paths, and all that an
index is ever asked for are pages of projects and files that those list. Threads, connections,
headers and memory are bounded; whoever uses them up starves only their own build.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.utils import canonicalize_name
from simple_repository.content_negotiation import select_response_format
from simple_repository.errors import UnsupportedSerialization
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, create_server

from minisandbox.build.index.proxy.catalogue import Catalogue, Entry, TooManyProjects
from minisandbox.build.index.proxy.fetching import Address, Fetcher, Patience
from minisandbox.build.index.proxy.files import Copy, Download, Downloads, FileCache, Start, Write
from minisandbox.build.index.upstream import index_urls
from minisandbox.closing import Closing
from minisandbox.errors import StageFailed
from minisandbox.records.lock import IndexFile, is_filename

_PAGE = re.compile(r"/simple/([A-Za-z0-9](?:[A-Za-z0-9._-]{0,198}[A-Za-z0-9])?)/?", re.ASCII)
_FILE = re.compile(
    r"/files/((?=[a-z0-9-]{1,200}/)[a-z0-9]+(?:-[a-z0-9]+)*)/([^/]{1,512})", re.ASCII
)
_METADATA = ".metadata"
#: Requests that are kept of those refused, and how much of each.
_MAX_REFUSED = 500
_MAX_REQUEST = 300

#: Requests at a time; uv makes up to 50 connections and waits its turn.
_THREADS = 16
_SETTINGS: dict[str, Any] = {
    "threads": _THREADS,
    "connection_limit": 200,
    "channel_timeout": 60,  # seconds without a byte, before an idle connection is closed
    "cleanup_interval": 10,
    "max_request_header_size": 16 << 10,
    "max_request_body_size": 1,  # no request that is answered has one
    # A reader that does not read holds this many bytes of a file in memory, and not more.
    "outbuf_high_watermark": 512 << 10,
    "asyncore_use_poll": True,  # select() ends at descriptor 1024
    "clear_untrusted_proxy_headers": True,
    "log_socket_errors": False,
    "ident": "minisandbox",
}

_StartResponse = Callable[[str, list[tuple[str, str]]], object]


class _Refused(Exception):
    """This request is answered with an error status and a sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        self.status = status
        self.sentence = sentence
        super().__init__(sentence)


class IndexProxy(Closing):
    """Serves ``http://<listener>/simple/``, as of ``date`` (``YYYY-MM-DD``, to its end in UTC).

    With a date, a file exists if it was uploaded by then; one without upload time does not, and is
    counted in ``undated``. ``only`` makes exactly these files exist, and ``date`` count for
    nothing: what is in the cache is then served without asking an index. ``cache`` may be shared by
    any number of proxies and processes. ``indexes`` are those of this machine's pip, the first of
    which wins where two have a file of one name.

    The names of projects that the build asks for leave this machine, to these indexes.
    """

    def __init__(
        self,
        *,
        cache: Path,
        date: str | None = None,
        only: Sequence[IndexFile] | None = None,
        indexes: Sequence[str] | None = None,
        patience: Patience | None = None,
    ) -> None:
        """Raises ``InvalidInput`` for a date that is none, ``StageFailed`` for an index without
        http.
        """
        urls = index_urls() if indexes is None else indexes
        addresses = [Address.of(url.rstrip("/") + "/") for url in urls]
        for address in addresses:
            if not address.url.startswith(("http://", "https://")):
                raise StageFailed(
                    "index",
                    f"the package index {address.url} is not at an http address",
                    hint="set PIP_INDEX_URL to one that is",
                )
        self._closing = threading.Event()
        self._fetcher = Fetcher(
            cache / "pages", patience=patience or Patience(), closing=self._closing
        )
        self._catalogue = Catalogue(addresses, self._fetcher, until=date, only=only)
        self._files = FileCache(cache / "files")
        self._downloads = Downloads(self._files, self._note)
        self._mutex = threading.Lock()
        self._served: dict[tuple[str, str], IndexFile] = {}
        self._refused: dict[str, None] = {}
        self._unreachable = ""
        self._unusable = ""
        self._server: Any = None
        self._channels: dict[int, Any] = {}
        self._thread: threading.Thread | None = None

    def serve(self, listener: socket.socket) -> None:
        """Answer on a listening TCP socket, in threads of its own; ``close`` closes it."""
        if self._thread is not None:
            raise RuntimeError("the proxy serves already")
        # Only what is wrong with the proxy itself is of interest, and that goes to `unusable`.
        logging.getLogger("waitress").addHandler(logging.NullHandler())
        self._server = create_server(
            self._answer, map=self._channels, sockets=[listener], **_SETTINGS
        )
        self._thread = threading.Thread(target=self._server.run, name="index proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering; requests that run are cut off. Can be called again."""
        self._closing.set()
        server, self._server = self._server, None
        if server is not None:
            server.trigger.pull_trigger(self._disconnect)
            end = threading.Thread(target=self._end, args=(server,), daemon=True)
            end.start()
            end.join(2)
        self._downloads.join(0.5)
        self._fetcher.close()

    def _disconnect(self) -> None:
        # In the thread of the server, because only that one may touch its connections.
        for channel in list(self._channels.values()):
            if isinstance(channel, HTTPChannel):
                channel.handle_close()
            elif isinstance(channel, TcpWSGIServer):
                wasyncore.dispatcher.close(channel)  # without its pipe: see `_end`

    def _end(self, server: Any) -> None:
        """Wait for the workers, then end the loop, then close the pipe that wakes the loop.

        In this order: workers, and we, write to that pipe by its number, which could be that of
        another file once it is closed. A worker that waits for an index takes its time.
        """
        while server.task_dispatcher.threads:
            server.task_dispatcher.shutdown(timeout=60)
        server.trigger.pull_trigger(server.trigger.del_channel)  # nothing is left to wait for
        if self._thread is not None:
            self._thread.join()
        server.trigger.close()

    @property
    def served(self) -> tuple[IndexFile, ...]:
        """Each file whose whole content was sent, sorted by project and file name."""
        with self._mutex:
            return tuple(self._served[key] for key in sorted(self._served))

    @property
    def refused(self) -> tuple[str, ...]:
        """Requests that were refused or found nothing, as ``GET /simple/foo/ 404``; the first 500
        different ones.
        """
        with self._mutex:
            return tuple(self._refused)

    def forget_failures(self) -> None:
        """Empty ``unreachable`` and ``unusable``: what happens from now on has other causes."""
        with self._mutex:
            self._unreachable = self._unusable = ""

    @property
    def unreachable(self) -> str:
        """Why an index could not be reached at some point, or nothing: trying again may help."""
        with self._mutex:
            return self._unreachable

    @property
    def unusable(self) -> str:
        """Why an index or the cache cannot serve this build, or nothing: a person has to act."""
        with self._mutex:
            return self._unusable

    @property
    def undated(self) -> int:
        """Files that do not exist for this build because their index gives no upload time."""
        return self._catalogue.undated

    def path(self, file: IndexFile) -> Path:
        """The file in the cache, its digest checked; it is fetched where it is not there.

        Raises ``StageFailed``, transient where the index cannot be reached.
        """
        found = self._files.find(file.sha256, file.filename)
        if found is None:
            found = self._download_locked(file).whole()
        if found is None:
            raise StageFailed("index", f"no package index has {file.filename} any more")
        return found

    # Requests. All of this runs in the threads of the server.

    def _answer(self, environ: dict[str, Any], start: _StartResponse) -> Iterable[bytes]:
        try:
            return self._route(environ, start)
        except _Refused as refused:
            return self._refuse(environ, start, refused)
        except TooManyProjects:
            refused = _Refused(HTTPStatus.FORBIDDEN, "too many projects for one build")
            return self._refuse(environ, start, refused)
        except StageFailed as failure:
            self._note(failure)
            status = HTTPStatus.SERVICE_UNAVAILABLE if failure.transient else HTTPStatus.BAD_GATEWAY
            return _text(start, status, str(failure))
        except OSError as error:
            self._note(error)
            return _text(start, HTTPStatus.BAD_GATEWAY, "the cache cannot be used")
        except Exception as error:  # nobody looks into a server's thread
            self._note(StageFailed("index", f"the index proxy failed: {error!r}"))
            raise

    def _route(self, environ: dict[str, Any], start: _StartResponse) -> Iterable[bytes]:
        method: str = environ["REQUEST_METHOD"]
        if method not in ("GET", "HEAD"):
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD")
        target: str = environ["REQUEST_URI"]
        if not target.startswith("/"):
            raise _Refused(HTTPStatus.FORBIDDEN, "this is a package index, not a proxy")
        if page := _PAGE.fullmatch(target):
            return self._send_page(page[1], environ.get("HTTP_ACCEPT", ""), start)
        if file := _FILE.fullmatch(target):
            return self._send_file(file[1], unquote(file[2]), start, head=method == "HEAD")
        raise _Refused(HTTPStatus.NOT_FOUND, "no such page")

    def _send_page(self, spelled: str, accept: str, start: _StartResponse) -> Iterable[bytes]:
        # Not redirected: easy_install asks for names as they are spelled in a setup.py.
        name = canonicalize_name(spelled)
        try:
            form = select_response_format(accept)
        except (UnsupportedSerialization, ValueError):
            raise _Refused(HTTPStatus.NOT_ACCEPTABLE, "HTML or JSON") from None
        project = self._catalogue.project(name)
        if project is None:
            raise _Refused(HTTPStatus.NOT_FOUND, f"there is no project {name}")
        body = project.render(form)
        start("200 OK", _headers(form.value, len(body)))
        return [body]

    def _send_file(
        self, name: str, filename: str, start: _StartResponse, *, head: bool
    ) -> Iterable[bytes]:
        plain = filename.removesuffix(_METADATA)
        if not is_filename(plain):
            raise _Refused(HTTPStatus.NOT_FOUND, "no such file")
        project = self._catalogue.project(name)
        entry = None if project is None else project.get(plain)
        if entry is None:
            raise _Refused(HTTPStatus.NOT_FOUND, f"{name} has no such file")
        if plain != filename:
            download = self._download_metadata(name, plain, entry)
        elif head and entry.file.size is not None:
            start("200 OK", _headers("application/octet-stream", entry.file.size))
            return []
        elif (locked := self._catalogue.locked(name, filename)) is not None:
            download = self._download_locked(locked)
        else:
            download = self._download(name, filename, entry)
        if not download.begun():
            raise _Refused(HTTPStatus.NOT_FOUND, "the index lists this file, but does not have it")
        start("200 OK", _headers("application/octet-stream", download.size))
        if head:
            return []
        return self._pieces(download, name, entry, record=plain == filename)

    def _pieces(
        self, download: Download, name: str, entry: Entry, *, record: bool
    ) -> Iterator[bytes]:
        def at_end() -> None:
            if record:
                self._record(download, name, entry)

        return download.pieces(at_end)

    def _record(self, download: Download, name: str, entry: Entry) -> None:
        filename = entry.file.filename
        file = IndexFile(
            project=name,
            version=entry.version,
            filename=filename,
            sha256=download.sha256,
            size=download.size or 0,
            uploaded=entry.uploaded,
        )
        with self._mutex:
            self._served[name, filename] = self._catalogue.locked(name, filename) or file

    def _download(self, name: str, filename: str, entry: Entry) -> Download:
        return self._downloads.get(
            (name, filename),
            sha256=entry.sha256,
            size=entry.file.size,
            copy=self._copy(entry.address),
        )

    def _download_locked(self, file: IndexFile) -> Download:
        def copy(start: Start, write: Write) -> bool:
            return self._copy(self._catalogue.address(file))(start, write)

        return self._downloads.get(
            (file.project, file.filename), sha256=file.sha256, size=file.size, copy=copy
        )

    def _download_metadata(self, name: str, plain: str, entry: Entry) -> Download:
        metadata = entry.file.dist_info_metadata
        address = entry.address
        if not isinstance(metadata, dict) or address is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "the index has no metadata of this file")
        address = Address(address.url + _METADATA, address.login)
        return self._downloads.get(
            (name, plain + _METADATA),
            sha256=metadata["sha256"],
            size=None,
            copy=self._copy(address),
        )

    def _copy(self, address: Address | None) -> Copy:
        def copy(start: Start, write: Write) -> bool:
            return address is not None and self._fetcher.copy(address, start, write)

        return copy

    def _note(self, failure: StageFailed | OSError) -> None:
        if self._closing.is_set():
            return  # what is cut off at the end of a build is no failure
        with self._mutex:
            if isinstance(failure, OSError):
                reason = f"the cache of the package index cannot be used: {failure}"
                self._unusable = self._unusable or reason
            elif failure.transient:
                self._unreachable = self._unreachable or str(failure)
            else:
                self._unusable = self._unusable or str(failure)

    def _refuse(
        self, environ: dict[str, Any], start: _StartResponse, refused: _Refused
    ) -> Iterable[bytes]:
        target = environ["REQUEST_URI"].encode("unicode_escape").decode("ascii")[:_MAX_REQUEST]
        method = environ["REQUEST_METHOD"].encode("unicode_escape").decode("ascii")[:20]
        with self._mutex:
            if len(self._refused) < _MAX_REFUSED:
                self._refused[f"{method} {target} {refused.status.value}"] = None
        return _text(start, refused.status, refused.sentence)


def _headers(kind: str, length: int | None) -> list[tuple[str, str]]:
    return [
        ("Content-Type", kind),
        *([] if length is None else [("Content-Length", str(length))]),
        # The same address holds other content in the next build: nobody may keep it.
        ("Cache-Control", "no-store"),
        ("Accept-Ranges", "none"),
    ]


def _text(start: _StartResponse, status: HTTPStatus, sentence: str) -> Iterable[bytes]:
    body = f"{sentence}\n".encode()
    headers = _headers("text/plain; charset=utf-8", len(body))
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("Allow", "GET, HEAD"))
    start(f"{status.value} {status.phrase}", headers)
    return [body]
