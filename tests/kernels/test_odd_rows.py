"""Variant `odd` of both norms: rows that begin anywhere in a vector, parameters left out, and which rows it is for."""

import pytest
import torch
from atlas.declaration import case
from atlas.host.gpus import gpu
from atlas.reading.config import load_gpus
from atlas.validation.problems import Problem

from kernels.layer_norm import DECLARATION as LAYER_NORM
from kernels.rms_norm import DECLARATION as RMS_NORM

CPU = torch.device("cpu")
H200 = gpu("h200", load_gpus()["h200"])
NORMS = [RMS_NORM, LAYER_NORM]
CONFIG = {"num_warps": 4, "num_stages": 3, "PROGRAMS_PER_SM": 2}


def problem_of(declaration, direction, dtype, m, n, residual, seed=0):
    sizes = {"residual": residual} if residual or declaration.name == "rms_norm" else {}
    return Problem(declaration, direction, case(dtype, m=m, n=n, **sizes), CPU, seed)


@pytest.mark.parametrize("declaration", NORMS, ids=lambda d: d.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
# A vector of 16 bits has 8 elements; rows that begin at each, at every second, and at every fourth of them.
@pytest.mark.parametrize(
    ("dtype", "n", "residual"),
    [("bf16", 2313, False), ("fp16", 2054, True), ("bf16", 4100, False), ("fp32", 2051, True)],
)
@pytest.mark.parametrize("m", [3, 43], ids=["fewer rows than programs", "several rows a program"])
def test_rows_that_begin_anywhere_agree_with_float64(declaration, direction, dtype, m, n, residual):
    drawn = problem_of(declaration, direction, dtype, m, n, residual)
    variant = declaration.passes[direction].variant("odd")
    assert not drawn.judge(variant.launch(**drawn.inputs, config=CONFIG)).reason


@pytest.mark.parametrize("declaration", NORMS, ids=lambda d: d.name)
@pytest.mark.parametrize("missing", [("weight",), ("bias",), ("weight", "bias")], ids="-".join)
def test_parameters_left_out_leave_the_rest_as_with_weight_1_and_bias_0(declaration, missing):
    for direction, others in (("forward", "one_pass"), ("backward", "columns")):
        inputs = problem_of(declaration, direction, "fp32", 9, 2051, False).inputs
        inputs = {**inputs, **{name: None for name in missing if name in inputs}}
        odd, other = (declaration.passes[direction].variant(name) for name in ("odd", others))
        config = other.default(case("fp32", m=9, n=2051, residual=False), H200)
        found, expected = odd.launch(**inputs, config=CONFIG), other.launch(**inputs, config=config)
        for ours, theirs in zip(found, expected, strict=True):
            if theirs is not None and theirs.numel() > 1:  # a gradient of what there is
                torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("declaration", NORMS, ids=lambda d: d.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_it_is_for_many_long_rows_of_no_whole_vectors(declaration, direction):
    def unsupported(**sizes):
        variant = declaration.passes[direction].variant("odd")
        return variant.unsupported(case("bf16", residual=False, **sizes), H200)

    assert not unsupported(m=16384, n=12668)
    assert "whole" in unsupported(m=16384, n=12672)
    assert "short" in unsupported(m=16384, n=1001)
    assert "few" in unsupported(m=10, n=12667)
    assert "longer" in unsupported(m=16384, n=2**17 + 1)
