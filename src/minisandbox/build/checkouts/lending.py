"""Lending a checkout its past while the repository is installed, and giving git back as it was.

What an install command does to ``.git`` is nobody's wish: refs into the lent past, commits, hooks,
stashes, worktrees, filters. So everything there but the index is put back to what it was before,
from a copy that the inside never had; what the command did to files of the work tree stays.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from minisandbox.build.checkouts.checkout import run_script
from minisandbox.build.workshop import Workshop
from minisandbox.errors import SandboxFileError, StageFailed
from minisandbox.runtime.instance import TESTBED

_GIT = f"{TESTBED}/.git"

#: What a checkout's ``.git`` is made of beside its index and objects; its refs are all packed.
_FILES = ("HEAD", "config", "packed-refs", "shallow", "info/exclude")

#: One line an object file: its digest and its path.
_LIST_OBJECTS = (
    f"cd {_GIT}/objects && find . -path ./info -prune -o -type f -print0 "
    "| sort -z | xargs -0 -r sha256sum"
)

_TIMEOUT = 600.0


@dataclass(frozen=True)
class KeptGit:
    """The ``.git`` of a checkout as it was: contents of its files, digests of its objects."""

    files: dict[str, bytes]
    objects: frozenset[str]

    @classmethod
    def of(cls, shop: Workshop) -> KeptGit:
        """The state now; the checkout is still ours."""
        files: dict[str, bytes] = {}
        for name in _FILES:
            try:
                files[name] = shop.sandbox.read_file(f"{_GIT}/{name}")
            except SandboxFileError:
                continue  # a full history has no `shallow`
        return cls(files, frozenset(_objects(shop)))

    def restore(self, shop: Workshop) -> None:
        """End what still runs and put ``.git`` back; raises ``StageFailed`` of kind ``install`` if
        that cannot be done.
        """
        shop.end_processes()
        run_script(shop, "restore.sh", what="putting git back", purpose="history", timeout=_TIMEOUT)
        found = frozenset(_objects(shop))
        if lost := self.objects - found:
            raise StageFailed(
                "install",
                f"the install command changed {len(lost)} files of the repository's objects, "
                "as `git gc` does",
                hint="git may be asked, and not told, in 'install'",
            )
        more = sorted(line.partition("  ")[2] for line in found - self.objects)
        shop.sandbox.run(
            ["xargs", "-0", "-r", "rm", "-f", "--"],
            stdin="\0".join(more).encode("utf-8", "surrogateescape"),
            cwd=f"{_GIT}/objects",
            timeout=_TIMEOUT,
        )
        for name, content in self.files.items():
            shop.sandbox.write_file(f"{_GIT}/{name}", content)
        # What was staged is staged no more; the files are as the command left them.
        shop.run(
            "export GIT_CONFIG_GLOBAL=/dev/null; git reset -q && rm -rf .git/logs .git/ORIG_HEAD",
            failure="install",
            what="putting git's index back",
            purpose="history",
            cwd=TESTBED,
            timeout=_TIMEOUT,
            quiet=True,
        )


@contextmanager
def lent_history(shop: Workshop, mirror: str, commit: str) -> Generator[KeptGit]:
    """While it lasts, git in the checkout sees its past and the tags of it, from the mirror that is
    bound at ``mirror``. Gives what :meth:`KeptGit.restore` can be called on again.
    """
    kept = KeptGit.of(shop)
    run_script(
        shop,
        "history.sh",
        mirror,
        commit,
        what="lending the history",
        purpose="history",
        timeout=_TIMEOUT,
    )
    yield kept
    kept.restore(shop)


def _objects(shop: Workshop) -> list[str]:
    listed = shop.sandbox.run(_LIST_OBJECTS, timeout=_TIMEOUT, max_output=2**28)
    if listed.exit_code != 0 or listed.truncated:
        raise StageFailed("install", f"{_GIT}/objects cannot be read: {listed.stderr_text[-200:]}")
    return listed.stdout.decode("utf-8", "surrogateescape").splitlines()
