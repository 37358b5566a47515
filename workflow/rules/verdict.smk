# Last, and the one job that fails where a kernel is wrong: by then every other job has had its turn.
rule verdict:
    input:
        PLAN.documents(),
        "results/report.html",
        "results/mlflow/tracked.json",
    output:
        "results/verdict.txt",
    log:
        "results/logs/verdict.log",
    conda:
        "../../environment.yml"
    params:
        code=PLAN.code("verdict"),
        versions=PLAN.versions,
        kernels=",".join(PLAN.kernels),
        gpus=",".join(PLAN.gpus),
    message:
        "verdict: is every kernel right?"
    shell:
        "python -m atlas verdict --kernels {params.kernels} --gpus {params.gpus} > {log} 2>&1 && cp {log} {output}"
