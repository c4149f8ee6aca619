"""System packages: from commands written for containers to what a host is asked about."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from minisandbox.build import stage, system_packages
from minisandbox.build.bases.selection import HostBase
from minisandbox.build.plan import environment_plan
from minisandbox.build.planning.config import parse_config
from minisandbox.build.planning.debian import take_apart
from minisandbox.errors import StageFailed
from minisandbox.records.plan import EnvironmentPlan, Recipe

HOST = {"kind": "host"}


@pytest.mark.parametrize(
    ("command", "packages"),
    [
        ("apt-get update && apt-get install -y graphviz", ("graphviz",)),
        (
            "apt-get -y upgrade && DEBIAN_FRONTEND=none apt-get install -y imagemagick g++",
            ("g++", "imagemagick"),
        ),
        ("apt install --no-install-recommends -qq  bb aa=1.2-3", ("aa", "bb")),
        ("apt-get update", ()),
        ("sudo -E apt-get install -y foo", ("foo",)),
        ("DEBIAN_FRONTEND=noninteractive apt-get install -y foo", ("foo",)),
        ("apt-get install -t bullseye-backports -o Dpkg::Use-Pty=0 -y foo", ("foo",)),
        ("apt-get update || true", ()),
        ("apt-get install -y foo | tee log", ("foo",)),
        ("apt-get install -y ./local.deb $MORE", ()),
    ],
)
def test_what_apt_would_install(command: str, packages: tuple[str, ...]) -> None:
    parts = take_apart([command])
    assert parts.packages == packages
    assert parts.kept == ()


@pytest.mark.parametrize(
    ("command", "kept", "packages"),
    [
        ("apt-get update && apt-get install -y gcc && pip install a", "pip install a", ("gcc",)),
        ("cd x && sudo apt-get install -y gcc && make", "cd x && make", ("gcc",)),
        ("make; apt-get update || true; make test", "make; make test", ()),
        ("apt-get update || true && make || exit 1", "make || exit 1", ()),
        ("echo 'a; apt-get install b' && make", "echo 'a; apt-get install b' && make", ()),
        (
            "if x; then make; apt-get install -y b; fi",
            "if x; then make; apt-get install -y b; fi",
            (),
        ),
    ],
)
def test_what_else_is_on_a_line_is_kept(command: str, kept: str, packages: tuple[str, ...]) -> None:
    parts = take_apart([command])
    assert (parts.kept, parts.packages) == ((kept,), packages)


def test_the_base_that_a_recipe_needs_is_part_of_its_environment() -> None:
    config = parse_config({"datasets": ["x.yaml"]}, where="config")

    def planned(*packages: str) -> EnvironmentPlan:
        recipe = Recipe("r", "o/r", "3.11", "pytest", system_packages=packages)
        return environment_plan(recipe, HostBase(HOST), config)

    first, second = planned("graphviz", "ffmpeg"), planned("ffmpeg", "graphviz")
    assert first == second
    assert first.key not in (planned().key, planned("ffmpeg").key)
    # What pip resolves does not depend on it.
    assert first.lock_key == planned().lock_key


def test_other_commands_are_run_in_their_order() -> None:
    commands = ["sed -i s/a/b/ x", "apt-get install -y a", "python -m pip install apt-get"]
    assert take_apart(commands).kept == (commands[0], commands[2])


def test_what_is_neither_run_nor_a_package_is_told() -> None:
    parts = take_apart(["locale-gen en_US.UTF-8", "apt-get update && apt-get install -y locales"])
    assert parts.packages == ()
    assert parts.dropped == (
        "locale-gen en_US.UTF-8 (the base is not changed)",
        "locales (locales are part of every environment)",
    )


@pytest.fixture
def dpkg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dpkg-query that answers as the real one does, whatever this host is."""
    program = tmp_path / "dpkg-query"
    lines = [
        r"libc6:amd64\tinstalled\tlibc6-amd64 (= 2.36)",
        r"libfreetype-dev:amd64\tinstalled\tlibfreetype6-dev (= 2.12.1), other",
        r"graphviz\tconfig-files\t",
        r"ffmpeg\tinstalled\t",
    ]
    program.write_text("#!/bin/sh\nprintf '%b\\n' " + " ".join(f"'{line}'" for line in lines))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return program


@pytest.mark.usefixtures("dpkg")
def test_a_package_is_there_by_its_name_or_by_what_it_provides() -> None:
    wanted = ("ffmpeg", "libfreetype6-dev", "libc6:amd64", "other", "graphviz", "texlive")
    # graphviz was removed, and has left its configuration.
    assert system_packages.missing_packages(HOST, wanted) == ("graphviz", "texlive")


@pytest.mark.usefixtures("dpkg")
def test_a_packed_base_is_not_asked() -> None:
    assert system_packages.missing_packages({"kind": "debian-12"}, ("texlive",)) == ()


def test_another_host_has_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert system_packages.missing_packages(HOST, ("texlive",)) == ("texlive",)
    assert "this host is no Debian" in system_packages.missing_hint(("texlive",))


@pytest.mark.usefixtures("dpkg")
def test_a_failure_names_what_was_missing(tmp_path: Path) -> None:
    with pytest.raises(StageFailed) as raised, system_packages.named_in_failures(["texlive"]):
        raise StageFailed("install", "no pdf was made", hint="see 'install'")
    failure = stage.failure_of(raised.value, tmp_path / "log")
    assert failure.hint == (
        "see 'install'; this machine lacks what the recipe asks for: `apt-get install texlive`"
    )


def test_a_lock_without_a_service_is_none_for_an_environment_with_it() -> None:
    config = parse_config({"datasets": ["d.yaml"]}, where="config")
    plain = Recipe(name="r", repo="o/r", python="3.11", test="t")
    base = HostBase(HOST)
    one = environment_plan(plain, base, config)
    other = environment_plan(replace(plain, services=("httpbin",)), base, config)
    assert one.lock_key != other.lock_key
    assert one.key != other.key
