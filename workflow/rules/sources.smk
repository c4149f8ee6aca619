"""Repositories: one bare mirror each, from which every checkout is made.

INPUTS   <results>/plan/repos/{repo}.json
OUTPUTS  <results>/sources/{repo}/clone.json, the record of how it ended; the mirror lies beside it
"""


rule clone_repository:
    """Mirror one repository, or make one of the source releases of a project."""
    input:
        plan="<results>/plan/repos/{repo}.json",
    output:
        record="<results>/sources/{repo}/clone.json",
    log:
        "<logs>/clone_repository/{repo}.log",
    benchmark:
        "<benchmarks>/clone_repository/{repo}.tsv"
    retries: 2
    conda:
        "../../envs/pipeline.yaml"
    resources:
        attempt=this_attempt,
        mem_mb=1000,
    shell:
        "minisandbox build clone"
        " --plan {input.plan:q}"
        " --record {output.record:q}"
        " --attempt {resources.attempt}"
        " 2>&1 | tee {log:q}"
