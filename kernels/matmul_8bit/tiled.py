"""`tiled`: one program a tile, read through pointers; and the sums and scales of all variants in Triton."""

import torch
import triton
import triton.language as tl
from atlas.declaration import torch_dtype
from atlas.operators import launch

from kernels.common.tiles import grouped_tile

DTYPES = ("fp8e4m3", "fp8e5m2", "int8")
_NAMES = {torch_dtype(name): name for name in DTYPES}
FP8 = frozenset(_NAMES) - {torch.int8}


def as_interpreted(matrix):
    """On the CPU fp8 as fp32: the interpreter takes e4m3's NaN for a number, and rounds subnormals of e5m2 (3.7.1)."""
    return matrix.float() if matrix.dtype in FP8 and matrix.device.type == "cpu" else matrix


@triton.jit
def accumulate(a, b, acc, PROMOTE: tl.constexpr):
    """acc + a b; with PROMOTE the tensor cores' sums go to acc's fp32 registers every PROMOTE elements of k."""
    if PROMOTE:
        return tl.dot(a, b, acc, max_num_imprecise_acc=PROMOTE, out_dtype=acc.dtype)
    else:
        return tl.dot(a, b, acc, out_dtype=acc.dtype)


@triton.jit
def numbers(scale_a_ptr, scale_b_ptr, SCALES: tl.constexpr):
    """Both scales where each is one number; read before the loop, they are there when it ends."""
    if SCALES == "tensor":
        return tl.load(scale_a_ptr), tl.load(scale_b_ptr)
    else:
        return 1.0, 1.0


@triton.jit
def scaled(
    acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, offs_m, offs_n, M, N, SCALES: tl.constexpr
):  # fmt: skip
    """acc * scale_a * scale_b + bias of a block of C, in fp32; the accumulator as it is where SCALES is "none"."""
    if SCALES != "none":
        acc = acc.to(tl.float32)
        if SCALES == "row":
            acc = acc * tl.load(scale_a_ptr + offs_m, mask=offs_m < M, other=0.0)[:, None]
            acc = acc * tl.load(scale_b_ptr + offs_n, mask=offs_n < N, other=0.0)[None, :]
        else:  # one after the other: the product of both may overflow where this does not
            acc = acc * number_a * number_b
        if bias_ptr is not None:
            acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    return acc


@triton.jit
def _tiled_kernel(
    a_ptr, b_ptr, c_ptr, scale_a_ptr, scale_b_ptr, bias_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, ACC: tl.constexpr, PROMOTE: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of C; programs that run together own neighbouring tiles (see ``grouped_tile``)."""
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    # Rows past M and columns past N wrap around to valid ones, and are not stored: the loop needs no mask for them.
    a_ptrs = a_ptr + (offs_m % M).to(tl.int64)[:, None] * stride_am + offs_k.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k.to(tl.int64)[:, None] * stride_bk + (offs_n % N).to(tl.int64)[None, :] * stride_bn
    block_k = tl.full((), BLOCK_K, tl.int64)  # a stride of 16 M elements times BLOCK_K passes 2^31
    number_a, number_b = numbers(scale_a_ptr, scale_b_ptr, SCALES)
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:  # 0 past K: adds nothing to the sum
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
        acc = accumulate(a, b, acc, PROMOTE)
        a_ptrs += block_k * stride_ak
        b_ptrs += block_k * stride_bk
    c = scaled(acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, offs_m, offs_n, M, N, SCALES)
    c_ptrs = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(c_ptrs, c.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


def launch_tiled(a, b, scale_a, scale_b, bias, fast, out_dtype=torch.bfloat16, *, config):
    """Launch ``_tiled_kernel``: one program a tile, A and B in whatever strides they have."""
    (m, k), n = a.shape, b.shape[1]
    c = empty_product(a, b, scale_a, out_dtype)
    meta = constants_of(a, scale_a, fast, config)
    a, b = as_interpreted(a), as_interpreted(b)
    if c.numel():
        launch(
            _tiled_kernel, (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),),
            a, b, c, scale_a, scale_b, bias, m, n, k, *a.stride(), *b.stride(),
            EVEN_K=k % config["BLOCK_K"] == 0, **meta,
        )  # fmt: skip
    return c


_PROMOTED = 128
"""Elements of k that fp8 may be summed over in the tensor cores' own accumulator where fast accumulation is off."""


def constants_of(a, scale_a, fast, config):
    """The constants of a launch that follow from its operands."""
    integers = a.dtype == torch.int8
    return {
        "ACC": tl.int32 if integers else tl.float32,
        "PROMOTE": 0 if integers or fast else min(_PROMOTED, config["BLOCK_K"]),
        "SCALES": kind_of_scales(scale_a),
        **config,
    }


def kind_of_scales(scale_a):
    """What a case calls the scales: "none", "tensor" for one number each, "row" for one a row and a column."""
    return "none" if scale_a is None else "row" if scale_a.dim() else "tensor"


def empty_product(a, b, scale_a, out_dtype):
    """An empty C; without scales the exact sums of int8 are returned."""
    dtype = torch.int32 if scale_a is None else out_dtype
    return torch.empty((a.shape[0], b.shape[1]), dtype=dtype, device=a.device)
