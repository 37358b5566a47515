rule build:
    output:
        "results/measured/{gpu}/{kernel}/build.json",
    log:
        "results/logs/{gpu}/{kernel}/build.log",
    benchmark:
        "results/benchmarks/{gpu}/{kernel}/build.tsv"
    priority: PLAN.priority("build")
    conda:
        "../../environment.yml"
    threads: PLAN.build_threads
    resources:
        **PLAN.host_resources(),
    params:
        code=PLAN.code("build"),
        identity=PLAN.identity("build"),
        block=PLAN.block_digest,
        sample=PLAN.build_sample,
    message:
        "build {wildcards.kernel} for {wildcards.gpu}: compiling its space"
    shell:
        "python -m atlas build {wildcards.kernel} --gpu {wildcards.gpu} --jobs {threads} {params.sample}"
        " 3>&2 > {log} 2>&1"
