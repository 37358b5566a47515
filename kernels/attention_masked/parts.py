"""dK and dV of keys whose queries were dealt out to several programs: the sum of what each wrote, in their order."""

import triton
import triton.language as tl
from atlas.operators import launch

from kernels.attention.blocks import block_d, strides_of, write_rows

_KEYS = 32


@triton.jit(do_not_specialize=["places", "parts", "heads_k", "len_k"])
def _add_kernel(
    sums_ptr, dk_ptr, dv_ptr, places, parts, heads_k, len_k,
    stride_kb, stride_kh, stride_ks, stride_vb, stride_vh, stride_vs,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """BLOCK_N keys of dK, or behind the ``places`` heads of K of dV."""
    blocks = tl.cdiv(len_k, BLOCK_N)
    first, place = tl.program_id(0) % blocks * BLOCK_N, tl.program_id(0) // blocks
    offs_n = first + tl.arange(0, BLOCK_N)[:, None]
    offs_d = tl.arange(0, BLOCK_D)[None, :]
    mask = (offs_n < len_k) & (offs_d < HEAD_DIM)
    total = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for part in range(parts):
        head = tl.cast(place, tl.int64) * parts + part
        total += tl.load(sums_ptr + (head * len_k + offs_n) * WIDTH + offs_d, mask=mask, other=0.0)
    b, h = (place % places // heads_k).to(tl.int64), (place % places % heads_k).to(tl.int64)
    if place < places:
        out_ptr = dk_ptr + b * stride_kb + h * stride_kh
        write_rows(out_ptr, total, first, len_k - first, stride_ks, HEAD_DIM, BLOCK_N, BLOCK_D)
    else:
        out_ptr = dv_ptr + b * stride_vb + h * stride_vh
        write_rows(out_ptr, total, first, len_k - first, stride_vs, HEAD_DIM, BLOCK_N, BLOCK_D)


def add_parts(sums, gradients, parts):
    """Fill dk and dv [b, g, s, d] with the sums of each head's ``parts``, [2, b, g parts, s, columns] of fp32."""
    dk, dv = gradients
    batch, heads_k, len_k, d = dk.shape
    launch(
        _add_kernel, (2 * batch * heads_k * triton.cdiv(len_k, _KEYS),),
        sums, dk, dv, batch * heads_k, parts, heads_k, len_k, *strides_of(dk), *strides_of(dv),
        HEAD_DIM=d, WIDTH=sums.shape[4], BLOCK_N=_KEYS, BLOCK_D=block_d(d), num_warps=4,
    )  # fmt: skip
