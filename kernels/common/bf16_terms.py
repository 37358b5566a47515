"""fp32 as the sum of three numbers of bf16, for products on tensor cores: see kernels/matmul/hopper_bf16x6.py."""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from kernels.common.batches import by_columns, rows_of

TERMS = 3


@triton.jit
def _rounded(x):
    """fp32 rounded to the nearest number of bf16 that is finite where ``x`` is."""
    nearest = x.to(tl.bfloat16).to(tl.float32)
    cut = (x.to(tl.uint32, bitcast=True) & 0xFFFF0000).to(tl.float32, bitcast=True)
    return tl.where((tl.abs(nearest) == float("inf")) & (tl.abs(x) < float("inf")), cut, nearest)


@triton.jit
def _terms_kernel(
    x_ptr, out_ptr, M, N, stride_xb, stride_xm, stride_ot, stride_ob, stride_om,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """out[0] + out[1] + out[2] = x: [b, m, n], to all 24 bits of x but where the third lies below bf16's least.

    What is left of an infinity, or of NaN, is 0.  A program owns a block of BLOCK_M x BLOCK_N of one matrix; rows of
    out are whole 16 bytes and are written to their end, with 0 past N.  WIDTH divides N and x's strides.
    """
    N, stride_xb, stride_xm = N // WIDTH * WIDTH, stride_xb // WIDTH * WIDTH, stride_xm // WIDTH * WIDTH
    stride_ot, stride_ob, stride_om = stride_ot // 8 * 8, stride_ob // 8 * 8, stride_om // 8 * 8
    blocks_n = tl.cdiv(stride_om, BLOCK_N)
    blocks = tl.cdiv(M, BLOCK_M) * blocks_n
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    offs_m = block // blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = block % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    x_ptrs = x_ptr + batch * stride_xb + offs_m.to(tl.int64)[:, None] * stride_xm + offs_n[None, :]
    x = tl.load(x_ptrs, mask=(offs_m[:, None] < M) & (offs_n[None, :] < N), other=0.0)
    out_ptrs = out_ptr + batch * stride_ob + offs_m.to(tl.int64)[:, None] * stride_om + offs_n[None, :]
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < stride_om)
    first = _rounded(x)
    tl.store(out_ptrs, first.to(tl.bfloat16), mask=mask)
    left = tl.where(tl.abs(x) < float("inf"), x - first, 0.0)
    second = left.to(tl.bfloat16).to(tl.float32)
    out_ptrs += stride_ot
    tl.store(out_ptrs, second.to(tl.bfloat16), mask=mask)
    out_ptrs += stride_ot
    tl.store(out_ptrs, (left - second).to(tl.bfloat16), mask=mask)


def bf16_terms(x):
    """Three numbers of bf16 for each of ``x`` [b, m, n] in fp32: [3 b, m, n], all firsts before all seconds.

    They lie as ``x`` does, by rows or by columns, which begin at whole lines of 128 bytes where they are longer; of a
    matrix that all of a batch share there is one.
    """
    if by_columns(x) and x.stride(1) != 1:
        x = x.contiguous()
    memory = rows_of(x)
    batch, m, n = memory.shape
    line = 64 if n >= 256 else 8
    out = torch.empty((TERMS * batch, m, triton.cdiv(n, line) * line), dtype=torch.bfloat16, device=x.device)
    block_n = min(1024, max(64, triton.next_power_of_2(n)))
    block_m = 4096 // block_n
    width = 4 if n % 4 == 0 and memory.stride(0) % 4 == 0 and memory.stride(1) % 4 == 0 else 1
    launch(
        _terms_kernel, (batch * triton.cdiv(m, block_m) * triton.cdiv(out.shape[2], block_n),),
        memory, out, m, n, *memory.stride()[:2], batch * out.stride(0), *out.stride()[:2],
        BLOCK_M=block_m, BLOCK_N=block_n, WIDTH=width, num_warps=4,
    )  # fmt: skip
    terms = out[:, :, :n]
    return terms.transpose(1, 2) if by_columns(x) else terms
