"""fp32 products follow ``torch.set_float32_matmul_precision`` at every call, whatever was recorded before."""

import pytest
import torch

import kernels

pytestmark = pytest.mark.gpu

K = 512


@pytest.fixture(autouse=True)
def precision():
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


def randn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


A, B = (256, K), (K, 256)
PRODUCTS = {
    "matmul": (kernels.matmul, lambda a, b: a @ b, A, B),
    "linear": (lambda a, b: kernels.linear(a, b), lambda a, b: a @ b.mT, A, (256, K)),
    "linear with gelu": (lambda a, b: kernels.linear(a, b, activation="gelu"),
                         lambda a, b: torch.nn.functional.gelu(a @ b.mT), A, (256, K)),
    "bmm": (kernels.bmm, lambda a, b: a @ b, (2, *A), (2, *B)),
    "grouped_mm": (lambda a, b: kernels.grouped_mm(a, b, offs=torch.tensor([100, 256], dtype=torch.int32).cuda()),
                   lambda a, b: torch.cat([a[:100] @ b[0], a[100:] @ b[1]]), A, (2, *B)),
    "layer_norm_linear": (lambda a, b: kernels.layer_norm_linear(a, b),
                          lambda a, b: torch.nn.functional.layer_norm(a, (K,)) @ b.mT, A, (256, K)),
}  # fmt: skip


def error(found, exact):
    return float((found.double() - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_ieee_again_after_tf32_was_allowed(name, precision, figure):
    ours, exact, *shapes = PRODUCTS[name]
    a, b = (randn(*shape, seed=seed) for seed, shape in enumerate(shapes))
    wanted = exact(a.double(), b.double())
    errors = {}
    for turn, word in enumerate(("high", "highest", "high", "highest")):
        precision(word)
        for _ in range(3):
            errors[turn, word] = error(ours(a, b), wanted)
    figure(f"precision: {name}: " + ", ".join(f"{word} {value:.1e}" for (_, word), value in errors.items()))
    assert errors[1, "highest"] < 1e-5 and errors[3, "highest"] < 1e-5
    assert errors[0, "high"] == errors[2, "high"]
    if torch.cuda.get_device_capability() >= (8, 0) and name != "layer_norm_linear":
        assert errors[0, "high"] > 2e-5, "tf32 was allowed and not used: this test cannot fail"


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_are_ieee_again_after_tf32_was_allowed(name, precision):
    ours, exact, *shapes = PRODUCTS[name]
    a, b = (randn(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes))
    wide = [x.detach().double().requires_grad_() for x in (a, b)]
    out = exact(*wide)
    given = randn(*out.shape, seed=5)
    expected = torch.autograd.grad(out, wide, given.double())
    for word in ("high", "highest", "high", "highest"):
        precision(word)
        for _ in range(2):
            found = torch.autograd.grad(ours(a, b), (a, b), given)
    for x, y in zip(found, expected, strict=True):
        assert error(x, y) < 1e-5


def test_a_switch_between_forward_and_backward_counts_for_each_as_it_stands(precision):
    """torch reads it at each product."""
    a, b = randn(*A, seed=0).requires_grad_(), randn(*B, seed=1).requires_grad_()
    wide = [x.detach().double().requires_grad_() for x in (a, b)]
    given = randn(256, 256, seed=2)
    expected = torch.autograd.grad(wide[0] @ wide[1], wide, given.double())
    for _ in range(3):
        precision("high")
        out = kernels.matmul(a, b)
        precision("highest")
        found = torch.autograd.grad(out, (a, b), given)
    assert max(error(x, y) for x, y in zip(found, expected, strict=True)) < 1e-5
