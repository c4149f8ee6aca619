"""Fifty thousand instances stay a graph that is planned in seconds.

Snakemake spends ~0.5 ms and 13 KB on each job before the first one starts, so the number of jobs is
what has to stay small; seconds are a matter of the machine.
"""

from __future__ import annotations

import re

import pytest


@pytest.mark.timeout(180)
def test_fifty_thousand_instances_are_less_than_two_thousand_jobs(workflow) -> None:
    workflow.configure(environments=130, instances=50_000, batch_size=200)
    done = workflow.run("--dry-run", "--quiet", "rules")
    assert done.returncode == 0, done.stderr
    totals = re.findall(r"^total +(\d+)$", done.stdout + done.stderr, flags=re.MULTILINE)
    assert totals, done.stdout + done.stderr
    assert 130 * 4 < int(totals[0]) < 2_000
