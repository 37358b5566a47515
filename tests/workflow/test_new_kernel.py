"""A kernel as `python -m atlas new` writes it, in a checkout: it is found, passes validation, and compiles."""

import sys

import pytest


@pytest.mark.parametrize(
    "like", ["elementwise", *(pytest.param(like, marks=pytest.mark.slow) for like in ("rows", "matmul"))]
)
def test_a_new_kernel_validates_and_compiles_as_it_is_written(like, checkout):
    done = checkout.atlas("new", "stranger", "--like", like)
    assert done.returncode == 0, done.stderr
    assert "validate stranger --gpu cpu" in done.stdout  # what to do next
    known = checkout.run(sys.executable, "-c", "from kernels import stranger; print(stranger.__name__)")
    assert known.stdout == "stranger\n", known.stderr
    again = checkout.atlas("new", "stranger")
    assert again.returncode == 2 and "there already" in again.stderr

    done = checkout.atlas("validate", "stranger", "--gpu", "cpu", "--seeds", "1")
    validated = checkout.document("cpu", "stranger", "validate")
    assert validated["status"] == "ok", validated["reason"]
    # What strangers forget is among what was checked: layouts, tails, gradients, refused and empty inputs.
    assert {"non_contiguous", "gradients", "empty"} <= {check["check"] for check in validated["checks"]}
    for gpu in ("h100", "t4"):
        checkout.atlas("build", "stranger", "--gpu", gpu, "--sample", "1")
        built = checkout.document(gpu, "stranger", "build")
        assert built["status"] == "ok", (gpu, built["reason"])
