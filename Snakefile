"""Build executable instances: clone, interpreter, environment, instances, validation, manifest, packs.

`snakemake --cores N` in a clone does everything; profiles/default holds the settings, config/config.yaml
says what to build. The plan is made while this file is parsed, so that the graph is known before the
first job starts. One job builds an environment or a batch of instances on one, never a single instance.
"""

from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/sources.smk"
include: "workflow/rules/environments.smk"
include: "workflow/rules/instances.smk"
include: "workflow/rules/manifest.smk"
include: "workflow/rules/store.smk"


localrules:
    all,
    join_manifest,


rule all:
    input:
        "<results>/manifest.parquet",
        "<results>/manifest.jsonl",
        "<results>/manifest.summary.json",
        packs,
