"""Repositories of a few files that tests of the pipeline clone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


def git(folder: Path, *words: str) -> str:
    """What git prints, by nobody's configuration."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, env=env, capture_output=True, check=True
    )
    return done.stdout.decode()


def commit_files(repository: Path, files: Mapping[str, str], message: str) -> str:
    """Write files into a repository, which is made if it is not there, and commit all there is;
    returns the hash.
    """
    repository.mkdir(parents=True, exist_ok=True)
    if not (repository / ".git").exists():
        git(repository, "init", "-q", "-b", "main", ".")
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "--allow-empty", "-m", message)
    return git(repository, "rev-parse", "HEAD").strip()
