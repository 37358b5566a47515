"""Products of fp32 in IEEE precision for Hopper (sm_90): c = act(scale * (A @ B) + bias) + residual, by FMA.

No tensor cores take part: a multiprocessor multiplies and adds 128 pairs a clock, from registers.  What feeds them is
shared memory, at 128 bytes a clock, so each thread owns 8 x 8 elements of a tile: 16 numbers are read for 64
multiplications.  Registers suffice for 8 such warps; where tiles are too few for as many, 4 x 8 elements a thread make
twice the warps, with 12 numbers for 32 multiplications.  Threads read 16 bytes at a time along whatever is contiguous,
which decides which elements they own:

- along k: 4 steps of k of one row, and the 8 neighbouring lanes read 8 neighbouring rows.  TMA's swizzle puts those
  into different banks; as `tl.dot` lays blocks out, they lie 4 rows apart in one bank, and take 8 turns instead.
- along m or n: 4 neighbours, and 8 lanes read 128 bytes in a row.

Blocks come by TMA into a ring of shared memory; the warps that multiply ask for them.
"""

import triton
import triton.language as tl
from atlas.declaration.products import describable
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels.activation.tiles import share_of
from kernels.common.hopper import described
from kernels.common.padded import padded_rows
from kernels.common.parts import part_of_k

STEP = gl.constexpr(16)
"""Elements of k that are multiplied in one go: the fewest that Triton's dot takes, so that registers suffice."""


@gluon.jit
def _fetch(desc, bar, buffer, row, k, there, ALONG_K: gl.constexpr):
    """Fetch the block from row ``row`` (of A; of B's transpose) and column ``k``."""
    if ALONG_K:
        tma.async_copy_global_to_shared(desc, [row, k], bar, buffer, pred=there)
    else:
        tma.async_copy_global_to_shared(desc, [k, row], bar, buffer, pred=there)


@gluon.jit
def _fetch_blocks(
    a_desc, b_desc, a_smem, b_smem, full, block, blocks, m, n, a_k, b_k,
    BLOCK_K: gl.constexpr, A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr,
):  # fmt: skip
    """Fetch ``block`` of the program's ``blocks`` of A and of B, if there is one, into its slot of the ring.

    The program's first block lies at ``a_k`` and ``b_k`` along k.
    """
    slot = block % a_smem.shape[0]
    bar = full.index(slot)
    mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=block < blocks)
    _fetch(a_desc, bar, a_smem.index(slot), m, a_k + block * BLOCK_K, block < blocks, A_ALONG_K)
    _fetch(b_desc, bar, b_smem.index(slot), n, b_k + block * BLOCK_K, block < blocks, B_ALONG_K)


@gluon.jit
def _multiply_block(acc, a, b, BLOCK_K: gl.constexpr, A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr):
    """``acc`` and the product of two blocks in shared memory."""
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 0)
    b_layout: gl.constexpr = gl.DotOperandLayout(1, acc.type.layout, 0)
    for k in gl.static_range(0, BLOCK_K, STEP):
        a_step = a.slice(k, STEP, 1) if A_ALONG_K else a.slice(k, STEP, 0).permute((1, 0))
        b_step = b.slice(k, STEP, 1).permute((1, 0)) if B_ALONG_K else b.slice(k, STEP, 0)
        acc = gl.dot_fma(a_step.load(a_layout), b_step.load(b_layout), acc)
    return acc


@gluon.jit
def _activated(z, ACTIVATION: gl.constexpr):
    """act(z) to the digits of fp32."""
    if ACTIVATION == "relu":
        z = gl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)  # NaN stays NaN, as in torch
    elif ACTIVATION != "none":
        z *= share_of(z, ACTIVATION, True)
    return z


@gluon.jit
def matmul_fp32_kernel(
    a_desc, b_desc, bias_ptr, residual_ptr, c_ptr, z_ptr, scale, M, N, K, K_PART, a_apart, b_apart,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr, ACTIVATION: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Program (tile, part, 0) owns one tile of c[part, m, n], the sum over K_PART elements of K (whole blocks or all).

    Program (tile, 0, batch) owns one of c[batch, m, n]: the operands of a product begin ``a_apart`` and ``b_apart``
    rows of memory after those of the one before.  A tile's rows past M and N may be the next product's and
    are not stored.  bias [n], residual, z (what act is applied to; [m, n] as c) may be None, and are where there are
    parts or batches.

    The order of tiles goes down GROUP_M rows of them first.  A warp has 4 x 8 threads, and so 32 or 16 x 64 elements.
    """
    WARPS_N: gl.constexpr = BLOCK_N // 64
    layout: gl.constexpr = gl.BlockedLayout(
        [1 if A_ALONG_K else 4, 1 if B_ALONG_K else 4], [4, 8], [num_warps // WARPS_N, WARPS_N], [1, 0]
    )
    tiles_of_band = GROUP_M * gl.cdiv(N, BLOCK_N)
    first_m = gl.program_id(0) // tiles_of_band * GROUP_M
    rows = gl.minimum(gl.cdiv(M, BLOCK_M) - first_m, GROUP_M)
    within = gl.program_id(0) % tiles_of_band
    m, n = (first_m + within % rows) * BLOCK_M, within // rows * BLOCK_N
    a_smem = gl.allocate_shared_memory(
        gl.float32, [STAGES, a_desc.block_shape[0], a_desc.block_shape[1]], a_desc.layout
    )
    b_smem = gl.allocate_shared_memory(
        gl.float32, [STAGES, b_desc.block_shape[0], b_desc.block_shape[1]], b_desc.layout
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
    fence_async_shared()
    start = gl.program_id(1) * K_PART
    blocks = gl.cdiv(gl.minimum(K_PART, K - start), BLOCK_K)
    batch = gl.program_id(2)
    a_row, b_row, a_k, b_k = m, n, start, start
    if A_ALONG_K:
        a_row += batch * a_apart
    else:
        a_k += batch * a_apart
    if B_ALONG_K:
        b_row += batch * b_apart
    else:
        b_k += batch * b_apart
    c_ptr += (batch * gl.num_programs(1) + gl.program_id(1)).to(gl.int64) * M * N
    for i in gl.static_range(STAGES - 1):
        _fetch_blocks(
            a_desc, b_desc, a_smem, b_smem, full, i, blocks, a_row, b_row, a_k, b_k, BLOCK_K, A_ALONG_K, B_ALONG_K
        )
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
    for block in range(blocks):
        slot = block % STAGES
        mbarrier.wait(full.index(slot), block // STAGES & 1)
        # All warps have read the block before this one, whose slot is filled next.  Gluon's own name for this barrier
        # is another in Triton 3.7 than in 3.6.
        tl.debug_barrier()
        _fetch_blocks(
            a_desc, b_desc, a_smem, b_smem, full, block + STAGES - 1, blocks, a_row, b_row, a_k, b_k,
            BLOCK_K, A_ALONG_K, B_ALONG_K,
        )  # fmt: skip
        acc = _multiply_block(acc, a_smem.index(slot), b_smem.index(slot), BLOCK_K, A_ALONG_K, B_ALONG_K)
    offs_m = m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, layout))
    offs_n = n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, layout))
    inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    offs = offs_m.to(gl.int64)[:, None] * N + offs_n[None, :]
    z = acc * scale
    if bias_ptr is not None:
        z += gl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(gl.float32)[None, :]
    if z_ptr is not None:
        gl.store(z_ptr + offs, z.to(z_ptr.dtype.element_ty), mask=inside)
    c = _activated(z, ACTIVATION)
    if residual_ptr is not None:
        c += gl.load(residual_ptr + offs, mask=inside, other=0.0).to(gl.float32)
    gl.store(c_ptr + offs, c.to(c_ptr.dtype.element_ty), mask=inside)


def product(a, b, c, *, bias=None, residual=None, z=None, activation="none", scale=1.0, config):
    """Write c [m, n] (and z) from a [m, k] and b [k, n] in fp32, which TMA can read as they are or transposed.

    Where c is [parts, m, n] it gets the products of parts of K, which the epilogue is left out of.
    """
    grid = (c.shape[0] if c.dim() == 3 else 1, 1)
    _launch(a, b.t(), c, a.shape[1], grid, (0, 0), (bias, residual, z, scale), activation, config)


def products(a, b, c, *, config):
    """Write c [batch, m, n] from a [batch, m, k] and b [batch, k, n] in fp32; see :func:`in_a_row`."""
    a_rows, a_apart = _matrix(a)
    b_rows, b_apart = _matrix(b.transpose(1, 2))
    grid, apart = (1, c.shape[0]), (a_apart, b_apart)
    _launch(a_rows, b_rows, c, a.shape[2], grid, apart, (None, None, None, 1.0), "none", config)


def in_a_row(x):
    """Matrices [batch, rows, k] as :func:`products` reads them: as they are, or copies.

    TMA can read them, and they follow one another, or one is shared by all products.  Where they lie along their rows,
    the next one begins at a whole block of k: what lies between is 0.
    """
    memory = x if x.stride(2) == 1 else x.transpose(1, 2)
    shared = x.shape[0] == 1 or x.stride(0) == 0
    if memory.stride(2) == 1 and describable(memory[0]):
        rows, rest = divmod(memory.stride(0), memory.stride(1))
        if shared or (not rest and rows >= memory.shape[1] and (memory is x or not rows % _BLOCK_K)):
            return x
    copy = padded_rows(memory[:1] if shared else memory, 1 if memory is x else _BLOCK_K).expand(memory.shape)
    return copy if memory is x else copy.transpose(1, 2)


_BLOCK_K = 32


def _matrix(x):
    """Matrices [batch, rows, k] as one [., k], and how many rows of memory one lies after the one before."""
    memory = x if x.stride(2) == 1 else x.transpose(1, 2)
    batch, rows, length = memory.shape
    if batch == 1 or x.stride(0) == 0:
        matrix, apart = memory[0], 0
    else:
        apart = memory.stride(0) // memory.stride(1)
        matrix = memory.as_strided(((batch - 1) * apart + rows, length), memory.stride()[1:])
    return matrix if memory is x else matrix.t(), apart


def _operand(matrix, rows, block_k):
    """(descriptor, whether it lies along k) of a matrix [rows, k] that lies in either order."""
    if matrix.stride(1) == 1:
        return described(matrix, rows, block_k), True
    return described(matrix.t(), block_k, rows), False


def _launch(a, b, c, k, grid, apart, epilogue, activation, config):
    """Of matrices a [., k] and b [., k], on a grid of parts and products; ``epilogue`` are the kernel's arguments."""
    bias, residual, z, scale = epilogue
    m, n = c.shape[-2:]
    a_desc, a_along_k = _operand(a, config["BLOCK_M"], config["BLOCK_K"])
    b_desc, b_along_k = _operand(b, config["BLOCK_N"], config["BLOCK_K"])
    launch(
        matmul_fp32_kernel, (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]), *grid),
        a_desc, b_desc, bias, residual, c, z, scale, m, n, k, part_of_k(k, grid[0], config["BLOCK_K"]), *apart,
        A_ALONG_K=a_along_k, B_ALONG_K=b_along_k, ACTIVATION=activation,
        **{name: value for name, value in config.items() if name != "SPLITS"},
    )  # fmt: skip
