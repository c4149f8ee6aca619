"""The account of skipped tests does what CI relies on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

ONE_PASSES = "def test_pass():\n    pass\n"
SKIPS = "import pytest\n@pytest.mark.skip(reason={reason!r})\ndef test_skip():\n    pass\n"
MODULE_SKIPS = "import pytest\npytest.importorskip('no_such_module_at_all')\n"
FAILS = "def test_fail():\n    assert False\n"


def exit_status(folder: Path, strict: str, *options: str, **texts: str) -> int:
    """Of pytest on files of these texts, with the account and without other plug-ins."""
    for name in ("conftest.py", "allowed-skips.txt"):
        shutil.copy(TESTS / name, folder)
    for name, text in texts.items():
        (folder / f"test_{name}.py").write_text(text, encoding="utf-8")
    words = ["pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", *options, "."]
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={
            **os.environ,
            "MINISANDBOX_STRICT_SKIPS": strict,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
    ).returncode


@pytest.mark.parametrize(
    ("text", "strict", "expected"),
    [
        (ONE_PASSES, "1", 0),
        (ONE_PASSES + SKIPS.format(reason="needs to be root"), "1", 0),
        (ONE_PASSES + SKIPS.format(reason="no network today"), "1", 1),
        (ONE_PASSES + SKIPS.format(reason="no network today"), "", 0),
        (SKIPS.format(reason="needs to be root"), "1", 5),
        (MODULE_SKIPS, "1", 5),
        ("", "1", 5),
        (FAILS + SKIPS.format(reason="no network today"), "1", 1),
    ],
)
def test_exit_status(tmp_path: Path, text: str, strict: str, expected: int) -> None:
    assert exit_status(tmp_path, strict, it=text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SKIPS.format(reason="needs to be root"), 0),
        (SKIPS.format(reason="no network today"), 1),
        (MODULE_SKIPS, 1),
    ],
)
@pytest.mark.timeout(180)
def test_processes_side_by_side_hide_no_skip(tmp_path: Path, text: str, expected: int) -> None:
    options = ("-p", "xdist.plugin", "-n", "1", "--dist", "loadfile")
    assert exit_status(tmp_path, "1", *options, it=text, other=ONE_PASSES) == expected
