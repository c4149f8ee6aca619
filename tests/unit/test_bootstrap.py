"""The set-up behind `make`: what it translates for uv, and that an old Python can still run it."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parent.parent.parent / "tools" / "bootstrap.py"
INDEX = "https://index.example/simple"


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, at work on a clone of its own."""
    spec = importlib.util.spec_from_file_location("bootstrap", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "VENV_PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "bootstrap.json")
    monkeypatch.setattr(module, "LOCK", tmp_path / ".venv.lock")
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_STRATEGY", "SSL_CERT_FILE"):
        monkeypatch.delenv(variable, raising=False)
    return module


@pytest.fixture
def steps(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `ensure` does, with the two slow steps replaced by notes of them."""
    done: list[str] = []

    def create(python: str) -> None:
        done.append("create")
        bootstrap.VENV_PYTHON.parent.mkdir(parents=True)
        bootstrap.VENV_PYTHON.symlink_to(python)

    monkeypatch.setattr(bootstrap, "create", create)
    monkeypatch.setattr(bootstrap, "install", lambda extras: done.append("+".join(extras)))
    return done


@pytest.mark.parametrize(
    ("settings", "variables"),
    [
        ({}, {}),
        ({"index-url": INDEX}, {"UV_DEFAULT_INDEX": INDEX}),
        ({"cert": "/etc/ssl/own.pem"}, {"SSL_CERT_FILE": "/etc/ssl/own.pem"}),
        ({"constraint": "/etc/c.txt", "find-links": "/srv/wheels", "timeout": "180"}, {}),
        ({"extra-index-url": "file:///srv/a file:///srv/b"}, {}),
        (
            {"extra-index-url": f"file:///srv/a\n{INDEX}"},
            {"UV_INDEX": INDEX, "UV_INDEX_STRATEGY": "unsafe-best-match"},
        ),
    ],
)
def test_uv_is_told_what_pip_knows(
    bootstrap: ModuleType, settings: dict[str, str], variables: dict[str, str]
) -> None:
    assert bootstrap.uv_can_follow(settings)
    assert bootstrap.uv_settings(settings) == variables


def test_a_persons_own_uv_settings_win(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://mine.example")
    assert bootstrap.uv_settings({"index-url": INDEX}) == {}


@pytest.mark.parametrize("settings", [{"no-index": "true"}, {"index-url": "file:///srv/simple"}])
def test_pip_itself_installs_without_an_index(
    bootstrap: ModuleType, settings: dict[str, str]
) -> None:
    assert not bootstrap.uv_can_follow(settings)


def test_made_once_completed_once_then_nothing(bootstrap: ModuleType, steps: list[str]) -> None:
    for extras in ({"build"}, {"build"}, {"build", "dev"}, {"build"}, {"build", "dev"}):
        bootstrap.ensure(extras)
    assert steps == ["create", "build", "build+dev"]


def test_a_half_made_environment_is_made_anew(bootstrap: ModuleType, steps: list[str]) -> None:
    bootstrap.VENV.mkdir()
    (bootstrap.VENV / "leftover").touch()
    bootstrap.ensure({"build"})
    assert steps == ["create", "build"]
    assert not (bootstrap.VENV / "leftover").exists()


def test_another_pyproject_makes_another_environment(
    bootstrap: ModuleType, steps: list[str]
) -> None:
    bootstrap.ensure({"build"})
    (bootstrap.ROOT / "pyproject.toml").write_text("[project]\nname = 'changed'\n")
    bootstrap.ensure({"build"})
    assert steps == ["create", "build"] * 2


def test_a_vanished_interpreter_makes_another_environment(
    bootstrap: ModuleType, steps: list[str]
) -> None:
    bootstrap.ensure({"build"})
    stamp = json.loads(bootstrap.STAMP.read_text())
    bootstrap.STAMP.write_text(json.dumps(stamp | {"python": "/no/such/python"}))
    bootstrap.ensure({"build"})
    assert steps == ["create", "build"] * 2


def test_no_python_is_one_sentence(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "suits", lambda python: False)
    assert bootstrap.main(["build"]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("bootstrap: no Python >= 3.11 was found on PATH; install one")


def test_a_failing_command_is_told_by_its_decisive_line(bootstrap: ModuleType) -> None:
    program = "echo 'ERROR: no such package'; echo 'hint: look elsewhere'; exit 3"
    with pytest.raises(bootstrap.Unable, match="ended with 3: ERROR: no such package"):
        bootstrap.run(["sh", "-c", program])


def test_an_old_python_can_parse_it() -> None:
    ast.parse(FILE.read_text(encoding="utf-8"), feature_version=(3, 6))


def test_a_python_of_roots_own_is_not_for_others(bootstrap: ModuleType, tmp_path: Path) -> None:
    python = tmp_path / "closed" / "python"
    python.parent.mkdir(mode=0o700)
    python.touch(mode=0o755)
    assert not bootstrap.reachable_by_others(str(python))
    assert bootstrap.reachable_by_others(os.path.realpath("/bin/sh"))
