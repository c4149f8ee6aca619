"""Print which installed distributions come from /testbed and take their version from git tags.

Runs inside, with the environment's own Python (3.6 or later), after the install: one line
``name version`` each.
"""

import glob
import json
import os
import re
import sys

REPOSITORY = "/testbed"


def asks_git():
    """Whether the project's build says that its version comes from setuptools_scm or its kin."""
    for name in ("pyproject.toml", "setup.cfg", "setup.py"):
        try:
            with open(os.path.join(REPOSITORY, name), encoding="utf-8", errors="replace") as file:
                if re.search(r"setuptools[_-]scm|use_scm_version|hatch-vcs", file.read()):
                    return True
        except OSError:
            continue
    return False


def own_distributions():
    """Name and version of what is installed from the repository, by pip or setup.py develop."""
    for site in {path for path in sys.path if path.endswith("site-packages")}:
        for url in glob.glob(os.path.join(glob.escape(site), "*.dist-info", "direct_url.json")):
            with open(url, encoding="utf-8") as file:
                if json.load(file).get("url", "").rstrip("/") == "file://" + REPOSITORY:
                    yield from metadata(os.path.join(os.path.dirname(url), "METADATA"))
    for info in glob.glob(REPOSITORY + "/*.egg-info/PKG-INFO") + glob.glob(
        REPOSITORY + "/*/*.egg-info/PKG-INFO"
    ):
        yield from metadata(info)


def metadata(path):
    """Name and version of one metadata file."""
    found = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.rstrip("\n").partition(": ")
                if not line.strip():
                    break
                found.setdefault(key.lower(), value)
    except OSError:
        return
    if "name" in found and "version" in found:
        yield found["name"], found["version"]


if asks_git():
    for name, version in sorted(dict(own_distributions()).items()):
        sys.stdout.write(f"{name} {version}\n")
