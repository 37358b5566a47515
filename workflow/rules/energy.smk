rule energy:
    input:
        PLAN.earlier("benchmark"),
        PLAN.cuda_peers,
    output:
        "results/measured/{gpu}/{kernel}/energy.json",
    log:
        "results/logs/{gpu}/{kernel}/energy.log",
    benchmark:
        "results/benchmarks/{gpu}/{kernel}/energy.tsv"
    conda:
        "../../environment.yml"
    resources:
        **PLAN.device_resources(),
    params:
        code=PLAN.code("energy"),
        identity=PLAN.identity("energy"),
        block=PLAN.block_digest,
        device=PLAN.device_state,
        cases=PLAN.setting("energy", "cases"),
    message:
        "energy {wildcards.kernel} on {wildcards.gpu}: joules of a call"
    shell:
        "python -m atlas energy {wildcards.kernel} --gpu {wildcards.gpu} --cases {params.cases} 3>&2 > {log} 2>&1"
