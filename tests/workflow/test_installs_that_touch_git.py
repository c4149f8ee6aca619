"""What an install command does to git and leaves running is gone from the instance (hazard A1)."""

from __future__ import annotations

from typing import Any

import pytest

from minisandbox import open_cache

pytestmark = [pytest.mark.workflow, pytest.mark.timeout(300)]

#: Everything a command could do to the repository while its past is lent, one after the other.
MEDDLING = r"""
mirror=/run/minisandbox/mirror
git config user.name t && git config user.email t@example.org
git config core.fsmonitor /tmp/spy && git remote add origin $mirror
git -c safe.directory='*' fetch -q $mirror '+refs/*:refs/lent/*' || true
git branch past v1.2.0
git worktree add -q /opt/elsewhere v1.2.0
echo x >> project.py && git stash -q && git stash pop -q && git checkout -q project.py
mkdir -p .git/hooks && echo '#!/bin/sh' > .git/hooks/post-checkout
echo made > made.txt && git add made.txt
echo '# changed' >> project.py && git commit -qam 'The install commits' && git tag mine
daemon='while sleep 0.1; do date > daemon.txt; git tag "d$(date +%N)"; done'
setsid sh -c "$daemon" >/dev/null 2>&1 </dev/null &
sleep 1
"""


@pytest.fixture(scope="module")
def built(make_project, build_all, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("git")
    installs = {"meddling": MEDDLING, "repacked": "git repack -a -d -q"}
    made = {
        name: make_project(folder, {}, {"install": install, "imports": []}, name=name)
        for name, install in installs.items()
    }
    build_all(list(made.values()), "results")
    return made


def test_nothing_of_it_is_left_but_the_files(built: dict[str, Any]) -> None:
    project = built["meddling"]
    row = project.row
    assert row.status == "ok", (row.reason, row.log_tail)
    with open_cache(project.results).materialize(row.instance_id) as instance:

        def ask(command: str) -> str:
            result = instance.run(command, merge_stderr=True)
            assert result.exit_code == 0, result.text
            return result.text.strip()

        assert ask("git for-each-ref --format='%(refname)'") == "refs/heads/main"
        assert ask("git rev-parse HEAD~1") == row.base_commit
        assert ask("git log --all --format=%s").splitlines() == [
            "minisandbox: the repository as installed",
            "Add",
        ]
        commits = "git cat-file --batch-all-objects --batch-check | grep -c commit"
        assert ask(commits) == "2"
        assert ask("git fsck --strict 2>&1 | grep -v '^notice'; true") == ""
        assert ask("git status --porcelain") == ""
        assert ask("git worktree list | wc -l") == "1"
        assert (
            ask("git remote; git config --get core.fsmonitor; ls .git/hooks 2>/dev/null; true")
            == ""
        )
        assert ask("tail -n 1 project.py") == "# changed"  # files stay as the command left them
        assert ask("cat made.txt") == "made"


def test_a_repacked_repository_is_refused(built: dict[str, Any]) -> None:
    project = built["repacked"]
    failure = project.instance(project.batch / "instances.json").failure
    assert failure is not None
    assert failure.kind == "install"
    assert "git gc" in failure.message
