"""docs/how-to/run-commands.md: its programs do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import minisandbox

CLONE = Path(__file__).resolve().parents[2]
SOURCE = Path(minisandbox.__file__).parents[1]


def test_every_program_of_the_page_works(tmp_path: Path) -> None:
    page = (CLONE / "docs/how-to/run-commands.md").read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    for theirs, ours in {"/tmp/sandboxes": "sandboxes", "/tmp/all-of-it": "all-of-it"}.items():
        assert theirs in program
        program = program.replace(theirs, str(tmp_path / ours))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, "")
