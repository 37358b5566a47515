"""Sums that cancel: a right result is not held to a tolerance that is smaller than rounding, and a wrong one is."""

import pytest
import torch
from atlas.declaration import Declaration, Pass, case, eager
from atlas.validation import tolerances
from atlas.validation.problems import Problem

# One column of eight terms: in fp32 every order gives another last bit, and their sum is a millionth of each of them.
TERMS = torch.tensor([1.0, 3.0, -2.0, 5.0, -4.0, -3.0, 7.0, -7.0]) * 1.0000001
TERMS[-1] -= TERMS.double().sum().float() - 3e-7


def problem():
    total = Pass(
        inputs=lambda c, device, generator: {"x": TERMS[:, None].clone()},
        reference=lambda x: x.sum(dim=0),
        outputs=("total",),
        variants=(),
        peers={"torch": eager(lambda x: x.double().sum(dim=0).float())},  # exact, by luck
        bytes=lambda c: {"x": 32},
        flops=lambda c: {"sum": 8},
        reduction=lambda c: c["m"],
    )
    declaration = Declaration(
        name="total", family="test", summary="", call=None, dtypes=("fp32",), cases=lambda gpu: [], edge_cases=(),
        forward=total,
    )  # fmt: skip
    return Problem(declaration, "forward", case("fp32", m=8, n=1), torch.device("cpu"), 0)


def test_an_error_of_one_rounding_of_the_terms_is_right_though_the_sum_is_tiny():
    asked = problem()
    exact = float(asked.expected[0])
    assert abs(exact) < 1e-6 * float(TERMS.abs().max())
    off = torch.tensor([exact + 2**-23 * float(TERMS.abs().max()) / 2]).float()
    assert asked.judge(off).reason == ""


def test_an_error_of_a_hundred_roundings_is_wrong():
    asked = problem()
    off = torch.tensor([float(asked.expected[0]) + 100 * 2**-23 * float(TERMS.abs().max())]).float()
    assert "the tolerance" in asked.judge(off).reason


def test_the_reference_is_asked_four_times_of_inputs_off_by_half_an_ulp_each_time_elsewhere():
    seen = []

    def evaluate(inputs):
        seen.append(inputs["x"] / TERMS.double()[:, None] - 1)
        return [inputs["x"].sum(dim=0)]

    exact = [TERMS.double()[:, None].sum(dim=0)]
    tolerances.conditioning_slack(evaluate, {"x": TERMS[:, None].clone(), "eps": 1e-5}, exact, seed=3)
    assert len(seen) == 4
    assert all(((change.abs() - 2**-24).abs() < 2**-50).all() for change in seen), "half an ulp of fp32, up or down"
    signs = {tuple((change > 0).flatten().tolist()) for change in seen}
    assert len(signs) == 4, "one draw may cancel where an output has a single element"


def test_what_is_granted_is_four_times_the_root_mean_square_of_the_changes():
    changes = iter([1.0, -3.0, 5.0, 1.0])  # squares 1, 9, 25, 1: their mean is 9
    granted = tolerances.conditioning_slack(
        lambda inputs: [torch.full((2,), next(changes), dtype=torch.float64)], {}, [torch.zeros(2)], seed=0
    )
    assert granted == pytest.approx([4 * 3.0])
