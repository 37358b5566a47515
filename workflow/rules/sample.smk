rule sample:
    input:
        PLAN.earlier("build", "autotune"),
        PLAN.validated("sample"),
        PLAN.called,
    output:
        "results/measured/{gpu}/{kernel}/sample.json",
    log:
        "results/logs/{gpu}/{kernel}/sample.log",
    benchmark:
        "results/benchmarks/{gpu}/{kernel}/sample.tsv"
    priority: PLAN.priority("sample")
    conda:
        "../../environment.yml"
    threads: PLAN.worker_threads
    resources:
        **PLAN.device_resources(),
    params:
        code=PLAN.code("sample"),
        identity=PLAN.identity("sample"),
        block=PLAN.block_digest,
        device=PLAN.device_state,
        cases=PLAN.setting("sample", "cases"),
        budget=PLAN.setting("sample", "budget_seconds"),
        timeout=PLAN.setting("autotune", "trial_timeout_seconds"),
    message:
        "sample {wildcards.kernel} on {wildcards.gpu}: a few trials at drawn cases"
    shell:
        "python -m atlas sample {wildcards.kernel} --gpu {wildcards.gpu} --jobs {threads}"
        " --cases {params.cases} --budget-seconds {params.budget} --trial-timeout-seconds {params.timeout}"
        " 3>&2 > {log} 2>&1"
