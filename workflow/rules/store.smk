"""The store: what layers have in common is kept once.

INPUTS   <results>/manifest.summary.json, which is there when every layer is
OUTPUTS  <results>/packs.json, what the store holds after it; the packs are in the store
"""


rule pack_store:
    """Move the loose layers of the store into a pack."""
    input:
        summary="<results>/manifest.summary.json",
    output:
        packs="<results>/packs.json",
    log:
        "<logs>/pack_store.log",
    benchmark:
        "<benchmarks>/pack_store.tsv"
    conda:
        "../../envs/pipeline.yaml"
    threads: 8
    resources:
        mem_mb=4000,
    params:
        results=subpath(input.summary, parent=True),
    shell:
        "minisandbox store pack"
        " --cache {params.results:q}"
        " --summary {output.packs:q}"
        " --threads {threads}"
        " 2>&1 | tee {log:q}"
