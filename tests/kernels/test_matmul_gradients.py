"""Gradients of matmul and bmm: values, what is copied for them, derivatives of them, torch.compile."""

import pytest
import torch
from products_under_test import DTYPES, judged, randn

from kernels.batched_matmul import bmm
from kernels.common import gradients
from kernels.matmul import matmul


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_agree_with_float64(dtype, transposed):
    a, b = randn(33, 20, dtype=DTYPES[dtype]), randn(20, 47, dtype=DTYPES[dtype], seed=1)
    if transposed:
        a, b = a.t().contiguous().t(), b.t().contiguous().t()
    dc = randn(33, 47, dtype=DTYPES[dtype], seed=2)
    a.requires_grad_(), b.requires_grad_()
    da, db = torch.autograd.grad(matmul(a, b), (a, b), dc)
    assert not judged(da, dc, b.detach().t())
    assert not judged(db, a.detach().t(), dc)


@pytest.mark.parametrize(("m", "n", "k"), [(3, 4, 0), (0, 4, 5), (3, 0, 5), (0, 0, 0)])
def test_empty_sums_are_zero_and_empty_products_empty(m, n, k):
    a, b = torch.ones(m, k, requires_grad=True), torch.ones(k, n, requires_grad=True)
    product = matmul(a, b)
    assert torch.equal(product, torch.zeros(m, n))
    product.backward(torch.ones(m, n))
    assert torch.equal(a.grad, torch.full((m, k), float(n)))
    assert torch.equal(b.grad, torch.full((k, n), float(m)))


def test_an_expanded_gradient_is_read_through_its_zero_strides():
    a, b = randn(9, 5).requires_grad_(), randn(5, 7, seed=1)
    matmul(a, b).sum().backward()
    torch.testing.assert_close(a.grad, b.sum(1).expand(9, 5))


def test_only_the_gradients_asked_for_are_computed():
    a, b = randn(4, 5).requires_grad_(), randn(5, 6, seed=1)
    matmul(a, b).backward(randn(4, 6))
    assert a.grad is not None and b.grad is None


def test_a_gradient_off_16_bytes_is_copied_once_for_both_products(monkeypatch):
    monkeypatch.setattr(gradients, "_LEAST", 0)
    copies, original = [], gradients.padded_rows
    monkeypatch.setattr(gradients, "padded_rows", lambda *x: copies.append(x[0].shape) or original(*x))
    a, b, dc = randn(70, 20).bfloat16(), randn(20, 47, seed=1).bfloat16(), randn(70, 47, seed=2).bfloat16()
    a.requires_grad_(), b.requires_grad_()
    for function in (matmul, torch.compile(matmul, backend="aot_eager", fullgraph=True)):
        da, db = torch.autograd.grad(function(a, b), (a, b), dc)
        assert copies.pop() == (1, 70, 47) and not copies
        assert not judged(da, dc, b.detach().t())
        assert not judged(db, a.detach().t(), dc)
    torch.autograd.grad(matmul(a, b.detach()), a, dc)
    assert not copies
    torch.library.opcheck(torch.ops.kernel_atlas.padded.default, (dc.requires_grad_(),))
    da, _ = torch.autograd.grad(matmul(a, b), (a, b), dc, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(da.float().sum(), dc)[0], b.detach().sum(0).expand(70, 47))


def test_gradients_of_a_batch_are_copied_once_too(monkeypatch):
    monkeypatch.setattr(gradients, "_LEAST", 0)
    copies, original = [], gradients.padded_rows
    monkeypatch.setattr(gradients, "padded_rows", lambda *x: copies.append(x[0].shape) or original(*x))
    a, b, dc = randn(2, 70, 20).half(), randn(2, 20, 47, seed=1).half(), randn(2, 70, 47, seed=2).half()
    a.requires_grad_(), b.requires_grad_()
    for function in (bmm, torch.compile(bmm, backend="aot_eager", fullgraph=True)):
        found = torch.autograd.grad(function(a, b), (a, b), dc)
        assert copies.pop() == (2, 70, 47) and not copies
        for got, right in zip(found, (dc @ b.detach().mT, a.detach().mT @ dc), strict=True):
            torch.testing.assert_close(got, right, rtol=2e-3, atol=2e-3)
    torch.library.opcheck(torch.ops.kernel_atlas.padded.default, (dc.requires_grad_(),))


def test_gradients_of_gradients_of_a_batch_agree_with_torch():
    a, b, v = randn(2, 3, 5).requires_grad_(), randn(5, 4, seed=1).requires_grad_(), randn(2, 3, 4, seed=2)
    for left, right in zip(second_order(matmul, a, b, v), second_order(torch.matmul, a, b, v), strict=True):
        torch.testing.assert_close(left, right)


def second_order(product, a, b, v):
    """Gradients of the squared length of the first gradients: what a gradient penalty computes."""
    first = torch.autograd.grad(product(a, b), (a, b), v, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), (a, b))


def test_torch_compile_takes_it_whole_with_its_gradients():
    # aot_eager: all of torch.compile but the code generator; fullgraph: a break in the graph would raise
    a, b = randn(20, 24).requires_grad_(), randn(24, 8, seed=1).requires_grad_()
    fast = torch.compile(lambda x, y: matmul(x * 2, y).relu(), backend="aot_eager", fullgraph=True)
    product = fast(a, b)
    expected = torch.matmul(a * 2, b).relu()
    torch.testing.assert_close(product, expected)
    dc = randn(20, 8, seed=2)
    for got, right in zip(
        torch.autograd.grad(product, (a, b), dc), torch.autograd.grad(expected, (a, b), dc), strict=True
    ):
        torch.testing.assert_close(got, right)
