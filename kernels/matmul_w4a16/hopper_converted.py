"""Many rows times packed weights for Hopper (sm_90), by blocks of weights in shared memory: y = x W^T.

A program has a multiprocessor for itself and takes one tile after the other.  One warp loads (the producer): blocks of
the rows' matrix and of packed words go by TMA into rings of shared memory.  Four warps (the converter) bring a block of
words to 16 bits in a third ring, once for all rows of the tile.  Two groups of four warps multiply (wgmma), each ROWS
rows of the tile by all of its columns, and lag behind each other, so that one's epilogue is under the other's products.

A lane has 8 neighbours of a packed row: 16 bytes of 16-bit weights.  Which lane has which is chosen so that eight
neighbouring lanes meet no bank twice, neither where they load words nor where they store weights in wgmma's swizzle.

A block of W is BLOCK_N rows by 64 columns, and lies by columns as wgmma's second factor.  Where there are few tiles the
sum is cut into SPLITS parts: each program sums one of a tile, in fp32, and a second kernel adds the parts.
"""

import torch
import triton
from atlas.declaration.products import describable
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.common.hopper import described, tile_of
from kernels.common.parts import sum_parts
from kernels.matmul.hopper import SWIZZLED, write_parts

from .hopper import scale_asm, unpack_4_asm, unpack_8_asm, weights_of

GROUPS = gl.constexpr(2)
"""Groups of four warps that multiply."""

COLUMNS = gl.constexpr(128)
"""Columns of a tile."""

BLOCK_K = gl.constexpr(64)
"""Neighbours along the sum that a step has."""

WIDTH = gl.constexpr(32)
"""Columns of the parts in which a tile is written."""

_NARROW = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank=2))
"""How such a part lies in shared memory."""


@gluon.constexpr_function
def _words_layout(row_tiles, tiles, warps):
    """Which lane has which words of ``row_tiles`` x ``tiles`` packed tiles, in lines of a g [row tiles, 8 tiles, 16].

    Neighbouring row tiles are other warps'.  Lane bit 2 is g's highest, so that eight neighbouring lanes store 16 bytes
    each to all banks.
    """
    rows = [[1 << bit, 0, 0] for bit in range(row_tiles.bit_length() - 1)]
    first = warps.bit_length() - 1
    registers = [[0, 0, 1], [0, 0, 2]] + [[0, 8 << bit, 0] for bit in range(tiles.bit_length() - 1)] + rows[first:]
    lanes = [[0, 0, 4], [0, 0, 8], [0, 4, 0], [0, 1, 0], [0, 2, 0]]
    return gl.DistributedLinearLayout(registers, lanes, rows[:first], [], [row_tiles, 8 * tiles, 16])


@gluon.constexpr_function
def _scales_layout(row_tiles, warps):
    """The same of one number for each g [row tiles, g]."""
    rows = [[1 << bit, 0] for bit in range(row_tiles.bit_length() - 1)]
    first = warps.bit_length() - 1
    lanes = [[0, 0], [0, 0], [0, 4], [0, 1], [0, 2]]
    return gl.DistributedLinearLayout(rows[first:], lanes, rows[:first], [], [row_tiles, 8])


@gluon.jit
def _part(position, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, SPLITS: gl.constexpr):
    """(first row, first column, part, its begin, its end) at ``position``; the parts of a tile are neighbours."""
    M, N, K = sizes
    m, n = tile_of(position // SPLITS, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    part, steps = position % SPLITS, gl.cdiv(K, BLOCK_K)
    return m, n, part, part * steps // SPLITS * BLOCK_K, (part + 1) * steps // SPLITS * BLOCK_K


@gluon.jit
def _positions(sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, SPLITS: gl.constexpr):
    M, N = sizes[0], sizes[1]
    return gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * SPLITS


@gluon.jit
def _produce(
    a_desc, words_desc, a_smem, words_smem, bars, sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
    GROUP_M: gl.constexpr, SPLITS: gl.constexpr, BITS: gl.constexpr,
):  # fmt: skip
    """The producer.  A slot's n-th filling waits for its n-1-th emptying; the first waits for none."""
    a_full, a_empty, words_full, words_empty = bars[0], bars[1], bars[4], bars[5]
    STAGES: gl.constexpr = a_smem.shape[0] // GROUPS
    WORDS_STAGES: gl.constexpr = words_smem.shape[0]
    LINES: gl.constexpr = 2 * BITS  # of 16 words for 64 columns
    step = 0
    for position in range(gl.program_id(0), _positions(sizes, GROUPS * ROWS, BLOCK_N, SPLITS), gl.num_programs(0)):
        m, n, _, begin, end = _part(position, sizes, GROUPS * ROWS, BLOCK_N, GROUP_M, SPLITS)
        for k in range(begin, end, BLOCK_K):
            slot = step % WORDS_STAGES
            bar = words_full.index(slot)
            mbarrier.wait(words_empty.index(slot), (step // WORDS_STAGES & 1) ^ 1)
            mbarrier.expect(bar, words_desc.block_type.nbytes)
            words = words_smem.index(slot)
            tma.async_copy_global_to_shared(words_desc, [n // 16, k // 64 * LINES, 0], bar, words)
            slot = step % STAGES
            bar = a_full.index(slot)
            mbarrier.wait(a_empty.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(bar, GROUPS * a_desc.block_type.nbytes)
            for group in gl.static_range(GROUPS):
                a = a_smem.index(slot * GROUPS + group)
                tma.async_copy_global_to_shared(a_desc, [m + group * ROWS, k], bar, a)
            step += 1


@gluon.jit
def _load_scales(scales_ptr, zeros_ptr, n, k, N, K, groups, row_tiles: gl.constexpr, GROUP: gl.constexpr):
    """(scales, scales of the upper 32 columns, zero points, of the upper 32) of 64 columns from (n, k) on; 0 outside.

    What there is none of is another one again: a tuple holds no None.
    """
    layout: gl.constexpr = _scales_layout(row_tiles, gl.num_warps())
    tile = n // 16 + gl.arange(0, row_tiles, gl.SliceLayout(1, layout))[:, None]
    g = gl.arange(0, 8, gl.SliceLayout(0, layout))[None, :]
    group = k // GROUP if GROUP > 0 else k * 0
    offs = (tile.to(gl.int64) * groups + group) * 8 + g
    inside = (tile < gl.cdiv(N, 16)) & (k < K)
    scales = gl.load(scales_ptr + offs, mask=inside, other=0)
    scales_high, zeros, zeros_high = scales, scales, scales
    if zeros_ptr is not None:
        zeros = gl.load(zeros_ptr + offs, mask=inside, other=0).to(gl.int32)
        zeros_high = zeros
    if GROUP == 32:
        inside = inside & (k + 32 < K)
        scales_high = gl.load(scales_ptr + offs + 8, mask=inside, other=0)
        if zeros_ptr is not None:
            zeros_high = gl.load(zeros_ptr + offs + 8, mask=inside, other=0).to(gl.int32)
    return scales, scales_high, zeros, zeros_high


@gluon.jit
def _converted(
    words, scales, GROUP: gl.constexpr, BITS: gl.constexpr, HAS_ZEROS: gl.constexpr, UNPACK: gl.constexpr,
    SCALE: gl.constexpr, DTYPE: gl.constexpr,
):  # fmt: skip
    """The weights of packed words [row tiles, lines of 64 columns, 16], in 16 bits [rows, 64]."""
    row_tiles: gl.constexpr = words.shape[0]
    TILES: gl.constexpr = BITS // 4
    words = words.reshape([row_tiles, TILES, 8, 4, 4])
    if BITS == 4:
        words = words.reshape([row_tiles, 8, 4, 4])
        more = words
    else:
        words, more = words.permute(0, 2, 3, 4, 1).split()
    low, high, zeros, zeros_high = scales
    four: gl.constexpr = words.type.layout
    low, high = _spread(low, four), _spread(high, four)
    zeros, zeros_high = _spread(zeros, four), _spread(zeros_high, four)
    eights = gl.full([row_tiles, 8, 4, 4], 0x0808, gl.int32, four)
    loaded = words, more, low, high, zeros, zeros_high
    a, b, c, d = weights_of(loaded, eights, BITS, GROUP, HAS_ZEROS, UNPACK, SCALE)
    pairs = gl.join(gl.join(a, c), gl.join(b, d))  # row tile, g, t, (q, h), half of the columns, word of a half
    first = (pairs & 0xFFFF).to(gl.int16).to(DTYPE, bitcast=True)
    second = (pairs >> 16).to(gl.int16).to(DTYPE, bitcast=True)
    every = gl.join(first, second).reshape([row_tiles, 8, 4, 2, 2, 2, 2, 2])  # ..., q, h, half, word, p
    return every.permute(0, 4, 1, 5, 2, 6, 3, 7).reshape([row_tiles * 16, BLOCK_K])


@gluon.jit
def _spread(numbers, layout: gl.constexpr):
    """Numbers [row tiles, g] for every word."""
    flat: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, layout))
    return gl.convert_layout(numbers, flat)[:, :, None, None]


@gluon.jit
def _convert_step(
    words_smem, w_smem, bars, scales, step, GROUP: gl.constexpr, BITS: gl.constexpr, HAS_ZEROS: gl.constexpr,
    UNPACK: gl.constexpr, SCALE: gl.constexpr,
):  # fmt: skip
    """Bring block number ``step`` to 16 bits."""
    w_full, w_empty, words_full, words_empty = bars[2], bars[3], bars[4], bars[5]
    STAGES: gl.constexpr = w_smem.shape[0]
    WORDS_STAGES: gl.constexpr = words_smem.shape[0]
    row_tiles: gl.constexpr = words_smem.shape[1]
    layout: gl.constexpr = _words_layout(row_tiles, BITS // 4, gl.num_warps())
    words_slot, slot = step % WORDS_STAGES, step % STAGES
    mbarrier.wait(words_full.index(words_slot), step // WORDS_STAGES & 1)
    words = words_smem.index(words_slot).load(layout)
    block = w_smem.index(slot)
    weights = _converted(words, scales, GROUP, BITS, HAS_ZEROS, UNPACK, SCALE, block.dtype)
    mbarrier.wait(w_empty.index(slot), (step // STAGES & 1) ^ 1)
    block.store(weights)
    fence_async_shared()
    mbarrier.arrive(w_full.index(slot), count=1)
    mbarrier.arrive(words_empty.index(words_slot), count=1)  # not before all words are in registers: TMA waits for none


@gluon.jit
def _convert(
    words_smem, w_smem, bars, scales_ptr, zeros_ptr, sizes, groups, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
    GROUP_M: gl.constexpr, SPLITS: gl.constexpr, GROUP: gl.constexpr, BITS: gl.constexpr,
    UNPACK: gl.constexpr, SCALE: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """Converter ``HALF``: every other block.  Scales and zero points are loaded while the other one is at work."""
    N, K = sizes[1], sizes[2]
    row_tiles: gl.constexpr = words_smem.shape[1]
    HAS_ZEROS: gl.constexpr = zeros_ptr is not None
    step = 0
    for position in range(gl.program_id(0), _positions(sizes, GROUPS * ROWS, BLOCK_N, SPLITS), gl.num_programs(0)):
        _, n, _, begin, end = _part(position, sizes, GROUPS * ROWS, BLOCK_N, GROUP_M, SPLITS)
        other = (step + HALF) % 2  # whether the tile's first block is the other converter's
        first = begin + other * BLOCK_K
        own = step + other
        scales = _load_scales(scales_ptr, zeros_ptr, n, first, N, K, groups, row_tiles, GROUP)
        for k in range(first, end, 2 * BLOCK_K):
            _convert_step(words_smem, w_smem, bars, scales, own, GROUP, BITS, HAS_ZEROS, UNPACK, SCALE)
            scales = _load_scales(scales_ptr, zeros_ptr, n, k + 2 * BLOCK_K, N, K, groups, row_tiles, GROUP)
            own += 2
        step += (end - begin) // BLOCK_K


@gluon.jit
def _write_sums(part_ptr, acc, m, n, M, N):
    """Write a block of fp32 sums whose first element is (m, n) to a part [M, N]."""
    layout: gl.constexpr = acc.type.layout
    offs_m = gl.expand_dims(m + gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout)), 1)
    offs_n = gl.expand_dims(n + gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout)), 0)
    gl.store(part_ptr + offs_m.to(gl.int64) * N + offs_n, acc, mask=(offs_m < M) & (offs_n < N))


@gluon.jit
def _multiply(a_smem, w_smem, bars, step, steps, GROUP: gl.constexpr, BLOCK_N: gl.constexpr):
    """(sums of the group's rows of a tile, blocks there have been) from the next ``steps`` blocks."""
    a_full, a_empty, w_full, w_empty, turn = bars[0], bars[1], bars[2], bars[3], bars[6]
    A_STAGES: gl.constexpr = a_smem.shape[0] // GROUPS
    W_STAGES: gl.constexpr = w_smem.shape[0]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    ROWS: gl.constexpr = a_smem.shape[1]
    acc = gl.zeros([ROWS, BLOCK_N], gl.float32, layout)
    for i in range(0, steps):
        a_slot, w_slot = step % A_STAGES, step % W_STAGES
        mbarrier.wait(a_full.index(a_slot), step // A_STAGES & 1)
        mbarrier.wait(w_full.index(w_slot), step // W_STAGES & 1)
        w = w_smem.index(w_slot).permute((1, 0))
        acc = warpgroup_mma(a_smem.index(a_slot * GROUPS + GROUP), w, acc, use_acc=i > 0, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])  # the product before this one has read its blocks
        mbarrier.arrive(a_empty.index((step + A_STAGES - 1) % A_STAGES), count=1, pred=i > 0)
        mbarrier.arrive(w_empty.index((step + W_STAGES - 1) % W_STAGES), count=1, pred=i > 0)
        step += 1
        if GROUP == 0:  # the next group starts a block later
            mbarrier.arrive(turn, count=1, pred=step == 1)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(a_empty.index((step + A_STAGES - 1) % A_STAGES), count=1)
    mbarrier.arrive(w_empty.index((step + W_STAGES - 1) % W_STAGES), count=1)
    return acc, step


@gluon.jit
def _consume(
    c_desc, c_ptr, a_smem, w_smem, c_smem, bars, sizes, GROUP: gl.constexpr, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, SPLITS: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its rows of each of the program's tiles."""
    M, N = sizes[0], sizes[1]
    step = 0
    if GROUP > 0:
        mbarrier.wait(bars[6], 0)
    for position in range(gl.program_id(0), _positions(sizes, GROUPS * ROWS, BLOCK_N, SPLITS), gl.num_programs(0)):
        m, n, part, begin, end = _part(position, sizes, GROUPS * ROWS, BLOCK_N, GROUP_M, SPLITS)
        acc, step = _multiply(a_smem, w_smem, bars, step, (end - begin) // BLOCK_K, GROUP, BLOCK_N)
        m += GROUP * ROWS
        if SPLITS > 1:
            _write_sums(c_ptr + part.to(gl.int64) * M * N, acc, m, n, M, N)
        else:
            write_parts(acc, c_desc, c_ptr, c_smem, m, n, M, N, GROUP * BUFFERS, 0, BUFFERS)
    if SPLITS == 1:
        tma.store_wait(0)


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(COUNT):
        mbarrier.init(bars.index(slot), count=ARRIVALS)
    return bars


@gluon.jit(do_not_specialize=["M", "K", "groups"])
def converted_kernel(
    a_desc, words_desc, c_desc, c_ptr, scales_ptr, zeros_ptr, M, N, K, groups, ROWS: gl.constexpr,
    BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, SPLITS: gl.constexpr, A_STAGES: gl.constexpr,
    W_STAGES: gl.constexpr, WORDS_STAGES: gl.constexpr, BUFFERS: gl.constexpr, BITS: gl.constexpr,
    GROUP: gl.constexpr, UNPACK: gl.constexpr, SCALE: gl.constexpr,
):  # fmt: skip
    """C [M, N] of A [M, K] and of W [N, K]; with SPLITS of several, parts [SPLITS, M, N].

    Scales and zero points are those of rows g and g + 8 in one word (zero points: half a word).
    """
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [A_STAGES * GROUPS, ROWS, BLOCK_K], a_desc.layout)
    w_smem = gl.allocate_shared_memory(a_desc.dtype, [W_STAGES, BLOCK_N, BLOCK_K], SWIZZLED)
    words_smem = gl.allocate_shared_memory(
        gl.int32, [WORDS_STAGES, words_desc.block_shape[0], 2 * BITS, 16], words_desc.layout
    )
    c_smem = gl.allocate_shared_memory(
        a_desc.dtype, [GROUPS * BUFFERS if SPLITS == 1 else 1, ROWS if SPLITS == 1 else 8, WIDTH], _NARROW
    )
    a_full, a_empty = barriers(A_STAGES, 1), barriers(A_STAGES, GROUPS)
    w_full, w_empty = barriers(W_STAGES, 1), barriers(W_STAGES, GROUPS)
    words_full, words_empty = barriers(WORDS_STAGES, 1), barriers(WORDS_STAGES, 1)
    turn = barriers(1, 1).index(0)
    fence_async_shared()
    bars = a_full, a_empty, w_full, w_empty, words_full, words_empty, turn
    sizes = (M, N, K)
    FEW: gl.constexpr = ROWS == 128  # registers, so that a converter has two warps
    gl.warp_specialize(
        [
            (_consume, (c_desc, c_ptr, a_smem, w_smem, c_smem, bars, sizes,
                        0, ROWS, BLOCK_N, GROUP_M, SPLITS, BUFFERS)),
            (_consume, (c_desc, c_ptr, a_smem, w_smem, c_smem, bars, sizes,
                        1, ROWS, BLOCK_N, GROUP_M, SPLITS, BUFFERS)),
            (_convert, (words_smem, w_smem, bars, scales_ptr, zeros_ptr, sizes, groups,
                        ROWS, BLOCK_N, GROUP_M, SPLITS, GROUP, BITS, UNPACK, SCALE, 0)),
            (_convert, (words_smem, w_smem, bars, scales_ptr, zeros_ptr, sizes, groups,
                        ROWS, BLOCK_N, GROUP_M, SPLITS, GROUP, BITS, UNPACK, SCALE, 1)),
            (_produce, (a_desc, words_desc, a_smem, words_smem, bars, sizes,
                        ROWS, BLOCK_N, GROUP_M, SPLITS, BITS)),
        ],
        [4, 2, 2, 1] if FEW else [4, 4, 4, 1],
        [184, 120, 120, 24] if FEW else [120, 104, 104, 24],
    )  # fmt: skip


_RINGS = {(64, 4): (6, 5, 6, 2), (64, 8): (6, 5, 4, 2), (128, 4): (4, 4, 4, 1), (128, 8): (4, 3, 4, 1)}
"""A_STAGES, W_STAGES, WORDS_STAGES, BUFFERS by ROWS and bits: what shared memory holds."""


def multiply_converted(bits, a, words, scales, zeros, c, k, group, *, config, programs):
    """Write c = a W^T, of weights with ``k`` columns; ``programs`` is the number of SMs.

    a's rows are of whole 16 bytes.
    """
    (m, length), n, bf16 = a.shape, c.shape[1], a.dtype == torch.bfloat16
    rows = config["ROWS"]
    splits = min(config["SPLITS"], triton.cdiv(length, BLOCK_K.value))
    out = c if splits == 1 else torch.empty((splits, m, n), dtype=torch.float32, device=a.device)
    tiles = triton.cdiv(m, GROUPS.value * rows) * triton.cdiv(n, COLUMNS.value)
    a_stages, w_stages, words_stages, buffers = _RINGS[rows, bits]
    lines = [COLUMNS.value // 16, 2 * bits, 16]
    launch(
        converted_kernel, (min(tiles * splits, programs),),
        described(a, rows, BLOCK_K.value),
        TensorDescriptor.from_tensor(
            words.view(-1, triton.cdiv(k, 256 // bits) * 8, 16), lines,
            gl.NVMMASharedLayout.get_default_for(lines, gl.int32),
        ),
        described(c if splits == 1 and describable(c) else None, rows, WIDTH.value), out,
        scales.view(torch.int32), None if zeros is None else zeros.view(torch.int16), m, n, length,
        k // group if group else 1,
        ROWS=rows, BLOCK_N=COLUMNS.value, GROUP_M=config["GROUP_M"], SPLITS=splits, A_STAGES=a_stages,
        W_STAGES=w_stages, WORDS_STAGES=words_stages, BUFFERS=buffers, BITS=bits, GROUP=group,
        UNPACK=(unpack_4_asm if bits == 4 else unpack_8_asm)(bf16), SCALE=scale_asm(bf16), num_warps=4,
    )  # fmt: skip
    if splits > 1:
        sum_parts(out, c)
