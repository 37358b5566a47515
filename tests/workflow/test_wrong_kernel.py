"""One run on the interpreter with a kernel that computes the wrong thing."""

from .test_run import ONE_SEED

# An off-by-one in the mask of vector_add: the last element of every vector is never written.
WRONG = ("mask = offs < n_elements", "mask = offs < n_elements - 1")


def test_a_wrong_kernel_is_caught_named_and_kept_from_the_later_stages(checkout):
    path = checkout.root / "kernels" / "vector_add.py"
    path.with_name("neighbour.py").write_text(path.read_text().replace("vector_add", "neighbour"))
    checkout.edit("kernels/vector_add.py", *WRONG)
    checkout.edit("config/config.yaml", *ONE_SEED)
    done = checkout.snakemake("--config", "kernels=vector_add,neighbour", "gpus=cpu")
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert checkout.document("cpu", "vector_add", "validate")["status"] == "wrong"
    for stage in ("autotune", "benchmark"):
        skipped = checkout.document("cpu", "vector_add", stage)
        assert skipped["status"] == "skipped" and "wrong" in skipped["reason"]
        assert checkout.document("cpu", "neighbour", stage)["status"] == "ok", "it is not stopped"
    report = (checkout.root / "results" / "report.html").read_text()
    assert "vector_add" in report, "the report is written all the same"
    verdict = output[output.rindex("verdict") - 3000 :]
    assert "vector_add" in verdict and "wrong" in verdict
