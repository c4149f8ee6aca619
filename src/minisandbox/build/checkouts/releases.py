"""Release pairs: consecutive source releases of one project, as commits of a git repository.

Only names and versions are kept in this project; the code comes from the package index.
Invariants: the same sdists give the same commit hashes on every machine and in every run; a tree
holds the bytes of the sdist, untouched by attributes, line-end conversion and ignore rules
(``git fast-import``, never ``git add``); nothing of an sdist is unpacked onto the file system.
"""

from __future__ import annotations

import fnmatch
import gzip
import os
import posixpath
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from minisandbox import atomic, process
from minisandbox.build.index.package_index import Index, Release, download, find_release
from minisandbox.errors import ProcessFailed, StageFailed, UnsafeArchive

#: Bytes of all files of one sdist together: they are in memory at once, and no real one comes near.
_MAX_UNPACKED = 1 << 30
_IDENTITY = "Release Pairs <release-pairs@minisandbox.invalid>"
_BRANCH = "refs/heads/main"

#: What setuptools writes at the end of setup.cfg when it makes an sdist: the defaults, spelled out.
_EGG_INFO_SECTION = re.compile(rb"(\A|\n)\s*\[egg_info\]\s*tag_build =\s*tag_date = 0\s*\Z")
_CHANGELOG = re.compile(
    r"(docs?/)?(changes|changelog|news|history)(\.(rst|md|txt))?", re.IGNORECASE
)
_README = re.compile(r"readme(\.(rst|md|txt))?", re.IGNORECASE)
_TEST_ROOTS = ("tests", "test", "testing")
_TEST_FILES = ("test_*.py", "*_test.py", "conftest.py")
#: The form of a patch must not depend on what a user prefers to see.
_DIFF = ("--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")


@dataclass(frozen=True)
class PairPatches:
    """The difference of two releases as the fields of a dataset row."""

    patch: str
    test_patch: str
    problem_statement: str


def build_repository(
    project: str, versions: Sequence[str], mirror: Path, *, cache: Path, index: Index
) -> dict[str, str]:
    """Make the bare repository ``mirror``, one commit a version in this order; version -> commit.

    Built beside and renamed. A mirror that already ends in the same commit is left alone, so that
    who reads it is not disturbed; any other is replaced.
    """
    releases = [find_release(project, version, index=index) for version in versions]
    sdists = [download(release, cache) for release in releases]
    with atomic.locked(mirror.with_name(f"{mirror.name}.lock")):
        work = Path(tempfile.mkdtemp(prefix=f".{mirror.name}.", suffix=".tmp", dir=mirror.parent))
        try:
            fresh = work / "fresh"
            commits = _import(releases, sdists, fresh)
            if _head(mirror) != _head(fresh):
                if mirror.exists():
                    os.rename(mirror, work / "replaced")
                os.rename(fresh, mirror)
                atomic.fsync_directory(mirror.parent)
        finally:
            shutil.rmtree(work)
    return dict(zip(versions, commits, strict=True))


def _head(repository: Path) -> str | None:
    """The commit of main, or None where there is no readable repository."""
    try:
        return _git(repository, "rev-parse", "--verify", "--quiet", _BRANCH).decode().strip()
    except ProcessFailed:
        return None


def _import(releases: Sequence[Release], sdists: Sequence[Path], repository: Path) -> list[str]:
    # No template: the user's may bring hooks. sha1: GIT_DEFAULT_HASH must not decide. shared: the
    # other ids that sandboxes run as read the mirror, whatever the umask was.
    form = ["--bare", "--template=", "--object-format=sha1", "--shared=0644"]
    _git(repository.parent, "init", "--quiet", *form, "--initial-branch=main", repository.name)
    commits: list[str] = []
    moment = 0
    for release, sdist in zip(releases, sdists, strict=True):
        # A backport may be uploaded after its successor, but history must not run backwards.
        moment = max(moment, release.uploaded)
        parent = commits[-1] if commits else None
        stream = b"".join(_commit(release, sdist, moment, parent))
        _git(repository, "fast-import", "--quiet", "--done", stdin=stream)
        commits.append(_git(repository, "rev-parse", _BRANCH).decode().strip())
    return commits


def _commit(release: Release, sdist: Path, moment: int, parent: str | None) -> Iterator[bytes]:
    """One commit in the language of ``git fast-import``."""
    message = f"{release.project} {release.version}\n".encode()
    who = f"{_IDENTITY} {moment} +0000"
    yield f"commit {_BRANCH}\nauthor {who}\ncommitter {who}\n".encode()
    yield b"data %d\n%s" % (len(message), message)
    yield f"from {parent}\n".encode() if parent else b""
    yield b"deleteall\n"
    for path, mode, content in _tree(sdist):
        yield b"M %s inline %s\ndata %d\n" % (mode, _quoted(path), len(content))
        yield content
        yield b"\n"
    yield b"done\n"


def _quoted(path: str) -> bytes:
    raw = path.encode("utf-8", "surrogateescape")
    return b'"%s"' % raw.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")


def _tree(sdist: Path) -> Iterator[tuple[str, bytes, bytes]]:
    """Path, git mode and content of each file of an sdist, below its one top directory."""
    top: str | None = None
    total = 0
    try:
        with tarfile.open(sdist, encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                _refuse_hostile(sdist.name, member)
                first, path = _inside(member.name)
                if first == ".":  # archives of `tar -c .` begin with an entry for the folder itself
                    continue
                total += member.size
                if top not in (None, first):
                    raise UnsafeArchive(sdist.name, member.name, f"it is beside {top}/, not below")
                if total > _MAX_UNPACKED:
                    raise UnsafeArchive(sdist.name, member.name, "the files exceed 1 GiB together")
                top = first
                if path and not member.isdir() and not _is_generated(path):
                    yield from _entry(archive, member, path)
    except UnsafeArchive as error:
        raise StageFailed("clone", str(error), hint="this release cannot be used") from error
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise StageFailed("clone", f"{sdist.name} is not a readable sdist ({error})") from error


def _inside(name: str) -> tuple[str, str]:
    """The top directory of a member and the path below it."""
    top, _, path = posixpath.normpath(name).partition("/")
    return top, path


def _refuse_hostile(archive: str, member: tarfile.TarInfo) -> None:
    """The verdicts of ``tarfile.data_filter``, which Python has only since 3.11.4.

    Nothing is unpacked here, but the tree is checked out later, and a path or link out of it would
    then reach the machine that does so.
    """
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise UnsafeArchive(archive, member.name, "it is neither file, directory nor link")
    if member.name.startswith("/") or _inside(member.name)[0] == "..":
        raise UnsafeArchive(archive, member.name, "its path leaves the archive")
    if member.issym():
        # From the top directory: what an archive has beside it does not exist in the checkout.
        target = posixpath.join(posixpath.dirname(member.name), member.linkname)
        if _inside(target)[0] != _inside(member.name)[0]:
            raise UnsafeArchive(archive, member.name, f"it links to {member.linkname}")


def _is_generated(path: str) -> bool:
    """Whether the sdist command, not the project, made this file.

    PKG-INFO and egg-info change with every release: they would be noise in each gold patch, and
    builds make them again. A .git (left by submodules) cannot be in a git tree.
    """
    parts = path.split("/")
    return (
        path == "PKG-INFO"
        or any(part.endswith(".egg-info") for part in parts)
        or any(part.casefold() == ".git" for part in parts)
    )


def _entry(
    archive: tarfile.TarFile, member: tarfile.TarInfo, path: str
) -> Iterator[tuple[str, bytes, bytes]]:
    if member.issym():
        yield path, b"120000", member.linkname.encode("utf-8", "surrogateescape")
        return
    try:
        file = archive.extractfile(member)
    except KeyError:
        file = None
    if file is None:
        raise tarfile.TarError(
            f"{member.name} is a hard link to {member.linkname}, which is no file in it"
        )
    content = file.read()
    if path == "setup.cfg":
        content = _EGG_INFO_SECTION.sub(rb"\1", content)
        if not content:
            return
    yield path, b"100755" if member.mode & 0o100 else b"100644", content


def split_pair(mirror: Path, before: str, after: str, *, test_paths: Sequence[str]) -> PairPatches:
    """The difference of two commits as gold patch, test patch and problem statement.

    A file is part of the test patch if it is below one of ``test_paths`` (directories or globs) or
    is a test by convention.
    """
    changed = _git(mirror, "diff", "--name-only", "--no-renames", "-z", before, after)
    paths = [path for path in changed.decode("utf-8", "surrogateescape").split("\0") if path]
    return PairPatches(
        patch=_diff(mirror, before, after, [p for p in paths if not _is_test(p, test_paths)]),
        test_patch=_diff(mirror, before, after, [p for p in paths if _is_test(p, test_paths)]),
        problem_statement=_problem_statement(mirror, before, after, paths),
    )


def _is_test(path: str, test_paths: Sequence[str]) -> bool:
    for pattern in test_paths:
        if path.startswith(pattern.rstrip("/") + "/") or fnmatch.fnmatchcase(path, pattern):
            return True
    *directories, name = path.split("/")
    # Deeper down only "tests" counts: django/test and numpy/testing are library code.
    return (
        (bool(directories) and directories[0] in _TEST_ROOTS)
        or "tests" in directories
        or any(fnmatch.fnmatchcase(name, pattern) for pattern in _TEST_FILES)
    )


def _diff(mirror: Path, before: str, after: str, paths: Sequence[str]) -> str:
    """A patch of these paths that ``git apply`` takes and that is UTF-8, as JSON and parquet need.

    ``--binary`` alone is not enough: git calls a file binary by its NUL bytes, so a Latin-1 file is
    diffed as text, in raw bytes. Such files become binary patches (base85) instead: decoding them
    in any lossy or private way would give a patch that no other tool can apply.
    """
    if not paths:  # git would take no path as all paths
        return ""
    patch = _text(_diff_bytes(mirror, before, after, paths))
    if patch is not None:
        return patch
    return "".join(_diff_one(mirror, before, after, path) for path in paths)


def _diff_one(mirror: Path, before: str, after: str, path: str) -> str:
    patch = _text(_diff_bytes(mirror, before, after, [path]))
    if patch is None:
        with tempfile.NamedTemporaryFile() as attributes:
            attributes.write(b"* -diff\n")
            attributes.flush()
            binary = ["-c", f"core.attributesFile={attributes.name}"]
            patch = _diff_bytes(mirror, before, after, [path], options=binary).decode("ascii")
    return patch


def _text(patch: bytes) -> str | None:
    try:
        return None if b"\0" in patch else patch.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _diff_bytes(
    mirror: Path, before: str, after: str, paths: Sequence[str], *, options: Sequence[str] = ()
) -> bytes:
    form = ("--binary", "--full-index", *_DIFF)
    return _git(mirror, *options, "--literal-pathspecs", "diff", *form, before, after, "--", *paths)


def _problem_statement(mirror: Path, before: str, after: str, paths: Sequence[str]) -> str:
    """What the project itself wrote about the change: the lines that its changelog gained."""
    subjects = [
        _git(mirror, "log", "-1", "--format=%s", commit).decode("utf-8", "replace").strip()
        for commit in (before, after)
    ]
    changelogs = [path for path in paths if _CHANGELOG.fullmatch(path)]
    text = max(
        (_added_lines(mirror, before, after, path) for path in changelogs), key=len, default=""
    )
    if not text:
        # Some keep the changelog at the end of the read-me; its other changes come before it.
        version = subjects[1].rpartition(" ")[2]
        for path in filter(_README.fullmatch, paths):
            _, found, rest = _added_lines(mirror, before, after, path).partition(f"- {version} ")
            text = text or found + rest
    if text:
        return f"{subjects[1]}\n\n{text}\n"
    return f"Change {subjects[0]} so that it behaves as {subjects[1]} does.\n"


def _added_lines(mirror: Path, before: str, after: str, path: str) -> str:
    argv = ["--literal-pathspecs", "diff", "--unified=0", *_DIFF, before, after, "--", path]
    diff = _git(mirror, *argv).decode("utf-8", "replace")
    body = diff.partition("\n@@")[2].split("\n")
    lines = [line[1:].rstrip("\r") for line in body if line.startswith("+")]
    return "\n".join(lines).strip("\n")


def _git(directory: Path, *argv: str, stdin: bytes | None = None) -> bytes:
    """Run git as if the user had no configuration: it must not decide about hashes and patches."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        # Not covered by the above: git reads $XDG_CONFIG_HOME/git/attributes all the same.
        "XDG_CONFIG_HOME": "/nonexistent",
    }
    # A mirror that another user made is only read: it has neither hooks nor filters to run.
    command = ["git", "-c", "safe.directory=*", *argv]
    return process.run(command, cwd=directory, env=environment, stdin=stdin).stdout
