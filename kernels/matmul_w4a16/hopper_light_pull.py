"""The gradient dx = dy W of packed weights for Hopper (sm_90), of few rows and little weight: `light` turned over.

dx^T = W^T dy^T.  As in :mod:`.hopper_light` one role of four warps makes a step's weights 16 bits and puts them back to
shared memory: here 64 rows of W, by COLUMNS columns, scaled.  wgmma reads W from there by columns, which costs nothing
of 16 bits, and so nothing is turned over in registers.  A cluster's programs share the rows of W.
"""

import torch
import triton
from atlas.operators import Clustered, launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common import clusters
from kernels.common.hopper import described

from .direct_parts import ROWS
from .light_parts import allocate, load_first, multiply, operands, ring_of, write
from .light_weights import asm_of

_RING = 8
"""The most stages whose places are filled again; of others a program has all of its steps at once."""


@gluon.jit(do_not_specialize=["M", "N", "K"])
def light_pull_kernel(
    dy_desc, words_desc, scales_desc, zeros_desc, dx_desc, dx_ptr, M, N, K, COLUMNS: gl.constexpr,
    STAGES: gl.constexpr, REFILL: gl.constexpr, BITS: gl.constexpr, GROUP: gl.constexpr, ASM: gl.constexpr,
    CLUSTER: gl.constexpr, STATIC: gl.constexpr,
):  # fmt: skip
    """A cluster has a tile of dx, a program of it at least one of the steps through N; GROUP 0: a scale a row."""
    BLOCK_M: gl.constexpr = dy_desc.block_shape[0]
    smems = allocate(dy_desc, words_desc, scales_desc, zeros_desc, STAGES, COLUMNS)
    rank, tile = gl.program_id(0) % CLUSTER, gl.program_id(0) // CLUSTER
    tiles_m = gl.cdiv(M, BLOCK_M)
    k, m = tile // tiles_m * COLUMNS, tile % tiles_m * BLOCK_M
    steps = gl.cdiv(N, ROWS)
    begin, end = rank * steps // CLUSTER, (rank + 1) * steps // CLUSTER
    descs = dy_desc, words_desc, scales_desc, zeros_desc
    load_first(descs, smems, m, k, begin, end, REFILL, BITS, GROUP, True)
    room = ()
    if CLUSTER > 1:
        room = clusters.room_of(rank, 1, COLUMNS, BLOCK_M, 4, CLUSTER, STATIC)
        clusters.arrive_first(STATIC)
    acc = multiply(descs, smems, m, k, begin, end, REFILL, BITS, GROUP, ASM, True)
    write(dx_desc, dx_ptr, acc, room, rank, m, k, M, K, CLUSTER, STATIC)


def pull_light(bits, dy, words, scales, zeros, dx, group, *, config):
    """Write dx [m, k] = dy W; n is a multiple of 8, as TMA wants it, k one of 32."""
    (m, n), k = dy.shape, dx.shape[1]
    rows, columns = config["BLOCK_M"], config["COLUMNS"]
    steps = triton.cdiv(n, ROWS.value)
    cluster = min(config["CLUSTER"], steps)
    (of_words, of_scales, of_zeros), stage = operands(bits, words, scales, zeros, k, group, columns)
    weights, stage = 4 * ROWS.value * columns, stage + rows * ROWS.value * 2
    stages, refill, static = ring_of(rows, columns, ROWS.value, stage, weights, steps, cluster, _RING)
    launch(
        Clustered(light_pull_kernel, cluster) if cluster > 1 else light_pull_kernel,
        (triton.cdiv(m, rows) * triton.cdiv(k, columns),),
        described(dy, rows, ROWS.value), of_words, of_scales, of_zeros,
        None if cluster > 1 else described(dx, rows, columns), dx, m, n, k,
        COLUMNS=columns, STAGES=stages, REFILL=refill, BITS=bits, GROUP=group,
        ASM=asm_of(bits, group or 128, dy.dtype == torch.bfloat16), CLUSTER=cluster, STATIC=static, num_warps=4,
    )  # fmt: skip
