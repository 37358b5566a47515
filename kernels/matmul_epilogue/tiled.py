"""`tiled`: one program a tile of y, read through pointers; and what every epilogue in Triton computes."""

import torch
import triton
import triton.language as tl
from atlas.declaration.products import as_interpreted, fp32_precision
from atlas.operators import launch

from kernels.activation.tiles import share_of
from kernels.common.tiles import grouped_tile


@triton.jit
def activated(z, ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr):
    """act(z) in fp32; ``ACCURATE`` asks for more digits than 16 bits hold."""
    if ACTIVATION == "relu":
        z = tl.where(z < 0, 0.0, z)  # NaN stays NaN, as in torch
    elif ACTIVATION != "none":
        z *= share_of(z, ACTIVATION, ACCURATE)
    return z


@triton.jit
def finish_tile(
    acc, bias_ptr, residual_ptr, y_ptr, z_ptr, scale, tile_m, tile_n, M, N,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The epilogue of a tile's accumulator, written through pointers; y, z and residual are contiguous."""
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    offs = offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    z = acc * scale
    if bias_ptr is not None:
        z += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    if z_ptr is not None:
        tl.store(z_ptr + offs, z.to(z_ptr.dtype.element_ty), mask=inside)
    y = activated(z, ACTIVATION, ACCURATE)
    if residual_ptr is not None:
        y += tl.load(residual_ptr + offs, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + offs, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _tiled_kernel(
    x_ptr, w_ptr, bias_ptr, residual_ptr, y_ptr, z_ptr, scale, M, N, K, stride_xm, stride_xk, stride_wn, stride_wk,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of y (and of z, where there is one); bias, residual, z may be None."""
    tl.assume(K > 0)  # see ``tiled_kernel`` in kernels/matmul/tiled.py
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    # Rows past M and N wrap around to valid ones: the loop needs no mask for them, and they are not stored.
    offs_m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_n = ((tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + offs_m[:, None] * stride_xm + offs_k.to(tl.int64)[None, :] * stride_xk
    w_ptrs = w_ptr + offs_n[None, :] * stride_wn + offs_k.to(tl.int64)[:, None] * stride_wk
    block_k = tl.full((), BLOCK_K, tl.int64)  # a stride of 16 M elements times BLOCK_K = 128 passes 2^31
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_ptrs)
            w = tl.load(w_ptrs)
        else:  # 0 past K: adds nothing to the sum
            x = tl.load(x_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
            w = tl.load(w_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        x_ptrs += block_k * stride_xk
        w_ptrs += block_k * stride_wk
    finish_tile(
        acc, bias_ptr, residual_ptr, y_ptr, z_ptr, scale, tile_m, tile_n, M, N, ACTIVATION, ACCURATE, BLOCK_M, BLOCK_N
    )  # fmt: skip


def outputs(x, weight, out_dtype, keep):
    """(y, z or None) for the tiles to be written to."""
    shape, dtype = (x.shape[0], weight.shape[0]), out_dtype or x.dtype
    y = torch.empty(shape, dtype=dtype, device=x.device)
    return y, torch.empty(shape, dtype=dtype, device=x.device) if keep else None


def launch_tiled(
    x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """y [m, n], and with ``keep`` (y, z); operands are read in whatever strides they have."""
    (m, k), n = x.shape, weight.shape[0]
    y, z = outputs(x, weight, out_dtype, keep)
    x, weight = as_interpreted(x), as_interpreted(weight)
    launch(
        _tiled_kernel, (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),),
        x, weight, bias, residual, y, z, scale, m, n, k, *x.stride(), *weight.stride(),
        ACTIVATION=activation, ACCURATE=accurate(y), BLOCK_M=config["BLOCK_M"], BLOCK_N=config["BLOCK_N"],
        BLOCK_K=config["BLOCK_K"], GROUP_M=config["GROUP_M"], EVEN_K=k % config["BLOCK_K"] == 0,
        PRECISION=fp32_precision(), num_warps=config["num_warps"], num_stages=config["num_stages"],
    )  # fmt: skip
    return (y, z) if keep else y


def accurate(y):
    return y.dtype == torch.float32
