"""Matrix multiplication: C[m, n] = sum over k of A[m, k] B[k, n], accumulated in fp32.

Reads A (M K elements) and B (K N), writes C (M N); 2 M N K floating-point operations.  Squares from about 1024 on are
bound by the tensor cores; a product with few rows reads B once and is bound by memory.  A tile of BLOCK_M x BLOCK_N
elements of C reads (BLOCK_M + BLOCK_N) K elements from L2, so tiles must be large to keep L2 from becoming the bound,
and small enough to give every SM some.

Where ``tl.dot`` has no tensor cores to use (fp32 in IEEE precision on every GPU, and all dtypes on compute capability
7.5 since Triton 3.4) it becomes FMA instructions on the ordinary cores: other tiles, other speeds.
"""

import math

import torch
from atlas.declaration import case
from atlas.operators import Differentiable, Operator, autocast, autocasting, shaped

from kernels.common.gradients import read_twice
from kernels.common.products import by_columns, check_sizes, precision_of_product, wants_tf32

from .declaration import DECLARATION

__all__ = ["matmul"]


def case_of(a, b, tf32):
    """The case of a call; operands that lie neither by rows nor by columns count as the latter."""
    check_sizes("matmul", *a.shape, b.shape[1])
    layout = "".join("T" if by_columns(matrix) else "N" for matrix in (a, b))
    sizes = {"m": a.shape[0], "n": b.shape[1], "k": a.shape[1]}
    dtype = DECLARATION.dtype_of(a, tf32=precision_of_product(a, tf32) == "tf32")
    return case(dtype, **sizes, **({} if layout == "NN" else {"layout": layout}))


def _setup_context(ctx, inputs, output):
    a, b, _ = inputs
    ctx.save_for_backward(a, b)


def _backward(ctx, dc):
    # Two products of the same kind: differentiable in their turn, and transposed by strides alone.  Each is as precise
    # as torch is told to be when it is made.
    a, b = ctx.saved_tensors
    tf32 = wants_tf32(a)
    if ctx.needs_input_grad[0] and ctx.needs_input_grad[1]:
        dc = read_twice(dc, tf32)
    da = product_2d(dc, b.t(), tf32) if ctx.needs_input_grad[0] else None
    db = product_2d(a.t(), dc, tf32) if ctx.needs_input_grad[1] else None
    return da, db, None


product_2d = Differentiable(
    Operator(
        DECLARATION,
        "forward",
        "(Tensor a, Tensor b, bool tf32) -> Tensor",
        name="matmul",
        case_of=case_of,
        fake=lambda a, b, tf32: a.new_empty(a.shape[0], b.shape[1]),
    ),
    setup_context=_setup_context,
    backward=_backward,
)


@DECLARATION.public
def matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``torch.matmul`` for an ``other`` of one or two dimensions; ``input`` may have any number from one on.

    Both are fp32, fp16 or bf16, of one dtype and device, in any strides: transposed operands are not copied, leading
    dimensions of ``input`` are merged (copied only where their strides cannot be).  Accumulates in fp32; fp32 operands
    are multiplied as ``torch.set_float32_matmul_precision`` says, IEEE by default.  A product over no elements is zero.

    Raises NotImplementedError for a batched ``other``, TypeError for other dtypes, ValueError for shapes that do not
    agree, two devices, sparse tensors, and sizes of 2^31 - 1024 or more.
    """
    if autocasting():
        input, other = autocast("matmul", input, other)
    left, right = input.shape, other.shape
    if (
        input.dtype is not other.dtype
        or input.dtype not in DECLARATION.dtype_names
        or not left
        or not 1 <= len(right) <= 2
        or left[-1] != right[0]
        or input.device != other.device
        or input.layout is not torch.strided
        or other.layout is not torch.strided
    ):
        _refuse(input, other)
    rows = left[0] if len(left) == 2 else math.prod(left[:-1])
    check_sizes("matmul", rows, *right)
    tf32 = wants_tf32(input)
    if len(left) == 2 and len(right) == 2:
        return product_2d(input, other, tf32)
    product = product_2d(input.reshape(rows, left[-1]), other if len(right) == 2 else other[:, None], tf32)
    return shaped(product, left[:-1] + right[1:])


def _refuse(input, other):
    """Say what :func:`matmul` does not take in these operands."""
    DECLARATION.dtype_of(input, other)
    if not input.dim() or not other.dim():
        raise ValueError("matmul takes tensors of at least one dimension: a 0-dimensional one is multiplied with *")
    if other.dim() > 2:
        raise NotImplementedError(
            f"matmul takes an `other` of one or two dimensions, not a batch of matrices {tuple(other.shape)}: "
            "use kernels.bmm"
        )
    if input.shape[-1] != other.shape[0]:
        raise ValueError(
            f"matmul takes an `other` whose first dimension is the last of `input`: "
            f"{tuple(input.shape)} times {tuple(other.shape)}"
        )
    raise ValueError(
        f"matmul takes dense tensors of one device: {input.layout} on {input.device}, {other.layout} on {other.device}"
    )
