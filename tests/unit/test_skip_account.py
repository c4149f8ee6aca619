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
    for name in ("conftest.py", "allowed-skips.txt"):
        shutil.copy(TESTS / name, tmp_path)
    (tmp_path / "test_it.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "."],
        cwd=tmp_path,
        env={**os.environ, "MINISANDBOX_STRICT_SKIPS": strict},
        capture_output=True,
        text=True,
    )
    assert done.returncode == expected, done.stdout + done.stderr
