"""Make `.venv`, the environment of this clone, from nothing but a Python >= 3.11.

    python3 tools/bootstrap.py build        what `make demo` needs
    python3 tools/bootstrap.py build dev    what `make test` needs

Standard library only. An older Python (3.6 on) can run this far enough to find a newer one and hand
over to it; hence the quoted annotations. A stamp, written last, holds the digest of pyproject.toml
and of the interpreter: where it matches, nothing is done; where it is missing (a run was killed) or
differs, the environment is made anew. Runs in two terminals wait for each other.
"""

import ast
import fcntl
import hashlib
import json
import os
import shutil
import stat
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
    """The environment cannot be made; the message is one sentence for the person who asked."""


def main(arguments: "list[str]") -> int:
    """Make or complete the environment with the named extras; 0, or 1 with one sentence."""
    try:
        if sys.version_info < OLDEST:
            python = find_python()
            os.execv(python, [python, __file__, *arguments])
        ensure(set(arguments) or {"build"})
    except Unable as problem:
        print(f"bootstrap: {problem}", file=sys.stderr)
        return 1
    return 0


def ensure(extras: "set[str]") -> None:
    """Bring `.venv` to hold at least `extras`; returns at once where it does."""
    with locked():
        stamp = read_stamp()
        present = set(stamp["extras"]) if stamp else set()
        if extras <= present:
            return
        require_programs()
        if stamp:
            python = stamp["python"]
        else:
            python = find_python()
            say(f"making .venv with {python} (once; takes a minute)")
            remove_tree(VENV)
            create(python)
        STAMP.unlink(missing_ok=True)
        wanted = sorted(present | extras)
        install(wanted)
        # Beside and renamed: a stamp is whole or absent.
        partial = STAMP.with_suffix(".tmp")
        stamp = {"key": key_of(python), "python": python, "extras": wanted}
        partial.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
        partial.replace(STAMP)


@contextmanager
def locked():
    """Hold this clone's bootstrap lock; the kernel drops it when the holder dies."""
    try:
        fd = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Unable(
            f"cannot write in {ROOT} ({error.strerror}); clone it to a place of your own"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def find_python() -> str:
    """The interpreter to build on: this one if nothing speaks against it, else the best on PATH.

    One that can make virtual environments by itself comes first. As root, so does one that other
    users can reach: sandboxes and the tests of the unprivileged half run under other ids, which
    cannot enter, say, /root/.pyenv.
    """
    suitable = [candidate for candidate in candidates() if suits(candidate)]
    if not suitable:
        raise Unable(
            "no Python >= 3.11 was found on PATH; install one (Debian 12, Ubuntu 24.04 and later: "
            "`apt-get install python3 python3-venv`; elsewhere: `uv python install 3.12` or pyenv) "
            "and run make again"
        )
    shared = os.getuid() == 0
    return max(suitable, key=lambda it: (has_ensurepip(it), shared and reachable_by_others(it)))


def candidates():
    """Paths of interpreters, best first, each once; links are kept: a venv's python is one."""
    # In an activated virtual environment the interpreter below it is the one that stays.
    own = getattr(sys, "_base_executable", None) or sys.executable
    seen = set()
    paths = [own]
    for name in NAMES:
        # Every match on PATH, not only the first: a pyenv shim may hide the system's.
        paths += [os.path.join(folder, name) for folder in os.get_exec_path()]
    for path in paths:
        real = os.path.realpath(path)
        inside = Path(path).parent == VENV / "bin"
        if not inside and real not in seen and os.access(path, os.X_OK):
            seen.add(real)
            yield path


def suits(python: str) -> bool:
    """Whether `python` runs, is CPython and is new enough."""
    if python == getattr(sys, "_base_executable", None):
        return sys.version_info >= OLDEST and sys.implementation.name == "cpython"
    condition = f"sys.version_info >= {OLDEST} and sys.implementation.name == 'cpython'"
    return succeeds([python, "-I", "-S", "-c", f"import sys; sys.exit(not ({condition}))"])


def has_ensurepip(python: str) -> bool:
    """Whether `python -m venv` will work; Debian and Ubuntu split ensurepip into python3-venv."""
    return succeeds([python, "-I", "-c", "import ensurepip, venv"])


def reachable_by_others(python: str) -> bool:
    """Whether an ordinary user could start `python`: all may enter every folder on the way."""
    real = Path(os.path.realpath(python))
    steps = {*Path(python).absolute().parents, *real.parents, real}
    return all(step.stat().st_mode & stat.S_IXOTH for step in steps)


def key_of(python: str) -> str:
    """What the environment depends on, as a digest; raises `OSError` if the interpreter is gone."""
    real = os.path.realpath(python)
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    digest.update(f"{ROOT}\0{real}\0{os.stat(real).st_size}".encode())
    return digest.hexdigest()


def read_stamp() -> "dict | None":
    """The stamp, or None where the environment is unfinished or made for something else.

    The interpreter is the one the stamp names, not the one that runs this: an activated environment
    or another PATH in the next terminal is no reason to start over.
    """
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
        fits = stamp["key"] == key_of(stamp["python"]) and VENV_PYTHON.exists()
        return stamp if fits else None
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
            f"{' and '.join(missing)} not found on PATH; install it (Debian, Ubuntu: "
            "`apt-get install git gcc`) and run make again"
        )


def create(python: str) -> None:
    """Make an empty virtual environment that has pip.

    Whatever is there that can do it is tried before asking the person to install something.
    """
    if has_ensurepip(python):
        run([python, "-m", "venv", VENV])
    elif succeeds([python, "-m", "virtualenv", "--version"]):
        run([python, "-m", "virtualenv", "--quiet", VENV])
    elif succeeds([python, "-c", "import venv"]) and succeeds(
        [python, "-m", "pip", "--python", python, "--version"]
    ):
        run([python, "-m", "venv", "--without-pip", VENV])
        run([python, "-m", "pip", "--python", VENV_PYTHON, "install", "--quiet", "pip"])
    elif shutil.which("uv"):
        run(["uv", "venv", "--quiet", "--seed", "--python", python, VENV])
    else:
        raise Unable(
            f"{python} cannot make virtual environments (no ensurepip, virtualenv, pip or uv); "
            "install one (Debian, Ubuntu: `apt-get install python3-venv`) and run make again"
        )


def install(extras: "list[str]") -> None:
    """Install this clone, editable, with `extras`: by uv, which is quick, or else by pip itself."""
    say(f"installing the extras {' and '.join(extras)}")
    pip = [VENV_PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    target = ["--editable", f"{ROOT}[{','.join(extras)}]"]
    settings = pip_settings()
    if not uv_can_follow(settings):
        run([*pip, *target])
        return
    run([*pip, "uv"])
    uv = [VENV / "bin" / "uv", "pip", "install", "--quiet", "--no-config", "--python", VENV_PYTHON]
    try:
        run([*uv, *target], extra_env=uv_settings(settings))
    except Unable as problem:
        say(f"{problem}; trying pip instead")
        run([*pip, *target])


def pip_settings() -> "dict[str, str]":
    """What pip is configured to do, from its files and the environment, by option name.

    `pip config list` prints `global.index-url='...'`, `install.cert='...'`, `:env:.proxy='...'`;
    the more specific section wins, the environment over all.
    """
    listing = subprocess.run(
        [VENV_PYTHON, "-m", "pip", "config", "list"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    settings = {}
    for section in ("global.", "install.", ":env:."):
        for line in listing.stdout.splitlines():
            name, _, value = line.partition("=")
            if name.startswith(section):
                settings[name[len(section) :]] = ast.literal_eval(value)
    return settings


def uv_can_follow(settings: "dict[str, str]") -> bool:
    """Whether uv can be told where packages come from.

    Constraints, and extra indexes and find-links on local disk, only add to the main index: leaving
    them out is safe. No index at all, or one on local disk, is pip's own business.
    """
    no_index = settings.get("no-index", "").lower() in ("1", "true", "yes", "on")
    return not no_index and not settings.get("index-url", "").startswith("file:")


def uv_settings(settings: "dict[str, str]") -> "dict[str, str]":
    """Environment variables that make uv use pip's indexes and certificates; a person's own win."""
    variables = {
        variable: settings[name] for name, variable in UV_VARIABLES.items() if settings.get(name)
    }
    extra = settings.get("extra-index-url", "").split()
    remote = [url for url in extra if not url.startswith("file:")]
    if remote:
        # pip takes the best version of all indexes; uv by default stops at the first with the name.
        variables["UV_INDEX"] = " ".join(remote)
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {name: value for name, value in variables.items() if name not in os.environ}


def remove_tree(path: Path) -> None:
    """Remove a half-made environment; a missing one is fine."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def run(argv, extra_env: "dict[str, str] | None" = None) -> None:
    """Run one command; its failure is one sentence that holds the decisive line of its output."""
    command = [os.fspath(part) for part in argv]
    env = {**os.environ, **(extra_env or {})}
    for name in ("PYTHONPATH", "PYTHONHOME"):  # a person's own must not decide what gets installed
        env.pop(name, None)
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        cwd=ROOT,
    )
    if done.returncode:
        output = done.stdout.decode("utf-8", "replace").strip()
        print(output, file=sys.stderr)
        lines = output.splitlines() or ["it printed nothing"]
        errors = [line for line in lines if line.lower().startswith("error")]
        raise Unable(f"`{' '.join(command)}` ended with {done.returncode}: {(errors or lines)[-1]}")


def succeeds(argv) -> bool:
    """Whether a command can be started and ends with 0."""
    nothing = subprocess.DEVNULL
    try:
        return subprocess.run(argv, stdin=nothing, stdout=nothing, stderr=nothing).returncode == 0
    except OSError:
        return False


def say(text: str) -> None:
    """Tell the person what takes time."""
    print(f"bootstrap: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
