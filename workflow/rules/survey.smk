rule survey:
    output:
        "results/measured/{gpu}/survey.json",
    log:
        "results/logs/{gpu}/survey.log",
    benchmark:
        "results/benchmarks/{gpu}/survey.tsv"
    priority: PLAN.priority("survey")
    conda:
        "../../environment.yml"
    resources:
        **PLAN.device_resources(),
    params:
        code=PLAN.code("survey"),
        block=PLAN.block_digest,
        device=PLAN.device_state,
    message:
        "survey {wildcards.gpu}: measuring its roofs"
    shell:
        "python -m atlas survey --gpu {wildcards.gpu} 3>&2 > {log} 2>&1"
