"""Which jobs run, and which run again: after a failure, a kill, a second start, a changed plan."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections import Counter

import pytest

from local_projects import CLONE
from minisandbox.build.stage import ATTEMPTS

#: Two environments of one batch each.
ALL_STAGES = Counter(
    clone=2, interpreter=1, environment=2, instances=2, validate=2, manifest=1, pack=1
)


@pytest.fixture
def small(workflow):
    workflow.configure(environments=2, instances=6)
    return workflow


def test_everything_once_and_then_nothing(small) -> None:
    first = small.run("--cores", "2")
    assert first.returncode == 0, first.stderr
    assert Counter(small.take_calls()) == ALL_STAGES
    second = small.run("--cores", "2")
    assert second.returncode == 0, second.stderr
    assert small.take_calls() == []


def test_a_packed_base_is_made_once_before_what_stands_on_it(small) -> None:
    config = small.folder / "config/config.yaml"
    config.write_text(f"{config.read_text()}base: debian-12\nbases: {CLONE}/envs/bases\n")
    recipe = small.folder / "recipes/project1.yaml"
    recipe.write_text(f"{recipe.read_text()}system_packages: [rsync, git]\n")
    done = small.run("--cores", "2")
    assert done.returncode == 0, done.stderr
    calls = [call.split() for call in (small.folder / "calls.txt").read_text().splitlines()]
    assert Counter(call[0] for call in calls) == ALL_STAGES + Counter(base=2)
    bases = [
        [word.partition("=")[2] for word in call if word.startswith("--base=")]
        for call in calls
        if call[0] in ("base", "interpreter", "environment")
    ]
    plain = "results/bases/debian-12/base.json"
    variants = {path for paths in bases for path in paths} - {plain}
    assert len(variants) == 1
    # On the base: interpreter, variant, one environment. On the variant: the other.
    assert bases[0] == []
    assert Counter(path for paths in bases for path in paths) == Counter(
        {plain: 3, variants.pop(): 1}
    )


@pytest.mark.parametrize("stage", ["clone", "interpreter", "environment", "instances", "validate"])
def test_every_attempt_is_made_and_told_which_it_is(small, stage: str) -> None:
    # A stage writes its failed record on the last attempt only, so it has to get that far.
    transient = f"[[ $stage != {stage} || $attempt == {ATTEMPTS} ]] || exit 75"
    done = small.run("--cores", "2", behaviour=transient)
    assert done.returncode == 0, done.stderr
    calls = Counter(small.take_calls())
    assert calls - ALL_STAGES == Counter({stage: ALL_STAGES[stage] * (ATTEMPTS - 1)})


def test_a_failing_job_does_not_stop_the_others(small) -> None:
    broken = '[[ $stage != environment || "${outputs[0]}" != *project0* ]] || exit 70'
    done = small.run("--cores", "2", behaviour=broken)
    assert done.returncode == 1
    calls = Counter(small.take_calls())
    assert calls["environment"] == 3 + 1
    assert calls["validate"] == 1
    assert calls["manifest"] == calls["pack"] == 0


def test_after_a_kill_only_what_was_missing_runs(small) -> None:
    running = subprocess.Popen(
        small.command("--cores", "2"),
        cwd=small.folder,
        env=small.environment("[[ $stage != instances ]] || sleep 600"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    calls = small.folder / "calls.txt"
    deadline = time.monotonic() + 40
    while not (calls.exists() and "instances" in calls.read_text()):
        assert running.poll() is None, "snakemake ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    small.take_calls()
    # What had not come to its end, and nothing else: no stale lock, no rebuilt environment.
    finished = len(list(small.folder.glob("results/environments/*/environment.json")))
    assert finished >= 1
    done = small.run("--cores", "2")
    assert done.returncode == 0, done.stderr
    calls = Counter(small.take_calls())
    assert calls["interpreter"] == 0
    assert calls["environment"] == 2 - finished
    assert calls["instances"] == 2
    assert calls["validate"] == 2
    assert calls["manifest"] == 1


def test_a_changed_recipe_rebuilds_its_own_environment_only(small) -> None:
    assert small.run("--cores", "2").returncode == 0
    small.take_calls()
    recipe = small.folder / "recipes" / "project1.yaml"
    recipe.write_text(recipe.read_text().replace("8.4.2", "8.4.1"))
    done = small.run("--cores", "2")
    assert done.returncode == 0, done.stderr
    assert Counter(small.take_calls()) == Counter(
        environment=1, instances=1, validate=1, manifest=1, pack=1
    )


def test_the_logged_command_can_be_run_again_by_hand(small) -> None:
    done = small.run("--cores", "2")
    commands = re.findall(
        r"^Shell command: (minisandbox (?:build|store) .*)$", done.stderr, flags=re.M
    )
    assert len(commands) == ALL_STAGES.total()
    small.take_calls()
    for command in commands:
        again = ["bash", "-euo", "pipefail", "-c", command]
        subprocess.run(again, check=True, cwd=small.folder, env=small.environment())
    assert Counter(small.take_calls()) == ALL_STAGES


def test_layers_stay_loose_where_the_configuration_says_so(small) -> None:
    done = small.run("--cores", "2", "--config", "pack=False")
    assert done.returncode == 0, done.stderr
    assert Counter(small.take_calls()) == ALL_STAGES - Counter(pack=1)


def test_the_work_can_be_shared_out(workflow) -> None:
    workflow.configure(environments=4, instances=8)
    done = workflow.run("--cores", "2", "--batch", "join_manifest=1/2")
    assert done.returncode == 0, done.stderr
    calls = Counter(workflow.take_calls())
    assert 0 < calls["validate"] < 4
    assert calls["manifest"] == 0
    assert workflow.run("--cores", "2").returncode == 0
    rest = Counter(workflow.take_calls())
    assert rest["validate"] == 4 - calls["validate"]
    assert rest["manifest"] == rest["pack"] == 1
