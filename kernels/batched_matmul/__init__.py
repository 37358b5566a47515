"""Batched matrix multiplication: C[b, m, n] = sum over k of A[b, m, k] B[b, k, n], accumulated in fp32.

Reads A (B M K elements) and B (B K N), writes C (B M N); 2 B M N K floating-point operations.  Each product is tiled as
in `matmul`, whose device functions these kernels share; new is only where a product's matrices lie, and that
tiles of all products are one list: many small products fill a GPU that each by itself would leave idle.

A matrix that all products share (a batch stride of 0, as ``expand`` makes it) is read where it lies, from L2 after the
first product, and never copied.
"""

import torch
from atlas.declaration import case
from atlas.operators import Differentiable, Operator, autocast, autocasting

from kernels.common.batches import by_columns
from kernels.common.gradients import read_twice
from kernels.common.products import check_sizes, precision_of_product, wants_tf32

from .declaration import DECLARATION

__all__ = ["bmm"]


def case_of(a, b, tf32):
    _check_sizes(*a.shape, b.shape[2])
    dtype = DECLARATION.dtype_of(a, tf32=precision_of_product(a, tf32) == "tf32")
    layout = "".join("T" if by_columns(matrices) else "N" for matrices in (a, b))
    sizes = {"b": a.shape[0], "m": a.shape[1], "n": b.shape[2], "k": a.shape[2]}
    return case(dtype, **sizes, **({} if layout == "NN" else {"layout": layout}))


def _check_sizes(b, m, k, n):
    check_sizes("bmm", m, k, n)
    check_sizes("bmm, in tiles of 16 x 16,", b * (m // 16 + 1) * (n // 16 + 1))


def _setup_context(ctx, inputs, output):
    a, b, _ = inputs
    ctx.save_for_backward(a, b)


def _backward(ctx, dc):
    a, b = ctx.saved_tensors
    tf32 = wants_tf32(a)
    if ctx.needs_input_grad[0] and ctx.needs_input_grad[1]:
        dc = read_twice(dc, tf32=False)  # where it would be turned for one of them, too
    da = _products(dc, b.transpose(1, 2), tf32) if ctx.needs_input_grad[0] else None
    db = _products(a.transpose(1, 2), dc, tf32) if ctx.needs_input_grad[1] else None
    return da, db, None


_products = Differentiable(
    Operator(
        DECLARATION,
        "forward",
        "(Tensor a, Tensor b, bool tf32) -> Tensor",
        name="bmm",
        case_of=case_of,
        fake=lambda a, b, tf32: a.new_empty(a.shape[0], a.shape[1], b.shape[2]),
    ),
    setup_context=_setup_context,
    backward=_backward,
)


@DECLARATION.public
def bmm(input: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """``torch.bmm``: [b, m, k] times [b, k, n] is [b, m, n], in any strides, an expanded batch included.

    Both are fp32, fp16 or bf16, of one dtype and device.  Accumulates in fp32; fp32 operands are multiplied as
    ``torch.set_float32_matmul_precision`` says, IEEE by default.  A product over no elements is zero.

    Raises TypeError for other dtypes; ValueError for tensors not of three dimensions, shapes that do not agree, two
    devices, sparse tensors, and sizes or tiles beyond 32 bits.
    """
    if autocasting():
        input, mat2 = autocast("bmm", input, mat2)
    DECLARATION.dtype_of(input, mat2)
    shape, other = input.shape, mat2.shape
    if len(shape) != 3 or len(other) != 3 or shape[0] != other[0] or shape[2] != other[1]:
        raise ValueError(f"bmm takes [b, m, k] and [b, k, n]: {tuple(shape)} and {tuple(other)}")
    if input.device != mat2.device or input.layout != torch.strided or mat2.layout != torch.strided:
        raise ValueError(
            f"bmm takes dense tensors of one device: {input.layout} on {input.device}, {mat2.layout} on {mat2.device}"
        )
    _check_sizes(*shape, other[2])
    return _products(input, mat2, wants_tf32(input))
