"""D1: a date holds for installers of any age, for isolated builds, and for ``setup_requires``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minisandbox.build.index.proxy import IndexProxy
from minisandbox.build.index.upstream import certificates
from minisandbox.records.lock import IndexFile

# Two builds in isolation, over the network.
pytestmark = [pytest.mark.workflow, pytest.mark.timeout(180)]

#: The first days of Python 3.11; setuptools 65.5.0 is of October 13, 65.5.1 of November 4.
DATE = "2022-11-01"
SETUP = "from setuptools import setup; setup(name='x', py_modules=[], setup_requires=['toml'])\n"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pip without the JSON API, and a setuptools that still has easy_install."""
    folder = tmp_path_factory.mktemp("old")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, "pip==21.3.1", "setuptools==41.6.0"], check=True)
    return folder


class Build:
    """One build with an index of its own and no configuration of this machine."""

    def __init__(self, place: Path, cache: Path, lock: tuple[IndexFile, ...] | None) -> None:
        self.place = place
        self.proxy = IndexProxy(cache=cache, date=DATE, only=lock)
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/simple/"
        self.proxy.serve(listener)
        place.mkdir()
        (place / ".pydistutils.cfg").write_text(f"[easy_install]\nindex_url = {self.url}\n")

    def run(self, *argv: str, **variables: str) -> str:
        environment = {
            "PATH": os.defpath,
            "HOME": str(self.place),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_INDEX_URL": self.url,
            # An installer that goes past the index finds nobody there.
            "https_proxy": "http://127.0.0.1:1",
            **variables,
        }
        done = subprocess.run(
            [sys.executable, *argv],
            cwd=self.place,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    certificates()  # asks pip, once
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def builds(tmp_path: Path, cache: Path) -> Iterator[list[Build]]:
    made: list[Build] = []
    yield made
    for build in made:
        build.proxy.close()


def test_an_old_pip_builds_in_isolation_as_of_the_date_and_again_from_the_lock(
    builds: list[Build], tmp_path: Path, cache: Path, old: Path
) -> None:
    lock: tuple[IndexFile, ...] | None = None
    for number in range(2):
        build = Build(tmp_path / str(number), cache, lock)
        builds.append(build)
        options = ("--no-binary", "iniconfig", "--target", str(build.place / "target"))
        build.run("-m", "pip", "install", *options, "iniconfig", PYTHONPATH=str(old))
        assert (build.place / "target" / "iniconfig-1.1.1.dist-info").is_dir()
        served = {file.project: file for file in build.proxy.served}
        assert served["iniconfig"].filename == "iniconfig-1.1.1.tar.gz"
        assert served["setuptools"].version == "65.5.0"  # asked for by the isolated build alone
        assert max(file.uploaded for file in served.values()) < "2022-11-02"
        assert build.proxy.unreachable == build.proxy.unusable == ""
        if lock is not None:
            assert build.proxy.served == lock
        lock = build.proxy.served


def test_easy_install_asks_the_index_for_setup_requires(
    builds: list[Build], tmp_path: Path, cache: Path, old: Path
) -> None:
    build = Build(tmp_path / "build", cache, None)
    builds.append(build)
    (build.place / "setup.py").write_text(SETUP)
    build.run("setup.py", "--version", PYTHONPATH=str(old))
    assert [(file.project, file.version) for file in build.proxy.served] == [("toml", "0.10.2")]
