"""Variant `whole`: all that is reduced at once in one program's registers, of axes apart or of few bytes.

x is [k0, n1, k1, n2, k2] as for `strided`, or [outer, n, inner].  n1 and n2 are one line of places, so that of lengths
like 5 and 196 a block has 1024 places and not 8 x 256.  Nothing is shared: one round trip to memory, and one exchange
between threads.
"""

import torch
import triton
import triton.language as tl
from atlas.operators import launch

from .folding import collapse, first_state, identity_of, write_results
from .results import BESIDE, cache_policy, returned, vector_of
from .strided import strides_of, width_of
from .tiling import whole_tile


@triton.jit
def _whole_kernel(
    x_ptr, out_ptr, beside_ptr, n1, k1, n2, k2, stride_k0, stride_n1, stride_k1, stride_n2, stride_k2,
    OP: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, WIDTH: tl.constexpr,
    BY_ROW: tl.constexpr, FAR: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """One program owns BLOCK_K lines of k1 of one of k0 matrices, and of k2 BLOCK_C columns.

    BLOCK_N places hold n1 x n2 elements each of a column, or BY_ROW, where k2 is 1, n1 x n2 / WIDTH vectors, and
    BLOCK_C is WIDTH.  WIDTH divides the fastest axis and the strides of the others; FAR: elements are 2^31 apart.
    """
    # So said, the compiler accesses WIDTH elements at once.
    stride_n1 = stride_n1 // WIDTH * WIDTH
    stride_k0, stride_k1 = stride_k0 // WIDTH * WIDTH, stride_k1 // WIDTH * WIDTH
    if BY_ROW:
        across, per = 1, n2 // WIDTH
        step_n2, step_c = stride_n2 * WIDTH, stride_n2
    else:
        k2 = k2 // WIDTH * WIDTH
        stride_n2 = stride_n2 // WIDTH * WIDTH
        across, per = tl.cdiv(k2, BLOCK_C), n2
        step_n2, step_c = stride_n2, stride_k2
    down = tl.cdiv(k1, BLOCK_K)
    pid = tl.program_id(0)
    column = pid % across * BLOCK_C
    line = pid // across % down * BLOCK_K
    matrix = (pid // (across * down)).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)[:, None, None]
    place = tl.arange(0, BLOCK_N)[None, :, None]
    offs_c = tl.arange(0, BLOCK_C)[None, None, :]
    place_n1, place_n2 = place // per, place % per
    mask = (offs_k < k1 - line) & (place < n1 * per)
    if not BY_ROW:
        mask = mask & (offs_c < k2 - column)
    if FAR:
        offs = place_n1.to(tl.int64) * stride_n1 + place_n2.to(tl.int64) * step_n2
        offs = offs_k.to(tl.int64) * stride_k1 + offs + offs_c.to(tl.int64) * step_c
    else:
        offs = offs_k * stride_k1 + (place_n1 * stride_n1 + place_n2 * step_n2) + offs_c * step_c
    x_ptr += matrix * stride_k0 + line.to(tl.int64) * stride_k1 + column.to(tl.int64) * stride_k2
    x = tl.load(x_ptr + offs, mask=mask, other=identity_of(OP), eviction_policy=POLICY).to(tl.float32)
    index = place_n2 * WIDTH + offs_c if BY_ROW else place_n2  # of max, which is along n2 alone
    acc, beside = first_state(x, index, mask, OP)
    if BY_ROW:
        acc, beside = collapse(acc, beside, 2, OP)
        acc, beside = collapse(acc, beside, 1, OP)
        offs_k = line + tl.arange(0, BLOCK_K)
        offs, inside = matrix * k1 + offs_k, offs_k < k1
    else:
        acc, beside = collapse(acc, beside, 1, OP)
        offs_k, offs_c = line + tl.arange(0, BLOCK_K)[:, None], column + tl.arange(0, BLOCK_C)[None, :]
        offs, inside = (matrix * k1 + offs_k) * k2 + offs_c, (offs_k < k1) & (offs_c < k2)
    write_results(out_ptr, beside_ptr, offs, acc, beside, n1 * n2, inside, OP)


def launch_whole(x, op, dtype=None, *, config):
    shape = x.shape[::2]
    out = torch.empty(shape, dtype=dtype or x.dtype, device=x.device)
    beside = torch.empty(shape, dtype=BESIDE[op], device=x.device) if op in BESIDE else None
    x = x if x.dim() == 5 else x[:, None, None]
    k0, n1, k1, n2, k2 = x.shape
    by_row, strides = k2 == 1, strides_of(x)
    width = width_of(x, by_row)
    tile = whole_tile(config, n1 * n2, k1, k2, vector_of(x), width)
    reach = [(n1 - 1) * strides[1], tile.k1 * strides[2], (n2 - 1) * strides[3], tile.columns * strides[4]]
    launch(
        _whole_kernel, (k0 * triton.cdiv(k1, tile.k1) * (1 if by_row else triton.cdiv(k2, tile.columns)),),
        x, out, out if beside is None else beside, n1, k1, n2, k2, *strides,
        OP=op, BLOCK_K=tile.k1, BLOCK_N=tile.places, BLOCK_C=tile.columns, WIDTH=width, BY_ROW=by_row,
        FAR=sum(reach) >= 2**31, POLICY=cache_policy(x), num_warps=config["num_warps"],
    )  # fmt: skip
    return returned(out, beside)
