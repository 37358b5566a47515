"""Inputs far from 0: what a common offset is, of which inputs and dtypes, and whom it condemns."""

import math

import pytest
import torch
from atlas import catalog
from atlas.declaration.hardware import INTERPRETER
from atlas.validation import full_precision, specials

from proofs import inspecting
from proofs.mutants import planting
from proofs.mutants.handmade import MUTANTS

from .planting import inspect

CARELESS = next(mutant for mutant in MUTANTS if (mutant.kernel, mutant.caught_by) == ("layer_norm", "common_offset"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [2.0**-6, 1.0, 8.0])
def test_an_offset_is_in_proportion_to_its_tensor_and_leaves_the_values_apart(dtype, scale):
    name = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    x = (scale * torch.randn(1000, generator=torch.Generator().manual_seed(0))).to(dtype)
    raised = specials.offset({"x": x, "eps": 1e-5, "w": x}, ["x"], name)
    assert raised["x"].dtype == dtype and raised["eps"] == 1e-5 and raised["w"] is x
    apart = raised["x"].double() - scale * 2.0 ** {"fp32": 10, "fp16": 10, "bf16": 7}[name]
    assert 0.9 * scale < float(apart.std()) < 1.2 * scale
    assert abs(float(apart.mean())) < 0.2 * scale


def test_an_offset_stays_within_the_range_of_fp16():
    x = torch.tensor([30000.0, -20000.0], dtype=torch.float16)
    assert bool(specials.offset({"x": x}, ["x"], "fp16")["x"].isfinite().all())


def test_zeros_have_no_scale_and_stay():
    x = torch.zeros(5)
    assert specials.offset({"x": x}, ["x"], "fp32")["x"] is x


def test_only_forward_passes_are_given_an_offset():
    declaration = catalog.load("softmax", interpret=True)
    findings = inspect(declaration, seeds=1, check="common_offset", dtype="fp32", sizes=(("m", 37), ("n", 129)))
    assert {(finding.subject.direction, finding.status) for finding in findings} == {("forward", "pass")}


def test_products_rounded_to_16_bits_are_given_an_offset_in_fp32_alone():
    # bf16 logits of 46000 lie 256 apart: torch's softmax of them is as far off as any, and which is worse is chance
    declaration = catalog.load("linear_cross_entropy", interpret=True)
    findings = inspect(declaration, seeds=1, check="common_offset", direction="forward")
    assert {(finding.subject.case.dtype, finding.status) for finding in findings} == {("fp32", "pass")}


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_variance_that_cancels_is_far_beyond_what_careful_arithmetic_needs(dtype, tmp_path):
    """The margins on both sides: other GPUs add, divide and merge differently from the interpreter."""

    def used(declaration):
        tasks = inspecting.inspection(
            declaration, INTERPRETER, torch.device("cpu"), [0], check="common_offset", variant="one_pass",
            direction="forward", dtype=dtype, sizes=(("m", 37), ("n", 129)),
        )  # fmt: skip
        return max(step.used[0] for _, task in tasks for step in [task()] if step.used)

    careless = planting.load(planting.plant(tmp_path, CARELESS.kernel, CARELESS), interpret=True)
    assert used(careless) > 10
    # fp32's share is that of the tolerance without what conditioning adds, since it is added only where needed.
    if dtype == "fp16":
        assert used(catalog.load(CARELESS.kernel, interpret=True)) < 1 / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_nan_and_both_infinities_are_planted_one_at_a_time(dtype):
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = {what.partition(" ")[0]: inputs["x"] for what, inputs in specials.planted({"x": x}, ["x"], seed=0)}
    assert found.keys() == {"NaN", "+inf", "-inf"}
    assert bool((found["+inf"] == float("inf")).any()) and bool((found["-inf"] == -float("inf")).any())
    assert all(int((~planted.isfinite()).sum()) == 1 for planted in found.values())


def test_each_seed_plants_at_places_of_its_own():
    x = torch.zeros(100, 100)
    places = [{what for what, _ in specials.planted({"x": x}, ["x"], seed)} for seed in range(5)]
    assert len(set.union(*places)) == 5 * 3
    assert places[0] == {what for what, _ in specials.planted({"x": x}, ["x"], 0)}, "and the same ones again"


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [
        (torch.float16, 2.0**9),  # its square passes 65504, and it does not by far
        (torch.bfloat16, 2.0**13),  # exp overflows, squares and their sums do not
        (torch.float32, 2.0**13),
    ],
)
def test_large_inputs_lie_where_careless_arithmetic_overflows(dtype, largest):
    x = torch.tensor([0.3, -1.7, 0.01]).to(dtype)
    found = specials.magnified({"x": x}, ["x"])["x"].double()
    assert largest / 2 <= float(found.abs().max()) < largest
    assert torch.equal(found / found.abs().max(), x.double() / x.double().abs().max()), "scaled exactly"


@pytest.mark.parametrize(
    ("dtype", "kinds"), [(torch.float8_e4m3fn, {"NaN"}), (torch.float8_e5m2, {"NaN", "+inf", "-inf"})]
)
def test_fp8_is_planted_with_what_it_has_and_magnified_exactly(dtype, kinds):
    # e4m3 has no infinity: it would be a second NaN under another name
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert specials.plantable({"x": x}) == ["x"]
    found = dict(specials.planted({"x": x}, ["x"], seed=0))
    assert {what.partition(" ")[0] for what in found} == kinds
    assert all(int((~inputs["x"].double().isfinite()).sum()) == 1 for inputs in found.values())
    large = specials.magnified({"x": x}, ["x"])["x"].double()
    assert large.abs().max() in (2.0 ** torch.arange(20)).double() * x.double().abs().max()
    assert torch.equal(large / large.abs().max(), x.double() / x.double().abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_torch_makes_no_nan_of_what_is_infinite_and_so_excuses_none(dtype):
    infinite = torch.full((64,), math.inf, dtype=dtype)  # whole vectors: one element alone is never NaN
    with full_precision("fp32"):
        assert torch.nn.functional.gelu(infinite).isinf().all(), "oneDNN's is NaN on some CPUs"
    assert torch.backends.mkldnn.enabled == torch.backends.mkldnn.is_available(), "as it was before"
