"""An official evaluation script in a fresh instance: the harness's own steps, and what its log
shows of them.

The script runs byte for byte. What the project adds lies around it: files that the test patch
creates are cleared away before, the shell's traces bear a nonce, and a log that shows a step to
have failed, or that does not show all of them, is no verdict.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from minisandbox.errors import InvalidInput, PatchFailed
from minisandbox.evaluate.grading import Grade, cut_short
from minisandbox.evaluate.official.eval_script import APPLY, END, START
from minisandbox.evaluate.patches import patched_paths
from minisandbox.evaluate.run_tests import (
    PreparationFailed,
    TestOutput,
    capture,
    refuse_full,
)
from minisandbox.runtime import Instance
from minisandbox.runtime.patchnames import is_for_git_alone

#: The script's own commands as `set -x` tells of them.
_START_TRACE, _END_TRACE = f": '{START}'", f": '{END}'"
_ACTIVATE = "conda activate testbed"
#: The last one; scripts that have no file to restore say so instead.
_RESTORE = "(?:git checkout|echo) .*"
#: How release 5 records what the test command ended with.
_RECORD = "SWEBENCH_TEST_EXIT_CODE=[0-9]+"

#: The harness's own (run_evaluation.py, GIT_APPLY_CMDS) less the one between: `git apply --reject`
#: ends with an error wherever `git apply` does, but leaves the hunks that fit, which
#: `patch --batch` takes for a reversed patch and undoes. `--no-backup-if-mismatch` is ours: a
#: backup would be an untracked file.
_APPLY = ("git apply --verbose", "patch --batch --fuzz=5 --no-backup-if-mismatch -p1 -i")
_PATCH = "/tmp/patch.diff"
_SCRIPT = "/eval.sh"
_START_FILE = "/tmp/eval.start"

_BARE_CHECKOUT = re.compile(r"^git checkout ([0-9a-f]{40}) *$", re.MULTILINE)
_REFUSED = re.compile(r"^error: .*$", re.MULTILINE)
_ELSEWHERE = re.compile(r"^error: (?:invalid path|.* beyond a symbolic link)", re.MULTILINE)
_PATHSPEC = re.compile(r"error: pathspec '(.*)' did not match any file\(s\) known to git")
_KILLED = re.compile(
    r"^/eval\.sh: line \d+: +\d+ (?:Killed|Terminated|Hangup|Quit)\b", re.MULTILINE
)
_PIP = re.compile(r"\bpip3? (?:\S+ )*install\b")
_SETUP = re.compile(r"\bsetup\.py (?:\S+ )*(?:install|develop)\b")
_PIP_DONE = re.compile(r"^ *Successfully installed \S", re.MULTILINE)
_PIP_HAD = re.compile(r"^ *Requirement already satisfied: \S", re.MULTILINE)
#: What pip says of a requirement that it sets out to install.
_PIP_BEGAN = re.compile(
    r"^ *(?:Obtaining|Collecting|Processing|Downloading|Building|Preparing|Installing)\b",
    re.MULTILINE,
)
#: Told to be quiet, pip says nothing of what worked.
_QUIET = re.compile(r" (?:-q+|--quiet)(?= |$)")
_ERROR = re.compile(r"^ *(?:\S*Error|ERROR|error)\b", re.MULTILINE)
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
    trusted: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> TestOutput:
    """Apply ``patch`` as the harness does and run ``script``; the instance must be fresh.

    ``trusted`` are paths, besides those of ``test_patch``, that the patch under test has no say in;
    ``files`` are written, by their paths inside, when it has been applied.

    ``timeout`` is in seconds and bounds the whole script, its installing included. The merged
    output is written to ``log_path`` byte for byte. Raises ``PatchFailed``, after which a part of
    the patch may be there, and ``PreparationFailed``.
    """
    if patch.strip():
        _apply(instance, patch, timeout)
    try:
        # A file that the patch under test made where the test patch makes one would have `git
        # apply` refuse the whole test patch, and the patch's own tests run in its place.
        instance.restore([*patched_paths(test_patch), *trusted])
    except InvalidInput as error:
        raise PatchFailed("test patch", error.problem) from None
    if (bare := _BARE_CHECKOUT.search(script)) is not None:
        _keep_changes(instance, bare[1])
    for path, content in (files or {}).items():
        instance.write_file(path, content)
    instance.write_file(_SCRIPT, script.encode("utf-8", "surrogateescape"), mode=0o755)
    # Bash takes PS4 from the environment of an ordinary user only. The file is gone, and the
    # variable unset, before the first line of the script.
    nonce = secrets.token_hex(8)
    # A PS4 of the environment's would be handed on, with the nonce in it.
    start = f"unset BASH_ENV PS4; PS4='+{nonce} '; rm -f {_START_FILE}\n"
    instance.write_file(_START_FILE, start, mode=0o600)
    return capture(
        instance,
        ["/bin/bash", _SCRIPT],
        env={**env, "BASH_ENV": _START_FILE},
        user=0,
        timeout=timeout,
        log_path=log_path,
        nonce=nonce,
    )


def _apply(instance: Instance, patch: str, timeout: float) -> None:
    if not patch.endswith("\n"):  # lost on its way from a model; to git the last hunk is cut off
        patch += "\n"
    instance.write_file(_PATCH, patch.encode("utf-8", "surrogateescape"))
    said = ""
    for command in _APPLY[:1] if is_for_git_alone(patch) else _APPLY:
        result = instance.run(
            [*command.split(), _PATCH], user=0, timeout=timeout, merge_stderr=True
        )
        if result.exit_code == 0:
            return
        said = said or result.text
        # What git refuses for where it would write, `patch` must not be asked to do.
        if _ELSEWHERE.search(said):
            break
    refuse_full(instance)
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
        raise PreparationFailed(
            instance.sandbox.name, f"no commit on top of {base[:12]}: {last[0]}"
        )


def trouble(
    output: TestOutput, *, install: str, applies: bool = True, created: Collection[str] = ()
) -> Grade | None:
    """Why the log of a script must not be graded; ``None`` if nothing is wrong with the run.

    ``install`` is the command by which the script installs the patched project again. The harness
    itself does not look: it would grade what was installed before. ``applies`` says that the script
    applies a test patch, ``created`` which files that makes: a script that restores them in the end
    ends with an error, because base does not have them.
    """
    if (cut := cut_short(output)) is not None:
        return cut
    if output.exit_code > 128:  # the shell itself: its last command is one of git
        ended = f"the evaluation script ended with {output.exit_code}, as if by a signal"
        return Grade("incomplete", reason=ended)
    log = output.log
    starts, ends = _traces(output, _START_TRACE), _traces(output, _END_TRACE)
    # The harness looks for the bare words, wherever in a line they stand.
    found = (log.count(START), log.count(END))
    if max(found) > 1 or found != (len(starts), len(ends)):
        return Grade(
            "suspect", reason="something other than the evaluation script wrote its markers"
        )
    if not starts:
        return Grade("incomplete", reason="the evaluation script ended before the tests began")
    started = starts[0]
    if (failed := _failed_install(output, started.start(), install)) is not None:
        return Grade("install", reason=f"the evaluation script's own install failed: {failed}")
    refused = _refused_test_patch(output, started.start()) if applies else None
    if refused is not None:
        return Grade("incomplete", reason=f"the test patch does not apply: {refused}")
    if not ends:
        return Grade("incomplete", reason="the evaluation script ended before the tests did")
    ended = ends[0]
    if ended.start() < started.end():
        return Grade("suspect", reason="the evaluation script's markers are in the wrong order")
    # The shell tells of a killed command right before it goes on.
    for line in tests_part(output).splitlines()[-1:]:
        if _KILLED.match(line):
            return Grade("incomplete", reason=f"the tests were killed: {line.strip()}")
    if not any(trace.start() > ended.end() for trace in _traces(output, _RESTORE)):
        return Grade("incomplete", reason="the evaluation script ended right after the tests")
    # Of that last command, which has nothing to do but restore files.
    if output.exit_code != 0 and not _lacks_only(output, created):
        last = log.rstrip().rpartition("\n")[2].strip()
        said = f"the evaluation script ended with {output.exit_code} after the tests: {last[:200]}"
        return Grade("incomplete", reason=said)
    return None


def graded_part(output: TestOutput) -> str:
    """What the harness is to read of the log of a run without ``trouble``: from marker to marker.

    Where the harness finds no test there it reads all of the log, in which a patch under test can
    have the names of its files, its own text and what its installing printed.
    """
    started, ended = _traces(output, _START_TRACE)[0], _traces(output, _END_TRACE)[0]
    return output.log[started.start() : ended.end()] + "\n"


def tests_part(output: TestOutput) -> str:
    """What was printed between the markers, less what the shell told of recording how the tests
    ended; nothing where a run has ``trouble`` with them.
    """
    starts, ends = _traces(output, _START_TRACE), _traces(output, _END_TRACE)
    if not starts or not ends:
        return ""
    started, ended = starts[0], ends[0]
    recorded = [
        trace.start() for trace in _traces(output, _RECORD) if trace.start() > started.end()
    ]
    return output.log[started.end() : min([ended.start(), *recorded[-1:]])]


def recorded_exit_code(output: TestOutput) -> int | None:
    """What the test command of a run without ``trouble`` ended with, if its script records it."""
    traces = _traces(output, _RECORD)
    return int(traces[-1][0].rpartition("=")[2]) if traces else None


def _lacks_only(output: TestOutput, created: Collection[str]) -> bool:
    """Whether the last restore failed for nothing but files that base does not have."""
    restored = _traces(output, _RESTORE)[-1]
    said = output.log[restored.end() :].strip().splitlines()
    lacking = [_PATHSPEC.fullmatch(line.strip()) for line in said]
    return bool(said) and all(found is not None and found[1] in created for found in lacking)


def _traces(output: TestOutput, command: str) -> list[re.Match[str]]:
    """Where the script's shell told of a command that matches, by the nonce of the run.

    Not at the start of lines only: what a command printed last need not end in one.
    """
    return list(re.finditer(rf"\+{output.nonce} (?:{command})$", output.log, re.MULTILINE))


def _failed_install(output: TestOutput, end: int, install: str) -> str | None:
    """The line before ``end`` that tells that installing failed; ``None`` if it worked or there is
    none.
    """
    if not (_PIP.search(install) or _SETUP.search(install)):
        return None
    # Before the last activation the log shows the patch under test, which may say anything.
    starts = [trace.end() for trace in _traces(output, _ACTIVATE) if trace.start() < end]
    traces = [
        trace for trace in _traces(output, ".*") if starts and starts[-1] < trace.start() < end
    ]
    checked = 0
    for trace, following in zip(traces, [*traces[1:], None], strict=True):
        command = trace[0].partition(" ")[2]
        done = _PIP_DONE if _PIP.search(command) else _SETUP_DONE
        if done is _SETUP_DONE and not _SETUP.search(command):
            continue
        checked += 1
        said = output.log[trace.end() : following.start() if following else end]
        if done is _PIP_DONE and _QUIET.search(command) and not _ERROR.search(said):
            continue
        if done is _PIP_DONE and _had_all(said):
            continue
        if not (done.search(said) or (done is _SETUP_DONE and _PIP_DONE.search(said))):
            return _decisive(said) or f"`{command}` does not say that it worked"
    return None if checked else f"the log has no trace of `{install}`"


def _had_all(said: str) -> bool:
    """Whether pip found all that it was asked for installed: then it says nothing of success."""
    wrong = (_PIP_BEGAN, _ERROR, _KILLED)
    return _PIP_HAD.search(said) is not None and not any(sign.search(said) for sign in wrong)


def _decisive(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?:\S*Error|ERROR|error)\b", line)]
    return (errors or lines or [""])[-1]


def _refused_test_patch(output: TestOutput, end: int) -> str | None:
    starts = [trace.end() for trace in _traces(output, APPLY) if trace.start() < end]
    if not starts:
        return "the log has no trace of `git apply`"
    refused = _REFUSED.search(output.log, starts[-1], end)
    return refused[0] if refused else None
