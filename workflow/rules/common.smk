"""The plan and what the rules ask of it; no rule here.

INPUTS   the configuration and the dataset and recipe files that it names
OUTPUTS  <results>/plan/, written only when one of them changed
         PLAN, the table of contents of the plan
"""

import sys

from minisandbox.build.plan import ensure_plan
from minisandbox.errors import MiniSandboxError

try:
    PLAN = ensure_plan(
        dict(config),
        [str(path) for path in workflow.configfiles],
        read_only=not workflow.is_main_process,
    )
except MiniSandboxError as refused:
    # An exception would come out as Snakemake's, wrapped in a traceback and with exit code 1.
    print(refused, file=sys.stderr)
    raise SystemExit(refused.exit_code)


pathvars:
    results=config.get("results", "results"),
    logs="<results>/logs",
    benchmarks="<results>/benchmarks",


wildcard_constraints:
    repo=r"[A-Za-z0-9._-]+",
    base=r"[A-Za-z0-9._-]+",
    python=r"[A-Za-z0-9._-]+",
    env=r"[A-Za-z0-9._-]+",
    batch=r"[A-Za-z0-9._-]+",


def base_below(slug):
    """The record of a packed base, as a list: the host has none."""
    return [f"<results>/bases/{slug}/base.json"] if slug else []


def base_of_variant(wildcards):
    """The record of the base that a variant adds packages to."""
    return base_below(PLAN.bases[wildcards.base])


def base_of_interpreters(wildcards):
    """The record of the base that every interpreter has to run on."""
    return base_below(PLAN.base)


def base_of_environment(wildcards):
    """The record of the base, or variant, that an environment stands on."""
    return base_below(PLAN.environments[wildcards.env].base)


def as_option(option, name):
    """A function for params: `--option=<path>` for each input of that name."""
    return lambda wildcards, input: [f"--{option}={path}" for path in input.get(name)]


def interpreter_of_environment(wildcards):
    """The record of the interpreter that an environment is made with."""
    python = PLAN.environments[wildcards.env].python
    return f"<results>/interpreters/{python}/interpreter.json"


def clones_of_environment(wildcards):
    """The clone records of the repositories that an environment's requirements are read from."""
    repos = PLAN.environments[wildcards.env].repos
    return [f"<results>/sources/{repo}/clone.json" for repo in repos]


def entry_of(wildcards):
    """What the plan says of a batch, or of a healthy commit, which is built like one."""
    environment = PLAN.environments[wildcards.env]
    return {**environment.commits, **environment.batches}[wildcards.batch]


def clones_of_batch(wildcards):
    """The clone records of the repositories that the instances of a batch come from."""
    return [
        f"<results>/sources/{repo}/clone.json" for repo in entry_of(wildcards).repos
    ]


def commits_of_batch(wildcards):
    """The records of the healthy commits that the bugs of a batch are put into."""
    folder = f"<results>/environments/{wildcards.env}/batches"
    return [
        f"{folder}/{commit}/instances.json" for commit in entry_of(wildcards).commits
    ]


def all_validations(wildcards):
    """The validation record of every batch there is."""
    return [
        f"<results>/environments/{env}/batches/{batch}/validation.json"
        for env, environment in PLAN.environments.items()
        for batch in environment.batches
    ]


def packs(wildcards):
    """The record of packing the store, unless the configuration has layers stay loose."""
    return ["<results>/packs.json"] if config.get("pack", True) else []


def this_attempt(wildcards, attempt):
    """Which try of a job this is; params would keep the first value, only resources see the next."""
    return attempt
