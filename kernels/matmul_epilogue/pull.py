"""`pull`: act' and the bias' gradient in one pass over dy, then matmul's products."""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from kernels.activation.tiles import share_and_slope
from kernels.common.gradients import copies_gradient
from kernels.common.padded import padded
from kernels.matmul import matmul

from .tiled import accurate


@triton.jit
def pulled(dy, z, ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr):
    """dy act'(z) in fp32."""
    if ACTIVATION == "relu":
        g = tl.where(z <= 0, 0.0, dy)  # 0 whatever dy is, NaN where z is, as in torch
    else:
        _, slope = share_and_slope(z, ACTIVATION, ACCURATE)
        g = dy * slope
    return g


@triton.jit
def _pull_kernel(
    z_ptr, dy_ptr, g_ptr, sums_ptr, scale, M, N,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_N columns of a strip of ROWS rows: scale * dy act'(z), and sums of its columns."""
    N = N // WIDTH * WIDTH  # n is a multiple of WIDTH; so said, the compiler accesses WIDTH elements at once
    columns = tl.cdiv(N, BLOCK_N)  # along one axis, for CUDA counts no more than 65535 strips along another
    offs_n = tl.program_id(0) % columns * BLOCK_N + tl.arange(0, BLOCK_N)
    strip = tl.program_id(0) // columns
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, ROWS, BLOCK_M):
        offs_m = strip * ROWS + start + tl.arange(0, BLOCK_M)
        inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
        offs = offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
        g = tl.load(dy_ptr + offs, mask=inside, other=0.0).to(tl.float32)  # 0 adds nothing to the sums
        if ACTIVATION != "none":
            # What is not there has a finite slope, and times 0 it is 0.
            z = tl.load(z_ptr + offs, mask=inside, other=0.0).to(tl.float32)
            g = pulled(g, z, ACTIVATION, ACCURATE)
        if g_ptr is not None:
            tl.store(g_ptr + offs, (g * scale).to(g_ptr.dtype.element_ty), mask=inside)
        total += g
    if sums_ptr is not None:
        sums = tl.sum(total, axis=0)
        sums_ptrs = sums_ptr + strip.to(tl.int64) * N + offs_n
        tl.store(sums_ptrs, sums.to(sums_ptr.dtype.element_ty), mask=offs_n < N)


@triton.jit
def _sum_kernel(sums_ptr, dbias_ptr, strips, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """One program owns BLOCK_N columns: dbias from the sums [strips, n] of the strips."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, strips, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        inside = (offs_m[:, None] < strips) & (offs_n[None, :] < N)
        total += tl.load(sums_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :], mask=inside, other=0.0)
    tl.store(dbias_ptr + offs_n, tl.sum(total, axis=0).to(dbias_ptr.dtype.element_ty), mask=offs_n < N)


def launch_pull(z, dy, activation, scale, has_bias, like, *, config):
    """(g, dbias) of ``like``'s dtype; either has one element, of no meaning, where there is none.

    There is no g where it would be dy itself, and no dbias without a bias.  g has padded rows where each of the two
    products would copy it to such: of 4096 x 50257 either copy takes 250 us, the products 1300 (H200).
    """
    m, n = dy.shape
    writes = activation != "none" or scale != 1.0
    g = torch.empty((m, n) if writes else (1,), dtype=like.dtype, device=dy.device)
    dbias = torch.empty((n,) if has_bias else (1,), dtype=like.dtype, device=dy.device)
    strips = triton.cdiv(m, config["ROWS"])
    several = has_bias and strips > 1  # sums of a single strip are dbias
    sums = torch.empty((strips, n), dtype=torch.float32, device=dy.device) if several else dbias if has_bias else None
    width = 16 // dy.element_size()
    columns = triton.cdiv(n, config["BLOCK_N"])
    if writes or has_bias:
        launch(
            _pull_kernel, (columns * strips,), z, dy, g if writes else None, sums, scale, m, n,
            ACTIVATION=activation, ACCURATE=accurate(dy), WIDTH=1 if n % width else width, **config,
        )  # fmt: skip
    if several:
        launch(_sum_kernel, (triton.cdiv(n, 64),), sums, dbias, strips, n, BLOCK_M=32, BLOCK_N=64, num_warps=4)
    if copies_gradient(m, n, like):
        g = padded(g if writes else dy.to(like.dtype))
    return g, dbias


def launch_backward(x, weight, bias, residual, z, dy, activation, scale, *, config):
    """(dx, dweight), and dbias where there is a bias; ``z`` as forward keeps it."""
    has_bias = bias is not None
    g, dbias = launch_pull(z, dy, activation, scale, has_bias, x, config=config)
    g = dy if g.dim() == 1 else g
    dx, dweight = matmul(g, weight), matmul(g.t(), x)
    return (dx, dweight, dbias) if has_bias else (dx, dweight)
