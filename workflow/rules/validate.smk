rule validate:
    input:
        PLAN.due("validate"),
    output:
        "results/measured/{gpu}/{kernel}/validate.json",
    log:
        "results/logs/{gpu}/{kernel}/validate.log",
    benchmark:
        "results/benchmarks/{gpu}/{kernel}/validate.tsv"
    priority: PLAN.priority("validate")
    conda:
        "../../environment.yml"
    threads: PLAN.worker_threads
    resources:
        **PLAN.device_resources(),
    params:
        code=PLAN.code("validate"),
        identity=PLAN.identity("validate"),
        block=PLAN.block_digest,
        seeds=PLAN.setting("validate", "seeds"),
    message:
        "validate {wildcards.kernel} on {wildcards.gpu}: comparing with float64"
    shell:
        "python -m atlas validate {wildcards.kernel} --gpu {wildcards.gpu} --jobs {threads} --seeds {params.seeds}"
        " 3>&2 > {log} 2>&1"
