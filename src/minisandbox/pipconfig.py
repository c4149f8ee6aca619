"""What this machine's pip is configured for, as pip itself says it.

Read once a process, so that its files, sections and variables count as they do for pip. Nothing of
the project is needed but what starts programs.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Mapping

from minisandbox import process

#: Seconds; reading a few files takes pip half of one.
_TIMEOUT = 60


@functools.cache
def pip_settings() -> Mapping[str, str]:
    """Pip's options by name, from its files and the environment; empty where there is no pip."""
    # Not `pip config get`: that reads one file only, and misses what is in /etc/pip.conf.
    listed = process.run(
        [sys.executable, "-m", "pip", "config", "list"], check=False, timeout=_TIMEOUT
    )
    lines = listed.stdout.decode("utf-8", "replace").splitlines()
    settings: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):  # the later ones win
        for line in lines:
            name, _, value = line.partition("=")
            if name.startswith(section):
                settings[name.removeprefix(section)] = str(ast.literal_eval(value))
    return settings
