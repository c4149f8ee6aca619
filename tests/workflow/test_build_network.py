"""A ``setup.py`` that looks around while it is installed: what it reaches, and what is told of it.

The control reaches each address from the host, at the very time of the build.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

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


@pytest.mark.parametrize("fail", [False, True], ids=["goes-on", "gives-up"])
def test_a_setup_py_reaches_nothing_and_the_record_says_what_it_tried(
    make_project, tmp_path: Path, fail: bool
) -> None:
    name = f"minisandbox-{tmp_path.name}"
    with (
        answering(socket.AF_INET, ("127.0.0.1", 0)) as loopback,
        answering(socket.AF_UNIX, f"\0{name}") as abstract,
    ):
        port = loopback.getsockname()[1]
        text = SETUP.format(port=port, name=name, elsewhere=ELSEWHERE, fail=fail)
        project = make_project(tmp_path, {"setup.py": text}, {"date": "2024-01-01"})
        for server in (loopback, abstract):  # the control
            with socket.socket(server.family) as sock:
                sock.connect(server.getsockname())
        project.build()
    instance = project.instance(project.batch / "instances.json")
    addresses = [f"127.0.0.1:{port}", f"unix:@{name}", f"{ELSEWHERE}:80"]
    assert [item for item in instance.network.tried if item in addresses] == addresses
    assert instance.network.unwatched == ""
    assert "GET /elsewhere 404" in instance.network.refused
    files = [file.project for file in instance.network.files]
    if fail:
        assert instance.failure is not None
        assert "REACHED: []" in instance.failure.message + instance.failure.log_tail
        assert all(address in instance.failure.hint for address in addresses)
        assert "setuptools" in files
    else:
        assert instance.failure is None
        assert files == ["setuptools", "wheel"]


def test_the_record_of_an_environment_that_fails_says_what_it_tried(
    make_project, tmp_path: Path
) -> None:
    reach = f"(exec 3<>/dev/tcp/{ELSEWHERE}/80) || exit 1"
    project = make_project(tmp_path, {}, {"pre_install": [reach]})
    project.build()
    record = codec.read(EnvironmentRecord, project.environment / "environment.json")
    assert record.failure is not None
    assert record.failure.kind == "environment"
    assert record.network.tried == (f"{ELSEWHERE}:80",)
    assert record.network.unwatched == ""
    instance = project.instance(project.batch / "instances.json")
    assert instance.network.unwatched == "the stage failed outside of its build"
