"""Images go both ways between us and podman and skopeo, as they come with Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minisandbox.idmap import current, remove_tree
from minisandbox.oci import export_instances, import_image
from minisandbox.runtime import Image
from minisandbox.store import NodeStore, Store
from packed_project import PackedProject

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

#: podman takes cgroup v2 where it sees both versions, and raises limits that a container may not.
_HIDE = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
_LIMITS = ("--network", "none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")

Podman = Callable[..., str]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackedProject]:
    made = PackedProject(tmp_path_factory.mktemp("project"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """podman with a storage of its own. Skips where it runs nothing, and says what it said."""
    for program in ("podman", "skopeo"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    # Not below pytest's folder: podman takes no runroot of more than 50 bytes.
    folder = Path(tempfile.mkdtemp(prefix="podman-", dir="/tmp"))
    places = ("--root", f"{folder}/root", "--runroot", f"{folder}/run")
    words = ["unshare", "-m", "sh", "-c", _HIDE, "sh", "podman", *places]

    def call(*more: str) -> str:
        command = [*words, "--cgroup-manager=cgroupfs", *more]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"podman {more[0]} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    context = folder / "context"
    context.mkdir()
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, context / "busybox")
    (context / "Containerfile").write_text("FROM scratch\nCOPY busybox /bin/busybox\n")
    try:
        try:
            call("build", "-q", "-t", "probe:1", str(context))
            call("run", "--rm", *_LIMITS, "probe:1", "/bin/busybox", "true")
        except AssertionError as error:
            pytest.skip(f"podman does not run containers here: {error}")
        yield call
    finally:
        subprocess.run([*words, "system", "reset", "--force"], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    remove_tree(tmp_path / "node", current())


def test_podman_runs_an_exported_instance_as_we_do(
    project: PackedProject, podman: Podman, place: Path
) -> None:
    exported = export_instances(project.cache(), project.names, place / "layout")
    command = "sh tests.sh; pwd; echo $PATH $VIRTUAL_ENV; cat /etc/gitconfig; ls -a /testbed"
    for image in exported:
        found = podman("pull", "-q", f"oci:{place}/layout:{image.tag}").strip()
        theirs = podman("run", "--rm", *_LIMITS, found, "sh", "-c", command)
        with project.start(image.instance_id) as instance:
            assert theirs == instance.run(command).text
        assert "ok 3 - is gone" in theirs
    assert "not ok 1" not in theirs


def test_services_answer_before_the_command_of_a_container(
    project: PackedProject, podman: Podman, place: Path
) -> None:
    (image,) = export_instances(project.cache(), [project.serving], place / "layout")
    found = podman("pull", "-q", f"oci:{place}/layout:{image.tag}").strip()
    command = ["cat", "/var/tmp/service", "/testbed/count.txt"]
    theirs = podman("run", "--rm", *_LIMITS, found, *command)
    with project.start(image.instance_id) as instance:
        assert instance.run(command).text == theirs == "started\n2\n"


def test_skopeo_makes_of_an_export_what_docker_loads(project: PackedProject, place: Path) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("needs skopeo")
    cache, (name, _) = project.cache(), project.names
    (image,) = export_instances(cache, [name], place / "layout", compression="gzip")
    words = [f"oci:{place}/layout:{image.tag}", f"docker-archive:{place}/docker.tar:made:1"]
    subprocess.run(["skopeo", "copy", *words], check=True, capture_output=True)
    results = place / "results"
    first, second = (
        import_image(place / file, results, Store(results / "store"), name=file)
        for file in ("layout", "docker.tar")
    )
    assert second.reference.endswith("/made:1")
    assert first.layers == second.layers
    assert (first.env, first.workdir, first.cmd) == (second.env, second.workdir, second.cmd)


_CONTAINERFILE = """\
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN mkdir -p /etc /d/e /app && echo root:x:0:0::/root:/bin/sh > /etc/passwd && \\
    echo app:x:1000:1000::/app:/bin/sh >> /etc/passwd && \\
    echo one > /d/one && ln /d/one /d/linked && echo two > /d/two && echo old > /d/e/old && \\
    chown -R 1000:1000 /app
RUN rm -r /d/two /d/e && mkdir /d/e && echo new > /d/e/new && echo mine > /app/mine && \\
    chown 1000:1000 /app/mine && chmod 600 /app/mine && ln -s /d/e/new /app/link
ENV GREETING="hello world"
WORKDIR /app
USER app
"""
_LOOK = (
    "id -u; pwd; echo $GREETING; ls -ln /app /d /d/e; cat mine link; stat -c %h /d/one; echo $HOME"
)


def test_what_podman_built_runs_in_ours(podman: Podman, place: Path) -> None:
    context = place / "context"
    context.mkdir()
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, context / "busybox")
    (context / "Containerfile").write_text(_CONTAINERFILE)
    podman("build", "-q", *_LIMITS, "-t", "built:1", str(context))
    theirs = podman("run", "--rm", *_LIMITS, "built:1", "sh", "-c", _LOOK)
    podman("save", "-q", "--format", "oci-archive", "-o", f"{place}/oci.tar", "built:1")
    podman("save", "-q", "--format", "docker-archive", "-o", f"{place}/docker.tar", "built:1")
    copy = ["skopeo", "copy", f"oci-archive:{place}/oci.tar"]
    subprocess.run([*copy, f"oci:{place}/layout:built:1"], check=True, capture_output=True)
    subprocess.run(
        [*copy, f"docker-archive:{place}/skopeo.tar:built:1"], check=True, capture_output=True
    )
    store, node = Store(place / "results/store"), NodeStore(place / "node", current())
    for name in ("oci.tar", "docker.tar", "layout", "skopeo.tar"):
        image = import_image(place / name, place / "results", store, name=name)
        with Image(image, store, node).start() as box:
            assert box.run(_LOOK).text == theirs, name
    assert "hello world" in theirs
    assert os.listdir(place / "results/images")
