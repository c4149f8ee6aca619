"""Instances: built, and then tested as they will be used, a batch of one environment at a time.

INPUTS   <results>/plan/batches/{env}/{batch}.json
         <results>/environments/{env}/environment.json
         <results>/sources/{repo}/clone.json of each repository in the batch
         the instances.json of each healthy commit that a bug of the batch is put into
OUTPUTS  <results>/environments/{env}/batches/{batch}/instances.json
         <results>/environments/{env}/batches/{batch}/validation.json
         both list every instance of the batch, the failed ones with their reason
"""


rule build_instances:
    """Check out, install, smoke-test and pack the instances of one batch, or put their bugs in."""
    input:
        plan="<results>/plan/batches/{env}/{batch}.json",
        environment="<results>/environments/{env}/environment.json",
        clones=clones_of_batch,
        commits=commits_of_batch,
    output:
        record="<results>/environments/{env}/batches/{batch}/instances.json",
    log:
        "<logs>/build_instances/{env}/{batch}.log",
    benchmark:
        "<benchmarks>/build_instances/{env}/{batch}.tsv"
    retries: 2
    conda:
        "../../envs/pipeline.yaml"
    resources:
        attempt=this_attempt,
        mem_mb=4000,
    params:
        clones=as_option("clone", "clones"),
        commits=as_option("commit", "commits"),
    shell:
        "minisandbox build instances"
        " --plan {input.plan:q}"
        " --environment {input.environment:q}"
        " {params.clones:q}"
        " {params.commits:q}"
        " --record {output.record:q}"
        " --attempt {resources.attempt}"
        " 2>&1 | tee {log:q}"


rule validate_instances:
    """Materialize each instance from its packed layers; run its tests before and after the patch."""
    input:
        plan="<results>/plan/batches/{env}/{batch}.json",
        instances="<results>/environments/{env}/batches/{batch}/instances.json",
        # An official grader reads requirement files out of the mirrors.
        clones=clones_of_batch,
    output:
        record="<results>/environments/{env}/batches/{batch}/validation.json",
    log:
        "<logs>/validate_instances/{env}/{batch}.log",
    benchmark:
        "<benchmarks>/validate_instances/{env}/{batch}.tsv"
    retries: 2
    conda:
        "../../envs/pipeline.yaml"
    resources:
        attempt=this_attempt,
        mem_mb=4000,
    params:
        clones=as_option("clone", "clones"),
    shell:
        "minisandbox build validate"
        " --plan {input.plan:q}"
        " --instances {input.instances:q}"
        " {params.clones:q}"
        " --record {output.record:q}"
        " --attempt {resources.attempt}"
        " 2>&1 | tee {log:q}"
