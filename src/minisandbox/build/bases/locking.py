"""Making the lock of a base: apt says which packages it takes, and checks whose archives they are.

Runs without root, on any machine that has apt: its lists and its idea of what is installed lie in a
folder of their own, so what is installed on the machine does not matter.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from tqdm import tqdm

from minisandbox import process
from minisandbox.build.bases.definition import Definition, Lock
from minisandbox.errors import MiniSandboxError, ProcessFailed
from minisandbox.records.plan import DebianPackage

_TIMEOUT = 600
#: What ``--print-uris`` writes: address, file name with escaped colons, size, digest.
_URI = re.compile(r"'(?P<url>[^']+)' (?P<file>\S+) \d+ \S*")
_NOT_FETCHED = ("W: Failed to fetch ", "W: Some index files failed to download")
_FIELD = re.compile(r"^(Filename|Size|SHA256): (\S+)$", re.MULTILINE)


class _Place(NamedTuple):
    version: str
    archive: str
    path: str


def make_lock(definition: Definition, architecture: str) -> Lock:
    """Ask the archives of a definition; raises ``MiniSandboxError`` where apt is missing or
    refuses.
    """
    if shutil.which("apt-get") is None or shutil.which("apt-cache") is None:
        raise MiniSandboxError(
            "making the lock of a base needs apt, which this machine does not have; "
            "run it on Debian or Ubuntu"
        )
    with _apt(definition, architecture) as apt:
        date = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        apt.update()
        places = apt.needed(definition.packages)
        base = tuple(sorted(places))
        extras: dict[str, tuple[str, ...]] = {}
        for name in tqdm(definition.extras, desc="extras", unit="package"):
            found = apt.needed([*definition.packages, name])
            extras[name] = tuple(sorted(found.keys() - set(base)))
            places |= found
        packages = sorted(apt.described(places), key=lambda package: package.name)
        return Lock(date, architecture, tuple(packages), base, extras)


@dataclass(frozen=True)
class _Apt:
    """apt with a state of its own; ``places`` are the addresses of archives and their names."""

    options: tuple[str, ...]
    places: tuple[tuple[str, str], ...]

    def update(self) -> None:
        """Fetch the lists of all archives; raises ``MiniSandboxError`` where one is missing."""
        # To apt it is a warning if an archive cannot be reached, and the lock would lack what that
        # has: the packages with their holes mended, for one.
        said = self._run("apt-get", "update").stderr.decode("utf-8", "replace")
        if failed := [line for line in said.splitlines() if line.startswith(_NOT_FETCHED)]:
            raise MiniSandboxError(
                f"apt-get update did not get the lists of all archives: {' '.join(failed)[:600]}; "
                "try again, or see to the network"
            )

    def run(self, program: str, *arguments: str) -> str:
        return self._run(program, *arguments).stdout.decode("utf-8", "replace")

    def _run(self, program: str, *arguments: str) -> process.Completed:
        try:
            return process.run(
                [program, *self.options, *arguments],
                env={**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
                timeout=_TIMEOUT,
            )
        except ProcessFailed as error:
            said = " ".join(line for line in error.output.splitlines() if line[:2] in ("E:", "W:"))
            raise MiniSandboxError(
                f"{program} {arguments[0]} failed: {said or error.output[-300:]}"
            ) from None

    def needed(self, names: Iterable[str]) -> dict[str, _Place]:
        """Everything that has to be installed for ``names``, on a system with nothing."""
        listing = self.run("apt-get", "install", "--yes", "--print-uris", "?essential", *names)
        found: dict[str, _Place] = {}
        for line in listing.splitlines():
            if (named := _URI.fullmatch(line)) is not None:
                name, version, _ = named["file"].replace("%3a", ":").rsplit("_", 2)
                found[name] = _Place(version, *self._placed(named["url"]))
        return found

    def _placed(self, url: str) -> tuple[str, str]:
        for address, archive in self.places:
            if url.startswith(address):
                return archive, unquote(url.removeprefix(address))
        raise MiniSandboxError(f"apt names {url}, which is in none of the archives asked")

    def described(self, places: Mapping[str, _Place]) -> Iterator[DebianPackage]:
        """The packages with what the archives say of their files."""
        asked = [f"{name}={place.version}" for name, place in places.items()]
        shown = self.run("apt-cache", "show", *asked)
        digests: dict[str, tuple[int, str]] = {}
        for stanza in shown.split("\n\n"):
            fields = dict(_FIELD.findall(stanza))
            if fields:
                digests[fields["Filename"]] = int(fields["Size"]), fields.get("SHA256", "")
        for name, place in places.items():
            size, sha256 = digests.get(place.path, (0, ""))
            if not sha256:
                raise MiniSandboxError(f"the archive gives no SHA256 of {name} {place.version}")
            yield DebianPackage(name, place.version, place.archive, place.path, size, sha256)


@contextmanager
def _apt(definition: Definition, architecture: str) -> Generator[_Apt]:
    first = definition.mirrors[0]
    sources: list[str] = []
    places: list[tuple[str, str]] = []
    for archive in definition.archives:
        address = first.format(archive=archive.archive, path="", date="")
        places.append((address, archive.archive))
        sources += [
            f"deb [signed-by={definition.keyring}] {address.rstrip('/')} {suite} "
            + " ".join(archive.components)
            for suite in archive.suites
        ]
    with tempfile.TemporaryDirectory(prefix="minisandbox-apt-") as folder:
        root = Path(folder)
        for name in ("state/lists/partial", "cache/archives/partial", "etc"):
            (root / name).mkdir(parents=True)
        (root / "status").touch()
        (root / "etc/sources.list").write_text("\n".join([*sources, ""]), encoding="utf-8")
        settings = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",
            "Debug::NoLocking": "true",
            "Dir": root,
            "Dir::Cache": root / "cache",
            "Dir::Etc": root / "etc",
            "Dir::Etc::parts": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": root / "state",
            "Dir::State::status": root / "status",
        }
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        yield _Apt(tuple(options), tuple(places))
