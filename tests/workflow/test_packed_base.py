"""An instance on a packed base, from Debian's packages to a verdict on a machine that has nothing.

The project compiles C, and its recipe asks for a package that the base has not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from minisandbox import open_cache
from minisandbox.runtime.cache import Cache

CLONE = Path(__file__).parents[2]
MINISANDBOX = str(Path(sys.executable).with_name("minisandbox"))
INSTANCE = "markupsafe-2.1.5"

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(900)]

#: What a node has no need of.
TOOLS = ("as", "cc", "dpkg", "g++", "gcc", "git", "ld", "make", "perl", "rsync")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    folder = tmp_path_factory.mktemp("packed-base")
    (folder / "recipes").mkdir()
    recipe = yaml.safe_load((CLONE / "envs/recipes/markupsafe.yaml").read_text())
    recipe["date"] = str(recipe["date"])
    recipe["system_packages"] = ["rsync"]
    (folder / "recipes/markupsafe.yaml").write_text(yaml.safe_dump(recipe))
    config = {
        "datasets": [str(CLONE / "config/datasets/release-pairs.yaml")],
        "recipes": "recipes",
        "instances": [INSTANCE],
        "base": "debian-12",
        "bases": str(CLONE / "envs/bases"),
        "results": "results",
        "pack": False,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(CLONE / "Snakefile")]
    command += ["--cores", "2", "--workflow-profile", str(CLONE / "profiles/default")]
    done = subprocess.run(
        [*command, "--configfile", "config.yaml"],
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(MINISANDBOX).parent}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return open_cache(folder / "results")


def test_it_is_validated_on_layers_of_the_base_and_a_variant(cache: Cache) -> None:
    row = cache.row(INSTANCE)
    assert (row.status, row.reason) == ("ok", "")
    assert (row.gold_resolved, row.empty_resolved) == (True, False)
    kinds = [layer.kind for layer in row.layers]
    assert kinds[:6] == ["base"] * 4 + ["interpreter", "environment"]
    assert row.base.kind == "debian-12"
    assert row.base.libc == "glibc 2.36"


def test_nothing_of_the_host_is_below(cache: Cache) -> None:
    with cache.materialize(INSTANCE) as instance:
        assert instance.run("cat /etc/debian_version").text.startswith("12.")
        mounts = instance.run("cut -d' ' -f5 /proc/self/mountinfo").text.split()
        assert mounts[0] == "/"
        assert not [path for path in mounts if path.startswith(("/usr", "/lib", "/bin"))]
        accounts = instance.run("getent passwd root www-data nobody; getent hosts localhost")
        assert accounts.exit_code == 0
        libraries = instance.run(
            "ldd $(python -c 'import _ssl, _sqlite3, _ctypes; "
            "print(_ssl.__file__, _sqlite3.__file__, _ctypes.__file__)')"
        ).text
        for name in ("libssl", "libcrypto", "libsqlite3", "libffi"):
            found = [line for line in libraries.splitlines() if name in line]
            # Absent where the interpreter has it built in.
            assert all("=> /opt/python/" in line for line in found), libraries


def test_its_tools_work_and_dpkg_knows_them(cache: Cache) -> None:
    with cache.materialize(INSTANCE) as instance:
        shown = instance.run("dpkg-query -W -f '${Package} ${db:Status-Status}\\n' gcc git rsync")
        assert shown.text.split() == ["gcc", "installed", "git", "installed", "rsync", "installed"]
        assert instance.run("dpkg --audit").text == ""
        assert (
            instance.run(
                "echo 'int main(void) { return 7; }' > /tmp/a.c && gcc -o /tmp/a /tmp/a.c && /tmp/a"
            ).exit_code
            == 7
        )
        instance.write_file("/testbed/README.rst", b"changed\n")
        assert b"+changed" in instance.diff()
        assert instance.run("git status --porcelain").text == " M README.rst\n"
        assert "https" in instance.run("curl --version").text


@pytest.mark.root
def test_a_machine_without_tools_runs_its_tests(cache: Cache) -> None:
    """In a mount namespace without compiler, git and Python but that of the runtime."""
    hidden = [path for tool in TOOLS if (path := shutil.which(tool))]
    hidden += [os.path.realpath(path) for path in hidden]
    hide = "".join(f"mount --bind /dev/null {path}; " for path in sorted(set(hidden)))
    script = (
        f"{hide} ! git --version 2>/dev/null || exit 99; "
        f"exec {MINISANDBOX} run --cache {cache.folder} {INSTANCE} -- "
        "'python -m pytest -q -p no:cacheprovider 2>&1; echo gcc: $(gcc -dumpversion)'"
    )
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "gcc: 12" in done.stdout
