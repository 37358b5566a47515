rule autotune:
    input:
        PLAN.earlier("build"),
        PLAN.validated("autotune"),
        PLAN.called,
    output:
        "results/measured/{gpu}/{kernel}/autotune.json",
    log:
        "results/logs/{gpu}/{kernel}/autotune.log",
    benchmark:
        "results/benchmarks/{gpu}/{kernel}/autotune.tsv"
    priority: PLAN.priority("autotune")
    conda:
        "../../environment.yml"
    threads: PLAN.worker_threads
    resources:
        **PLAN.device_resources(),
    params:
        code=PLAN.code("autotune"),
        identity=PLAN.identity("autotune"),
        block=PLAN.block_digest,
        device=PLAN.device_state,
        strategy=PLAN.setting("autotune", "strategy"),
        budget=PLAN.setting("autotune", "budget_seconds"),
        timeout=PLAN.setting("autotune", "trial_timeout_seconds"),
    message:
        "autotune {wildcards.kernel} on {wildcards.gpu}: timing its space"
    shell:
        "python -m atlas autotune {wildcards.kernel} --gpu {wildcards.gpu} --jobs {threads}"
        " --strategy {params.strategy} --budget-seconds {params.budget} --trial-timeout-seconds {params.timeout}"
        " 3>&2 > {log} 2>&1"
