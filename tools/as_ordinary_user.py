"""As root, run a Python command of this clone's environment as an ordinary user.

    .venv/bin/python tools/as_ordinary_user.py [--with-range] -m pytest tests/sandbox

The half of the sandbox that works without privileges has other mechanisms than root's, and has to
be tested on every machine, whoever started the tests. The user has an id without an entry in the
user database, as in most cluster containers, an empty home and a temporary directory of its own. A
clone that this user cannot reach (below /root, say) is copied, with an environment of its own. With
--with-range the user has a name and a range of subordinate ids, in a mount namespace where the
tables of /etc that say so are covered: those of the machine stay as they are.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: An id that no distribution hands out: above the users', below the ranges of subordinate ids.
ORDINARY_ID = 60_777
NAME = "ordinary"
#: First id and number of the range: above what useradd hands out to the first few hundred users.
RANGE = (1_000_000_000, 65_536)
#: What is told of the user in the tables of /etc.
ROWS = {
    "passwd": f"{NAME}:x:{ORDINARY_ID}:{ORDINARY_ID}::/nonexistent:/bin/sh\n",
    "group": f"{NAME}:x:{ORDINARY_ID}:\n",
    "subuid": f"{NAME}:{RANGE[0]}:{RANGE[1]}\n",
    "subgid": f"{NAME}:{RANGE[0]}:{RANGE[1]}\n",
}
#: What a copy of the clone leaves out: not needed by tests, or machine-bound.
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".venv.lock", ".snakemake", "results", "__pycache__", ".*_cache"
)
#: Variables that speak of root's own folders.
ROOTS_OWN = ("XDG_", "PYENV_", "VIRTUAL_ENV", "PYTHON", "SUDO_", "OLDPWD", "MAIL")


def main(arguments: list[str]) -> int:
    """Run `python ARGUMENTS...`; the exit code is the command's."""
    if os.getuid() != 0:
        print("as_ordinary_user: only root can become somebody else", file=sys.stderr)
        return 2
    ranged = arguments[:1] == ["--with-range"]
    arguments = arguments[ranged:]
    if ranged and shutil.which("newuidmap") is None:
        print("as_ordinary_user: newuidmap (package uidmap) is missing", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="minisandbox-user-", dir=public_folder()) as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("home", "tmp"):
            (folder / part).mkdir(mode=0o700)
            os.chown(folder / part, ORDINARY_ID, ORDINARY_ID)
        python = ROOT / ".venv" / "bin" / "python"
        clone = ROOT if reachable(python) and reachable(ROOT / "tests") else copy_clone(folder)
        done = subprocess.run(
            [
                *(with_tables(folder) if ranged else []),
                *("setpriv", f"--reuid={ORDINARY_ID}", f"--regid={ORDINARY_ID}", "--clear-groups"),
                clone / ".venv" / "bin" / "python",
                *arguments,
            ],
            cwd=clone,
            env=environment(folder, clone),
            stdin=subprocess.DEVNULL,
        )
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def with_tables(folder: Path) -> list[str]:
    """A command that runs what follows it where /etc says that the user has a range of ids."""
    script = ""
    for name, row in ROWS.items():
        table = Path("/etc", name)
        (folder / name).write_text((table.read_text() if table.exists() else "") + row)
        (folder / name).chmod(0o644)
        table.touch()  # something to cover
        script += f"mount --bind '{folder / name}' {table} && "
    return [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        f'{script}exec "$@"',
        "sh",
    ]


def public_folder() -> str:
    """A temporary folder that everyone can enter."""
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if reachable(Path(folder)):
            return folder
    raise SystemExit("as_ordinary_user: no temporary folder can be entered by others; set TMPDIR")


def reachable(path: Path) -> bool:
    """Whether an ordinary user can enter every folder on the way to `path`, links followed."""
    real = Path(os.path.realpath(path))
    steps = {*path.absolute().parents, *real.parents}
    return all(step.stat().st_mode & stat.S_IXOTH for step in steps) and bool(
        real.stat().st_mode & stat.S_IROTH
    )


def copy_clone(folder: Path) -> Path:
    """Copy the clone into `folder` and make its environment, both readable by all."""
    copy = folder / "clone"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=LEFT_OUT)
    subprocess.run(["chmod", "-R", "a+rX", copy], check=True)
    bootstrap = [sys.executable, copy / "tools" / "bootstrap.py", "build", "dev"]
    subprocess.run(bootstrap, check=True, stdin=subprocess.DEVNULL)
    return copy


def environment(folder: Path, clone: Path) -> dict[str, str]:
    """Root's environment less what leads into root's own folders."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(ROOTS_OWN)}
    path = [
        entry for entry in os.get_exec_path() if os.path.isdir(entry) and reachable(Path(entry))
    ]
    own = str(clone / ".venv" / "bin")
    return env | {
        "HOME": str(folder / "home"),
        "LOGNAME": "ordinary",
        "PATH": os.pathsep.join([own, *(entry for entry in path if entry != own)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # the clone is root's
        "TMPDIR": str(folder / "tmp"),
        "USER": "ordinary",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
