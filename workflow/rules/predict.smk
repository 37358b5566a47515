# What is expected of GPUs that are out of reach and have no record, in one job.  It takes seconds, so no cluster is asked.
rule predict:
    input:
        PLAN.grounds(),
    output:
        PLAN.predictions(),
    log:
        "results/logs/predict.log",
    priority: PLAN.priority("predict")
    conda:
        "../../environment.yml"
    params:
        code=PLAN.code("predict"),
        versions=PLAN.predicted_versions(),
        blocks=PLAN.every_block(),
        kernels=",".join(PLAN.kernels),
        gpus=",".join(dict.fromkeys(path.split("/")[2] for path in PLAN.predictions())),
    message:
        "predict: times and configs of GPUs out of reach"
    shell:
        "python -m atlas predict {params.kernels} --gpu {params.gpus} --missing > {log} 2>&1"
