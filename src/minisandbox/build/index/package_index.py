"""The package index that this machine's pip is configured for: which sdists it has, their bytes.

Speaks the JSON simple API (PEP 691) only, because it alone gives upload times (PEP 700).
Invariant: a file in the download cache has the sha256 that the index promises, or it is fetched
again.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import urljoin, urlsplit

import requests
from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from minisandbox import atomic, keys
from minisandbox.build.index.upstream import (
    DEFAULT_INDEX,
    certificates,
    index_url,
    without_credentials,
)
from minisandbox.errors import StageFailed

_JSON_API = "application/vnd.pypi.simple.v1+json"
#: Seconds to connect and between two pieces of an answer: a dead mirror must not hold a job.
_TIMEOUT = (20, 60)


@dataclass(frozen=True)
class Release:
    """One sdist on the index; ``uploaded`` is in unix seconds."""

    project: str
    version: str
    filename: str
    url: str
    sha256: str
    uploaded: int


class Index:
    """A package index; the file list of a project is read once."""

    def __init__(self, url: str = DEFAULT_INDEX) -> None:
        self.url = url.rstrip("/") + "/"
        self._files: dict[str, list[dict[str, Any]]] = {}

    def __str__(self) -> str:
        """The address without the credentials that it may carry."""
        return without_credentials(self.url).rstrip("/")

    @classmethod
    def of_this_machine(cls) -> Index:
        """The index that pip uses here."""
        return cls(index_url())

    def page(self, project: str) -> str:
        """The address of a project's file list; addresses in it are relative to it."""
        return urljoin(self.url, f"{canonicalize_name(project)}/")

    def files(self, project: str) -> list[dict[str, Any]]:
        """The ``files`` entries of a project; raises ``StageFailed`` where there is none."""
        name = canonicalize_name(project)
        if name not in self._files:
            self._files[name] = self._read_files(name)
        return self._files[name]

    def _read_files(self, name: str) -> list[dict[str, Any]]:
        what = f"project {name}"
        with _get(self.page(name), what, str(self)) as response:
            try:
                content = response.content
            except requests.RequestException as error:
                raise _broken_transfer(what, str(self), error) from error
            kind = response.headers.get("Content-Type", "an answer without a type")
        try:
            page: Any = json.loads(content)
            return cast("list[dict[str, Any]]", page["files"])
        except (ValueError, KeyError, TypeError):
            raise StageFailed(
                "clone",
                f"{self} answers with {kind} instead of the JSON simple API (PEP 691)",
                hint=f"set PIP_INDEX_URL to an index that has it, such as {DEFAULT_INDEX}",
            ) from None


def find_release(project: str, version: str, *, index: Index) -> Release:
    """The sdist of one version; ``StageFailed`` names the nearest versions where there is none."""
    try:
        wanted = Version(version)
    except InvalidVersion:
        raise StageFailed("clone", f"{project}: {version!r} is not a version (PEP 440)") from None
    sdists = _sdists(project, index)
    entry = sdists.get(wanted)
    if entry is None:
        raise StageFailed(
            "clone",
            f"{index} has no .tar.gz source release of {project} {version}",
            hint=_nearest(wanted, list(sdists)),
        )
    uploaded: Any = entry.get("upload-time")
    sha256: Any = entry.get("hashes", {}).get("sha256")
    if not uploaded or not sha256:
        lacking = "sha256" if uploaded else "upload time (PEP 700)"
        raise StageFailed(
            "clone",
            f"{index} gives no {lacking} for {entry['filename']}, and commit hashes depend on it",
            hint=f"set PIP_INDEX_URL to an index that does, such as {DEFAULT_INDEX}",
        )
    return Release(
        project=canonicalize_name(project),
        version=version,
        filename=entry["filename"],
        url=urljoin(index.page(project), entry["url"]),
        sha256=sha256,
        uploaded=int(datetime.fromisoformat(uploaded).timestamp()),
    )


def _sdists(project: str, index: Index) -> dict[Version, dict[str, Any]]:
    """The sdists by version; only .tar.gz, because zip archives may lack modes and symlinks."""
    found: dict[Version, dict[str, Any]] = {}
    for entry in index.files(project):
        try:
            name, version = parse_sdist_filename(entry["filename"])
        except InvalidSdistFilename:
            continue
        # Also makes the name safe as a path component: a canonical name has no separator.
        if name == canonicalize_name(project) and entry["filename"].endswith(".tar.gz"):
            found[version] = entry
    return found


def _nearest(wanted: Version, versions: Sequence[Version]) -> str:
    ordered = sorted(versions)
    position = bisect_left(ordered, wanted)
    around = ordered[max(0, position - 2) : position + 2]
    if not around:
        return "it has none of any version, so the project cannot be used"
    return "the nearest are " + ", ".join(map(str, around))


def download(release: Release, cache: Path) -> Path:
    """The sdist in ``cache``, fetched unless it is there whole; its sha256 is always checked."""
    path = cache / release.sha256 / release.filename
    if path.is_file() and keys.file_sha256(path) == release.sha256:
        return path
    server = urlsplit(release.url).hostname or release.url
    with atomic.replacing(path) as temporary:
        with _get(release.url, release.filename, server) as response, temporary.open("wb") as out:
            try:
                for piece in response.iter_content(1 << 20):
                    out.write(piece)
            except requests.RequestException as error:
                raise _broken_transfer(release.filename, server, error) from error
        actual = keys.file_sha256(temporary)
        if actual != release.sha256:
            raise StageFailed(
                "clone",
                f"{release.filename} from {server} has sha256 {actual}, "
                f"but the index promises {release.sha256}",
                hint="a proxy or mirror serves something else; set PIP_INDEX_URL to another index",
            )
    return path


def _get(url: str, what: str, server: str) -> requests.Response:
    """A streamed answer of status 200; all else is ``StageFailed``, transient where it may pass."""
    bundle = certificates()
    try:
        response = requests.get(
            url,
            headers={"Accept": f"{_JSON_API}, */*;q=0.1"},
            timeout=_TIMEOUT,
            stream=True,
            verify=True if bundle is None else str(bundle),
        )
    except requests.RequestException as error:
        raise _broken_transfer(what, server, error) from error
    code = response.status_code
    if code == 200:
        return response
    response.close()
    if code == 404:
        raise StageFailed("clone", f"{server} does not have {what}", hint="check the name")
    passing = code >= 500 or code in (408, 425, 429)
    raise StageFailed("index", f"{server} refuses {what} (HTTP {code})", transient=passing)


def _broken_transfer(what: str, server: str, error: requests.RequestException) -> StageFailed:
    # The message of the error itself would repeat the address with its credentials.
    return StageFailed(
        "index",
        f"{what} could not be fetched from {server} ({type(error).__name__})",
        hint="check the network, PIP_INDEX_URL and the proxy variables",
        # requests says of an address that it cannot use at all (file://) that it is a ValueError.
        transient=not isinstance(error, ValueError),
    )
