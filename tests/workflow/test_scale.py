"""Fifty thousand instances stay a graph that is planned in seconds.

Snakemake spends ~0.5 ms and 13 KB on each job before the first one starts, so the number of jobs is
what has to stay small; seconds are a matter of the machine.
"""

from __future__ import annotations

import json
import re

import pytest


@pytest.mark.timeout(180)
def test_fifty_thousand_bugs_are_less_than_two_thousand_jobs(workflow) -> None:
    bug = "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-1\n+2\n"
    workflow.configure(environments=130, instances=1, batch_size=200)
    with (workflow.folder / "rows.jsonl").open("w") as rows:
        for number in range(50_000):
            name = f"owner__project{number % 130}.{number % 130:08x}"
            row = {"instance_id": f"{name}.bug__{number}", "repo": f"mirrors/{name}", "patch": bug}
            print(json.dumps(row), file=rows)
    done = workflow.run("--dry-run", "--quiet", "rules")
    assert done.returncode == 0, done.stderr
    totals = re.findall(r"^total +(\d+)$", done.stdout + done.stderr, flags=re.MULTILINE)
    assert totals, done.stdout + done.stderr
    # An environment and a healthy commit each, and two jobs a batch.
    assert 130 * 5 < int(totals[0]) < 2_000


@pytest.mark.timeout(180)
def test_fifty_thousand_instances_are_less_than_two_thousand_jobs(workflow) -> None:
    workflow.configure(environments=130, instances=50_000, batch_size=200)
    done = workflow.run("--dry-run", "--quiet", "rules")
    assert done.returncode == 0, done.stderr
    totals = re.findall(r"^total +(\d+)$", done.stdout + done.stderr, flags=re.MULTILINE)
    assert totals, done.stdout + done.stderr
    assert 130 * 4 < int(totals[0]) < 2_000
