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
def test_rows_of_a_tensor_that_begins_off_16_bytes_give_the_same(declaration, direction):
    inputs = problem_of(declaration, direction, "bf16", 19, 2313, True).inputs
    shifted = {
        name: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape) if torch.is_tensor(x) else x
        for name, x in inputs.items()
    }
    assert shifted["x"].data_ptr() % 16 == inputs["x"].data_ptr() % 16 + 2
    variant = declaration.passes[direction].variant("odd")
    found, expected = (variant.launch(**given, config=CONFIG) for given in (shifted, inputs))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def unsupported(declaration, direction, dtype, **sizes):
    return declaration.passes[direction].variant("odd").unsupported(case(dtype, residual=False, **sizes), H200)


@pytest.mark.parametrize("declaration", NORMS, ids=lambda d: d.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_it_is_for_many_long_rows_of_no_whole_vectors(declaration, direction):
    assert not unsupported(declaration, direction, "bf16", m=16384, n=12667)
    assert not unsupported(declaration, direction, "fp16", m=16384, n=4098)
    assert "whole 16" in unsupported(declaration, direction, "bf16", m=16384, n=12672)
    assert "short" in unsupported(declaration, direction, "bf16", m=16384, n=2311)
    assert "few" in unsupported(declaration, direction, "bf16", m=10, n=12667)
    assert "longer" in unsupported(declaration, direction, "bf16", m=16384, n=2**17 + 1)


def test_rows_of_whole_8_bytes_or_fp32_only_where_they_would_be_read_twice():
    for dtype, n in (("bf16", 9004), ("fp32", 6001)):
        assert "as fast" in unsupported(RMS_NORM, "forward", dtype, m=4096, n=n)
        assert "as fast" in unsupported(LAYER_NORM, "forward", dtype, m=4096, n=n)
        assert "as fast" in unsupported(RMS_NORM, "backward", dtype, m=4096, n=n)
        assert not unsupported(LAYER_NORM, "backward", dtype, m=4096, n=n)
    assert not unsupported(RMS_NORM, "backward", "bf16", m=4096, n=18004)
    assert not unsupported(RMS_NORM, "backward", "fp32", m=4096, n=9001)


@pytest.mark.parametrize("declaration", NORMS, ids=lambda d: d.name)
def test_programs_of_shorter_rows_have_four_warps(declaration):
    def default(direction, n):
        config = declaration.passes[direction].variant("odd").default(case("bf16", m=9999, n=n, residual=False), H200)
        return tuple(config[name] for name in ("num_warps", "num_stages", "PROGRAMS_PER_SM"))

    assert [default("forward", n) for n in (5001, 7001, 9001, 14103)] == [(4, 3, 4), (4, 3, 4), (8, 3, 2), (8, 3, 2)]
    assert [default("backward", n) for n in (5001, 7001, 9001, 14103)] == [(4, 3, 2), (4, 3, 2), (8, 3, 1), (8, 3, 1)]
