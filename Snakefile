# Kernel Atlas: `snakemake --cores 1` builds, validates, tunes and benchmarks every kernel of kernels/ on every GPU of
# config/gpus.yaml that can be reached, compiles for the others, and renews the views under results/.


include: "workflow/Snakefile"


rule reproduce:
    default_target: True
    input:
        rules.all.input,
