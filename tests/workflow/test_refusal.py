"""Input that cannot be used: one sentence, exit code 2, and nothing started."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("arguments", [("--dry-run",), ("--cores", "2"), ("--lint",)])
def test_one_sentence_and_nothing_started(workflow, arguments: tuple[str, ...]) -> None:
    workflow.configure(environments=1, instances=1)
    with (workflow.folder / "config" / "config.yaml").open("a") as config:
        config.write("batchsize: 3\n")
    done = workflow.run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    profile, sentence = done.stderr.splitlines()
    assert profile.startswith(
        "Using workflow specific profile"
    )  # Snakemake's own, before the parse
    assert sentence.startswith("config/config.yaml: key 'batchsize': is unknown")
    assert not (workflow.folder / "results").exists()
    assert workflow.take_calls() == []
