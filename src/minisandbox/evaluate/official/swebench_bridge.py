"""Asks ``swebench``, inside its environment: ``bridge`` runs this.

What the harness would fetch from raw.githubusercontent.com comes out of local mirrors, and anything
else it asks for is an error that names the address.

Release 5 has no specifications: its rows bring their evaluation scripts, and ``row_specs`` and
``grade_row`` are for it. The other operations are for release 4.1.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote, urlsplit

_RAW = "raw.githubusercontent.com"
_COMMIT = re.compile(r"[0-9a-f]{40}")

Item = Mapping[str, Any]
Answer = dict[str, Any]


class Refused(Exception):
    """A request to the network that no mirror answers."""


def _harness(name: str) -> Any:
    return importlib.import_module(f"swebench.harness.{name}")


def specification(item: Item) -> Answer:
    """How the harness installs and tests a repository at a version; null if it does not know it."""
    constants = _harness("constants")
    found = constants.MAP_REPO_VERSION_TO_SPECS.get(item["repo"], {}).get(item["version"])
    return {
        "specification": found,
        "install_first": constants.MAP_REPO_TO_INSTALL.get(item["repo"], ""),
    }


def requirements(item: Item) -> Answer:
    """What the harness makes of the requirement files of a repository at a commit.

    ``kind`` is ``environment.yml`` or ``requirements.txt`` (files, in ``text``), ``exported`` (an
    environment file that comes with the harness for this instance), or ``packages`` (a list in the
    specification itself; no file is read).
    """
    utils, python = _harness("utils"), _harness("test_spec.python")
    exported = utils.load_cached_environment_yml(item.get("instance_id", ""))
    if exported:
        return {"kind": "exported", "text": exported}
    specs = _harness("constants").MAP_REPO_VERSION_TO_SPECS[item["repo"]][item["version"]]
    packages = specs.get("packages", "")
    row = {"repo": item["repo"], "environment_setup_commit": item["commit"]}
    if packages == "requirements.txt":
        return {"kind": packages, "text": python.get_requirements(row)}
    if packages == "environment.yml":
        return {"kind": packages, "text": python.get_environment_yml(row, "testbed")}
    return {"kind": "packages", "text": packages}


def test_spec(item: Item) -> Answer:
    """The harness's test spec of a row as plain values, its evaluation script, its install."""
    made = _harness("test_spec.test_spec").make_test_spec(dict(item))
    specs = _harness("constants").MAP_REPO_VERSION_TO_SPECS[item["repo"]][item["version"]]
    return {
        "test_spec": dataclasses.asdict(made),
        "eval_script": made.eval_script,
        "install": specs.get("install", ""),
    }


def grade(item: Item) -> Answer:
    """The harness's report on a log, and how many tests of all that the log names passed and
    failed.
    """
    grading = _harness("grading")
    spec = _harness("test_spec.test_spec").TestSpec(**item["test_spec"])
    prediction = {"instance_id": spec.instance_id, "model_patch": item["patch"]}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", suffix=".log") as log:
        log.write(item["log"])
        log.flush()
        report = grading.get_eval_report(spec, prediction, log.name, include_tests_status=True)
        statuses: dict[str, str] = grading.get_logs_eval(spec, log.name)[0]
    return {
        "report": report[spec.instance_id],
        "passed": sum(status in ("PASSED", "XFAIL") for status in statuses.values()),
        "failed": sum(status in ("FAILED", "ERROR") for status in statuses.values()),
    }


def row_spec(item: Item) -> Answer:
    """The harness's test spec of a row that brings its evaluation, as plain values, and the script
    as the harness runs it.
    """
    if item["log_parser"] not in _harness("log_parsers").PARSER_REGISTRY:
        return {"error": f"it has no log parser {item['log_parser']!r}"}
    made = _harness("utils").make_test_spec(dict(item))
    return {"test_spec": dataclasses.asdict(made), "eval_script": made.eval_script}


def grade_row(item: Item) -> Answer:
    """The harness's report on the log of such a row.

    Without ``tests_status`` the report is of a log that the harness does not take for one of a test
    run: ``words`` are those of its own words of failure that the log holds, ``statuses`` is how
    many tests the parser finds.
    """
    grading, types = _harness("grading"), importlib.import_module("swebench.types")
    spec = types.TestSpec(**item["test_spec"])
    prediction = {"instance_id": spec.instance_id, "model_patch": item["patch"]}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="", suffix=".log") as log:
        log.write(item["log"])
        log.flush()
        report = grading.get_eval_report(spec, prediction, log.name, include_tests_status=True)
    statuses: dict[str, str] = grading.PARSER_REGISTRY[spec.log_parser](item["log"], spec)
    names = ("APPLY_PATCH_FAIL", "RESET_FAILED", "TESTS_ERROR", "TESTS_TIMEOUT")
    return {
        "report": report[spec.instance_id],
        "words": [word for name in names if (word := getattr(grading, name)) in item["log"]],
        "statuses": len(statuses),
        "passed": sum(status in ("PASSED", "XFAIL") for status in statuses.values()),
        "failed": sum(status in ("FAILED", "ERROR") for status in statuses.values()),
    }


OPERATIONS: Mapping[str, Callable[[Item], Answer]] = {
    "specifications": specification,
    "requirements": requirements,
    "test_specs": test_spec,
    "grade": grade,
    "row_specs": row_spec,
    "grade_row": grade_row,
}


def prepare(request: Mapping[str, Any]) -> None:
    """Have ``requests`` answered by the mirrors of a request instead of the network."""
    mirrors = cast("dict[str, str]", request.get("mirrors", {}))
    requests: Any = importlib.import_module("requests")
    status: Any = importlib.import_module("requests.adapters")

    def send(_: Any, prepared: Any, **__: Any) -> Any:
        content = _file_of(mirrors, prepared.method, prepared.url)
        response = requests.Response()
        response.request, response.url = prepared, prepared.url
        response.status_code = 404 if content is None else 200
        response.headers["Content-Type"] = "text/plain; charset=utf-8"
        response.encoding = "utf-8"
        response._content = content or b"404: Not Found"
        return response

    status.HTTPAdapter.send = send


def _file_of(mirrors: Mapping[str, str], method: str, url: str) -> bytes | None:
    """What raw.githubusercontent.com would send; ``None`` where the commit has no such file."""
    address = urlsplit(url)
    owner, name, commit, path = (*unquote(address.path).lstrip("/").split("/", 3), *("",) * 4)[:4]
    if method != "GET" or address.netloc != _RAW or not _COMMIT.fullmatch(commit):
        raise Refused(f"{method} {url} was refused: graders have no network")
    mirror = mirrors.get(f"{owner}/{name}")
    if mirror is None:
        raise Refused(f"{url} was refused: there is no mirror of {owner}/{name}")
    if (blob := _git(mirror, "cat-file", "blob", f"{commit}:{path}")) is not None:
        return blob
    if _git(mirror, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        raise Refused(f"{url} was refused: the mirror {mirror} does not hold that commit")
    return None


def _git(mirror: str, *words: str) -> bytes | None:
    environment = os.environ | {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", f"--git-dir={mirror}", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env=environment,
    )
    return done.stdout if done.returncode == 0 else None
