"""Print which distributions are installed where their version may come from git tags.

Runs inside, isolated (``python -I - REPOSITORY``), with the environment's own Python (3.6 or
later), after the install. If the project's build asks git, one line a distribution:
``own NAME VERSION`` for what is known to be installed from the repository, ``other NAME VERSION``
for what does not say where it comes from.
"""

import sys

REPOSITORY = sys.argv[1]


def in_repository(path: str) -> bool:
    """Whether a path is the repository or below it."""
    return path == REPOSITORY or path.startswith(REPOSITORY + "/")


# Old setuptools put what is installed for development before the standard library, isolated or
# not (easy-install.pth), and a repository may have a json.py.
PLACES = list(sys.path)
sys.path[:] = [place for place in PLACES if not in_repository(place)]

import glob  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import zipfile  # noqa: E402
from collections.abc import Iterator  # noqa: E402


def asks_git() -> bool:
    """Whether the project's build says that its version comes from setuptools_scm or its kin."""
    for name in ("pyproject.toml", "setup.cfg", "setup.py"):
        try:
            with open(os.path.join(REPOSITORY, name), encoding="utf-8", errors="replace") as file:
                if re.search(r"setuptools[_-]scm|use_scm_version|hatch-vcs", file.read()):
                    return True
        except OSError:
            continue
    return False


def distributions() -> "Iterator[tuple[bool, str, str]]":
    """Whether it is the repository's, name and version of each distribution."""
    for place in PLACES:
        if in_repository(place):
            # A .pth file named it, so its metadata are installed: with an .egg-link beside that
            # file, or without. Metadata elsewhere in the repository can be those of test fixtures.
            for path in infos(place, "egg-info") + infos(place, "dist-info"):
                yield (True, *named(path))
        elif place.endswith("site-packages"):
            for path in infos(place, "dist-info") + infos(place, "egg-info"):
                yield (from_repository(path), *named(path))
            for path in infos(place, "egg"):  # setup.py install
                yield (False, *named(path))


def infos(place: str, ending: str) -> "list[str]":
    """Everything in a folder with one ending."""
    return sorted(glob.glob(os.path.join(glob.escape(place), "*." + ending)))


def from_repository(info: str) -> bool:
    """Whether pip or uv noted that they installed it from the repository."""
    try:
        with open(os.path.join(info, "direct_url.json"), encoding="utf-8") as file:
            url = json.load(file)["url"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if not isinstance(url, str):
        return False
    return url.startswith("file://") and in_repository(url[len("file://") :].rstrip("/"))


def named(path: str) -> "tuple[str, str]":
    """Name and version by the metadata of a .dist-info, an .egg-info, a file or not, or an .egg,
    packed or not; empty where it has none.
    """
    for name in ("METADATA", "PKG-INFO", "EGG-INFO/PKG-INFO"):
        if os.path.isfile(os.path.join(path, name)):
            with open(os.path.join(path, name), encoding="utf-8", errors="replace") as file:
                return fields(file.read())
    if path.endswith(".egg") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as egg:
            if "EGG-INFO/PKG-INFO" in egg.namelist():
                return fields(egg.read("EGG-INFO/PKG-INFO").decode("utf-8", "replace"))
    elif os.path.isfile(path):
        with open(path, encoding="utf-8", errors="replace") as file:
            return fields(file.read())
    return "", ""


def fields(text: str) -> "tuple[str, str]":
    """The name and the version of one metadata text."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            break
        key, _, value = line.partition(":")
        found.setdefault(key.lower(), value.strip())
    return found.get("name", ""), found.get("version", "")


if asks_git():
    for own, name, version in distributions():
        if name and version:
            line = "{} {} {}\n".format("own" if own else "other", name, version)
            sys.stdout.write(
                line.encode("ascii", "backslashreplace").decode()
            )  # whatever the locale
