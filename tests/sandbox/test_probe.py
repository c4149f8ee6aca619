from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minisandbox import namespaces
from minisandbox.cli.main import main
from minisandbox.errors import HostUnsupported, InvalidInput
from minisandbox.sandbox import connection, refusals
from minisandbox.sandbox.base import base_identity
from minisandbox.sandbox.probe import Check, probe


def test_every_promise_is_tried_here(tmp_path: Path) -> None:
    checks = probe(tmp_path)
    assert [check for check in checks if not check.ok] == []
    assert len(checks) > 10
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_refuses_is_a_failed_check_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise refusals.explain("overlay", errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("minisandbox.sandbox.client.launch", refuse)
    failed = [check for check in probe(tmp_path) if not check.ok]
    assert [check.name for check in failed] == ["an overlay of the layers"]
    assert "choose another scratch directory" in failed[0].remedy


def test_the_doctor_looks_where_sandboxes_keep_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Path | None] = []

    def note(scratch: Path | None = None) -> list[Check]:
        seen.append(scratch)
        return [Check("kernel", True, "x"), Check("loopback IPv6", False, "x", required=False)]

    monkeypatch.setattr("minisandbox.sandbox.probe.probe", note)
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "node"))
    assert main(["doctor"]) == 0
    assert seen[0] is not None
    assert seen[0].is_relative_to(tmp_path / "node")
    assert "warn  loopback IPv6" in capsys.readouterr().out

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINISANDBOX_NODE_STORE", str(tmp_path / "file"))
    assert main(["doctor"]) == 1
    assert "FAIL  node store" in capsys.readouterr().out


REFUSALS = [
    ("namespaces", errno.ENOSPC, "not about disk space"),
    ("namespaces", errno.EINVAL, "CONFIG_USER_NS"),
    ("namespaces", errno.EPERM, "seccomp"),
    ("overlay", errno.EPERM, "5.12"),
    ("proc", errno.EPERM, "systempaths=unconfined"),
    ("binds", errno.ENOSYS, "5.12"),
    ("root", errno.EINVAL, "initial ram file system"),
    ("something new", errno.EIO, "doctor"),
]


@pytest.mark.parametrize(("step", "number", "text"), REFUSALS)
def test_refusals_say_what_to_do(
    step: str, number: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "_sysctl", lambda name: "")
    error = refusals.explain(step, number, os.strerror(number))
    assert isinstance(error, HostUnsupported)
    assert text in str(error)


BLOCKERS = [
    ("kernel.unprivileged_userns_clone", "0"),
    ("user.max_user_namespaces", "0"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1"),
]


@pytest.mark.parametrize(("name", "value"), BLOCKERS)
def test_the_setting_that_forbids_namespaces_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "_sysctl", lambda asked: value if asked == name else "")
    assert name in str(refusals.explain("namespaces", errno.EPERM, "Operation not permitted"))


def test_too_many_layers_and_spoilt_layers_are_the_callers_problem() -> None:
    assert isinstance(refusals.explain("overlay", errno.E2BIG, "x"), InvalidInput)
    assert isinstance(refusals.explain("proc", errno.ENOTDIR, "x"), InvalidInput)


def test_base_identity_is_complete_and_stable() -> None:
    identity = base_identity()
    assert set(identity) == {"kind", "os", "os_version", "libc", "arch", "packages"}
    assert all(identity.values())
    base_identity.cache_clear()
    assert base_identity() == identity


def test_the_server_loads_no_module_it_does_not_need() -> None:
    program = connection._BOOTSTRAP.replace(
        "import main\nmain()", "import main\nprint(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, connection._PACKAGE],
        check=True,
        capture_output=True,
        text=True,
    )
    heavy = {"re", "typing", "dataclasses", "pathlib", "json", "subprocess", "inspect"}
    assert not heavy & set(done.stdout.split())
