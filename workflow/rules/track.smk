rule track:
    input:
        PLAN.documents(),
        rules.figures.output,
    output:
        "results/mlflow/tracked.json",
    log:
        "results/logs/track.log",
    conda:
        "../../environment.yml"
    params:
        code=PLAN.code("track"),
        versions=PLAN.versions,
        experiment=PLAN.setting("tracking", "experiment"),
        trial_runs=PLAN.setting("tracking", "trial_runs"),
        server=PLAN.server_digest(),
        missed=PLAN.trackings_missed(),
        selection=PLAN.selection(),
    message:
        "track: documents into MLflow"
    shell:
        "python -m atlas track --experiment {params.experiment:q} --trial-runs {params.trial_runs} {params.selection}"
        " --later 3>&2 > {log} 2>&1"
