"""fp32 as three terms of bf16, and what six products of them leave out."""

import math

import pytest
import torch

from kernels.common.bf16_terms import TERMS, bf16_terms


def drawn(*shape, spread=20.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * torch.exp(spread * torch.rand(shape, generator=generator))


def apart(x):
    terms = bf16_terms(x)
    return terms.reshape(TERMS, -1, *terms.shape[1:]).double()


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("shape", [(1, 5, 7), (2, 33, 300), (3, 8, 64)], ids=str)
def test_three_terms_hold_all_bits_and_lie_as_the_matrix_does(shape, columns):
    x = drawn(*shape)
    x[0, 0, :2] = torch.finfo(torch.float32).max * torch.tensor([1, -1])  # which rounding would make infinite
    x = x.mT.contiguous().mT if columns else x
    terms = bf16_terms(x)
    assert terms.stride(1 if columns else 2) == 1
    assert terms.stride(2 if columns else 1) % 8 == 0
    assert torch.equal(apart(x).sum(0), x.double())


def test_a_matrix_that_all_share_has_three_terms():
    assert bf16_terms(drawn(1, 6, 16).expand(5, 6, 16)).shape == (TERMS, 6, 16)


def test_nothing_is_left_of_an_infinity():
    terms = apart(torch.tensor([[[math.inf, -math.inf, math.nan, 1.0]]]))
    assert torch.equal(terms[0].isfinite(), torch.tensor([[[False, False, False, True]]]))
    assert not terms[1:].any()


def test_six_products_of_terms_leave_out_two_roundings_of_fp32_at_most():
    a, b = drawn(1, 64, 1, spread=5.0), drawn(1, 1, 64, spread=5.0, seed=1)
    (a0, a1, a2), (b0, b1, b2) = apart(a), apart(b)
    product = a0 @ b0 + (a1 @ b0 + a0 @ b1 + a1 @ b1 + a2 @ b0 + a0 @ b2)
    exact = a.double() @ b.double()
    cut = 4  # Triton's interpreter cuts off where a GPU rounds to bf16: each term is twice as large
    assert ((product - exact).abs() <= cut * 2**-23 * exact.abs()).all()
