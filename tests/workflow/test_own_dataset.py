"""docs/how-to/own-dataset.md, followed to the letter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minisandbox import open_cache

CLONE = Path(__file__).parents[2]
PAGE = CLONE / "docs/how-to/own-dataset.md"

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(600)]


def blocks(language: str) -> list[str]:
    """The code blocks of one language, in order."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)  # ids of sandboxes pass through
    for name in ("Snakefile", "workflow", "profiles", "config", "envs"):
        (tmp_path / name).symlink_to(CLONE / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(blocks("sh"))],
        cwd=tmp_path,
        env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    row = open_cache(tmp_path / "my/results").row("team__calc-1")
    assert (row.status, row.FAIL_TO_PASS, row.PASS_TO_PASS) == (
        "ok",
        ("tests/test_calc.py::test_two",),
        ("tests/test_calc.py::test_zero",),
    )
    _, used = done.stdout.rsplit("1 of 1 rows planned are ok (1 tried, 1 validated)", 1)
    assert used.split()[:2] == ["0", "2"]
    (program,) = (block for block in blocks("python") if "open_cache" in block)
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert "1 passed" in shown.stdout
    assert "+    return a + b" in shown.stdout
