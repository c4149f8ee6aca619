"""C4, D2 D5 D7 D9 D10 D11: environments that the whole pipeline built: the same again from their
lock, bound to no place of the machine that built them, and good where a neighbour is not.
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from local_projects import Project, build_together
from minisandbox import open_cache
from minisandbox.errors import InstanceUnavailable, InstanceUnknown
from minisandbox.idmap import current, remove_tree
from minisandbox.records import codec
from minisandbox.records.stages import EnvironmentRecord
from minisandbox.runtime import Cache, Instance

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(900)]

FILES = {
    "pyproject.toml": (
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "project"\nversion = "1"\n'
        '[project.scripts]\nproject-says = "project:answer"\n'
        '[tool.setuptools]\npy-modules = ["project"]\n'
    )
}
RECIPE = {"packages": ["setuptools==80.9.0", "six==1.17.0"], "date": "2026-01-15"}
VENV = "/opt/miniconda3/envs/testbed"


@dataclass
class Built:
    """What was built, and again from the lock; and the first as it was sent to another machine."""

    good: Project
    again: Project
    bad: Project
    moved: Cache


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    folder = tmp_path_factory.mktemp("environments")
    good = Project(folder, FILES, RECIPE, name="good")
    missing = {**RECIPE, "packages": ["no-such-distribution-minisandbox==1"]}
    bad = Project(folder, FILES, missing, name="bad")
    build_together([good, bad], "results")
    again = copy.copy(good)
    shutil.rmtree(folder / "results/downloads")  # what the first build kept must not help
    build_together([again], "again", from_lock="results")
    elsewhere = folder / "another machine"
    elsewhere.mkdir()
    for name in ("manifest.jsonl", "cache.json", "store"):
        source = good.results / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, elsewhere / name)
    with pytest.MonkeyPatch.context() as patching:
        patching.setenv("MINISANDBOX_NODE_STORE", str(folder / "node of another machine"))
        yield Built(good, again, bad, open_cache(elsewhere))
    remove_tree(folder / "node of another machine", current())


def said(instance: Instance, command: str) -> str:
    result = instance.run(command, merge_stderr=True)
    assert result.exit_code == 0, result.text
    return result.text.strip()


def test_the_lock_gives_the_same_environment(built: Built) -> None:
    first, second = built.good, built.again
    assert first.row.status == second.row.status == "ok", second.row.reason
    records = [
        codec.read(EnvironmentRecord, project.environment / "environment.json")
        for project in (first, second)
    ]
    assert records[0].packages == records[1].packages
    assert "six==1.17.0" in records[0].packages
    digests = [[layer.digest for layer in record.layers] for record in records]
    assert digests[0] == digests[1]
    layers = [[layer.digest for layer in row.layers] for row in (first.row, second.row)]
    assert layers[0] == layers[1]


def test_an_edit_is_seen_by_its_own_sandbox_and_by_no_other(built: Built) -> None:
    cache = built.moved
    with cache.materialize("good-1") as one, cache.materialize("good-1") as two:
        where = "cd / && python -c 'import project; print(project.__file__)'"
        assert said(one, where) == said(two, where) == "/testbed/project.py"
        one.write_file("/testbed/project.py", "raise SystemExit('edited')\n")
        assert one.run("cd / && python -c 'import project'", merge_stderr=True).text == "edited\n"
        assert said(two, "cd / && python -c 'import project; print(project.answer())'") == "41"


def test_no_path_of_the_machine_that_built_it_is_left(built: Built) -> None:
    folders = {str(built.good.folder), str(built.good.results), str(Path.home() / ".cache")}
    named = ("*.pth", "*.egg-link", "direct_url.json", "__editable__*", "pyvenv.cfg", "RECORD")
    wanted = " -o ".join(f"-name '{name}'" for name in named)
    with built.moved.materialize("good-1") as instance:
        # Never without a file: the editable install made some of them.
        found = said(instance, f"find {VENV} /testbed -type f \\( {wanted} \\)").splitlines()
        assert any(path.endswith("direct_url.json") for path in found)
        for words in folders:
            leaks = instance.run(["grep", "-rlaF", words, "/opt", "/testbed", "/etc"])
            assert leaks.stdout_text == ""
        for script in ("pip", "project-says"):
            first = said(instance, f"head -n 1 {VENV}/bin/{script}")
            assert first.startswith(f"#!{VENV}/bin/python")


def test_what_was_installed_works_where_it_was_not_built(built: Built) -> None:
    with built.moved.materialize("good-1") as instance:
        assert f"{VENV}/" in said(instance, "pip --version")
        assert said(instance, "python -c 'import six; print(six.__version__)'") == "1.17.0"
        assert said(instance, "python -m unittest -v tests.test_answer").endswith("OK")
        assert instance.run(["project-says"]).exit_code == 41


def test_nothing_is_installed_when_a_sandbox_starts(built: Built) -> None:
    built.moved.materialize("good-1").close()  # unpacked, and its byte-code compiled
    time.sleep(1.1)
    before = int(time.time())
    with built.moved.materialize("good-1") as instance:
        new = said(instance, f"find /opt /testbed -newermt @{before} -type f")
        assert new == ""
        assert said(instance, "cat /proc/net/route | wc -l") == "1"  # no way out, but a heading
        processes = said(instance, "cat /proc/[0-9]*/comm").splitlines()
        assert not {"pip", "pip3", "uv", "apt", "apt-get"} & set(processes)


def test_one_bad_requirement_stops_no_other_and_is_classed(built: Built) -> None:
    row = built.bad.row
    assert (row.status, row.failed_stage, row.reason_kind) == (
        "failed",
        "environment",
        "environment",
    )
    assert "no-such-distribution-minisandbox" in row.reason
    assert "no-such-distribution-minisandbox" in row.log_tail
    assert built.good.row.status == "ok"


def test_an_instance_that_is_not_there_is_a_sentence_and_the_batch_goes_on(built: Built) -> None:
    said_of: dict[str, str] = {}
    for instance_id in ("good-2", "bad-1", "good-1"):
        try:
            with built.moved.materialize(instance_id) as instance:
                said_of[instance_id] = said(instance, "echo works")
        except (InstanceUnknown, InstanceUnavailable) as error:
            said_of[instance_id] = str(error)
    assert "'good-2'" in said_of["good-2"]
    assert "good-1" in said_of["good-2"]
    assert "no-such-distribution-minisandbox" in said_of["bad-1"]
    assert said_of["good-1"] == "works"
    assert not any("\n" in text for text in said_of.values())


def test_text_is_utf_8_without_anybody_asking(built: Built) -> None:
    reads = "import pathlib; print(len(pathlib.Path('/tmp/t').read_text()))"
    with built.moved.materialize("good-1") as instance:
        instance.write_file("/tmp/t", "Grüße, 世界")
        assert said(instance, f'python -c "{reads}"') == "9"
        assert "UTF-8" in said(instance, "locale charmap")
        assert said(instance, "locale -a 2>/dev/null | grep -ciE '^C.utf-?8$'") == "1"
        assert said(instance, "python -c 'print(\"世界\")' | cat") == "世界"
