"""Attacks on the boundary: each reaches its goal where no sandbox is in the way, and none inside.

``tests/attacks`` holds the table; ``benchmarks/isolation.py`` runs it against other recipes too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from attacks import contenders, every, harness
from minisandbox.errors import SandboxDied, SandboxFileError
from minisandbox.idmap import IdMap, current, remove_tree, single
from minisandbox.sandbox import Sandbox

IDMAPS = [current()] if current().kind in ("root", "single") else [current(), single()]


@pytest.fixture(scope="module")
def host() -> Iterator[harness.Host]:
    with harness.host() as made:
        yield made


@pytest.fixture(scope="module")
def controls(host: harness.Host) -> Mapping[str, harness.Outcome]:
    """What the attacks get where nothing but the caller's own rights is in the way."""
    # As an ordinary user, root's attacks prove nothing; that they work is proven where root tests.
    mine = [row.name for row in every.TABLE.values() if row.by == "anybody" or os.getuid() == 0]
    return host.controls(mine)


@pytest.fixture(scope="module", params=IDMAPS, ids=lambda idmap: idmap.kind)
def outcomes(
    request: pytest.FixtureRequest, host: harness.Host, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, harness.Outcome]]:
    """What they get in a sandbox."""
    idmap: IdMap = request.param
    scratch = tmp_path_factory.mktemp("scratch")
    with contenders.minisandbox(host, scratch, idmap) as run:
        yield run(list(every.TABLE))
    remove_tree(scratch, idmap)


@pytest.mark.parametrize("name", every.TABLE)
def test_attack(
    name: str,
    outcomes: Mapping[str, harness.Outcome],
    controls: Mapping[str, harness.Outcome],
) -> None:
    attack, outcome = every.TABLE[name], outcomes[name]
    assert outcome.kind == "held", f"{attack.gain}: {outcome.detail}"
    control = controls.get(name)
    if control is None or control.kind == "through":
        return
    # It cannot succeed here anyway: that it did not says nothing.
    assert control.kind == "held", control.detail
    assert attack.lack, f"fails without a sandbox too: {control.detail}"
    pytest.skip(f"nothing to attack on this host: {attack.lack}")


@pytest.mark.parametrize("life", contenders.LIVES)
def test_what_a_sandbox_has_become_holds_the_same(
    host: harness.Host, idmap: IdMap, scratch: Path, life: str
) -> None:
    with contenders.minisandbox(host, scratch, idmap, life=contenders.LIVES[life]) as run:
        assert not_held(run(list(every.TABLE))) == {}


def test_users_inside_get_no_more_than_root(
    host: harness.Host, idmap: IdMap, scratch: Path
) -> None:
    if idmap.count == 1:
        with Sandbox.start([], scratch=scratch, idmap=idmap) as box:
            with pytest.raises(SandboxFileError):  # there is no user but root
                box.run("true", user="nobody")
        return
    with contenders.minisandbox(host, scratch, idmap, user="nobody") as run:
        assert not_held(run(list(every.TABLE))) == {}


def test_limits_of_what_keeps_a_sandbox_cannot_be_set_from_inside(start, idmap: IdMap) -> None:
    box, other = start(), start()
    if idmap.count == 1:
        # The kernel cannot tell root inside from PID 1: a sandbox can end, itself alone.
        box.run("prlimit --pid 1 --nofile=3:3")
        with pytest.raises(SandboxDied):
            box.run("true")
    else:
        for limit in ("nofile=3:3", "as=1000:1000", "nproc=1:1"):
            for pid in ("1", "$PPID"):
                assert box.run(f"prlimit --pid {pid} --{limit}").exit_code == 1
        assert box.run("echo alive").stdout == b"alive\n"
    assert other.run("echo alive").stdout == b"alive\n"


def not_held(outcomes: Mapping[str, harness.Outcome]) -> dict[str, str]:
    return {name: outcome.detail for name, outcome in outcomes.items() if outcome.kind != "held"}


def test_the_table_covers_its_groups() -> None:
    assert {attack.group for attack in every.TABLE.values()} == set(every.GROUPS)
    assert len(every.TABLE) > 150
