"""The grader of rows that bring their own evaluation: a script, the name of a log parser, a rule.

As the harness of release 5 does: it makes the script record how the test command ended, its parser
reads the log, its rule decides. Around the script is done what is done around any official one (see
``script``), and files that a text patch cannot carry are put in place right before the tests.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, cast

from minisandbox.evaluate.grading import Grade, GraderFailed, Task, without_blame
from minisandbox.evaluate.official.eval_script import (
    EXIT_CODE,
    EvalScript,
    NotUnderstood,
    read_eval_script,
    with_files,
)
from minisandbox.evaluate.official.grader import OfficialGrader
from minisandbox.evaluate.official.script import (
    graded_part,
    recorded_exit_code,
    run_script,
    tests_part,
    trouble,
)
from minisandbox.evaluate.official.tool import Answer
from minisandbox.evaluate.outages import KILLED
from minisandbox.evaluate.patches import created_paths, patched_paths
from minisandbox.evaluate.run_tests import TestOutput
from minisandbox.runtime import Instance

#: Version of what this module does around the official code; counted up with a change of meaning.
_METHOD = 2

#: The rule by which every test of both lists has to be seen to pass. The other, ``fail_only``,
#: takes a test that the log does not name for passed.
EVAL_TYPE = "pass_and_fail"

#: By what follows ``parse_log_``: the parsers that the harness has.
_PARSERS = """
    ant astroid astropy bpmn_js calypso carbon cargo chart_js cucumber django doctest eslint
    flask googletest gotest gradle_custom grommet highlightjs immutable_js jekyll jest jest_json
    jq karma lighthouse marked marshmallow matplotlib maven micropython_test minitest next
    openlayers p5js phpunit prismjs pvlib pydicom pylint pytest pytest_options pytest_v2 pyvista
    quarto_cli react_pdf redis requests rspec_transformed_json ruby_unit scikit seaborn sphinx
    sqlfluff sympy tap vitest xarray
"""
LOG_PARSERS = frozenset(f"parse_log_{name}" for name in _PARSERS.split())

#: Columns of a row that say how it is evaluated.
COLUMNS = ("eval_script", "log_parser", "eval_type", "image", "image_assets", "test_assets")

#: Of no path in a repository; the empty one stands in ``/a``, ``a//b`` and ``a/``.
_NO_PARTS = frozenset({"", ".", "..", ".git"})

#: Where files for the tests lie inside until the script copies them.
_FILES = "/test_assets"


@dataclass(frozen=True)
class RowGrader(OfficialGrader):
    """Grades by the evaluation that a row brings, with the official parsers and rule."""

    @property
    def identity(self) -> Mapping[str, str]:
        return {**super().identity, "rows": str(_METHOD)}

    def specify(
        self, tasks: Sequence[Task], *, mirrors: Mapping[str, Path]
    ) -> Mapping[str, str | GraderFailed]:
        """As ``Grader.specify`` says; ``mirrors`` are not read."""
        del mirrors
        found: dict[str, str | GraderFailed] = {}
        read: list[tuple[Task, EvalScript]] = []
        for task in tasks:
            try:
                read.append((task, understood(task.evaluation)))
            except NotUnderstood as error:
                found[task.instance_id] = GraderFailed(
                    self.name, task.instance_id, f"the row {error}"
                )
        answers = self.tool.row_specs([_row(task, script) for task, script in read])
        for (task, script), answer in zip(read, answers, strict=True):
            found[task.instance_id] = self._row_spec(task, script, answer)
        return found

    def _row_spec(self, task: Task, script: EvalScript, answer: Answer) -> str | GraderFailed:
        files = _files_of(task.evaluation)
        patches = (task.test_patch, *script.patches)
        commands = [
            f"mkdir -p -- {shlex.quote(str(PurePosixPath(path).parent))} && "
            f"cp -- {_FILES}/{number} {shlex.quote(path)}"
            for number, path in enumerate(files)
        ]
        if "error" not in answer:
            answer = {
                **answer,
                "eval_script": with_files(answer["eval_script"], commands),
                "install": "\n".join(script.installs),
                "applies": bool(script.patches),
                "restored": sorted(
                    {*files, *(path for text in patches for path in patched_paths(text))}
                ),
                "created": sorted({path for text in patches for path in created_paths(text)}),
                "files": files,
            }
        return self._spec(task, answer)

    def run(self, instance: Instance, task: Task, *, patch: str, log_path: Path) -> TestOutput:
        saved = self._saved(task)
        self.tool.python()  # before minutes of tests that nothing could grade
        files = {
            f"{_FILES}/{number}": base64.b64decode(content)
            for number, content in enumerate(saved["files"].values())
        }
        return run_script(
            instance,
            saved["eval_script"],
            patch=patch,
            test_patch=task.test_patch,
            env=self.env,
            timeout=self.timeout,
            log_path=log_path,
            trusted=saved["restored"],
            files=files,
        )

    def grade(self, task: Task, outputs: Sequence[TestOutput]) -> tuple[Grade, ...]:
        saved = self._saved(task)
        grades = [_trouble(output, saved) for output in outputs]
        items = [
            {"test_spec": saved["test_spec"], "patch": "", "log": _graded_log(output)}
            for output, grade in zip(outputs, grades, strict=True)
            if grade is None
        ]
        answers = iter(self.tool.grade_rows(items))
        return tuple(
            grade or without_blame(_grade(task, output, next(answers)), output, tests_part(output))
            for output, grade in zip(outputs, grades, strict=True)
        )

    @property
    def kept(self) -> Sequence[tuple[str, type]]:
        return (
            *super().kept,
            ("applies", bool),
            ("restored", list),
            ("created", list),
            ("files", dict),
        )


def understood(evaluation: Mapping[str, Any]) -> EvalScript:
    """The script of a row that can be evaluated; raises ``NotUnderstood``, whose text follows "the
    row".
    """
    for column in ("eval_script", "log_parser", "eval_type"):
        if not isinstance(evaluation.get(column), str) or not evaluation[column]:
            raise NotUnderstood(f"brings no {column!r}")
    if evaluation["eval_type"] != EVAL_TYPE:
        raise NotUnderstood(
            f"has the eval_type {evaluation['eval_type']!r}, and only {EVAL_TYPE!r} is done"
        )
    files = _files_of(evaluation)
    for asset in _declared(evaluation.get("image_assets")):
        if asset not in files:
            raise NotUnderstood(
                f"needs the file {asset!r} for its tests, which is not in its test_assets"
            )
    try:
        return read_eval_script(evaluation["eval_script"])
    except NotUnderstood as error:
        raise NotUnderstood(f"has an eval_script that {error}") from None


def _declared(assets: Any) -> list[str]:
    """Paths of the files that a row says its patches come with."""
    if isinstance(assets, str) and assets:
        try:
            assets = json.loads(assets)
        except (ValueError, RecursionError):
            raise NotUnderstood("has 'image_assets' that are no JSON") from None
    if not isinstance(assets, Mapping):
        return []
    lists = cast("Mapping[str, Any]", assets)
    entries = [entry for key in ("test_patch", "patch") for entry in lists.get(key) or ()]
    named = [cast("Mapping[str, Any]", entry) for entry in entries if isinstance(entry, Mapping)]
    return [str(entry["path"]) for entry in named if entry.get("path")]


def _files_of(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """What is put in place for the tests: base64 by path in the repository."""
    files: Any = evaluation.get("test_assets") or {}
    if not isinstance(files, Mapping):
        raise NotUnderstood("has 'test_assets' that are no mapping of paths to base64")
    found: dict[str, str] = {}
    for path, content in sorted(cast("Mapping[Any, Any]", files).items()):
        parts = str(path).split("/")
        if "\0" in str(path) or any(part.lower() in _NO_PARTS for part in parts):
            raise NotUnderstood(f"has the test asset {path!r}, which is no path of a repository")
        try:
            base64.b64decode(content, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise NotUnderstood(f"has the test asset {path!r}, which is not base64") from None
        found[str(path)] = content
    return found


def _row(task: Task, script: EvalScript) -> dict[str, Any]:
    """The columns that the harness reads."""
    return {
        "instance_id": task.instance_id,
        "image": str(task.evaluation.get("image") or ""),
        "repo": task.repo,
        "version": task.version,
        "FAIL_TO_PASS": list(task.fail_to_pass),
        "PASS_TO_PASS": list(task.pass_to_pass),
        "log_parser": task.evaluation["log_parser"],
        "eval_type": task.evaluation["eval_type"],
        "eval_script": script.text,
    }


def _trouble(output: TestOutput, saved: Mapping[str, Any]) -> Grade | None:
    found = trouble(
        output, install=saved["install"], applies=saved["applies"], created=saved["created"]
    )
    if found is None and EXIT_CODE in tests_part(output):
        # The harness would believe the first, which is the one that the tests printed.
        said = "the tests printed the words by which the harness records how they ended"
        return Grade("suspect", reason=said)
    # Told by the shell only of a command of its own, not of one in a pipe or a script.
    code = recorded_exit_code(output)
    if found is None and code is not None and (name := KILLED.get(code - 128)) is not None:
        return Grade("incomplete", reason=f"the tests were killed by {name}")
    return found


def _graded_log(output: TestOutput) -> str:
    code = recorded_exit_code(output)
    return graded_part(output) + ("" if code is None else f"{EXIT_CODE}: {code}\n")


def _grade(task: Task, output: TestOutput, answer: Answer) -> Grade:
    if "error" in answer:
        return Grade("grader", reason=f"the official grader broke on the log: {answer['error']}")
    lists = answer["report"].get("tests_status")
    every = (*task.fail_to_pass, *task.pass_to_pass)
    counts = Grade(
        outcome="unresolved",
        fail_to_pass=(0, len(task.fail_to_pass)),
        pass_to_pass=(0, len(task.pass_to_pass)),
        failing=every,
        passed=answer["passed"],
        failed=answer["failed"],
    )
    if lists is None:
        return _no_test_run(counts, answer, recorded_exit_code(output))
    # The harness counts tests of the second list that were skipped as kept, and so do we; a test
    # that it puts into neither list did not pass.
    fixed = [name for name in task.fail_to_pass if name in set(lists["FAIL_TO_PASS"]["success"])]
    kept = [name for name in task.pass_to_pass if name in set(lists["PASS_TO_PASS"]["success"])]
    failing = tuple(
        name
        for names, passed in ((task.fail_to_pass, set(fixed)), (task.pass_to_pass, set(kept)))
        for name in names
        if name not in passed
    )
    resolved = answer["report"]["resolved"] and bool(task.fail_to_pass) and not failing
    return replace(
        counts,
        outcome="resolved" if resolved else "unresolved",
        fail_to_pass=(len(fixed), len(task.fail_to_pass)),
        pass_to_pass=(len(kept), len(task.pass_to_pass)),
        failing=failing,
    )


def _no_test_run(counts: Grade, answer: Answer, code: int | None) -> Grade:
    """What comes of a log that the harness does not take for one of a test run: nothing is solved,
    unless something wrote its words.
    """
    if answer["words"]:
        said = f"the tests printed `{answer['words'][0]}`, which only the harness may"
        return Grade("suspect", reason=said)
    if answer["statuses"]:
        reason = f"the test command ended with {code}, but its log names no test that failed"
    else:
        reason = "the log names no test"
    return replace(counts, reason=reason)


_BLANK = re.compile(r"\s+")


def test_command(script: EvalScript, test_patch: str) -> str:
    """How the tests of a repository are run: the script's last test command less the files of this
    one row.
    """
    if not script.tests:
        return ""
    named = {
        name
        for patch in (test_patch, *script.patches)
        for path in patched_paths(patch)
        for name in _spellings(path)
    }
    program, *words = _BLANK.split(script.tests[-1])
    return " ".join([program, *(word for word in words if word not in named)])


def _spellings(path: str) -> tuple[str, ...]:
    """How scripts name a test file: as a path, or as Django's runner has it."""
    dotted = path.removeprefix("tests/").removesuffix(".py").replace("/", ".")
    return path, f"./{path}", dotted
