"""Make `.venv`, the environment of this clone, from nothing but a Python >= 3.11.

    python3 tools/bootstrap.py build        what `make demo` needs
    python3 tools/bootstrap.py build dev    what `make test` needs

Standard library only, and written so that an old Python can still parse it and say that it is old. A stamp, written
last, holds the digest of pyproject.toml and of the interpreter: where it matches nothing is done, where it is missing
(a run was killed) or differs the environment is made anew. Runs of two terminals wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "bootstrap.json"
LOCK = ROOT / ".venv.lock"

OLDEST = (3, 11)
#: Names tried when the Python that runs this file will not do, newest settled release first.
NAMES = ("python3", "python3.13", "python3.12", "python3.11", "python3.14", "python")

#: pip's settings that uv, which reads none of pip's files, takes from these variables instead.
UV_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "cert": "SSL_CERT_FILE",
    "trusted-host": "UV_INSECURE_HOST",
    "proxy": "ALL_PROXY",
}


class Unable(Exception):
    """The environment cannot be made; the message is one sentence for the person at the terminal."""


def main(arguments: list[str]) -> int:
    """Make or complete the environment with the named extras; 0, or 1 with one sentence."""
    extras = set(arguments) or {"build"}
    try:
        ensure(extras)
    except Unable as problem:
        print(f"bootstrap: {problem}", file=sys.stderr)
        return 1
    return 0


def ensure(extras: set[str]) -> None:
    """Bring `.venv` to hold at least `extras`; returns at once where it does."""
    with locked():
        python = find_python()
        key = key_of(python)
        stamp = read_stamp()
        fresh = stamp is None or stamp["key"] != key or not VENV_PYTHON.exists()
        present = set() if fresh else set(stamp["extras"])
        if extras <= present:
            return
        require_programs()
        STAMP.unlink(missing_ok=True)
        if fresh:
            say(f"making .venv with {python} (once; takes a minute)")
            remove_tree(VENV)
            create(python)
        wanted = sorted(present | extras)
        install(wanted)
        # Beside and renamed: a stamp is whole or absent.
        partial = STAMP.with_suffix(".tmp")
        partial.write_text(json.dumps({"key": key, "extras": wanted}) + "\n", encoding="utf-8")
        partial.replace(STAMP)


@contextmanager
def locked():
    """Hold this clone's bootstrap lock; the kernel drops it when the holder dies."""
    try:
        fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Unable(f"cannot write in {ROOT} ({error.strerror}); clone it to a place of your own") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def find_python() -> str:
    """The interpreter to build on: this one if it will do, else the first on PATH that does.

    As root an interpreter that other users can reach is preferred: sandboxes and the tests of the unprivileged half
    run under other ids, which cannot enter, say, /root/.pyenv.
    """
    suitable = []
    for candidate in candidates():
        if not suits(candidate):
            continue
        if os.getuid() != 0 or reachable_by_others(candidate):
            return candidate
        suitable.append(candidate)
    if not suitable:
        raise Unable(
            "no Python >= 3.11 was found on PATH; install one (Debian 12 or later, Ubuntu 24.04 or later: "
            "`apt-get install python3 python3-venv`; elsewhere: `uv python install 3.12` or pyenv) and run make again"
        )
    return suitable[0]


def candidates():
    """Paths of interpreters, best first, each once; links are kept, because a venv's python is one."""
    # In an activated virtual environment the interpreter below it is the one that stays.
    own = getattr(sys, "_base_executable", None) or sys.executable
    seen = set()
    paths = [own]
    for name in NAMES:
        # Every match on PATH, not only the first: a pyenv shim may hide the system's.
        paths += [os.path.join(folder, name) for folder in os.get_exec_path()]
    for path in paths:
        real = os.path.realpath(path)
        if path and real not in seen and os.access(path, os.X_OK):
            seen.add(real)
            yield path


def suits(python: str) -> bool:
    """Whether `python` runs, is CPython and is new enough."""
    if python == getattr(sys, "_base_executable", None):
        return sys.version_info >= OLDEST and sys.implementation.name == "cpython"
    probe = f"import sys; sys.exit(not (sys.version_info >= {OLDEST} and sys.implementation.name == 'cpython'))"
    return succeeds([python, "-I", "-S", "-c", probe])


def reachable_by_others(python: str) -> bool:
    """Whether an ordinary user could start `python`: every folder on the way can be entered by all."""
    real = Path(os.path.realpath(python))
    folders = {*Path(python).absolute().parents, *real.parents}
    return all(folder.stat().st_mode & 0o001 for folder in folders) and bool(real.stat().st_mode & 0o001)


def key_of(python: str) -> str:
    """What the environment depends on, as a digest."""
    real = os.path.realpath(python)
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    digest.update(f"{python}\0{real}\0{os.stat(real).st_size}\0{ROOT}".encode())
    return digest.hexdigest()


def read_stamp() -> dict | None:
    """The stamp of a finished environment, or None."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
        return {"key": str(stamp["key"]), "extras": list(stamp["extras"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def require_programs() -> None:
    """Refuse early, in one sentence, what would fail late and unclearly."""
    missing = []
    if not shutil.which("git"):
        missing.append("git")
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        missing.append("a C compiler")
    if missing:
        raise Unable(
            f"{' and '.join(missing)} not found on PATH; install it (Debian, Ubuntu: `apt-get install git gcc`) "
            "and run make again"
        )


def create(python: str) -> None:
    """Make an empty virtual environment that has pip.

    Debian and Ubuntu split ensurepip, without which `venv` cannot install pip, into python3-venv; whatever else is
    there that can do the same is tried before asking the person to install it.
    """
    if succeeds([python, "-I", "-c", "import ensurepip, venv"]):
        run([python, "-m", "venv", VENV])
    elif succeeds([python, "-m", "virtualenv", "--version"]):
        run([python, "-m", "virtualenv", "--quiet", VENV])
    elif succeeds([python, "-c", "import pip, venv, sys; sys.exit(int(pip.__version__.split('.')[0]) < 23)"]):
        run([python, "-m", "venv", "--without-pip", VENV])
        run([python, "-m", "pip", "--python", VENV_PYTHON, "install", "--quiet", "pip"])
    elif shutil.which("uv"):
        run(["uv", "venv", "--quiet", "--seed", "--python", python, VENV], extra_env=uv_settings(python))
    else:
        raise Unable(
            f"{python} cannot make virtual environments (no ensurepip, virtualenv, pip or uv); install one of them "
            "(Debian, Ubuntu: `apt-get install python3-venv`) and run make again"
        )


def install(extras: list[str]) -> None:
    """Install this clone, editable, with `extras`: by uv for speed, by pip where uv cannot follow its settings."""
    target = [str(ROOT) + "[" + ",".join(extras) + "]"]
    pip = [VENV_PYTHON, "-m", "pip"]
    quiet = ["--quiet", "--disable-pip-version-check"]
    settings = pip_settings(VENV_PYTHON)
    if not follows_with_uv(settings):
        run([*pip, "install", *quiet, "--editable", *target])
        return
    run([*pip, "install", *quiet, "uv"])
    say("installing " + ", ".join(extras))
    uv = [VENV / "bin" / "uv", "pip", "install", "--quiet", "--python", VENV_PYTHON, "--no-config"]
    try:
        run([*uv, "--editable", *target], extra_env=uv_settings(VENV_PYTHON))
    except Unable as problem:
        say(f"uv could not ({problem}); trying pip")
        run([*pip, "install", *quiet, "--editable", *target])


def pip_settings(python) -> dict[str, str]:
    """What pip is configured to do, from its files and the environment, by option name.

    `pip config list` prints `global.index-url='...'`, `install.cert='...'`, `:env:.index-url='...'`; the more specific
    section wins, the environment over all.
    """
    done = subprocess.run(
        [str(python), "-m", "pip", "config", "list"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    settings = {}
    for section in ("global.", "install.", ":env:."):
        for line in done.stdout.splitlines():
            name, _, value = line.partition("=")
            if name.startswith(section):
                settings[name[len(section) :]] = value.strip("'\"")
    return settings


def follows_with_uv(settings: dict[str, str]) -> bool:
    """Whether uv can be told everything that decides where packages come from.

    Extra indexes and find-links on local disk and constraints only add to the main index, so leaving them out is safe;
    no index at all, or one on local disk, is pip's own business.
    """
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return False
    return not settings.get("index-url", "").startswith("file:")


def uv_settings(python) -> dict[str, str]:
    """Environment variables that make uv use the index and certificates pip uses."""
    settings = pip_settings(python)
    translated = {UV_VARIABLES[name]: value for name, value in settings.items() if name in UV_VARIABLES and value}
    remote = [url for url in settings.get("extra-index-url", "").split() if not url.startswith("file:")]
    if remote:
        # pip looks at all indexes and takes the best version; uv by default stops at the first that has the name.
        translated["UV_INDEX"] = " ".join(remote)
        translated["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {name: value for name, value in translated.items() if name not in os.environ}


def remove_tree(path: Path) -> None:
    """Remove a half-made environment; a missing one is fine."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def run(argv, extra_env: dict[str, str] | None = None) -> None:
    """Run one command; its failure is one sentence that holds the last line it printed."""
    command = [os.fspath(part) for part in argv]
    # A PYTHONPATH or PYTHONHOME of the person's must not leak into what gets installed.
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    env.update(extra_env or {})
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd=ROOT
    )
    if done.returncode:
        output = done.stdout.decode("utf-8", "replace").strip()
        print(output, file=sys.stderr)
        last = output.splitlines()[-1] if output else "no output"
        raise Unable(f"`{' '.join(command)}` ended with {done.returncode}: {last}")


def succeeds(argv) -> bool:
    """Whether a command can be started and ends with 0."""
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except OSError:
        return False


def say(text: str) -> None:
    """Tell the person what takes time."""
    print(f"bootstrap: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.version_info < (3, 8):
        sys.exit("bootstrap: this is Python %d.%d; run make with PYTHON=/path/to/python3.11 or later" % sys.version_info[:2])
    sys.exit(main(sys.argv[1:]))
