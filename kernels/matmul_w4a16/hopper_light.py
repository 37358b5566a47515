"""`light`: small products with packed weights for Hopper (sm_90), in one role and half of `direct`'s code.

y^T = W x^T.  Four warps of a program have 64 rows of W and a tile's rows of x.  All operands come by TMA, which one
thread asks for some steps ahead.  A step's words become 16 bits, which go back to shared memory
(:mod:`.light_weights`), and wgmma reads both operands from there: it multiplies while the next step's weights are made.

Where a tile's steps are shared among a cluster's programs, these add their sums (:mod:`kernels.common.clusters`).
"""

import torch
import triton
from atlas.operators import Clustered, launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common import clusters
from kernels.common.hopper import described

from .direct_parts import ROWS
from .direct_products import load_row_scales
from .direct_weights import parts_of_one
from .light_parts import allocate, load_first, multiply, operands, ring_of, write
from .light_space import block_k_of
from .light_weights import asm_of

_RING = 6
"""The most stages whose places are filled again; of others a program has all of its steps at once."""

_PREFETCH = gl.constexpr(
    "{ .reg .pred any; setp.gt.s32 any, $2, 0;\n@any cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }"
)
"""PTX: have as many bytes (2) from 1 on brought to L2."""


@gluon.jit
def _fetch_words(words_ptr, n, N, K, begin, end, BLOCK_K: gl.constexpr, BITS: gl.constexpr):
    """Have a program's words brought to L2: those of a row tile lie side by side along k, a thread asks for one."""
    thread = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    lines = gl.cdiv(K, 256 // BITS) * 8
    first, last = begin * (BLOCK_K // 32 * BITS), gl.minimum(end * (BLOCK_K // 32 * BITS), lines)
    tile = n // 16 + thread
    at = words_ptr + (tile.to(gl.int64) * lines + first) * 16
    count = gl.where((thread < ROWS // 16) & (tile * 16 < N), (last - first) * 64, 0)
    gl.inline_asm_elementwise(_PREFETCH, "=r,l,r", [at, count], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit(do_not_specialize=["M", "N", "K"])
def light_kernel(
    x_desc, words_desc, words_ptr, scales_desc, scales_ptr, zeros_desc, y_desc, y_ptr, M, N, K, STAGES: gl.constexpr,
    REFILL: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, ASM: gl.constexpr, CLUSTER: gl.constexpr,
    STATIC: gl.constexpr,
):  # fmt: skip
    """A cluster has a tile of y, a program of it at least one of the steps through K."""
    BLOCK_M: gl.constexpr = x_desc.block_shape[0]
    BLOCK_K: gl.constexpr = x_desc.block_shape[1]
    smems = allocate(x_desc, words_desc, scales_desc, zeros_desc, STAGES, BLOCK_K)
    rank, tile = gl.program_id(0) % CLUSTER, gl.program_id(0) // CLUSTER
    tiles_m = gl.cdiv(M, BLOCK_M)
    n, m = tile // tiles_m * ROWS, tile % tiles_m * BLOCK_M
    steps = gl.cdiv(K, BLOCK_K)
    begin, end = rank * steps // CLUSTER, (rank + 1) * steps // CLUSTER
    descs = x_desc, words_desc, scales_desc, zeros_desc
    load_first(descs, smems, m, n, begin, end, REFILL, BITS, GROUP, False)
    if REFILL:
        _fetch_words(words_ptr, n, N, K, begin, end, BLOCK_K, BITS)
    room = ()
    if CLUSTER > 1:
        room = clusters.room_of(rank, 1, ROWS, BLOCK_M, 4, CLUSTER, STATIC)
        clusters.arrive_first(STATIC)
    if GROUP == 0:
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
        row_scales = load_row_scales(scales_ptr, n, N, gl.SliceLayout(1, layout))
    acc = multiply(descs, smems, m, n, begin, end, REFILL, BITS, GROUP, ASM, False)
    if GROUP == 0:
        acc *= (row_scales.to(gl.float32) * parts_of_one(BITS, row_scales.dtype))[:, None]
    write(y_desc, y_ptr, acc, room, rank, m, n, M, N, CLUSTER, STATIC)


def multiply_light(bits, x, words, scales, zeros, y, group, *, config):
    """Write y [m, n] = x W^T; n is a multiple of 8, as TMA wants it."""
    (m, k), n = x.shape, y.shape[1]
    rows, block_k = config["BLOCK_M"], block_k_of(config["BLOCK_M"])
    steps = triton.cdiv(k, block_k)
    cluster = min(config["CLUSTER"], steps)
    (of_words, of_scales, of_zeros), stage = operands(bits, words, scales if group else None, zeros, k, group, block_k)
    weights, stage = 4 * ROWS.value * block_k, stage + rows * block_k * 2
    stages, refill, static = ring_of(rows, ROWS.value, block_k, stage, weights, steps, cluster, _RING)
    launch(
        Clustered(light_kernel, cluster) if cluster > 1 else light_kernel,
        (triton.cdiv(m, rows) * triton.cdiv(n, ROWS.value),),
        described(x, rows, block_k), of_words, words, of_scales, scales, of_zeros,
        None if cluster > 1 else described(y, rows, ROWS.value), y, m, n, k,
        STAGES=stages, REFILL=refill, BITS=bits, GROUP=group, ASM=asm_of(bits, group, x.dtype == torch.bfloat16),
        CLUSTER=cluster, STATIC=static, num_warps=4,
    )  # fmt: skip
