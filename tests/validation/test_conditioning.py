"""Sums that cancel: a right result is not held to a tolerance that is smaller than rounding, and a wrong one is."""

import torch
from atlas.declaration import Declaration, Pass, case, eager
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
    declaration = Declaration("total", "test", "", None, None, ("fp32",), lambda gpu: [], (), total)
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
