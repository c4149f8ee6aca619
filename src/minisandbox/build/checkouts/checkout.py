"""Checkouts with no answers in them: the true base commit, as much of its past as is wanted,
nothing newer.

Git runs inside a build sandbox on a mirror that is bound read-only, fetches the one commit by its
hash, and so receives no other branch, tag or object. What fetching leaves behind (reflogs,
``FETCH_HEAD``) is removed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from minisandbox import keys
from minisandbox.build.checkouts import gitindex
from minisandbox.build.checkouts.submodules import Submodule
from minisandbox.build.workshop import TOOLS, Workshop, layer_date
from minisandbox.errors import StageFailed
from minisandbox.records.layer import LayerRef
from minisandbox.records.plan import History
from minisandbox.sandbox import Bind, Limits, Result
from minisandbox.store import Store

INDEX = "testbed/.git/index"

#: Exit codes of the script: the mirror does not have the commit; it has several that begin so.
_NO_COMMIT, _AMBIGUOUS = 90, 91


@dataclass(frozen=True)
class Checkout:
    """A packed checkout: the full commit hash and its date (unix seconds, 1980 or later)."""

    layer: LayerRef
    commit: str
    date: int


@dataclass(frozen=True)
class Head:
    """The commit on top of base that holds what the install step changed in tracked files, and its
    tree.
    """

    commit: str
    tree: str


def make_checkout(
    mirror: Path,
    revision: str,
    *,
    history: History,
    store: Store,
    log: Path,
    name: str,
    url: str,
    clone: str,
    limits: Limits,
    submodules: Sequence[tuple[Submodule, Path]] = (),
) -> Checkout:
    """Check out ``revision`` at ``/testbed`` and pack it; raises ``StageFailed`` of kind ``commit``
    or ``limit``. ``submodules`` come with their mirrors.

    Without a history, git's objects that nodes can make from the files are left out.
    """
    if not mirror.is_dir():
        raise StageFailed(
            "clone", f"the mirror {mirror} is gone", hint=f"run `minisandbox records drop {clone}`"
        )
    binds = [Bind(source=mirror.resolve(), target=f"{TOOLS}/mirror")]
    for number, (_, place) in enumerate(submodules):
        binds.append(Bind(source=place.resolve(), target=f"{TOOLS}/submodule{number}"))
    depth = (
        {"none": "1", "full": ""}.get(history)
        if history in ("none", "full")
        else str(int(history) + 1)
    )
    with Workshop(
        [], store=store, network="none", log=log, name=name, binds=binds, limits=limits
    ) as shop:
        result = shop.sandbox.run(
            [
                "/bin/bash",
                "-s",
                "--",
                f"{TOOLS}/mirror",
                revision,
                depth or "",
                str(layer_date("source")),
            ],
            stdin=script("checkout.sh"),
            timeout=1800,
            merge_stderr=True,
        )
        if result.exit_code == _NO_COMMIT:
            raise StageFailed(
                "commit",
                f"{url} has no commit {revision}",
                hint="check the row's 'base_commit'; if it is newer than the mirror, run "
                f"`minisandbox records drop {clone}` and `snakemake` again",
            )
        if result.exit_code == _AMBIGUOUS:
            raise StageFailed(
                "commit",
                f"{url} has several commits that begin with {revision}",
                hint="give the row its full hash in 'base_commit'",
            )
        if result.limit:
            raise shop.reached_limit(f"checking out {revision} of {url}", result)
        if result.exit_code != 0:
            raise StageFailed(
                "commit", f"checking out {revision} of {url} failed: {result.text.strip()[-300:]}"
            )
        commit, date = result.text.split()[-2:]
        indices = {INDEX}
        if submodules:
            indices |= _add_submodules(shop, [submodule for submodule, _ in submodules])
        if history == "none":
            _strip(shop, url)
        normalise_index(shop, *indices)
        layer = shop.pack("source", newer=frozenset(indices))
    return Checkout(layer=layer, commit=commit, date=int(date))


def commit_install(shop: Workshop, *, date: int) -> Head:
    """Record what the install step changed: tracked files in a commit of ``date`` on top, other
    files as excluded.
    """
    result = run_script(
        shop,
        "commit.sh",
        str(date),
        str(layer_date("instance")),
        what="committing the install",
        purpose="commit",
        timeout=600,
    )
    commit, tree = result.text.split()[-2:]
    normalise_index(shop)
    return Head(commit=commit, tree=tree)


def _strip(shop: Workshop, url: str) -> None:
    """Leave git's objects out that ``store.gitobjects`` makes again."""
    result = shop.sandbox.run(
        ["/bin/bash", "-s"], stdin=script("strip.sh"), timeout=1800, merge_stderr=True
    )
    if result.limit:
        raise shop.reached_limit(f"stripping the checkout of {url}", result)
    if result.exit_code != 0:
        raise StageFailed(
            "commit", f"stripping the checkout of {url} failed: {result.text.strip()[-300:]}"
        )


def _add_submodules(shop: Workshop, submodules: Sequence[Submodule]) -> set[str]:
    """Check out submodules in the checkout; returns their indices."""
    words = [
        word
        for number, item in enumerate(submodules)
        for word in (f"{TOOLS}/submodule{number}", item.commit, item.path, item.name, item.url)
    ]
    result = shop.sandbox.run(
        ["/bin/bash", "-s", "--", str(layer_date("source")), *words],
        stdin=script("submodules.sh"),
        timeout=1800,
        merge_stderr=True,
    )
    said = result.text.strip()
    if result.exit_code == _NO_COMMIT:
        path, commit = said.split()[-2:]
        raise StageFailed("commit", f"the mirror of submodule {path} has no commit {commit}")
    if result.limit:
        raise shop.reached_limit("checking out submodules", result)
    if result.exit_code != 0:
        raise StageFailed("commit", f"checking out submodules failed: {said[-300:]}")
    return {f"testbed/{item.path}/.git/index" for item in submodules}


def normalise_index(shop: Workshop, *indices: str) -> None:
    """Have indices, by default that of the checkout, say nothing of this machine."""
    for index in indices or (INDEX,):
        path = f"/{index}"
        shop.sandbox.write_file(path, gitindex.normalise(shop.sandbox.read_file(path)))


@functools.cache
def scripts_digest(folder_name: str = "") -> str:
    """Digest of the scripts that make a checkout, or of those in one of their folders: a record
    made by others is made anew.
    """
    folder = resources.files("minisandbox.build.checkouts") / "scripts"
    if folder_name:
        folder = folder / folder_name
    files = sorted(
        (item for item in folder.iterdir() if item.is_file()), key=lambda item: item.name
    )
    return keys.digest_of([[item.name, item.read_text(encoding="utf-8")] for item in files])


def run_script(
    shop: Workshop, name: str, *words: str, what: str, purpose: str, timeout: float
) -> Result:
    """Run one of the scripts that work on what was installed; raises ``StageFailed`` of kind
    ``install``.
    """
    return shop.run(
        ["/bin/bash", "-s", "--", *words],
        stdin=script(name),
        failure="install",
        what=what,
        purpose=purpose,
        timeout=timeout,
        quiet=True,
    )


def script(name: str) -> bytes:
    """One of the scripts that run inside."""
    return (resources.files("minisandbox.build.checkouts") / "scripts" / name).read_bytes()
