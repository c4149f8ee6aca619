"""A ``setup.py`` that looks around while it is installed: what it reaches, and what is told of it.

The control reaches each address from the host, at the very time of the build.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from minisandbox.records import codec
from minisandbox.records.stages import EnvironmentRecord

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(300)]

#: An address of a documentation network: nobody's.
ELSEWHERE = "192.0.2.7"

SETUP = """\
import socket
import urllib.request
from setuptools import setup

reached = []
for family, address in (
    (socket.AF_INET, ("127.0.0.1", {port})),
    (socket.AF_UNIX, "\\0{name}"),
    (socket.AF_INET, ("{elsewhere}", 80)),
):
    with socket.socket(family) as sock:
        sock.settimeout(5)
        try:
            sock.connect(address)
            reached.append(address)
        except OSError as error:
            print("cannot reach", address, error)
try:
    socket.getaddrinfo("index.example.org", 443)
    reached.append("a name server")
except OSError:
    pass
try:
    urllib.request.urlopen("http://127.0.0.1:3141/elsewhere")
    reached.append("another page")
except OSError:
    pass
if reached or {fail}:
    raise SystemExit("REACHED: %r" % reached)
setup(name="project", version="1", py_modules=["project"])
"""


@contextlib.contextmanager
def answering(family: int, address: tuple[str, int] | str) -> Iterator[socket.socket]:
    """A server that greets whoever connects."""
    with socket.socket(family) as server:
        server.bind(address)
        server.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


class Built(NamedTuple):
    """Four projects built in one run, and the addresses that their ``setup.py`` tries."""

    addresses: list[str]
    goes_on: Any
    gives_up: Any
    no_environment: Any
    too_new: Any


@pytest.fixture(scope="module")
def built(make_project, build_all, tmp_path_factory) -> Built:
    folder = tmp_path_factory.mktemp("network")
    name = f"minisandbox-{os.getpid()}-{folder.name}"
    with (
        answering(socket.AF_INET, ("127.0.0.1", 0)) as loopback,
        answering(socket.AF_UNIX, f"\0{name}") as abstract,
    ):
        port = loopback.getsockname()[1]
        projects = []
        for fail in (False, True):
            text = SETUP.format(port=port, name=name, elsewhere=ELSEWHERE, fail=fail)
            recipe = {"date": "2024-01-01"}
            named = "gives-up" if fail else "goes-on"
            projects.append(make_project(folder, {"setup.py": text}, recipe, name=named))
        reach = f"(exec 3<>/dev/tcp/{ELSEWHERE}/80) || exit 1"
        projects.append(make_project(folder, {}, {"pre_install": [reach]}, name="no-environment"))
        newer = {"date": "2024-01-01", "packages": ["six==1.17.0"]}
        projects.append(make_project(folder, {}, newer, name="too-new"))
        for server in (loopback, abstract):  # the control
            with socket.socket(server.family) as sock:
                sock.connect(server.getsockname())
        build_all(projects, "results")
    return Built([f"127.0.0.1:{port}", f"unix:@{name}", f"{ELSEWHERE}:80"], *projects)


@pytest.mark.parametrize("fail", [False, True], ids=["goes-on", "gives-up"])
def test_a_setup_py_reaches_nothing_and_the_record_says_what_it_tried(
    built: Built, fail: bool
) -> None:
    project = built.gives_up if fail else built.goes_on
    instance = project.instance(project.batch / "instances.json")
    tried = [item for item in instance.network.tried if item in built.addresses]
    assert tried == built.addresses
    assert instance.network.unwatched == ""
    assert "GET /elsewhere 404" in instance.network.refused
    files = [file.project for file in instance.network.files]
    if fail:
        assert instance.failure is not None
        assert "REACHED: []" in instance.failure.message + instance.failure.log_tail
        assert all(address in instance.failure.hint for address in built.addresses)
        assert "setuptools" in files
    else:
        assert instance.failure is None
        assert files == ["setuptools", "wheel"]


def test_the_record_of_an_environment_that_fails_says_what_it_tried(built: Built) -> None:
    project = built.no_environment
    record = codec.read(EnvironmentRecord, project.environment / "environment.json")
    assert record.failure is not None
    assert record.failure.kind == "environment"
    assert record.network.tried == (f"{ELSEWHERE}:80",)
    assert record.network.unwatched == ""
    instance = project.instance(project.batch / "instances.json")
    assert instance.network.unwatched == "the stage failed outside of its build"


def test_a_release_after_the_date_fails_with_the_date(built: Built) -> None:
    record = codec.read(EnvironmentRecord, built.too_new.environment / "environment.json")
    assert record.failure is not None
    assert record.failure.kind == "environment"
    assert "six==1.17.0" in record.failure.message
    assert "uploaded after its 'date', 2024-01-01" in record.failure.hint
