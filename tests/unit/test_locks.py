"""Finding the lock of a build, and refusing what cannot be one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox.build import stage
from minisandbox.build.index import locks
from minisandbox.errors import StageFailed
from minisandbox.records import codec
from minisandbox.records.lock import IndexFile
from minisandbox.records.plan import BatchPlan, EnvironmentPlan, Recipe
from minisandbox.records.stages import (
    EnvironmentRecord,
    InstanceRecord,
    InstancesRecord,
    NetworkUse,
)

FILE = IndexFile("six", "1.16.0", "six-1.16.0-py2.py3-none-any.whl", "8" * 64, 11053, "")
USE = NetworkUse(files=(FILE,))
RECIPE = Recipe(name="r", repo="o/r", python="3.11", test="true")
ENVIRONMENT = EnvironmentPlan(
    slug="o__r-py3.11-22222222",
    key="sha256:" + "2" * 64,
    lock_key="sha256:" + "1" * 64,
    python="3.11",
    date="",
    installer="uv",
    packages=("six",),
    complete=False,
    dropped=(),
    requirement_file=None,
    pip_packages=(),
    pre_install=(),
    env={},
    base={},
    network="index",
    timeout=1,
    store="store",
    tools="tools",
    index_cache="cache",
)
BATCH = BatchPlan(
    slug="r-0001",
    environment=ENVIRONMENT.slug,
    recipe=RECIPE,
    instances=(),
    history="none",
    network="index",
    timeout=1,
    store="store",
    tools="tools",
    index_cache="cache",
    files_cache="files",
)


def write_environment(folder: Path, slug: str, **changes: object) -> Path:
    record = stage.new(
        EnvironmentRecord,
        python="3.11.7",
        packages=("six==1.16.0",),
        lock_key=ENVIRONMENT.lock_key,
        reach="index",
        network=USE,
    )
    path = folder / "environments" / slug / "environment.json"
    codec.write(path, replace(record, **changes))
    return path


def write_batch(
    folder: Path, environment: str, batch: str, *ids: str, reach: str = "index"
) -> Path:
    members = [
        replace(stage.new(InstanceRecord, reach=reach, network=USE), key=name) for name in ids
    ]
    path = folder / "environments" / environment / "batches" / batch / "instances.json"
    codec.write(path, stage.new(InstancesRecord, instances=tuple(members)))
    return path


def test_an_environment_is_found_by_what_was_asked_for(tmp_path: Path) -> None:
    # Its name has the date and the machine in it, which may be others this time.
    write_environment(tmp_path, "o__r-py3.11-00000000", lock_key="sha256:" + "0" * 64)
    path = write_environment(tmp_path, "o__r-py3.11-99999999")
    assert locks.environment_lock(tmp_path, ENVIRONMENT).path == path


def test_of_several_the_one_of_the_same_name_is_taken(tmp_path: Path) -> None:
    write_environment(tmp_path, "a-other-date")
    path = write_environment(tmp_path, ENVIRONMENT.slug)
    assert locks.environment_lock(tmp_path, ENVIRONMENT).path == path


def test_an_instance_is_found_in_whichever_batch_it_was(tmp_path: Path) -> None:
    write_batch(tmp_path, ENVIRONMENT.slug, BATCH.slug, "r-1", "r-2")
    path = write_batch(tmp_path, "elsewhere", "r-0000", "r-3")
    assert locks.InstanceLocks(tmp_path, BATCH).of("r-3").path == path
    assert locks.InstanceLocks(tmp_path, BATCH).of("r-2").files == (FILE,)


def test_what_identifies_a_lock_is_its_content(tmp_path: Path) -> None:
    first = locks.environment_lock(write_environment(tmp_path / "a", "x"), ENVIRONMENT)
    again = locks.environment_lock(
        write_environment(tmp_path / "b", "y", started="later", seconds=9.0), ENVIRONMENT
    )
    other = replace(USE, files=(replace(FILE, sha256="9" * 64),))
    third = locks.environment_lock(
        write_environment(tmp_path / "c", "z", network=other), ENVIRONMENT
    )
    assert first.digest == again.digest != third.digest


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "failed"}, "failed"),
        ({"reach": "host"}, "does not say which files"),
        ({"schema": 1}, "does not say which files"),
        ({"lock_key": "sha256:" + "0" * 64}, "no environment that was asked for as"),
    ],
)
def test_what_is_no_lock_is_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    write_environment(tmp_path, ENVIRONMENT.slug, **changes)
    with pytest.raises(StageFailed, match=said) as refused:
        locks.environment_lock(tmp_path, ENVIRONMENT)
    assert refused.value.kind == "lock"


def test_an_instance_without_files_or_record_is_refused(tmp_path: Path) -> None:
    write_batch(tmp_path, ENVIRONMENT.slug, BATCH.slug, "r-1", reach="host")
    with pytest.raises(StageFailed, match="does not say which files r-1 was served"):
        locks.InstanceLocks(tmp_path, BATCH).of("r-1")
    with pytest.raises(StageFailed, match="has no r-9"):
        locks.InstanceLocks(tmp_path, BATCH).of("r-9")
    with pytest.raises(StageFailed, match=r"there is no lock .*nowhere\.json"):
        locks.InstanceLocks(tmp_path / "nowhere.json", BATCH).of("r-1")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(StageFailed, match=r"broken\.json is no lock"):
        locks.InstanceLocks(tmp_path / "broken.json", BATCH).of("r-1")


def test_a_lock_needs_the_index_network(tmp_path: Path) -> None:
    path = write_environment(tmp_path, ENVIRONMENT.slug)
    with pytest.raises(StageFailed, match="needs network 'index', not 'host'"):
        locks.environment_lock(path, replace(ENVIRONMENT, network="host"))


def test_other_packages_than_the_locked_are_named(tmp_path: Path) -> None:
    lock = locks.environment_lock(write_environment(tmp_path, "x"), ENVIRONMENT)
    lock.check(("six==1.16.0",))
    with pytest.raises(StageFailed, match=r"six==1\.16\.0, six==1\.17\.0"):
        lock.check(("six==1.17.0",))


def test_wheels_of_another_python_are_no_lock(tmp_path: Path) -> None:
    lock = locks.environment_lock(write_environment(tmp_path, "x"), ENVIRONMENT)
    lock.check_python("3.11.2")
    with pytest.raises(StageFailed, match=r"with Python 3\.11\.7, and here is 3\.12\.1"):
        lock.check_python("3.12.1")
