"""Putting a bug into an installed healthy commit, so that nothing of the healthy tree is left.

A bug is a layer on top of the layers of its commit: the files that it changes, an index, the few
objects of git's that are new, and whiteouts for those that only the healthy tree had. Installing is
done once for all bugs of a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minisandbox.build.checkouts.checkout import Head, normalise_index, script
from minisandbox.build.checkouts.lending import KeptGit
from minisandbox.build.workshop import Workshop, layer_date
from minisandbox.errors import PatchFailed, StageFailed
from minisandbox.evaluate.patches import patched_paths
from minisandbox.runtime import worktree
from minisandbox.runtime.instance import TESTBED

_TIMEOUT = 600.0
#: Exit codes of the scripts: the bug changes nothing; an archive holds what it changes.
_NOTHING, _ARCHIVE = 92, 93

#: Version of the order of ``plant``, which no script tells; counted up with a change of the layers.
METHOD = 1


@dataclass(frozen=True)
class Planted:
    """A bug in its place: the commit and the tree that changes are told against, the patch that
    brings the hidden test files back, and the files that the healthy commit tracks.
    """

    head: Head
    test_patch: str
    tracked: frozenset[str]


def plant(
    shop: Workshop, bug: str, *, hidden: Sequence[str], rebuild: str, timeout: float
) -> Planted:
    """Put ``bug`` into the installed commit in ``shop``, run ``rebuild`` if there is one, and take
    away the ``hidden`` files, those of them that there are.

    Raises ``StageFailed`` of kind ``patch`` or ``install``.
    """
    changed = patched_paths(bug)
    tracked = _tracked(shop)
    hidden = sorted(tracked & {*hidden})
    copies = _copies(shop, sorted(tracked & {*changed} - {*hidden}))
    hidden_copies = _copies(shop, hidden)
    try:
        worktree.apply_patch(shop.sandbox, bug, name="bug")
    except PatchFailed as error:
        raise StageFailed("patch", str(error), hint="is it a patch for this commit?") from None
    _write_list(shop, "copies", copies)
    _run(shop, script("bugs/follow.sh"), what="changing copies")
    if rebuild:
        kept = KeptGit.of(shop)
        shop.run(
            rebuild,
            failure="install",
            what="the rebuild command",
            purpose="rebuild",
            cwd=TESTBED,
            timeout=timeout,
            hint="see 'rebuild' in the recipe",
        )
        kept.restore(shop)
        hidden_copies += _copies(shop, hidden)  # it may have made others
    _write_list(shop, "changed", changed)
    _write_list(shop, "hidden", hidden)
    _write_list(shop, "copies", hidden_copies)
    _run(shop, script("bugs/hide.sh"), what="hiding copies of tests")
    date = int(_run(shop, b"cd /testbed && git show -s --format=%ct HEAD", what="its date"))
    said = _run(
        shop, script("squash.sh"), str(date), str(layer_date("bug")), what="squashing its history"
    )
    commit, tree = said.split()[-2:]
    normalise_index(shop)
    return Planted(
        head=Head(commit=commit, tree=tree),
        tracked=tracked,
        test_patch=shop.sandbox.read_file("/tmp/tests.patch").decode("utf-8"),
    )


def _tracked(shop: Workshop) -> frozenset[str]:
    listed = shop.sandbox.run(
        ["git", "ls-files", "-z"], cwd=TESTBED, timeout=_TIMEOUT, max_output=2**28
    )
    if listed.limit:
        raise shop.reached_limit("listing its files", listed)
    if listed.exit_code != 0 or listed.truncated or not listed.stdout:
        said = "too much" if listed.truncated else listed.stderr_text.strip()[-300:] or "nothing"
        raise StageFailed("install", f"git does not list the files of the commit: it said {said}")
    return frozenset(listed.stdout.decode("utf-8", "surrogateescape").split("\0")) - {""}


def _copies(shop: Workshop, paths: Sequence[str]) -> list[str]:
    """Pairs, one after the other, of a file and what installing made a copy of it."""
    _write_list(shop, "paths", paths)
    found = shop.sandbox.run(
        ["/bin/bash", "-s"], stdin=script("copies.sh"), timeout=_TIMEOUT, max_output=2**28
    )
    if found.exit_code == _ARCHIVE:
        raise StageFailed(
            "install",
            f"the install keeps what the bug changes in an archive: {found.stderr_text.strip()}",
            hint="install the project as editable, with a recipe of its own",
        )
    if found.limit:
        raise shop.reached_limit("finding copies", found)
    if found.exit_code != 0 or found.truncated:
        raise StageFailed("install", f"no copies can be found: {found.stderr_text[-300:]}")
    return found.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


def _run(shop: Workshop, text: bytes, *arguments: str, what: str) -> str:
    result = shop.sandbox.run(
        ["/bin/bash", "-s", "--", *arguments], stdin=text, timeout=_TIMEOUT, merge_stderr=True
    )
    if result.exit_code == _NOTHING:
        raise StageFailed("patch", "the bug changes nothing")
    if result.limit:
        raise shop.reached_limit(what, result)
    if result.exit_code != 0:
        raise StageFailed("install", f"{what} failed: {result.text.strip()[-300:]}")
    return result.text


def _write_list(shop: Workshop, name: str, items: Sequence[str]) -> None:
    content = "".join(f"{item}\0" for item in items).encode("utf-8", "surrogateescape")
    shop.sandbox.write_file(f"/tmp/{name}", content)
