"""SWE-rebench's ``install_config``: a repository's build and test as a mapping, in two releases.

The first is SWE-bench's own table (``python``, ``packages``, ``pip_packages``, ``pre_install``,
``install``, ``test_cmd``, ...) with what was installed in columns beside it; the second names an
image of its own for the Python, and has lists of commands.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from minisandbox.build.planning import debian
from minisandbox.evaluate.patches import created_paths, patched_paths, remaining_paths


class NotUnderstood(ValueError):
    """Why nothing can be made of an ``install_config``; a clause that follows its name."""


@dataclass(frozen=True)
class InstallConfig:
    """What it says. ``files`` are requirement files of the repository that it installs."""

    python: str
    packages: str
    files: tuple[str, ...]
    pip_packages: tuple[str, ...]
    pre_install: tuple[str, ...]
    install: tuple[str, ...]
    env: Mapping[str, str]
    test: str
    log_parser: str
    takes_files: bool


_PYTHON = re.compile(r"python\D{0,8}?(\d)[._]?(\d{1,2})(?!\d)")
_FILE = re.compile(r"[\w./-]+\.(?:txt|ya?ml)")
#: As SWE-bench has it: files of these endings are no tests to name on the command line.
_NO_TESTS = (
    ".json",
    ".png",
    "csv",
    ".txt",
    ".md",
    ".jpg",
    ".jpeg",
    ".pkl",
    ".yml",
    ".yaml",
    ".toml",
)
_END = "EOF_114329324912"


def read_install_config(value: Any) -> InstallConfig:
    """The values of a column; raises ``NotUnderstood``."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise NotUnderstood("is text that is not JSON") from None
    if not isinstance(value, Mapping):
        raise NotUnderstood("is no mapping")
    data = cast("Mapping[str, Any]", value)
    packages = _text(data, "packages")
    files = _texts(data, "reqs_path") + _texts(data, "env_yml_path")
    if _FILE.fullmatch(packages):
        files, packages = files or (packages,), ""
    tests = _texts(data, "test_cmd")
    if not tests:
        raise NotUnderstood("has no 'test_cmd'")
    parser = _text(data, "log_parser")
    if not parser:
        raise NotUnderstood("has no 'log_parser'")
    env: Any = data.get("env_vars") or {}
    if not isinstance(env, Mapping):
        raise NotUnderstood("has 'env_vars' that are no mapping")
    return InstallConfig(
        python=_python(data),
        packages=packages,
        files=files,
        pip_packages=_texts(data, "pip_packages"),
        pre_install=_texts(data, "pre_install"),
        install=_texts(data, "install"),
        env={str(name): str(text) for name, text in cast("Mapping[Any, Any]", env).items()},
        test=" && ".join(tests),
        log_parser=parser,
        takes_files="base_image_name" not in data,
    )


def evaluation_script(config: InstallConfig, *, base: str, test_patch: str) -> str:
    """An evaluation script in SWE-bench's own form."""
    created = set(created_paths(test_patch))
    paths = patched_paths(test_patch)
    restored = [path for path in paths if path not in created]
    activate = ["source /opt/miniconda3/bin/activate", "conda activate testbed"]
    restore = [f"git checkout {base} {_quoted(restored)}"] if restored else []
    named = _tests(test_patch) if config.takes_files else ()
    end = _END
    while f"\n{end}\n" in test_patch:  # a patch that adds such a script
        end += "_"
    apply = [f"git apply -v - <<'{end}'", test_patch.removesuffix("\n"), end]
    lines = [
        "#!/bin/bash",
        "set -uxo pipefail",
        *activate,
        "cd /testbed",
        "git config --global --add safe.directory /testbed",
        "git status",
        "git show",
        f"git -c core.fileMode=false diff {base}",
        *activate,
        *debian.take_apart(config.install).kept,
        *restore,
        *(apply if test_patch.strip() else []),
        ": '>>>>> Start Test Output'",
        " ".join([config.test, _quoted(named)]).strip(),
        ": '>>>>> End Test Output'",
        *restore,
    ]
    return "\n".join(lines) + "\n"


def _tests(test_patch: str) -> tuple[str, ...]:
    """The test files that a patch leaves behind."""
    found = remaining_paths(test_patch)
    return tuple(path for path in found if not path.endswith(_NO_TESTS))


def _quoted(paths: Sequence[str]) -> str:
    return shlex.join(paths)


def _python(data: Mapping[str, Any]) -> str:
    said = data.get("python")
    if isinstance(said, str) and re.fullmatch(r"\d+\.\d+(\.\d+)?", said):
        return said
    image = data.get("base_image_name")
    found = _PYTHON.search(image) if isinstance(image, str) else None
    if found is None:
        raise NotUnderstood("names no version of Python in 'python' or 'base_image_name'")
    return f"{found[1]}.{found[2]}"


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise NotUnderstood(f"has {key!r} that is no text")
    return value.strip()


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A command or several: text, a list, or nothing."""
    value = data.get(key)
    if hasattr(value, "tolist"):
        value = cast("Any", value).tolist()
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise NotUnderstood(f"has {key!r} that is neither text nor a list")
    items = cast("Sequence[Any]", value)
    if not all(isinstance(item, str) for item in items):
        raise NotUnderstood(f"has an entry in {key!r} that is no text")
    return tuple(str(item) for item in items if str(item).strip())
