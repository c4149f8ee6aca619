"""SWE-rebench's install_config: both releases of it, and the evaluation that is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from minisandbox.build.planning.install_config import (
    NotUnderstood,
    evaluation_script,
    read_install_config,
)
from minisandbox.evaluate.official.eval_script import read_eval_script

FIRST: dict[str, Any] = {
    "env_vars": {"MODE": "test"},
    "env_yml_path": None,
    "install": "pip install -e .[dev]",
    "log_parser": "parse_log_pytest",
    "no_use_env": None,
    "packages": "requirements.txt",
    "pip_packages": ["pytest", "pytest-cov"],
    "pre_install": ["apt-get update", "sed -i s/a/b/ setup.py"],
    "python": "3.9",
    "reqs_path": ["requirements/base.txt"],
    "test_cmd": "pytest --no-header -rA --tb=line -p no:cacheprovider",
}
SECOND: dict[str, Any] = {
    "base_image_name": "python_base_310",
    "docker_specs": None,
    "install": [
        "export DEBIAN_FRONTEND=noninteractive",
        "apt-get install -y x",
        "pip install -e .",
    ],
    "log_parser": "parse_log_pytest",
    "test_cmd": ["cd sub", "pytest -rA"],
}
PATCH = """\
diff --git a/tests/test_old.py b/tests/test_old.py
--- a/tests/test_old.py
+++ b/tests/test_old.py
@@ -1 +1 @@
-1
+2
diff --git a/tests/it is new.py b/tests/it is new.py
new file mode 100644
--- /dev/null
+++ b/tests/it is new.py
@@ -0,0 +1 @@
+1
diff --git a/tests/data.json b/tests/data.json
--- a/tests/data.json
+++ b/tests/data.json
@@ -1 +1 @@
-1
+2
diff --git a/tests/test_gone.py b/tests/test_gone.py
deleted file mode 100644
--- a/tests/test_gone.py
+++ /dev/null
@@ -1 +0,0 @@
-1
"""


def test_the_first_release() -> None:
    config = read_install_config(FIRST)
    assert (config.python, config.packages, config.files) == ("3.9", "", ("requirements/base.txt",))
    assert config.pip_packages == ("pytest", "pytest-cov")
    assert config.pre_install == ("apt-get update", "sed -i s/a/b/ setup.py")
    assert config.install == ("pip install -e .[dev]",)
    assert config.env == {"MODE": "test"}
    assert config.takes_files


def test_the_second_release() -> None:
    config = read_install_config(SECOND)
    assert (config.python, config.files, config.takes_files) == ("3.10", (), False)
    assert config.test == "cd sub && pytest -rA"


@pytest.mark.parametrize(
    ("packages", "paths", "files", "kept"),
    [
        ("requirements.txt", None, ("requirements.txt",), ""),
        ("environment.yml", ["a.txt", "b.txt"], ("a.txt", "b.txt"), ""),
        ("numpy scipy", None, (), "numpy scipy"),
        (None, None, (), ""),
    ],
)
def test_packages_are_files_or_names(
    packages: str | None, paths: list[str] | None, files: tuple[str, ...], kept: str
) -> None:
    config = read_install_config({**FIRST, "packages": packages, "reqs_path": paths})
    assert (config.files, config.packages) == (files, kept)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"test_cmd": None}, "has no 'test_cmd'"),
        ({"test_cmd": []}, "has no 'test_cmd'"),
        ({"log_parser": None}, "has no 'log_parser'"),
        ({"python": None}, "names no version of Python"),
        ({"python": 3.1}, "names no version of Python"),  # 3.10 as a number
        ({"pip_packages": {"a": 1}}, "has 'pip_packages' that is neither text nor a list"),
        ({"install": [1]}, "has an entry in 'install' that is no text"),
        ({"packages": ["a"]}, "has 'packages' that is no text"),
        ({"env_vars": "A=1"}, "has 'env_vars' that are no mapping"),
    ],
)
def test_what_says_too_little_is_named(changes: Mapping[str, Any], said: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        read_install_config({**FIRST, **changes})
    assert said in str(caught.value)


@pytest.mark.parametrize("value", ["{", "[]", None, 3, []])
def test_what_is_no_mapping_is_refused(value: Any) -> None:
    with pytest.raises(NotUnderstood):
        read_install_config(value)


def test_text_is_read_as_json() -> None:
    assert read_install_config('{"python": "3.9", "test_cmd": "t", "log_parser": "p"}').test == "t"


def test_its_evaluation_is_one_of_swe_bench_s_form() -> None:
    text = evaluation_script(read_install_config(FIRST), base="0123", test_patch=PATCH)
    script = read_eval_script(text)
    assert script.installs == ("pip install -e .[dev]",)
    assert script.patches == (PATCH,)
    named = "tests/test_old.py 'tests/it is new.py'"
    assert script.tests == (f"{FIRST['test_cmd']} {named}",)
    # Base lacks what the patch makes.
    restore = "git checkout 0123 tests/test_old.py tests/data.json tests/test_gone.py"
    assert text.count(f"{restore}\n") == 2


def test_the_second_release_names_its_tests_itself() -> None:
    text = evaluation_script(read_install_config(SECOND), base="0123", test_patch=PATCH)
    script = read_eval_script(text)
    assert script.tests == ("cd sub && pytest -rA",)
    assert script.installs == ("pip install -e .",)
    assert "apt-get" not in text


def test_a_patch_of_new_files_restores_none() -> None:
    new = PATCH[PATCH.index("diff --git a/tests/it") : PATCH.index("diff --git a/tests/data")]
    text = evaluation_script(read_install_config(FIRST), base="0123", test_patch=new)
    assert "git checkout" not in text


def test_a_patch_that_holds_the_end_of_its_own_text() -> None:
    patch = PATCH.replace("+2\n", "+2\nEOF_114329324912\n", 1)
    text = evaluation_script(read_install_config(FIRST), base="0123", test_patch=patch)
    assert read_eval_script(text).patches == (patch,)


def test_a_renamed_test_is_restored_by_its_old_name_and_run_by_its_new_one() -> None:
    patch = (
        "diff --git a/tests/test_old.py b/tests/test_new.py\nsimilarity index 100%\n"
        "rename from tests/test_old.py\nrename to tests/test_new.py\n"
    )
    text = evaluation_script(read_install_config(FIRST), base="0123", test_patch=patch)
    assert read_eval_script(text).tests == (f"{FIRST['test_cmd']} tests/test_new.py",)
    # Git restores nothing at all where it is given a name that base lacks.
    assert text.count("git checkout 0123 tests/test_old.py\n") == 2
