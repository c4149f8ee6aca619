"""The environment of an official grader: made on first use, exactly as pinned, once a machine.

Packages come from the index that this machine's pip is configured for, each checked against the
hash in the list. uv installs them where it is there and can be told that index, else pip.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from minisandbox import atomic, process
from minisandbox.errors import ProcessFailed
from minisandbox.evaluate.grading import GraderUnavailable
from minisandbox.evaluate.official.pins import Pin
from minisandbox.evaluate.outages import KILLED
from minisandbox.pipconfig import pip_settings
from minisandbox.store import default_node_root

#: Told what takes long.
Report = Callable[[str], None]

#: Seconds for some hundred megabytes over a slow line.
_TIMEOUT = 1800

#: Settings of pip that uv, which reads none of pip's files, takes from these variables.
_UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
    "proxy": "ALL_PROXY",
}
#: What installers say of a full disk: uv and pip pass on the system's own words.
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
#: What installers say when the index could not be reached or did not answer: may pass.
_UNREACHED = (
    "connection",
    "connect error",
    "dns error",
    "failed to fetch",
    "name resolution",
    "network is unreachable",
    "timed out",
    "timeout",
    "temporary failure",
    "429 too many",
    "502 bad",
    "503 service",
    "504 gateway",
)


def default_tools() -> Path:
    """Where graders are kept on this machine if nobody says otherwise: beside the node store."""
    return default_node_root() / "tools"


def place_of(pin: Pin, tools: Path) -> Path:
    """The folder below ``tools`` of the environment of ``pin`` as this Python makes it."""
    return tools.absolute() / f"{pin.name}-{_digest(pin)}"


def tool_python(pin: Pin, tools: Path, *, report: Report | None = None) -> Path:
    """The python of the environment of ``pin`` below ``tools``; made on first use.

    Raises ``GraderUnavailable``, which says whether trying again may help.
    """
    target = place_of(pin, tools)
    if not target.is_dir() and report is not None:
        report(f"installing {pin.distribution} {pin.version}, once, into {target}")
    try:
        atomic.ensure_directory(
            target, target.with_name(f".{target.name}.lock"), lambda work: _fill(work, pin)
        )
    except OSError as error:
        raise GraderUnavailable(
            pin.name,
            f"{target} cannot be made: {error.strerror}",
            remedy=_remedy(error.errno),
        ) from error
    return target / "bin" / "python"


def killed_by(error: ProcessFailed) -> str | None:
    """The signal from outside that ended a program, which says nothing of the program."""
    return KILLED.get(-error.returncode)


def _remedy(number: int | None) -> str:
    if number in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "name a folder of graders that can be written (`minisandbox grade --tools`)"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "free some space there"
    return "check the folder"


def _digest(pin: Pin) -> str:
    """Of the list and of the Python: an environment is a link to the one that made it."""
    python = f"{sys.version_info[:3]} {os.path.realpath(sys.executable)}"
    return hashlib.sha256(f"{pin.digest} {python}".encode()).hexdigest()[:12]


def _fill(work: Path, pin: Pin) -> None:
    try:
        settings = pip_settings()
        if _uv_can_follow(settings):
            _install_by_uv(work, pin, settings)
        else:
            _install_by_pip(work, pin)
        # Shows that it works, and compiles what is used (all of it would take four times as long).
        check = f"import {pin.distribution}"
        process.run([work / "bin" / "python", "-I", "-c", check], env=_clean(), timeout=300)
    except ProcessFailed as error:
        shutil.rmtree(work, ignore_errors=True)
        if (killed := killed_by(error)) is not None:
            reason = f"installing it was killed by {killed}; was there memory?"
            raise GraderUnavailable(
                pin.name, reason, remedy="free some memory", transient=True
            ) from error
        raise GraderUnavailable(
            pin.name,
            f"{pin.distribution} {pin.version} cannot be installed: {_decisive(error.output)}",
            remedy="free some space for it"
            if _NO_SPACE.search(error.output)
            else "check the package index that pip is configured for",
            transient=any(word in error.output.lower() for word in _UNREACHED),
        ) from error
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _decisive(output: str) -> str:
    """The first error that an installer names, with the two lines in which it explains it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    first = next((i for i, line in enumerate(lines) if "error" in line.lower()), len(lines) - 1)
    return " ".join(lines[first : first + 3])


def _install_by_uv(work: Path, pin: Pin, settings: Mapping[str, str]) -> None:
    from uv import find_uv_bin

    uv = find_uv_bin()
    env = _clean() | _uv_settings(settings)
    process.run([uv, "venv", "--no-config", "--python", sys.executable, work], env=env, timeout=300)
    install = [uv, "pip", "install", "--no-config", "--require-hashes"]
    into = ["--python", work / "bin" / "python", "--requirement", pin.requirements_path]
    process.run([*install, *into], env=env, timeout=_TIMEOUT)


def _install_by_pip(work: Path, pin: Pin) -> None:
    process.run([sys.executable, "-m", "venv", work], env=_clean(), timeout=300)
    install = [work / "bin" / "python", "-m", "pip", "install", "--require-hashes", "--no-input"]
    process.run([*install, "--requirement", pin.requirements_path], env=_clean(), timeout=_TIMEOUT)


def _uv_can_follow(settings: Mapping[str, str]) -> bool:
    # No index at all, or one on local disk, is pip's own business.
    no_index = settings.get("no-index", "").lower() in ("1", "true", "yes", "on")
    local = settings.get("index-url", "").startswith("file:")
    return importlib.util.find_spec("uv") is not None and not no_index and not local


def _uv_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Variables that make uv use pip's indexes and certificates; a person's own win."""
    variables = {
        variable: settings[name] for name, variable in _UV_VARIABLES.items() if settings.get(name)
    }
    extra = settings.get("extra-index-url", "").split()
    remote = [url for url in extra if not url.startswith("file:")]
    if remote:
        # pip takes the best of all indexes; uv by default stops at the first with the name.
        variables |= {"UV_INDEX": " ".join(remote), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    return {name: value for name, value in variables.items() if name not in os.environ}


def _clean() -> dict[str, str]:
    """This process's environment less what would lead an installer or an interpreter elsewhere."""
    misleading = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON")
    return {name: value for name, value in os.environ.items() if name not in misleading}
