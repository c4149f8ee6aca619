"""Which language a row is in, for all formats: only Python projects are built.

A column that says so is believed first, then the parser of its test log, then the files that its
patches change. A row that says nothing, as one of one's own may, counts as Python.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePosixPath

from minisandbox.build.planning.formats.format import Refusal
from minisandbox.records.plan import InstancePlan

_COLUMNS = ("language", "repo_language", "lang")
_PYTHON = frozenset({"python", "py", "python3"})

#: By what follows ``parse_log_``: those that no Python project has.
_PARSERS = {
    "ant": "Java",
    "gradle": "Java",
    "gradle_custom": "Java",
    "maven": "Java",
    "cargo": "Rust",
    "doctest": "C++",
    "googletest": "C++",
    "gotest": "Go",
    "jq": "C",
    "micropython_test": "C",
    "redis": "C",
    "immutable_js": "JavaScript",
    "jest": "JavaScript",
    "jest_json": "JavaScript",
    "karma": "JavaScript",
    "mocha": "JavaScript",
    "tap": "JavaScript",
    "vitest": "JavaScript",
    "phpunit": "PHP",
    "cucumber": "Ruby",
    "jekyll": "Ruby",
    "minitest": "Ruby",
    "rspec_transformed_json": "Ruby",
    "ruby_unit": "Ruby",
}

_ENDINGS = {
    ".c": "C",
    ".h": "C",
    ".cc": "C++",
    ".cpp": "C++",
    ".hpp": "C++",
    ".cs": "C#",
    ".go": "Go",
    ".java": "Java",
    ".js": "JavaScript",
    ".jsx": "JavaScript",
    ".mjs": "JavaScript",
    ".ts": "TypeScript",
    ".tsx": "TypeScript",
    ".vue": "JavaScript",
    ".kt": "Kotlin",
    ".php": "PHP",
    ".rb": "Ruby",
    ".rs": "Rust",
    ".scala": "Scala",
    ".swift": "Swift",
}
_PYTHON_ENDINGS = frozenset({".py", ".pyi", ".pyx", ".pxd"})

_CHANGED = re.compile(r"^diff --git a/(?P<path>[^\r\n]+?) b/", re.MULTILINE)


def foreign_language(instance: InstancePlan) -> Refusal | None:
    """Refuses what is not Python. A recipe file overrules: whoever wrote it knows the project."""
    language, because = _language(instance)
    if not language or language.lower() in _PYTHON:
        return None
    return Refusal("language", f"it is {language} ({because}), and only Python is built")


def _language(instance: InstancePlan) -> tuple[str, str]:
    """The language, or nothing, and how it is known."""
    for column in _COLUMNS:
        said = instance.extra.get(column)
        if isinstance(said, str) and said:
            return said, f"says its {column!r}"
    parser = instance.extra.get("log_parser")
    if isinstance(parser, str) and (by_parser := _PARSERS.get(parser.removeprefix("parse_log_"))):
        return by_parser, f"its log is read by {parser}"
    return _by_files(instance.patch, instance.test_patch), "as are the files that it changes"


def _by_files(*patches: str) -> str:
    """The language of most files that patches change; with one Python file among them Python, as
    extensions in C are a part of many Python projects.
    """
    paths = [found["path"] for patch in patches for found in _CHANGED.finditer(patch)]
    endings = [PurePosixPath(path).suffix.lower() for path in paths]
    if _PYTHON_ENDINGS & set(endings):
        return "Python"
    counted = Counter(_ENDINGS[ending] for ending in endings if ending in _ENDINGS)
    return counted.most_common(1)[0][0] if counted else ""
