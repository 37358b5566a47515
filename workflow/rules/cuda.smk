# Peers in CUDA C++.  Where there is no nvcc the document says so, the cubin is empty, and the benchmark goes without.
rule cuda:
    input:
        PLAN.cuda_sources,
    output:
        "results/measured/{gpu}/{kernel}/cuda.json",
        "results/measured/{gpu}/{kernel}/cuda.cubin",
    log:
        "results/logs/{gpu}/{kernel}/cuda.log",
    benchmark:
        "results/benchmarks/{gpu}/{kernel}/cuda.tsv"
    priority: PLAN.priority("cuda")
    conda:
        "../../environment.yml"
    resources:
        **PLAN.host_resources(),
    params:
        code=PLAN.code("cuda"),
        block=PLAN.block_digest,
        compiler=PLAN.compiler(),
    message:
        "cuda {wildcards.kernel} for {wildcards.gpu}: compiling its CUDA C++ peers"
    shell:
        "python -m atlas cuda {wildcards.kernel} --gpu {wildcards.gpu} > {log} 2>&1"
