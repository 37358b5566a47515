"""Inputs that share memory: right, before and after calls of the same shapes whose inputs do not."""

import functools

import pytest
import torch
from torch.nn import functional as F

import kernels

from .table import FP16, FP32

LENGTHS = (7, 20)


def _decoded(q, k, v):
    rows = []
    for number, filled in enumerate(LENGTHS):
        keys, values = (x[number : number + 1, :, :filled].double() for x in (k, v))
        rows.append(F.scaled_dot_product_attention(q[number : number + 1].double(), keys, values, enable_gqa=True))
    return torch.cat(rows)


@functools.cache
def _lens(device):
    """Copied to a device once: to do so in each call would wait for all that the device has to do."""
    return torch.tensor(LENGTHS, dtype=torch.int32, device=device)


def _decode(q, k, v):
    return kernels.decode_attention(q, k, v, _lens(q.device))


def _attend(q, k, v):
    return kernels.scaled_dot_product_attention(q, k, v)


def _attended(q, k, v):
    return F.scaled_dot_product_attention(q.double(), k.double(), v.double())


ONE = (24, 24)
HEADS = (2, 2, 16, 32)
CASES = {
    # (function, what it should give, dtype, aliased inputs, inputs of the same shapes and strides that are not)
    "matmul of x and its transpose": (
        kernels.matmul, lambda x, y: x.double() @ y.double(), FP32,
        lambda r: (x := r(16, 24), x.mT), lambda r: (r(16, 24), r(16, 24).mT)),
    "matmul of x and x": (
        kernels.matmul, lambda x, y: x.double() @ y.double(), FP16,
        lambda r: (x := r(*ONE), x), lambda r: (r(*ONE), r(*ONE))),
    "bmm of x and its transpose": (
        kernels.bmm, lambda x, y: x.double() @ y.double(), FP16,
        lambda r: (x := r(2, 16, 24), x.mT), lambda r: (r(2, 16, 24), r(2, 16, 24).mT)),
    "linear whose input is its weight": (
        kernels.linear, lambda x, w: x.double() @ w.double().mT, FP32,
        lambda r: (x := r(16, 24), x), lambda r: (r(16, 24), r(16, 24))),
    "attention of one tensor": (
        _attend, _attended, FP16, lambda r: (x := r(*HEADS), x, x), lambda r: (r(*HEADS), r(*HEADS), r(*HEADS))),
    "attention with k = v": (
        _attend, _attended, FP16, lambda r: (r(*HEADS), x := r(*HEADS), x),
        lambda r: (r(*HEADS), r(*HEADS), r(*HEADS))),
    "decode over one cache": (
        _decode, _decoded, FP16, lambda r: (r(2, 2, 1, 32), x := r(2, 1, 20, 32), x),
        lambda r: (r(2, 2, 1, 32), r(2, 1, 20, 32), r(2, 1, 20, 32))),
    "decode over two parts of one cache": (
        _decode, _decoded, FP16,
        lambda r: (r(2, 2, 1, 32), (x := r(2, 2, 1, 20, 32))[:, 0], x[:, 1]),
        lambda r: (r(2, 2, 1, 32), r(2, 2, 1, 20, 32)[:, 0], r(2, 2, 1, 20, 32)[:, 1])),
    "decode over overlapping parts of one cache": (
        _decode, _decoded, FP16,
        lambda r: (r(2, 2, 1, 32), (x := r(2, 1, 28, 32))[:, :, :20], x[:, :, 8:]),
        lambda r: (r(2, 2, 1, 32), r(2, 1, 28, 32)[:, :, :20], r(2, 1, 28, 32)[:, :, 8:])),
    "vector_add of x and x": (
        kernels.vector_add, lambda x, y: x.double() + y.double(), FP32,
        lambda r: (x := r(400), x), lambda r: (r(400), r(400))),
    "multiply_add of one tensor three times": (
        kernels.multiply_add, lambda x, y, z: x.double() + y.double() * z.double(), FP32,
        lambda r: (x := r(400), x, x), lambda r: (r(400), r(400), r(400))),
    "multiply_add whose first and last coincide": (
        kernels.multiply_add, lambda x, y, z: x.double() + y.double() * z.double(), FP32,
        lambda r: (x := r(400), r(400), x), lambda r: (r(400), r(400), r(400))),
    "swiglu of x and x": (
        kernels.swiglu, lambda x, y: F.silu(x.double()) * y.double(), FP32,
        lambda r: (x := r(6, 40), x), lambda r: (r(6, 40), r(6, 40))),
    "swiglu of two halves of one tensor": (
        kernels.swiglu, lambda x, y: F.silu(x.double()) * y.double(), FP32,
        lambda r: r(6, 80).chunk(2, -1), lambda r: (r(6, 80)[:, :40], r(6, 80)[:, 40:])),
    "layer_norm whose residual is its input": (
        lambda x, y: kernels.layer_norm(x, 40, residual=y)[0],
        lambda x, y: F.layer_norm(x.double() + y.double(), (40,)), FP32,
        lambda r: (x := r(6, 40), x), lambda r: (r(6, 40), r(6, 40))),
}  # fmt: skip
"""Each has a reason: products of a matrix with itself, attention over one memory, cells updated from themselves."""

ORDERS = {"aliased first": (True, True, False, False, True, False), "plain first": (False, False, True, True, False)}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("name", CASES)
def test_aliased_and_plain_calls_of_the_same_shapes_do_not_take_each_other_s_recordings(name, order, device):
    function, expected, dtype, aliased, plain = CASES[name]
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    for shared in order:
        inputs = (aliased if shared else plain)(draw)
        found = function(*inputs)
        exact = expected(*inputs)
        error = float((found.double() - exact).abs().max())
        most = (1e-4 if dtype == FP32 else 1e-2) * max(1.0, float(exact.abs().max()))
        assert error <= most, f"{'aliased' if shared else 'plain'}: off by {error:.3g}, {most:.3g} allowed"
