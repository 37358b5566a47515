"""The numbers of docs/measuring.md, written out: a test that took them from the code could not notice a change."""

import math

import pytest
import torch
from atlas.validation import tolerances

KINDS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4m3": torch.float8_e4m3fn,
    "fp8e5m2": torch.float8_e5m2,
}
"""What each dtype of a case is stored in; tf32 is fp32 that tensor cores multiply."""


@pytest.mark.parametrize(
    ("dtype", "rtol"),
    [
        ("fp64", 1e-7),  # these five are torch.testing.assert_close's
        ("fp32", 1.3e-6),
        ("fp16", 1e-3),
        ("bf16", 1.6e-2),
        ("tf32", 1e-3),  # as fp16, whose significand it has
        ("fp8e4m3", 0.125),  # twice the unit roundoff: 3 bits behind the point, so u = 2^-4
        ("fp8e5m2", 0.25),  # 2 bits, u = 2^-3
        (None, 0.0),  # integers are compared exactly
    ],
)
def test_the_relative_tolerance_is_the_documented_one(dtype, rtol):
    assert tolerances.rtol(dtype) == rtol


@pytest.mark.parametrize(
    ("dtype", "unit_roundoff"),
    [
        ("fp64", 2**-53),
        ("fp32", 2**-24),
        ("tf32", 2**-11),
        ("fp16", 2**-11),
        ("bf16", 2**-8),
        ("fp8e4m3", 2**-4),
        ("fp8e5m2", 2**-3),
    ],
)
def test_roundings_may_take_four_unit_roundoffs_of_the_scale(dtype, unit_roundoff):
    assert tolerances.rounding(dtype, 10.0) == 4 * unit_roundoff * 10.0


@pytest.mark.parametrize("dtype", KINDS)
def test_a_unit_roundoff_is_half_of_the_spacing_after_1(dtype):
    assert tolerances.rounding(dtype, 1.0) == 4 * torch.finfo(KINDS[dtype]).eps / 2


@pytest.mark.parametrize(
    ("count", "errors"),
    [
        (1, 3.0),  # one output in a million of a right kernel lies beyond three
        (1_000_000, 3.0 + 0.37 * 13.815510557964274),  # natural logarithm of a million
        (0, 3.0),  # nothing to judge, and no logarithm of 0
    ],
)
def test_the_largest_of_many_sums_may_err_by_the_documented_number_of_standard_errors(count, errors):
    assert math.isclose(tolerances.extreme(count), errors, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "reduction", "count", "rms", "expected"),
    [
        # (4 u + (3 + 0.37 ln N) sqrt(K) 2^-24) rms + least, by hand; least is below 1e-7 of each.
        ("fp32", 1, 1, 1.0, 7 * 2**-24),
        ("fp32", 10_000, 1, 1.0, (4 + 3 * 100) * 2**-24),
        ("fp32", 10_000, 1, 5.0, 5 * (4 + 3 * 100) * 2**-24),
        ("bf16", 4096, 1, 1.0, 4 * 2**-8 + 3 * 64 * 2**-24),
        ("fp16", 64, 1_000_000, 2.0, 2 * (4 * 2**-11 + (3 + 0.37 * math.log(1e6)) * 8 * 2**-24)),
        ("fp32", 0, 1, 1.0, 7 * 2**-24),  # a pass that sums nothing
    ],
)
def test_the_absolute_tolerance_is_the_documented_formula(dtype, reduction, count, rms, expected):
    assert tolerances.atol(dtype, KINDS[dtype], reduction, rms, count) == pytest.approx(expected, rel=1e-4)


def test_a_spread_stands_in_the_place_of_the_scale_for_roundings_alone():
    # 4 u spread + 3 sqrt(K) 2^-24 rms, also where the spread is the smaller of the two.
    found = tolerances.atol("bf16", torch.bfloat16, 10_000, 8.0, 1, spread=0.5)
    assert found == pytest.approx(4 * 2**-8 * 0.5 + 3 * 100 * 2**-24 * 8.0, rel=1e-6)


@pytest.mark.parametrize(
    ("output", "least"),
    [
        (torch.float32, 2.0**-126),  # GPUs flush to zero below the least normal number
        (torch.bfloat16, 2.0**-126),
        (torch.float16, 2.0**-24),  # the spacing of subnormal numbers
    ],
)
def test_an_output_of_zeros_may_be_off_by_the_least_number_and_integers_by_nothing(output, least):
    assert tolerances.atol("fp32", output, 1, 0.0, 1) == least
    assert tolerances.atol(None, torch.int64, 1, 1.0, 1) == 0.0


@pytest.mark.parametrize(
    ("case", "output", "governs"),
    [
        ("bf16", torch.float32, "bf16"),  # an fp32 sum of bf16 products
        ("fp32", torch.bfloat16, "bf16"),  # a result that is stored coarser than its inputs
        ("tf32", torch.float32, "tf32"),
        ("fp8e4m3", torch.bfloat16, "fp8e4m3"),
        ("fp32", torch.float64, "fp32"),
        ("int8", torch.float32, "fp32"),  # integers have no tolerance of their own
        ("fp32", torch.int64, None),  # indices are compared exactly
    ],
)
def test_the_coarser_dtype_of_case_and_output_governs(case, output, governs):
    assert tolerances.governing(case, output) == governs


@pytest.mark.parametrize(
    ("dtype", "device", "roundings"),
    [
        ("fp32", "cuda", 8),  # exponentials, divisions and roots of GPUs are good to 2 ulp each
        ("fp16", "cuda", 1),
        ("bf16", "cuda", 1),
        ("bf16", "cpu", 2),  # Triton's interpreter truncates where a GPU rounds
        ("fp16", "cpu", 1),
    ],
)
def test_torch_s_error_counts_as_at_least_so_many_roundings_of_the_largest_output(dtype, device, roundings):
    unit = {"fp32": 2**-24, "fp16": 2**-11, "bf16": 2**-8}[dtype]
    # With rms 0 there is no summation; with it, half of what the tolerance grants to summation comes on top.
    assert tolerances.least_torch_error(dtype, torch.device(device), 1, 0.0, 3.0, 1) == roundings * unit * 3.0
    with_sums = tolerances.least_torch_error(dtype, torch.device(device), 10_000, 1.0, 3.0, 1)
    assert with_sums == pytest.approx(roundings * unit * 3.0 + 3 * 100 * 2**-24 / 2, rel=1e-9)


def test_a_result_may_be_off_by_twice_torch_s_own_error():
    assert tolerances.OVER_TORCH == 2.0
