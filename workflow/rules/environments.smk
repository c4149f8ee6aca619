"""Bases, interpreters and environments: what instances stand on.

INPUTS   <results>/plan/bases/{base}.json where the base is packed
         <results>/plan/interpreters/{python}.json
         <results>/plan/environments/{env}.json
         <results>/sources/{repo}/clone.json where requirements are read from a repository
OUTPUTS  <results>/bases/{base}/base.json
         <results>/interpreters/{python}/interpreter.json
         <results>/environments/{env}/environment.json
         the records name the layers, which lie in the store
"""


rule build_base:
    """Make one base, or the variant of one, of a distribution's packages, and pack it."""
    input:
        plan="<results>/plan/bases/{base}.json",
        base=base_of_variant,
    output:
        record="<results>/bases/{base}/base.json",
    log:
        "<logs>/build_base/{base}.log",
    benchmark:
        "<benchmarks>/build_base/{base}.tsv"
    retries: 2
    conda:
        "../../envs/pipeline.yaml"
    resources:
        attempt=this_attempt,
        mem_mb=2000,
    params:
        base=as_option("base", "base"),
    shell:
        "minisandbox build base"
        " --plan {input.plan:q}"
        " {params.base:q}"
        " --record {output.record:q}"
        " --attempt {resources.attempt}"
        " 2>&1 | tee {log:q}"


rule find_interpreter:
    """Find or install one CPython and pack it, so that a fresh node needs none of its own."""
    input:
        plan="<results>/plan/interpreters/{python}.json",
        base=base_of_interpreters,
    output:
        record="<results>/interpreters/{python}/interpreter.json",
    log:
        "<logs>/find_interpreter/{python}.log",
    benchmark:
        "<benchmarks>/find_interpreter/{python}.tsv"
    retries: 2
    conda:
        "../../envs/pipeline.yaml"
    resources:
        attempt=this_attempt,
        mem_mb=1000,
    params:
        base=as_option("base", "base"),
    shell:
        "minisandbox build interpreter"
        " --plan {input.plan:q}"
        " {params.base:q}"
        " --record {output.record:q}"
        " --attempt {resources.attempt}"
        " 2>&1 | tee {log:q}"


rule build_environment:
    """Make one virtual environment, install its packages inside the sandbox, and pack it."""
    input:
        plan="<results>/plan/environments/{env}.json",
        base=base_of_environment,
        interpreter=interpreter_of_environment,
        clones=clones_of_environment,
    output:
        record="<results>/environments/{env}/environment.json",
    log:
        "<logs>/build_environment/{env}.log",
    benchmark:
        "<benchmarks>/build_environment/{env}.tsv"
    retries: 2
    conda:
        "../../envs/pipeline.yaml"
    resources:
        attempt=this_attempt,
        mem_mb=4000,
    params:
        base=as_option("base", "base"),
        clones=as_option("clone", "clones"),
    shell:
        "minisandbox build environment"
        " --plan {input.plan:q}"
        " {params.base:q}"
        " --interpreter {input.interpreter:q}"
        " {params.clones:q}"
        " --record {output.record:q}"
        " --attempt {resources.attempt}"
        " 2>&1 | tee {log:q}"
