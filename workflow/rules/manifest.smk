"""The manifest: all records as one table, one row an instance.

INPUTS   <results>/plan/index.json
         <results>/environments/{env}/batches/{batch}/validation.json, every one there is
OUTPUTS  <results>/manifest.parquet
         <results>/manifest.jsonl
         <results>/manifest.summary.json, which `minisandbox records drop` removes to have this rule run again
"""


rule join_manifest:
    """Join the records; failed instances are rows with a reason."""
    input:
        plan="<results>/plan/index.json",
        # Named directly, so that `--batch join_manifest=1/4` can share them out over machines.
        validations=all_validations,
    output:
        parquet="<results>/manifest.parquet",
        jsonl="<results>/manifest.jsonl",
        summary="<results>/manifest.summary.json",
    log:
        "<logs>/join_manifest.log",
    benchmark:
        "<benchmarks>/join_manifest.tsv"
    conda:
        "../../envs/pipeline.yaml"
    resources:
        mem_mb=4000,
    params:
        # The folder, not the list: thousands of paths do not fit on a command line.
        results=subpath(output.parquet, parent=True),
    shell:
        "minisandbox build manifest"
        " --plan {input.plan:q}"
        " --results {params.results:q}"
        " --parquet {output.parquet:q}"
        " --jsonl {output.jsonl:q}"
        " --summary {output.summary:q}"
        " 2>&1 | tee {log:q}"
