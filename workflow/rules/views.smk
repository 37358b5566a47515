rule tables:
    input:
        PLAN.documents(),
        PLAN.predictions(),
    output:
        multiext("results/tables/benchmark", ".parquet", ".csv"),
        multiext("results/tables/ladder", ".parquet", ".csv"),
        multiext("results/tables/changes", ".parquet", ".csv"),
        multiext("results/tables/build", ".parquet", ".csv"),
        multiext("results/tables/profile", ".parquet", ".csv"),
        multiext("results/tables/energy", ".parquet", ".csv"),
        multiext("results/tables/validation", ".parquet", ".csv"),
        multiext("results/tables/trials", ".parquet", ".csv"),
        multiext("results/tables/survey", ".parquet", ".csv"),
        multiext("results/tables/predictions", ".parquet", ".csv"),
        multiext("results/tables/published", ".parquet", ".csv"),
        multiext("results/tables/coverage", ".parquet", ".csv"),
        report(
            "results/tables/verdicts.csv",
            caption="../report/verdicts.rst",
            category="Verdict",
        ),
        "results/tables/verdicts.parquet",
    log:
        "results/logs/tables.log",
    conda:
        "../../environment.yml"
    params:
        code=PLAN.code("tables"),
        versions=PLAN.versions,
        published=PLAN.published_digest(),
        selection=PLAN.selection(),
    message:
        "tables: documents into Parquet and CSV"
    shell:
        "python -m atlas tables {params.selection} 3>&2 > {log} 2>&1"


rule figures:
    input:
        rules.tables.output,
    output:
        # Those that were drawn of the same rows are left as they are.
        [
            update(
                report(
                    f"results/figures/{name}.svg",
                    caption="../report/figures.rst",
                    category="Figures",
                    labels={"figure": name},
                )
            )
            for name in PLAN.figures()
        ],
    log:
        "results/logs/figures.log",
    conda:
        "../../environment.yml"
    threads: 1024  # as many as --cores allows
    params:
        code=PLAN.code("figures"),
    message:
        "figures: drawing the tables"
    shell:
        "python -m atlas figures --jobs {threads} 3>&2 > {log} 2>&1"


rule report:
    input:
        PLAN.documents(),
        rules.tables.output,
        rules.figures.output,
    output:
        [f"results/{page}" for page in PLAN.pages()],
    log:
        "results/logs/report.log",
    conda:
        "../../environment.yml"
    params:
        code=PLAN.code("report"),
        versions=PLAN.versions,
        selection=PLAN.selection(),
    message:
        "report: results/report.html"
    shell:
        "python -m atlas report {params.selection} 3>&2 > {log} 2>&1"
