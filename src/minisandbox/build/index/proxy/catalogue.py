"""Which files exist: the pages of all indexes merged, as of a date or as a lock lists them.

Pages are read and written by ``simple_repository``, the model of the simple repository API; what is
here is the choice. Invariant: a file that is not listed here cannot be asked of an index.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from simple_repository import model, parser
from simple_repository.content_negotiation import Format
from simple_repository.packaging import extract_package_version
from simple_repository.serializer import serialize

from minisandbox.build.index.proxy.fetching import Address, Fetcher, Page
from minisandbox.errors import InvalidInput, StageFailed
from minisandbox.records.lock import IndexFile, is_filename

_ACCEPT = ", ".join(
    (
        "application/vnd.pypi.simple.v1+json",
        "application/vnd.pypi.simple.v1+html;q=0.2",
        "text/html;q=0.1",
    )
)
#: What an installer of any age installs from. Others (.rpm, .exe, .msi, .dmg) are for people.
_KINDS = (".whl", ".egg", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.Z", ".tar")
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
#: Files of pages that are held in memory (about 1.5 KB each): a hostile build cannot ask for more.
_MAX_FILES = 30_000
#: Projects that one build may ask for; the largest real environments have a few hundred.
_MAX_PROJECTS = 3_000


@dataclass(frozen=True)
class Entry:
    """One file on a page of an index, or of a lock, which has no page."""

    file: model.File
    version: str
    page: Address | None

    @property
    def sha256(self) -> str:
        """The digest that the index promises, or nothing."""
        return self.file.hashes.get("sha256", "")

    @property
    def address(self) -> Address | None:
        """Where an index has the file. Worked out on demand: most files of a page are not asked
        for, and there are thousands.
        """
        return None if self.page is None else self.page.join(_as_sent(self.file.url))

    @property
    def uploaded(self) -> str:
        """ISO 8601, or nothing."""
        time = self.file.upload_time
        # strftime would write the year 1, which some servers give, with one digit.
        return "" if time is None else f"{time.isoformat(timespec='seconds')}Z"


class Project(Mapping[str, Entry]):
    """The files of a project by name."""

    def __init__(self, name: str, entries: Mapping[str, Entry]) -> None:
        self.name = name
        self._entries = entries
        self._rendered: dict[Format, bytes] = {}

    def __getitem__(self, filename: str) -> Entry:
        return self._entries[filename]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def render(self, form: Format) -> bytes:
        """A page whose files are at ``/files/<project>/<filename>`` of the same server.

        Kept, because installers ask again for each build in isolation, and a page of 5,000 files
        takes 0.1 s.
        """
        if form not in self._rendered:
            self._rendered[form] = _render(self, form)
        return self._rendered[form]


class TooManyProjects(Exception):
    """A build asked for more names than any real one."""


class Catalogue:
    """The projects of the indexes; safe to use from many threads."""

    def __init__(
        self,
        indexes: Sequence[Address],
        fetcher: Fetcher,
        *,
        until: str | None,
        only: Sequence[IndexFile] | None,
    ) -> None:
        self._indexes = indexes
        self._fetcher = fetcher
        self._end = None if until is None or only is not None else _end_of(until)
        self._lock: dict[str, dict[str, IndexFile]] | None = None
        if only is not None:
            self._lock = {}
            for file in only:
                self._lock.setdefault(file.project, {})[file.filename] = file
        self._known: OrderedDict[str, Project | None] = OrderedDict()
        self._names: set[str] = set()
        self._mutex = threading.Lock()
        # Two requests for one page at a time read it once.
        self._reading = [threading.Lock() for _ in range(16)]
        self._undated: dict[str, int] = {}

    @property
    def undated(self) -> int:
        """How many files, of the projects asked for so far, have no upload time and so do not exist
        as of a date.
        """
        with self._mutex:
            return sum(self._undated.values())

    def project(self, name: str) -> Project | None:
        """The files of a project by name, ``None`` where there is no such project.

        Raises ``StageFailed`` where an index cannot be reached or read, ``TooManyProjects``.
        """
        if self._lock is not None:
            locked = self._lock.get(name)
            if locked is None:
                return None
            return Project(name, {key: _locked(file) for key, file in locked.items()})
        return self._upstream(name)

    def locked(self, name: str, filename: str) -> IndexFile | None:
        """The file of the lock, if there is a lock and it has it."""
        return None if self._lock is None else self._lock.get(name, {}).get(filename)

    def address(self, file: IndexFile) -> Address | None:
        """Where an index has exactly this file; ``None`` where no index has it any more.

        Raises ``StageFailed`` where an index has another file of its name.
        """
        project = self._upstream(file.project)
        entry = None if project is None else project.get(file.filename)
        if entry is None:
            return None
        if entry.sha256 and entry.sha256 != file.sha256:
            raise StageFailed(
                "index",
                f"the index has another {file.filename} than the lock: sha256 {entry.sha256}, "
                f"not {file.sha256}",
                hint="lock the environment again",
            )
        return entry.address

    def _upstream(self, name: str) -> Project | None:
        with self._reading[hash(name) % len(self._reading)]:
            with self._mutex:
                if name in self._known:
                    self._known.move_to_end(name)
                    return self._known[name]
                self._names.add(name)
                if len(self._names) > _MAX_PROJECTS:
                    self._names.discard(name)
                    raise TooManyProjects
            project = self._read(name)
            with self._mutex:
                self._known[name] = project
                while len(self._known) > 1 and self._held() > _MAX_FILES:
                    self._known.popitem(last=False)
            return project

    def _held(self) -> int:
        return sum(len(project or ()) for project in self._known.values())

    def _read(self, name: str) -> Project | None:
        found = False
        merged: dict[str, Entry] = {}
        undated = 0
        for index in self._indexes:
            address = index.join(f"{name}/")
            answer = self._fetcher.page(address, functools.partial(_parse, name), accept=_ACCEPT)
            if answer is None:
                continue
            found = True
            url, files = answer
            if self._end is not None:
                dated = [file for file in files if file.upload_time is not None]
                if files and not dated:
                    raise StageFailed(
                        "index",
                        f"{address.url} has no upload times (PEP 700), so there is no telling what "
                        "existed at a date",
                        hint="use an index that has them, such as https://pypi.org/simple, or "
                        "build without a date",
                    )
                undated += len(files) - len(dated)
                files = [file for file in dated if _before(file, self._end)]
            for entry in _entries(files, name, address.join(url)):
                merged.setdefault(entry.file.filename, entry)
        with self._mutex:
            self._undated[name] = undated
        return Project(name, merged) if found else None


def _end_of(day: str) -> datetime:
    try:
        return datetime.combine(date.fromisoformat(day), datetime.min.time()) + timedelta(days=1)
    except ValueError:
        raise InvalidInput(
            "the date of the index", f"is {day!r}", "write it as YYYY-MM-DD"
        ) from None


def _before(file: model.File, end: datetime) -> bool:
    # The library gives times without a zone; the API has UTC only.
    return file.upload_time is not None and file.upload_time < end


def _parse(name: str, page: Page) -> tuple[str, list[model.File]]:
    """Where the page of a project is, and its files; raises ``ValueError`` where it is no page."""
    text = page.body.decode("utf-8", "replace")
    if "json" in page.content_type:
        try:
            return page.url, list(parser.parse_json_project_page(text).files)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
    if "html" in page.content_type or not page.content_type:
        files = parser.parse_html_project_page(text, name).files
        return page.url, [_named_by_address(file) for file in files]
    raise ValueError(f"its type is {page.content_type}")


def _as_sent(url: str) -> str:
    # The library escapes addresses once more; `%2B`, as in `torch-1.0%2Bcpu`, came as `%252B`.
    return unquote(url)


def _named_by_address(file: model.File) -> model.File:
    """Installers go by the last part of the address, not by the text of the link."""
    name = unquote(urlsplit(_as_sent(file.url)).path.rpartition("/")[2])
    return dataclasses.replace(file, filename=name)


def _entries(files: Iterable[model.File], name: str, page: Address) -> Iterable[Entry]:
    """The files that an installer can use and that can be named in a lock."""
    for file in files:
        if not is_filename(file.filename) or not file.filename.endswith(_KINDS):
            continue
        try:
            version = _version(file.filename, name)
        except (ValueError, IndexError):
            continue  # a file of another name, of which installers make nothing either
        yield Entry(_trimmed(file), version, page)


def _version(filename: str, name: str) -> str:
    if filename.endswith(".whl") and canonicalize_name(filename.split("-")[0]) != name:
        raise ValueError(f"{filename} is not a wheel of {name}")
    return extract_package_version(filename, name)


def _trimmed(file: model.File) -> model.File:
    """The file without promises that we do not pass on: digests but sha256, signatures."""
    sha256 = file.hashes.get("sha256", "").lower()
    hashes = {"sha256": sha256} if _SHA256.fullmatch(sha256) else {}
    metadata = file.dist_info_metadata
    # Metadata without a digest could not be told from damaged ones: clients read the wheel then.
    if isinstance(metadata, dict) and _SHA256.fullmatch(metadata.get("sha256", "")):
        metadata = {"sha256": metadata["sha256"]}
    else:
        metadata = None
    size = file.size if isinstance(file.size, int) and file.size >= 0 else None
    return dataclasses.replace(
        file,
        hashes=hashes,
        dist_info_metadata=metadata,
        gpg_sig=None,
        size=size,
        yanked=file.yanked or None,
        requires_python=file.requires_python or None,
        private_metadata=model.PrivateMetadataMapping(),
    )


def _locked(locked: IndexFile) -> Entry:
    """A lock lists what was chosen, so nothing on the page may talk an installer out of it: a file
    that was yanked since is not marked, and the page needs no index.
    """
    uploaded = datetime.fromisoformat(locked.uploaded) if locked.uploaded else None
    file = model.File(
        filename=locked.filename,
        url="",
        hashes={"sha256": locked.sha256},
        size=locked.size,
        upload_time=None if uploaded is None else uploaded.astimezone(UTC).replace(tzinfo=None),
    )
    return Entry(file, locked.version, None)


def _render(project: Project, form: Format) -> bytes:
    files = tuple(
        dataclasses.replace(
            entry.file,
            url=f"/files/{project.name}/{filename.replace('+', '%2B')}",
            # The library puts the reason into an attribute as it is, quotes and all.
            yanked=_escaped(entry.file.yanked) if form is not Format.JSON_V1 else entry.file.yanked,
        )
        for filename, entry in project.items()
    )
    sized = all(file.size is not None for file in files)
    page = model.ProjectDetail(
        meta=model.Meta("1.1" if sized else "1.0"), name=project.name, files=files
    )
    return serialize(page, form).encode()


def _escaped(yanked: bool | str | None) -> bool | str | None:
    return html.escape(yanked) if isinstance(yanked, str) else yanked
