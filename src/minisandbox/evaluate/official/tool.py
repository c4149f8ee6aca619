"""Asking an official grader: one call of its bridge for many questions, JSON in and out.

Invariant: the answer has an entry for each item that was asked, in order. An item that the official
code raises on does not stop the others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from minisandbox import process
from minisandbox.errors import ProcessFailed
from minisandbox.evaluate.grading import GraderUnavailable
from minisandbox.evaluate.official.pins import BRIDGE_RUNNER, PINS, Pin
from minisandbox.evaluate.official.venv import Report, default_tools, killed_by, tool_python
from minisandbox.process import ProcessTimedOut

#: Seconds for one call: seconds to import the harness, then milliseconds an item.
_TIMEOUT = 1800

Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Specification:
    """How the official harness installs and tests a repository at a version.

    ``entry`` is its own table's (``python``, ``packages``, ``pip_packages``, ``pre_install``,
    ``install``, ``test_cmd``, ``eval_commands``, ``no_use_env``, ...), ``install_first`` the
    command that it runs before the entry's ``pre_install``, or empty.
    """

    entry: Mapping[str, Any]
    install_first: str


@dataclass(frozen=True)
class RequirementsAt:
    """A question for requirement files. ``instance_id`` matters because the harness brings
    environment files for some instances.
    """

    instance_id: str
    repo: str
    version: str
    commit: str


@dataclass(frozen=True)
class Requirements:
    """What the harness makes of requirement files.

    ``kind`` is ``requirements.txt``, ``environment.yml``, ``exported`` (an environment file that
    comes with the harness) or ``packages`` (of the specification); ``error`` says why there is no
    text.
    """

    kind: str
    text: str
    error: str = ""


class OfficialTool:
    """One official grader's code, in its environment below ``tools`` (default: this machine's).

    Every method raises ``GraderUnavailable`` where that cannot be made or does not answer.
    """

    def __init__(
        self, name: str, tools: Path | None = None, *, report: Report | None = None
    ) -> None:
        self.pin: Pin = PINS[name]
        self._tools = tools
        self._report = report

    def python(self) -> Path:
        """The interpreter of the environment, which is made if it is not there."""
        return tool_python(self.pin, self._tools or default_tools(), report=self._report)

    def specifications(
        self, pairs: Sequence[tuple[str, str]]
    ) -> Mapping[tuple[str, str], Specification | None]:
        """By (repository, version); ``None`` for those that the harness does not know."""
        asked = [{"repo": repo, "version": version} for repo, version in pairs]
        answers = self._ask("specifications", asked)
        return {
            pair: Specification(answer["specification"], answer["install_first"])
            if answer["specification"] is not None
            else None
            for pair, answer in zip(pairs, answers, strict=True)
        }

    def requirements(
        self, asked: Sequence[RequirementsAt], *, mirrors: Mapping[str, Path]
    ) -> list[Requirements]:
        """What is installed for each, read from the mirrors (bare repositories by name)."""
        items = [
            {
                "instance_id": item.instance_id,
                "repo": item.repo,
                "version": item.version,
                "commit": item.commit,
            }
            for item in asked
        ]
        answers = self._ask("requirements", items, mirrors)
        return [
            Requirements(
                answer.get("kind", ""), answer.get("text") or "", answer.get("error") or ""
            )
            for answer in answers
        ]

    def test_specs(
        self, rows: Sequence[Mapping[str, Any]], *, mirrors: Mapping[str, Path]
    ) -> list[Answer]:
        """The harness's test spec of each row, with ``eval_script`` and ``install``, or
        ``error``.
        """
        return self._ask("test_specs", rows, mirrors)

    def grade(self, items: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """The harness's report for each ``{test_spec, patch, log}``, or ``error``."""
        return self._ask("grade", items)

    def test_files(self, rows: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """The files of the tests of each list of a row of swesmith's, or ``error``."""
        return self._ask("test_files", rows)

    def row_specs(self, rows: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """The test spec of each row that brings its evaluation, with ``eval_script``, or
        ``error``.
        """
        return self._ask("row_specs", rows)

    def grade_rows(self, items: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """As ``grade``, for such rows; also ``words``, ``statuses``, ``passed``, ``failed``."""
        return self._ask("grade_row", items)

    def _ask(
        self,
        operation: str,
        items: Sequence[Mapping[str, Any]],
        mirrors: Mapping[str, Path] | None = None,
    ) -> list[Answer]:
        if not items:
            return []
        request = {
            "operation": operation,
            "items": list(items),
            "mirrors": {repo: str(path.absolute()) for repo, path in (mirrors or {}).items()},
        }
        python = self.python()
        # UTF-8 whatever the locale, because the harness opens logs in the default encoding; and
        # nothing of the caller's folders or settings.
        words = [python, "-I", "-X", "utf8", BRIDGE_RUNNER, self.pin.bridge_path]
        remedy = f"remove {python.parents[1]} to have it installed again"
        try:
            done = process.run(
                words, stdin=json.dumps(request).encode("utf-8"), env=_env(), timeout=_TIMEOUT
            )
            answers: Any = json.loads(done.stdout)
        except ProcessTimedOut as error:
            reason = f"it did not answer within {error.timeout:.0f} s"
            raise GraderUnavailable(self.pin.name, reason, remedy=remedy, transient=True) from error
        except ProcessFailed as error:
            if (killed := killed_by(error)) is not None:
                reason = f"it was killed by {killed}; was there memory?"
                raise GraderUnavailable(
                    self.pin.name, reason, remedy="free some memory", transient=True
                ) from error
            lines = error.output.strip().splitlines() or [f"it said nothing ({error.returncode})"]
            reason = f"it ended early: {lines[-1]}"
            raise GraderUnavailable(self.pin.name, reason, remedy=remedy) from error
        except ValueError as error:
            reason = f"its answer is no JSON: {error}"
            raise GraderUnavailable(self.pin.name, reason, remedy=remedy) from error
        return cast("list[Answer]", answers)


def _env() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    # The harness reads the first .env file above it.
    return kept | {"PYTHON_DOTENV_DISABLED": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
