"""One file from one of several addresses, whole and checked against its digest, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests

from minisandbox import atomic, keys
from minisandbox.build.index.upstream import certificates

#: Seconds for the connection, and between two pieces of an answer.
_TIMEOUT = (20.0, 60.0)
_PIECE = 1 << 20


class Unfetched(Exception):
    """No address has the file; ``passing`` says that a server may do better next time."""

    def __init__(self, problems: Sequence[str], *, passing: bool) -> None:
        super().__init__("; ".join(problems))
        self.passing = passing


class _Problem(Exception):
    def __init__(self, said: str, *, passing: bool = False) -> None:
        super().__init__(said)
        self.passing = passing


def fetch(addresses: Sequence[str], path: Path, *, sha256: str, most: int) -> Path:
    """Make ``path`` the file of that digest, from the first address (http, https, file) that has
    it; a file that is there whole is not fetched again. An answer of more than ``most`` bytes is
    another file.

    Raises ``Unfetched``, and ``OSError`` for what cannot be written.
    """
    if path.is_file() and keys.file_sha256(path) == sha256:
        return path
    problems: list[_Problem] = []
    for address in addresses:
        try:
            with atomic.replacing(path) as temporary:
                _write(address, temporary, sha256=sha256, most=most)
            return path
        except _Problem as problem:
            problems.append(problem)
    passing = any(problem.passing for problem in problems)
    raise Unfetched([str(problem) for problem in problems], passing=passing)


def _write(address: str, path: Path, *, sha256: str, most: int) -> None:
    parts = urlsplit(address)
    source = parts.hostname or unquote(parts.path)
    left = most
    with _pieces(address) as pieces, path.open("wb") as out:
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise _Problem(f"{source} serves more than {most} bytes")
            out.write(piece)
    if (found := keys.file_sha256(path)) != sha256:
        raise _Problem(f"{source} serves another file (sha256 {found[:16]}…)")


@contextlib.contextmanager
def _pieces(address: str) -> Generator[Iterator[bytes]]:
    """The content at an address; whatever is wrong with it is a ``_Problem``."""
    parts = urlsplit(address)
    if parts.scheme == "file":
        path = unquote(parts.path)
        with contextlib.ExitStack() as opened:
            try:
                file = opened.enter_context(open(path, "rb"))
            except OSError as error:
                raise _Problem(f"{path} cannot be read ({error.strerror})") from None
            yield iter(lambda: file.read(_PIECE), b"")
        return
    server = parts.hostname or address
    bundle = certificates()
    verify = str(bundle) if bundle else True
    try:
        with requests.get(address, stream=True, timeout=_TIMEOUT, verify=verify) as answer:
            answer.raise_for_status()
            yield answer.iter_content(_PIECE)
    except requests.HTTPError as error:
        code = error.response.status_code
        passing = code >= 500 or code == 429
        raise _Problem(f"{server} answers {code}", passing=passing) from None
    except requests.RequestException as error:
        said = f"{server} cannot be reached ({type(error).__name__})"
        raise _Problem(said, passing=not isinstance(error, ValueError)) from None
