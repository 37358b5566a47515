"""Products of fp32 and tf32 in any layout on Hopper's tensor cores: blocks are staged through registers (sm_90).

wgmma reads terms of bf16 in shared memory in either order, whatever their rows' length in memory.  So threads load
blocks as they lie, make the terms in registers and write them; nothing is copied or turned in memory first.  A block
of K is read while the one before it is converted and the one before that is multiplied.

Tensor cores cut off what does not fit into their sums: in fp32 a sum there is of a block of K, and is then added,
rounded.  An infinity's other terms are NaN.  A tile with NaN is made once more of first terms alone, whose products say
what fp32 would; an infinity of finite numbers stands, since all terms of a number have its sign.
"""

import triton
import triton.language as tl
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma_wait

from kernels.common.batches import by_columns
from kernels.common.hopper import tile_of
from kernels.common.hopper_terms import allocate_terms, multiply_terms, write_terms

_GROUP_M = gl.constexpr(8)


@gluon.jit
def _again(x):
    """x, of which the compiler does not know that it is: what it made of x need not stay in registers."""
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _blocks(
    ptr, row, stride_row, stride_k, ROWS: gl.constexpr, BLOCK_K: gl.constexpr, TURN: gl.constexpr,
    WIDTH: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """(pointers to ROWS of BLOCK_K as they lie, places along K, how far the next block is).

    Elements of a row follow one another; in TURN those of a column do.  A lane loads WIDTH that do.
    """
    LINES: gl.constexpr = BLOCK_K if TURN else ROWS
    LINE: gl.constexpr = ROWS if TURN else BLOCK_K
    lanes: gl.constexpr = LINE // WIDTH if LINE // WIDTH < 32 else 32
    layout: gl.constexpr = gl.BlockedLayout([1, WIDTH], [32 // lanes, lanes], [num_warps, 1], [1, 0])
    if TURN and WIDTH > 2:
        row = gl.multiple_of(row, 16)
    lines = gl.arange(0, LINES, layout=gl.SliceLayout(1, layout))
    line = gl.arange(0, LINE, layout=gl.SliceLayout(0, layout))
    if TURN:
        ptrs = (ptr + row + lines.to(gl.int64) * stride_k)[:, None] + line[None, :]
        at = lines[:, None]
        apart = gl.full((), BLOCK_K, gl.int64) * stride_k
    else:
        ptrs = (ptr + (row + lines).to(gl.int64) * stride_row)[:, None] + line[None, :]
        at = line[None, :]
        apart = gl.full((), BLOCK_K, gl.int64)
    return ptrs, at, apart


@gluon.jit
def _sum_blocks(
    a_ptr, b_ptr, m, n, tail, K, stride_am, stride_ak, stride_bk, stride_bn, a_smem, b_smem, t_smem,
    layout: gl.constexpr, t_layout: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, TAIL: gl.constexpr,
    BLOCK_K: gl.constexpr, TERMS: gl.constexpr, A_TURN: gl.constexpr, B_TURN: gl.constexpr, A_WIDTH: gl.constexpr,
    B_WIDTH: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """The sums over all of K of BLOCK_N columns from ``n`` on, and of TAIL from ``tail`` on (0 without)."""
    a_ptrs, a_k, a_apart = _blocks(a_ptr, m, stride_am, stride_ak, BLOCK_M, BLOCK_K, A_TURN, A_WIDTH, num_warps)
    b_ptrs, b_k, b_apart = _blocks(b_ptr, n, stride_bn, stride_bk, BLOCK_N, BLOCK_K, not B_TURN, B_WIDTH, num_warps)
    a = gl.load(a_ptrs, mask=a_k < K, other=0.0)
    b = gl.load(b_ptrs, mask=b_k < K, other=0.0)
    if TAIL > 0:
        t_ptrs, t_k, _ = _blocks(b_ptr, tail, stride_bn, stride_bk, TAIL, BLOCK_K, not B_TURN, B_WIDTH, num_warps)
        t = gl.load(t_ptrs, mask=t_k < K, other=0.0)
        t_acc = gl.zeros([BLOCK_M, TAIL], gl.float32, t_layout)
        t_sums = gl.zeros([BLOCK_M, TAIL], gl.float32, t_layout)
        write_terms(t_smem, 0, t, TERMS)
        t_ptrs += b_apart
        t = gl.load(t_ptrs, mask=t_k < K - BLOCK_K, other=0.0)
    write_terms(a_smem, 0, a, TERMS)
    write_terms(b_smem, 0, b, TERMS)
    a_ptrs += a_apart
    b_ptrs += b_apart
    a = gl.load(a_ptrs, mask=a_k < K - BLOCK_K, other=0.0)
    b = gl.load(b_ptrs, mask=b_k < K - BLOCK_K, other=0.0)
    fence_async_shared()
    tl.debug_barrier()
    slot = 0
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
    sums = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout)
    for k in range(0, K - BLOCK_K, BLOCK_K):
        add = TERMS < 3 and k > 0
        sums = multiply_terms(sums, a_smem, b_smem, slot, add, TERMS, A_TURN, B_TURN)
        if TAIL > 0:
            t_sums = multiply_terms(t_sums, a_smem, t_smem, slot, add, TERMS, A_TURN, B_TURN)
        slot ^= 1
        left = K - k - 2 * BLOCK_K
        write_terms(a_smem, slot, a, TERMS)
        write_terms(b_smem, slot, b, TERMS)
        a_ptrs += a_apart
        b_ptrs += b_apart
        a = gl.load(a_ptrs, mask=a_k < left, other=0.0)
        b = gl.load(b_ptrs, mask=b_k < left, other=0.0)
        if TAIL > 0:
            write_terms(t_smem, slot, t, TERMS)
            t_ptrs += b_apart
            t = gl.load(t_ptrs, mask=t_k < left, other=0.0)
        fence_async_shared()
        if TAIL > 0:
            sums, t_sums = warpgroup_mma_wait(0, deps=[sums, t_sums])
            if TERMS == 3:
                t_acc += t_sums
        else:
            sums = warpgroup_mma_wait(0, deps=[sums])
        if TERMS == 3:
            acc += sums
        tl.debug_barrier()
    add = TERMS < 3 and K > BLOCK_K
    sums = multiply_terms(sums, a_smem, b_smem, slot, add, TERMS, A_TURN, B_TURN)
    if TAIL > 0:
        t_sums = multiply_terms(t_sums, a_smem, t_smem, slot, add, TERMS, A_TURN, B_TURN)
        sums, t_sums = warpgroup_mma_wait(0, deps=[sums, t_sums])
        return sums + acc, t_sums + t_acc  # 0 but of three terms
    else:
        sums = warpgroup_mma_wait(0, deps=[sums])
        return sums + acc, 0


@gluon.jit
def _write(
    c_ptr, sums, m, n, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, WIDTH: gl.constexpr, TURNED: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Write a tile of C [M, N], or of its transpose if TURNED."""
    LINE: gl.constexpr = BLOCK_M if TURNED else BLOCK_N
    lanes: gl.constexpr = LINE // WIDTH if LINE // WIDTH < 32 else 32
    if TURNED:
        out: gl.constexpr = gl.BlockedLayout([WIDTH, 1], [lanes, 32 // lanes], [1, num_warps], [0, 1])
    else:
        out: gl.constexpr = gl.BlockedLayout([1, WIDTH], [32 // lanes, lanes], [num_warps, 1], [1, 0])
    c = gl.convert_layout(sums, out)
    if WIDTH > 1:
        if TURNED:
            m = gl.multiple_of(m, 16)
        else:
            n = gl.multiple_of(n, 16)
    offs_m = m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, out))
    offs_n = n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, out))
    if TURNED:
        c_ptrs = c_ptr + offs_n.to(gl.int64)[None, :] * M + offs_m[:, None]
    else:
        c_ptrs = c_ptr + offs_m.to(gl.int64)[:, None] * N + offs_n[None, :]
    gl.store(c_ptrs, c)


@gluon.jit
def _nans(sums):
    """Whether one is NaN: 1 or 0.

    Not by ``gl.abs(sums) < float("inf")``: in tf32 ptxas then leaves out what is made of tiles that fail it (CUDA 12.8,
    of Triton 3.6).
    """
    return gl.max(gl.max(gl.where(sums == sums, 0, 1), 1), 0)


@gluon.jit
def staged_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, TAIL: gl.constexpr, BLOCK_K: gl.constexpr, TERMS: gl.constexpr,
    A_TURN: gl.constexpr, B_TURN: gl.constexpr, A_WIDTH: gl.constexpr, B_WIDTH: gl.constexpr, C_WIDTH: gl.constexpr,
    TURNED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Program p owns one tile of one product: BLOCK_M rows of BLOCK_N columns and, by a wgmma of its own, TAIL more.

    A tile at the end overlaps with the one before, so M is at least BLOCK_M, and N at least BLOCK_N and TAIL.  A_TURN:
    A lies by columns; B_TURN: B does; TURNED: C is [N, M].
    """
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N + TAIL)
    batch = (gl.program_id(0) // tiles).to(gl.int64)
    m, n = tile_of(gl.program_id(0) % tiles, M, N, BLOCK_M, BLOCK_N + TAIL, _GROUP_M)
    m, n = gl.minimum(m, M - BLOCK_M), gl.minimum(n, N - BLOCK_N)
    tail = gl.minimum(n + BLOCK_N, N - TAIL)
    a_smem = allocate_terms(2, BLOCK_K if A_TURN else BLOCK_M, BLOCK_M if A_TURN else BLOCK_K, TERMS)
    b_smem = allocate_terms(2, BLOCK_N if B_TURN else BLOCK_K, BLOCK_K if B_TURN else BLOCK_N, TERMS)
    t_smem = b_smem
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BLOCK_N, 16])
    t_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, TAIL if TAIL else 16, 16])
    if TAIL > 0:
        t_smem = allocate_terms(2, TAIL if B_TURN else BLOCK_K, BLOCK_K if B_TURN else TAIL, TERMS)
    a_ptr += batch * stride_ab
    b_ptr += batch * stride_bb
    sums, t_sums = _sum_blocks(
        a_ptr, b_ptr, m, n, tail, K, stride_am, stride_ak, stride_bk, stride_bn, a_smem, b_smem, t_smem, layout,
        t_layout, BLOCK_M, BLOCK_N, TAIL, BLOCK_K, TERMS, A_TURN, B_TURN, A_WIDTH, B_WIDTH, num_warps,
    )  # fmt: skip
    nans = _nans(sums)
    if TAIL > 0:
        nans += _nans(t_sums)
    if nans > 0:
        tl.debug_barrier()
        firsts, t_firsts = _sum_blocks(
            a_ptr, b_ptr, _again(m), _again(n), _again(tail), K, stride_am, stride_ak, stride_bk, stride_bn, a_smem,
            b_smem, t_smem, layout, t_layout, BLOCK_M, BLOCK_N, TAIL, BLOCK_K, 1, A_TURN, B_TURN, A_WIDTH, B_WIDTH,
            num_warps,
        )  # fmt: skip
        sums = gl.where(sums == sums, sums, firsts)
        if TAIL > 0:
            t_sums = gl.where(t_sums == t_sums, t_sums, t_firsts)
    c_ptr += batch * M * N
    _write(c_ptr, sums, m, n, M, N, BLOCK_M, BLOCK_N, C_WIDTH, TURNED, num_warps)
    if TAIL > 0:
        _write(c_ptr, t_sums, m, tail, M, N, BLOCK_M, TAIL, C_WIDTH, TURNED, num_warps)


def products(a, b, c, *, terms, registers, config):
    """Write A B into ``c`` [batch, m, n], contiguous; A [batch, m, k] and B [batch, k, n] are fp32, with a K.

    Each is made of 2 (as exact as tf32, or more) or 3 ``terms``.  ``registers`` is the most that a thread has.
    """
    batch = c.shape[0]
    a, b = _in_lines(a), _in_lines(b)
    if config["TURNED"]:
        a, b = b.transpose(1, 2), a.transpose(1, 2)
    (m, k), n = a.shape[1:], b.shape[2]
    tiles = triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"] + config["TAIL"])
    line = m if config["TURNED"] else n
    launch(
        staged_kernel, (batch * tiles,), a, b, c, m, n, k, *a.stride(), *b.stride(), TERMS=terms,
        A_TURN=by_columns(a), B_TURN=by_columns(b), A_WIDTH=_width(a), B_WIDTH=_width(b),
        C_WIDTH=1 if line % 16 else 4, num_warps=4, maxnreg=registers, **config,
    )  # fmt: skip


def _in_lines(matrices):
    """The matrices, whose rows or columns have elements that follow one another; else copies."""
    return matrices if 1 in matrices.stride()[1:] else matrices.contiguous()


def _width(matrices):
    """Elements that a lane loads at once: 16 bytes where every row or column begins at a multiple of 16 elements."""
    by_rows = not by_columns(matrices)
    length, apart = matrices.shape[2 if by_rows else 1], matrices.stride(1 if by_rows else 2)
    return 2 if length % 16 or apart % 16 or matrices.stride(0) % 16 else 4
