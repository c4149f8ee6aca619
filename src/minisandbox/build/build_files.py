"""Files that a recipe names: fetched ahead of a build, which has no network, and put into it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from minisandbox.build.fetching import Unfetched, fetch
from minisandbox.build.index.upstream import without_credentials
from minisandbox.build.workshop import Workshop, is_below
from minisandbox.errors import SandboxFileError, StageFailed
from minisandbox.records.plan import BuildFile
from minisandbox.runtime.instance import TESTBED

#: Bytes: what goes on after that is no file that somebody meant.
_MOST = 4 << 30
_HINT = "see 'files' in the recipe"


class Given(NamedTuple):
    """A file on this machine and its place inside."""

    local: Path
    path: str


def fetch_files(files: Sequence[BuildFile], folder: Path) -> list[Given]:
    """The files of a recipe, out of ``folder`` where they were fetched before.

    Raises ``StageFailed``: of kind ``index``, transient, where a server may do better next time,
    else of kind ``install``.
    """
    found: list[Given] = []
    for file in files:
        local = folder / file.sha256
        try:
            fetch([file.url], local, sha256=file.sha256, most=_MOST)
        except Unfetched as error:
            raise StageFailed(
                "index" if error.passing else "install",
                f"the file {without_credentials(file.url)} cannot be had: {error}",
                hint="check the network" if error.passing else _HINT,
                transient=error.passing,
            ) from None
        found.append(Given(local, file.path))
    return found


def put(shop: Workshop, files: Sequence[Given]) -> list[str]:
    """Copy files to their places, over what is there.

    Returned are the paths, relative to the root, that are not to be packed: all outside of the
    repository.
    """
    if not files:
        return []
    for local, path in files:
        try:
            shop.sandbox.upload(local, path)
        except SandboxFileError as error:
            raise StageFailed("install", str(error), hint=_HINT) from None
    # A place behind a link is elsewhere.
    places = shop.sandbox.run(["realpath", "--", *(path for _, path in files)]).text.splitlines()
    return [place.lstrip("/") for place in places if not is_below((TESTBED,), place)]
