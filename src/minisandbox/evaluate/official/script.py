"""An official evaluation script in a fresh instance: the harness's own steps, and what its log
shows of them.

The script runs byte for byte. What the project adds lies around it: files that the test patch
creates are cleared away before, and a log that shows a step to have failed is no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from minisandbox import atomic
from minisandbox.errors import InvalidInput, MiniSandboxError, PatchFailed
from minisandbox.evaluate.grading import Grade, cut_short
from minisandbox.evaluate.patches import patched_paths
from minisandbox.evaluate.run_tests import MAX_LOG_BYTES, TestOutput
from minisandbox.runtime import Instance

#: Between these the harness looks for test results; `set -x` prints them once each.
START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"

#: As in the harness (run_evaluation.py, GIT_APPLY_CMDS); nothing else decides whether a patch
#: applies.
_APPLY = ("git apply --verbose", "git apply --verbose --reject", "patch --batch --fuzz=5 -p1 -i")
_PATCH = "/tmp/patch.diff"
_SCRIPT = "/eval.sh"

_BARE_CHECKOUT = re.compile(r"^git checkout ([0-9a-f]{40}) *$", re.MULTILINE)
_ACTIVATE = re.compile(r"^\+ conda activate testbed$", re.MULTILINE)
_TRACE = re.compile(r"^\+ (.*)$", re.MULTILINE)
_APPLIED = re.compile(r"^\+ git apply (?:-v|--verbose) (?:--reject )?-$", re.MULTILINE)
_REFUSED = re.compile(r"^error: .*$", re.MULTILINE)
_KILLED = re.compile(r"^/eval\.sh: line \d+: +\d+ (?:Killed|Terminated)\b")
_PIP = re.compile(r"\bpip3? (?:\S+ )*install\b")
_SETUP = re.compile(r"\bsetup\.py (?:\S+ )*(?:install|develop)\b")
_PIP_DONE = re.compile(r"^ *Successfully installed \S", re.MULTILINE)
_SETUP_DONE = re.compile(r"^Finished processing dependencies for \S", re.MULTILINE)


def run_script(
    instance: Instance,
    script: str,
    *,
    patch: str,
    test_patch: str,
    env: Mapping[str, str],
    timeout: float,
    log_path: Path,
) -> TestOutput:
    """Apply ``patch`` as the harness does and run ``script``; the instance must be fresh.

    ``timeout`` is in seconds and bounds the whole script, its installing included. The merged
    output is written to ``log_path`` byte for byte. Raises ``PatchFailed``.
    """
    if patch.strip():
        _apply(instance, patch, timeout)
    try:
        # A file that the patch under test made where the test patch makes one would have `git
        # apply` refuse the whole test patch, and the patch's own tests run in its place.
        instance.restore(patched_paths(test_patch))
    except InvalidInput as error:
        raise PatchFailed("test patch", error.problem) from None
    if (bare := _BARE_CHECKOUT.search(script)) is not None:
        _keep_changes(instance, bare[1])
    instance.write_file(_SCRIPT, script.encode("utf-8", "surrogateescape"), mode=0o755)
    result = instance.run(
        ["/bin/bash", _SCRIPT],
        env=env,
        user=0,
        timeout=timeout,
        merge_stderr=True,
        max_output=MAX_LOG_BYTES,
    )
    atomic.write_bytes(log_path, result.stdout)
    return TestOutput(
        log=result.stdout.decode("utf-8", "replace"),
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        truncated=result.truncated,
        seconds=result.duration,
    )


def _apply(instance: Instance, patch: str, timeout: float) -> None:
    instance.write_file(_PATCH, patch.encode("utf-8", "surrogateescape"))
    said = ""
    for command in _APPLY:
        result = instance.run(
            [*command.split(), _PATCH], user=0, timeout=timeout, merge_stderr=True
        )
        if result.exit_code == 0:
            return
        said = said or result.text
    lines = [line for line in said.splitlines() if line.startswith("error:")]
    raise PatchFailed("patch", "; ".join(lines[:3]) or "git and patch both refuse it")


def _keep_changes(instance: Instance, base: str) -> None:
    """Let the changes of the patch and of the install step live through ``git checkout <base>``.

    For a test patch that only adds files the script's "restore the test files" names none, which
    makes it a change of branches: what the commit on top of base holds (the changes of the install
    step to tracked files) would be gone. With a commit of base's own tree on top, all of it is a
    change of the work tree, which git carries along.
    """
    identity = "-c user.name=SWE-bench -c user.email=setup@swebench.config"
    script = (
        f"new=$(git {identity} commit-tree -p {base} -m SWE-bench '{base}^{{tree}}') && "
        'git reset -q --mixed "$new"'
    )
    result = instance.run(script, user=0, timeout=600, merge_stderr=True)
    if result.exit_code != 0:
        last = result.text.strip().splitlines()[-1:] or [f"git ended with {result.exit_code}"]
        raise MiniSandboxError(f"cannot prepare {base[:12]} for its evaluation script: {last[0]}")


def trouble(output: TestOutput, *, install: str) -> Grade | None:
    """Why the log of a script must not be graded; ``None`` if nothing is wrong with the run.

    ``install`` is the command by which the script installs the patched project again. The harness
    itself does not look: it would grade what was installed before.
    """
    if (cut := cut_short(output)) is not None:
        return cut
    log = output.log
    starts, ends = log.count(START), log.count(END)
    if starts > 1 or ends > 1:
        return Grade(
            "suspect", reason="something other than the evaluation script wrote its markers"
        )
    if starts == 0:
        return Grade("incomplete", reason="the evaluation script ended before the tests began")
    before, _, after = log.partition(START)
    if (failed := _failed_install(before, install)) is not None:
        return Grade("install", reason=f"the evaluation script's own install failed: {failed}")
    if (refused := _refused_test_patch(before)) is not None:
        return Grade("incomplete", reason=f"the test patch does not apply: {refused}")
    if ends == 0:
        return Grade("incomplete", reason="the evaluation script ended before the tests did")
    tests = after.partition(END)[0].splitlines()
    # The last line is the trace of the marker; the shell tells of a killed command right before.
    for line in tests[-2:]:
        if _KILLED.match(line):
            return Grade("incomplete", reason=f"the tests were killed: {line.strip()}")
    return None


def _failed_install(before: str, install: str) -> str | None:
    """The line that tells that installing failed; ``None`` if it worked or there is none."""
    if not (_PIP.search(install) or _SETUP.search(install)):
        return None
    # Before the last activation the log shows the patch under test, which may say anything.
    starts = [match.end() for match in _ACTIVATE.finditer(before)]
    segment = before[starts[-1] :] if starts else ""
    checked = 0
    traces = list(_TRACE.finditer(segment))
    for trace, following in zip(traces, [*traces[1:], None], strict=True):
        done = _PIP_DONE if _PIP.search(trace[1]) else _SETUP_DONE
        if done is _SETUP_DONE and not _SETUP.search(trace[1]):
            continue
        checked += 1
        said = segment[trace.end() : following.start() if following else len(segment)]
        if not (done.search(said) or (done is _SETUP_DONE and _PIP_DONE.search(said))):
            return _decisive(said) or f"`{trace[1]}` does not say that it worked"
    return None if checked else f"the log has no trace of `{install}`"


def _decisive(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?:\S*Error|ERROR|error)\b", line)]
    return (errors or lines or [""])[-1]


def _refused_test_patch(before: str) -> str | None:
    starts = [match.end() for match in _APPLIED.finditer(before)]
    if not starts:
        return "the log has no trace of `git apply`"
    refused = _REFUSED.search(before, starts[-1])
    return refused[0] if refused else None
