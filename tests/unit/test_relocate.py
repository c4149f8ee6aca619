"""The script that old interpreters run has to be one that they understand."""

from __future__ import annotations

import ast
from pathlib import Path

from minisandbox.build import relocate

SOURCE = Path(relocate.__file__).read_text(encoding="utf-8")


def test_it_is_written_for_python_3_6() -> None:
    tree = ast.parse(SOURCE, feature_version=(3, 6))
    for node in ast.walk(tree):
        # `list[str]` is evaluated where it stands, and an error before 3.9.
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            assert node.value.id not in {"list", "dict", "set", "tuple", "type", "frozenset"}
        assert not isinstance(node, ast.BinOp | ast.AnnAssign) or "|" not in ast.unparse(node)
        if isinstance(node, ast.ImportFrom):
            assert node.module in {"typing"}


def test_what_stays_behind() -> None:
    names = [
        "os.py",
        "__pycache__",
        "site-packages",
        "x.pyc",
        "libpython3.11.a",
        "sitecustomize.py",
    ]
    assert set(names) - set(relocate.ignore("/usr/lib/python3.11", names)) == {"os.py"}
    tests = ["support", "__init__.py", "test_os.py", "data"]
    assert set(tests) - set(relocate.ignore("/usr/lib/python3.11/test", tests)) == {
        "support",
        "__init__.py",
    }
