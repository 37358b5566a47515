# What the stages make, without the views: with a storage, brought here from it.
rule measured:
    input:
        PLAN.made(),
        PLAN.cuda_documents(),
    log:
        "results/logs/measured.log",
    conda:
        "../../environment.yml"
    params:
        bring=surroundings.bringing(KEPT),
    shell:
        "{params.bring} > {log} 2>&1"
