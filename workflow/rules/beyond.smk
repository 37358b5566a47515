rule beyond:
    input:
        PLAN.validated("beyond"),
        PLAN.called,
        PLAN.sampled,
    output:
        "results/measured/{gpu}/{kernel}/beyond.json",
    log:
        "results/logs/{gpu}/{kernel}/beyond.log",
    benchmark:
        "results/benchmarks/{gpu}/{kernel}/beyond.tsv"
    priority: PLAN.priority("beyond")
    conda:
        "../../environment.yml"
    threads: PLAN.worker_threads
    resources:
        **PLAN.device_resources(),
    params:
        code=PLAN.code("beyond"),
        identity=PLAN.identity("beyond"),
        block=PLAN.block_digest,
        device=PLAN.device_state,
        cases=PLAN.setting("beyond", "cases"),
    message:
        "beyond {wildcards.kernel} on {wildcards.gpu}: timing calls that nobody tuned"
    shell:
        "python -m atlas beyond {wildcards.kernel} --gpu {wildcards.gpu} --jobs {threads}"
        " --cases {params.cases} 3>&2 > {log} 2>&1"
