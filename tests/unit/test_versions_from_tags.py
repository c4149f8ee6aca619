"""Which installed distributions are the repository's own, by what installers leave behind."""

from __future__ import annotations

import os
import subprocess
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from minisandbox.build.checkouts import scm_versions
from minisandbox.build.checkouts.scm_versions import own_versions, releases, usable_versions

SCRIPT = Path(scm_versions.__file__).with_name("scripts") / "scm_version.py"

Files = Mapping[str, str]


def info(name: str, version: str = "1.2") -> str:
    return (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: x\n\nName: not this\n"
    )


class Place:
    """A repository that asks git for its version, and an environment that it is installed in."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "testbed"
        venv.create(folder / "venv")
        self.python = folder / "venv/bin/python"
        self.site = next((folder / "venv/lib").glob("python*")) / "site-packages"
        self.write({"testbed/setup.py": "setup(use_scm_version=True)"})

    def write(self, files: Files) -> None:
        for name, text in files.items():
            top, _, rest = name.partition("/")
            path = {"site": self.site, "testbed": self.repository}[top] / rest
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("/testbed", str(self.repository)))

    def listing(self) -> list[str]:
        done = subprocess.run(
            [self.python, "-I", "-", self.repository],
            input=SCRIPT.read_bytes(),
            stdout=subprocess.PIPE,
            check=True,
            cwd=self.repository,
            env={**os.environ, "PYTHONPATH": str(self.repository)},
        )
        return done.stdout.decode().splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


#: As setuptools before 49 wrote it: what is between the imports comes first on ``sys.path``.
FIRST = (
    "import sys; sys.__plen = len(sys.path)\n"
    "{}\n"
    "import sys; new=sys.path[sys.__plen:]; del sys.path[sys.__plen:]; "
    "p=getattr(sys,'__egginsert',0); sys.path[p:p]=new; sys.__egginsert = p+len(new)\n"
)
URL = '{"dir_info": {}, "url": "file:///testbed"}'

INSTALLED: dict[str, tuple[Files, str]] = {
    "pip-install": (
        {"site/x-1.2.dist-info/METADATA": info("x"), "site/x-1.2.dist-info/direct_url.json": URL},
        "own x 1.2",
    ),
    "pip-install-editable": (
        {
            "site/x-1.2.dist-info/METADATA": info("x"),
            "site/x-1.2.dist-info/direct_url.json": URL.replace("{}", '{"editable": true}'),
            "site/__editable__.x-1.2.pth": "/testbed/lib\n",
        },
        "own x 1.2",
    ),
    "pip-install-of-a-folder": (
        {
            "site/x-1.2.dist-info/METADATA": info("x"),
            "site/x-1.2.dist-info/direct_url.json": URL.replace("/testbed", "/testbed/python/"),
        },
        "own x 1.2",
    ),
    "setup.py-develop": (
        {
            "site/x.egg-link": "/testbed\n.",
            "site/easy-install.pth": FIRST.format("/testbed"),
            "testbed/x.egg-info/PKG-INFO": info("x"),
        },
        "own x 1.2",
    ),
    "setup.py-develop-of-src": (
        {
            "site/x.egg-link": "/testbed/src\n../",
            "site/easy-install.pth": "/testbed/src\n",
            "testbed/src/x.egg-info/PKG-INFO": info("x"),
        },
        "own x 1.2",
    ),
    "setup.py-install": (
        {
            "site/x-1.2-py3.6.egg/EGG-INFO/PKG-INFO": info("x"),
            "site/easy-install.pth": FIRST.format("./x-1.2-py3.6.egg"),
        },
        "other x 1.2",
    ),
    "old-pip": ({"site/x-1.2-py3.6.egg-info/PKG-INFO": info("x")}, "other x 1.2"),
    "distutils": ({"site/x-1.2.egg-info": info("x")}, "other x 1.2"),
    "index": ({"site/x-1.2.dist-info/METADATA": info("x")}, "other x 1.2"),
    "somewhere-else": (
        {
            "site/x-1.2.dist-info/METADATA": info("x"),
            "site/x-1.2.dist-info/direct_url.json": URL.replace("/testbed", "/testbed-2"),
        },
        "other x 1.2",
    ),
}


@pytest.mark.parametrize("how", INSTALLED)
def test_what_is_installed_from_the_repository_is_known(place: Place, how: str) -> None:
    files, line = INSTALLED[how]
    place.write(files)
    # A fixture of its tests, which nobody installed.
    place.write({"testbed/tests/fixture.egg-info/PKG-INFO": info("fixture")})
    (place.repository / "src").mkdir(exist_ok=True)
    assert [item for item in place.listing() if " x " in item] == [line]
    assert not any("fixture" in item for item in place.listing())


def test_a_packed_egg_is_read(place: Place) -> None:
    with zipfile.ZipFile(place.site / "x-1.2-py3.6.egg", "w") as egg:
        egg.writestr("EGG-INFO/PKG-INFO", info("x"))
    assert place.listing() == ["other x 1.2"]


@pytest.mark.parametrize("how", ["setup.py-develop", "pip-install"])
def test_modules_of_the_repository_are_not_imported(place: Place, how: str) -> None:
    place.write(INSTALLED[how][0])
    for name in ("json", "glob", "re", "zipfile"):
        place.write({f"testbed/{name}.py": "raise SystemExit('the module of the repository')"})
    assert place.listing() == ["own x 1.2"]


def test_a_project_that_does_not_ask_git_is_left_alone(place: Place) -> None:
    place.write({**INSTALLED["pip-install"][0], "testbed/setup.py": "setup(version='1.2')"})
    assert place.listing() == []


LISTING = (
    "own My_Project 1.2.dev1+g12\nother Six 1.16\nother built 3\nother six-again 1\nodd words\n"
)


@pytest.mark.parametrize(
    ("others", "own"),
    [
        (None, {"my-project"}),
        (releases(["six==1.16.0", "six.again==1"]), {"my-project", "built"}),
        (releases(["six==1.16.0", "built==3", "SIX_again==1.0"]), {"my-project"}),
        (releases(["six==1.15.0", "built==3", "six-again==1.0"]), {"my-project", "six"}),
    ],
)
def test_what_says_no_origin_is_the_repositorys_if_nothing_else_gave_it(
    others: set[scm_versions.Release] | None, own: set[str]
) -> None:
    versions = own_versions(LISTING, others=others)
    assert set(versions) == own
    assert versions[canonicalize_name("My.Project")] == "1.2.dev1+g12"


@pytest.mark.parametrize("note", ["{", "[]", "{}", '{"url": 1}', '"x"'])
def test_a_note_of_origin_that_says_nothing_is_none(place: Place, note: str) -> None:
    place.write({**INSTALLED["index"][0], "site/x-1.2.dist-info/direct_url.json": note})
    assert place.listing() == ["other x 1.2"]


def test_a_name_that_no_locale_has_breaks_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    monkeypatch.setenv("LC_ALL", "C")
    place.write({"site/x-1.2.dist-info/METADATA": info("\u00fcx")})
    assert place.listing() == ["other \\xfcx 1.2"]


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("-x", "1", "no name"),
        ("x;y", "1", "no name"),
        ("\u00fc", "1", "no name"),
        ("x", "1=2", "no version"),
        ("x", "latest", "no version"),
        ("x", f"1+{'a' * 300}", "no version"),
    ],
)
def test_what_cannot_be_handed_in_is_ignored_and_said(name: str, version: str, reason: str) -> None:
    claimed = own_versions(f"own {name} {version}\nown fine 1.2\n", others=None)
    usable, (line,) = usable_versions(claimed)
    assert usable == {"fine": "1.2"}
    assert reason in line
    assert len(line) < 300


def test_no_repository_has_a_hundred_distributions() -> None:
    listing = "".join(f"own x{number} 1\n" for number in range(100))
    usable, ignored = usable_versions(own_versions(listing, others=None))
    assert (len(usable), len(ignored)) == (20, 80)


def test_a_note_of_origin_counts_more() -> None:
    versions = own_versions("own x 1.2\nother x 1.1\n", others=frozenset())
    assert list(versions.values()) == ["1.2"]
