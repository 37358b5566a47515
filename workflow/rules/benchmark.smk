rule benchmark:
    input:
        PLAN.earlier("survey", "autotune"),
        PLAN.validated("benchmark"),
        PLAN.called,
        PLAN.cuda_peers,
    output:
        "results/measured/{gpu}/{kernel}/benchmark.json",
    log:
        "results/logs/{gpu}/{kernel}/benchmark.log",
    benchmark:
        "results/benchmarks/{gpu}/{kernel}/benchmark.tsv"
    priority: PLAN.priority("benchmark")
    conda:
        "../../environment.yml"
    threads: PLAN.worker_threads
    resources:
        **PLAN.device_resources(),
    params:
        code=PLAN.code("benchmark"),
        identity=PLAN.identity("benchmark"),
        block=PLAN.block_digest,
        device=PLAN.device_state,
        seconds=PLAN.setting("benchmark", "min_seconds"),
        samples=PLAN.setting("benchmark", "max_samples"),
    message:
        "benchmark {wildcards.kernel} on {wildcards.gpu}: timing variants and peers"
    shell:
        "python -m atlas benchmark {wildcards.kernel} --gpu {wildcards.gpu} --jobs {threads}"
        " --min-seconds {params.seconds} --max-samples {params.samples} 3>&2 > {log} 2>&1"
