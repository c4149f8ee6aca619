"""What an install made of the healthy tree is no answer: copies follow the bug, wherever a project
keeps its sources, and an archive that nothing takes it out of is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minisandbox.build.checkouts import bugs
from minisandbox.errors import StageFailed
from minisandbox.sandbox import Sandbox

Start = Callable[..., Sandbox]
HEALTHY = "def answer():\n    return 42\n"
TEST = "from calc.core import answer\n\n\ndef test_answer():\n    assert answer() == 42\n"
VENV = "/opt/venv"
SITE = f"{VENV}/lib/python3.11/site-packages"


def bug_in(path: str) -> str:
    return (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1,2 +1,2 @@\n"
        " def answer():\n-    return 42\n+    return 41\n"
    )


def installed(start: Start, sources: str, install: str) -> Any:
    """A committed project in a workshop, installed by ``install``."""
    sandbox: Sandbox = start(env={"VIRTUAL_ENV": VENV, "SITE": SITE})
    files = {
        f"{sources}calc/__init__.py": "",
        f"{sources}calc/core.py": HEALTHY,
        f"{sources}tests/test_core.py": TEST,
        ".gitignore": "/build\n/dist\n",
    }
    for name, text in files.items():
        sandbox.write_file(f"/testbed/{name}", text)
    script = f"""
        git init -q . && git add -A && mkdir -p "$SITE" {sources or "."}
        git -c user.name=t -c user.email=t@t commit -qm healthy
        cd ./{sources} && {install}
    """
    done = sandbox.run(script, cwd="/testbed", merge_stderr=True)
    assert done.exit_code == 0, done.text
    return SimpleNamespace(sandbox=sandbox)


def found(sandbox: Sandbox, text: str) -> list[str]:
    """The files inside that hold a text, but for those that are to bring the tests back."""
    words = ["grep", "-rlF", "-e", text, "/testbed", "/opt"]
    return sorted(sandbox.run(words, merge_stderr=True).text.split())


@pytest.mark.parametrize("sources", ["", "src/", "python/", "packages/calc/source/"])
def test_copies_follow_the_bug_wherever_sources_lie(start: Start, sources: str) -> None:
    copied = 'mkdir -p /testbed/build/lib && cp -r calc tests "$SITE" && cp -r calc tests '
    shop = installed(start, sources, f"{copied} /testbed/build/lib")
    bug = bug_in(f"{sources}calc/core.py")
    hidden = [f"{sources}tests/test_core.py"]
    bugs.plant(shop, bug, hidden=hidden, rebuild="", timeout=60)
    assert found(shop.sandbox, "return 42") == []
    assert found(shop.sandbox, "test_answer") == []
    changed = {f"/testbed/{sources}calc/core.py", f"{SITE}/calc/core.py"}
    assert set(found(shop.sandbox, "return 41")) >= changed


def test_a_file_of_another_package_is_no_copy(start: Start) -> None:
    shop = installed(start, "", 'mkdir -p "$SITE/other" && cp calc/core.py "$SITE/other"')
    bugs.plant(shop, bug_in("calc/core.py"), hidden=[], rebuild="", timeout=60)
    assert found(shop.sandbox, "return 42") == [f"{SITE}/other/core.py"]


@pytest.mark.parametrize(
    "pack",
    [
        "python3 -m zipfile -c dist/calc-1-py3-none-any.whl calc",
        "python3 -m zipfile -c dist/calc-1-py3.11.egg calc",
        "mkdir calc-1 && cp -r calc calc-1 && tar -czf dist/calc-1.tar.gz calc-1 && rm -r calc-1",
    ],
)
def test_an_archive_of_the_healthy_tree_is_an_error(start: Start, pack: str) -> None:
    shop = installed(start, "", f"mkdir dist && {pack}")
    with pytest.raises(StageFailed, match=r"keeps what the bug changes in an archive: \S+/dist/"):
        bugs.plant(shop, bug_in("calc/core.py"), hidden=[], rebuild="", timeout=60)
