# Hardware counters by ncu.  Where there is no ncu, or counters are not permitted, the document says so.
rule profile:
    input:
        PLAN.earlier("benchmark"),
        PLAN.cuda_peers,
    output:
        "results/measured/{gpu}/{kernel}/profile.json",
    log:
        "results/logs/{gpu}/{kernel}/profile.log",
    benchmark:
        "results/benchmarks/{gpu}/{kernel}/profile.tsv"
    priority: PLAN.priority("profile")
    conda:
        "../../environment.yml"
    resources:
        **PLAN.device_resources(),
    params:
        code=PLAN.code("profile"),
        identity=PLAN.identity("profile"),
        block=PLAN.block_digest,
        device=PLAN.device_state,
        cases=PLAN.setting("profile", "cases"),
    message:
        "profile {wildcards.kernel} on {wildcards.gpu}: reading hardware counters"
    shell:
        "python -m atlas profile {wildcards.kernel} --gpu {wildcards.gpu} --cases {params.cases} > {log} 2>&1"
