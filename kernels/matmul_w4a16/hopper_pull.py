"""The gradient of x for Hopper (sm_90): dx^T = W^T dy^T, W of 4 or 8 bits, for few rows.

As in `hopper.py` weights are wgmma's first operand and come from registers; there a lane has a row of W for each of its
own, here it needs a column.  `movmatrix` turns blocks of 8 x 8 weights over, once they are numbers of 16 bits.  A step
is a packed tile of 16 rows of W for each warp, of 64 columns: four products of 16 columns each, whose sums are kept
apart.  One of the warps loads dy; a block of it serves four steps.

Programs share n, in parts, up to a hundred where columns are few: each leaves its sums, in fp32 and in the order
that columns have in packed tiles, and a second kernel adds them and brings the columns into their own.  It is launched
as soon as all programs have begun.
"""

import torch
import triton
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

from kernels.common.hopper import described
from kernels.common.many_parts import sum_many_parts
from kernels.common.packed import sixteen

from .hopper import numbers_of, unpack_4_asm, unpack_8_asm
from .pull_space import BLOCK_N, COLUMNS

_COLUMNS = gl.constexpr(COLUMNS)
"""Columns of dx of a program: 64 for each of four warps."""

STEPS = gl.constexpr(BLOCK_N // 16)
"""Steps that a block of dy serves, and that weights are loaded ahead."""

_TURN_OPERANDS = gl.constexpr(",".join(["=&r"] * 4 + ["r"] * 8))
_TRIGGER = gl.constexpr("griddepcontrol.launch_dependents; mov.b32 $0, 0;")
_PREFETCH = gl.constexpr("prefetch.global.L2 [$1]; mov.b32 $0, 0;")


def _turn_asm(bf16):
    """PTX: a product's operand (4..7) times the scales (8) of rows g and g + 8, and turned over.

    Of its four blocks of 8 x 8 those off the diagonal change places.
    """
    kind, _, _ = sixteen(bf16)
    lines = ["{ .reg .b32 s0, s1, t<4>; prmt.b32 s0, $8, $8, 0x1010; prmt.b32 s1, $8, $8, 0x3232;"]
    lines += [f"mul.rn.{kind}x2 t{i}, ${4 + i}, s{i % 2};" for i in range(4)]
    lines += [f"movmatrix.sync.aligned.m8n8.trans.b16 ${i}, t{j};" for i, j in enumerate((0, 2, 1, 3))]
    return "\n".join([*lines, "}"])


@gluon.jit
def _load(ptrs, tile, ends, BITS: gl.constexpr, GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr):
    """(words, more words, scales, scales of the upper half, zeros, zeros of the upper half) of 16 rows of W.

    ``ptrs`` are those of words, scales and zero points of the first rows, and how far it is to the words and scales of
    the upper 32 columns; ``ends`` the last tile, and from one tile to the next in words and in scales.  Past the end
    there is the last tile again, which meets zeros of dy.
    """
    word_ptrs, scale_ptrs, zero_ptrs, to_more, to_high = ptrs
    last, word_step, scale_step = ends
    tile = gl.minimum(tile, last).to(gl.int64)
    words = gl.load(word_ptrs + tile * word_step)
    more = words
    if BITS == 8:
        more = gl.load(word_ptrs + (tile * word_step + to_more))
    scales = gl.load(scale_ptrs + tile * scale_step)
    scales_high, zeros, zeros_high = scales, scales, scales
    if HAS_ZEROS:
        zeros = gl.load(zero_ptrs + tile * scale_step).to(gl.int32)
        zeros_high = zeros
    if GROUP == 32:
        scales_high = gl.load(scale_ptrs + (tile * scale_step + to_high))
        if HAS_ZEROS:
            zeros_high = gl.load(zero_ptrs + (tile * scale_step + to_high)).to(gl.int32)
    return words, more, scales, scales_high, zeros, zeros_high


@gluon.jit
def _prefetch(line_ptrs, tile, word_step):
    """Have the line that each lane points to, of the first tile, brought to L2 of another one."""
    gl.inline_asm_elementwise(_PREFETCH, "=r,l", [line_ptrs + tile.to(gl.int64) * word_step], dtype=gl.int32,
                              is_pure=False, pack=1)  # fmt: skip


@gluon.jit
def _turned(numbers, scales, TURN: gl.constexpr, DTYPE: gl.constexpr, layout: gl.constexpr):
    """Numbers of 16 rows and 16 columns a warp times their scales, as wgmma's first operand [64 columns, 16 rows]."""
    scales = scales + gl.zeros_like(numbers)
    pairs = gl.inline_asm_elementwise(TURN, _TURN_OPERANDS, [numbers, scales], dtype=gl.int32, is_pure=True, pack=4)
    low = (pairs & 0xFFFF).to(gl.int16).to(DTYPE, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(DTYPE, bitcast=True)
    every = gl.join(low, high).reshape([4, 8, 4, 2, 2, 2])  # warp, g, t, half of rows, half of columns, p
    return gl.convert_layout(every.permute(0, 4, 1, 3, 2, 5).reshape([64, 16]), layout, assert_trivial=True)


@gluon.jit
def _step(
    sums, weights, following, dy, tile, ptrs, ends, eights,
    BITS: gl.constexpr, GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, UNPACK: gl.constexpr, TURN: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """(sums plus the products of 16 rows of W and dy, the weights of the next step, what was loaded of ``tile``)."""
    acc_0, acc_1, acc_2, acc_3 = sums
    columns = dy.permute((1, 0))
    acc_0 = warpgroup_mma(weights[0], columns, acc_0, is_async=True)
    acc_1 = warpgroup_mma(weights[1], columns, acc_1, is_async=True)
    acc_2 = warpgroup_mma(weights[2], columns, acc_2, is_async=True)
    acc_3 = warpgroup_mma(weights[3], columns, acc_3, is_async=True)
    loaded = _load(ptrs, tile, ends, BITS, GROUP, HAS_ZEROS)
    a, b, c, d = numbers_of(following, eights, BITS, GROUP, HAS_ZEROS, UNPACK)
    acc_0, acc_1, acc_2, acc_3, a, b, c, d = warpgroup_mma_wait(0, deps=[acc_0, acc_1, acc_2, acc_3, a, b, c, d])
    weights = _all_turned(a, b, c, d, following, TURN, dy.dtype, layout)
    return (acc_0, acc_1, acc_2, acc_3), weights, loaded


@gluon.jit
def _all_turned(a, b, c, d, loaded, TURN: gl.constexpr, DTYPE: gl.constexpr, layout: gl.constexpr):
    _, _, scales, scales_high, _, _ = loaded
    return (
        _turned(a, scales, TURN, DTYPE, layout),
        _turned(b, scales, TURN, DTYPE, layout),
        _turned(c, scales_high, TURN, DTYPE, layout),
        _turned(d, scales_high, TURN, DTYPE, layout),
    )


@gluon.jit
def _own_part(M, N, K, splits, BLOCK_M: gl.constexpr):
    """(first row, first column, part, its first row of W, its last one's end) of this program."""
    tiles_k, spans = gl.cdiv(K, _COLUMNS), gl.cdiv(N, 16 * STEPS)
    part, position = gl.program_id(0) % splits, gl.program_id(0) // splits
    begin, end = part * spans // splits * (16 * STEPS), (part + 1) * spans // splits * (16 * STEPS)
    return position // tiles_k * BLOCK_M, position % tiles_k * _COLUMNS, part, begin, end


@gluon.jit
def _produce(dy_desc, dy_smem, full, empty, M, N, K, splits, STAGES: gl.constexpr):
    BLOCK_M: gl.constexpr = dy_desc.block_shape[0]
    m, _, _, begin, end = _own_part(M, N, K, splits, BLOCK_M)
    for n in range(begin, end, 16 * STEPS):
        turn = (n - begin) // (16 * STEPS)
        slot = turn % STAGES
        bar = full.index(slot)
        mbarrier.wait(empty.index(slot), (turn // STAGES & 1) ^ 1)
        mbarrier.expect(bar, STEPS * dy_desc.block_type.nbytes)
        for j in gl.static_range(STEPS):
            tma.async_copy_global_to_shared(dy_desc, [m, n + 16 * j], bar, dy_smem.index(slot * STEPS + j))


@gluon.jit
def _consume(
    parts_ptr, words_ptr, scales_ptr, zeros_ptr, dy_smem, full, empty, M, N, K, groups, splits,
    BITS: gl.constexpr, GROUP: gl.constexpr, UNPACK: gl.constexpr, TURN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Four warps: 64 columns of dx each, which a row of packed tiles has side by side."""
    TILE_K: gl.constexpr = 256 // BITS
    TILES: gl.constexpr = 64 // TILE_K
    BLOCK_M: gl.constexpr = dy_smem.shape[1]
    HAS_ZEROS: gl.constexpr = zeros_ptr is not None
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    words_layout: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0])
    warp = gl.set_auto_layout(gl.arange(0, 4)[:, None, None, None], words_layout)
    g = gl.set_auto_layout(gl.arange(0, 8)[None, :, None, None], words_layout)
    t = gl.set_auto_layout(gl.arange(0, 4)[None, None, :, None], words_layout)
    word = gl.set_auto_layout(gl.arange(0, 4)[None, None, None, :], words_layout)
    eights = gl.full([4, 8, 4, 1], 0x0808, gl.int32, words_layout)
    tiles_k, last = gl.cdiv(K, TILE_K), gl.cdiv(N, 16) - 1
    m, first_k, part, begin, end = _own_part(M, N, K, splits, BLOCK_M)
    tile_k = gl.minimum(first_k // TILE_K + warp * TILES, tiles_k - 1)  # columns past K are not stored
    word_ptrs = words_ptr + tile_k * 128 + (g * 4 + t) * 4 + word
    to_more = gl.minimum(tile_k + 1, tiles_k - 1) * 128 - tile_k * 128
    group = gl.minimum(tile_k * TILE_K // GROUP, groups - 1) if GROUP > 0 else tile_k * 0
    to_high = gl.minimum(group + 1, groups - 1) * 8 - group * 8
    scale_ptrs = scales_ptr + group * 8 + g + t * 0
    zero_ptrs = scale_ptrs
    if HAS_ZEROS:
        zero_ptrs = zeros_ptr + group * 8 + g + t * 0
    word_step, scale_step = tiles_k.to(gl.int64) * 128, gl.to_tensor(groups).to(gl.int64) * 8
    ptrs, ends = (word_ptrs, scale_ptrs, zero_ptrs, to_more, to_high), (last, word_step, scale_step)
    lane_layout: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0])
    lane = gl.convert_layout(g * 4 + t, lane_layout)
    line = gl.minimum(gl.convert_layout(tile_k, lane_layout) * 4 + lane % (4 * TILES), tiles_k * 4 - 1)
    line_ptrs = words_ptr + line * 32

    tile = begin // 16
    zeroth = _load(ptrs, tile, ends, BITS, GROUP, HAS_ZEROS)
    one = _load(ptrs, tile + 1, ends, BITS, GROUP, HAS_ZEROS)
    two = _load(ptrs, tile + 2, ends, BITS, GROUP, HAS_ZEROS)
    three = _load(ptrs, tile + 3, ends, BITS, GROUP, HAS_ZEROS)
    for early in gl.static_range(4, 12, 32 // (4 * TILES)):
        _prefetch(line_ptrs, gl.minimum(tile + early + lane // (4 * TILES), last), word_step)
    a, b, c, d = numbers_of(zeroth, eights, BITS, GROUP, HAS_ZEROS, UNPACK)
    weights = _all_turned(a, b, c, d, zeroth, TURN, dy_smem.dtype, layout)
    zero = gl.zeros([64, BLOCK_M], gl.float32, acc_layout)
    sums = zero, zero, zero, zero
    for n in range(begin, end, 16 * STEPS):
        turn, tile = (n - begin) // (16 * STEPS), n // 16
        slot = turn % STAGES
        _prefetch(line_ptrs, gl.minimum(tile + 12 + lane // (4 * TILES), last), word_step)
        mbarrier.wait(full.index(slot), turn // STAGES & 1)
        sums, weights, zeroth = _step(
            sums, weights, one, dy_smem.index(slot * STEPS + 0), tile + 4, ptrs, ends, eights, BITS, GROUP,
            HAS_ZEROS, UNPACK, TURN, layout,
        )  # fmt: skip
        sums, weights, one = _step(
            sums, weights, two, dy_smem.index(slot * STEPS + 1), tile + 5, ptrs, ends, eights, BITS, GROUP,
            HAS_ZEROS, UNPACK, TURN, layout,
        )  # fmt: skip
        sums, weights, two = _step(
            sums, weights, three, dy_smem.index(slot * STEPS + 2), tile + 6, ptrs, ends, eights, BITS, GROUP,
            HAS_ZEROS, UNPACK, TURN, layout,
        )  # fmt: skip
        sums, weights, three = _step(
            sums, weights, zeroth, dy_smem.index(slot * STEPS + 3), tile + 7, ptrs, ends, eights, BITS, GROUP,
            HAS_ZEROS, UNPACK, TURN, layout,
        )  # fmt: skip
        mbarrier.arrive(empty.index(slot), count=1)
    row = gl.arange(0, 64, gl.SliceLayout(1, acc_layout))
    offs_k = gl.expand_dims(first_k + row // 16 * 64 + row % 16, 1)
    offs_m = gl.expand_dims(m + gl.arange(0, BLOCK_M, gl.SliceLayout(0, acc_layout)), 0)
    part_ptrs = parts_ptr + (part * M + offs_m).to(gl.int64) * K + offs_k
    for i in gl.static_range(4):
        gl.store(part_ptrs + 16 * i, sums[i], mask=(offs_k + 16 * i < K) & (offs_m < M))


@gluon.jit(do_not_specialize=["splits"])
def matmul_w4a16_pull_kernel(
    dy_desc, parts_ptr, words_ptr, scales_ptr, zeros_ptr, M, N, K, groups, splits,
    BITS: gl.constexpr, GROUP: gl.constexpr, UNPACK: gl.constexpr, TURN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The descriptor is of blocks of dy of BLOCK_M rows and 16 columns; parts are [splits, M, K].

    Scales and zero points are those of rows g and g + 8 in one word (zero points: half a word).
    """
    BLOCK_M: gl.constexpr = dy_desc.block_shape[0]
    gl.inline_asm_elementwise(_TRIGGER, "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    dy_smem = gl.allocate_shared_memory(dy_desc.dtype, [STAGES * STEPS, BLOCK_M, 16], dy_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_consume, (
                parts_ptr, words_ptr, scales_ptr, zeros_ptr, dy_smem, full, empty, M, N, K, groups,
                splits, BITS, GROUP, UNPACK, TURN, STAGES,
            )),
            (_produce, (dy_desc, dy_smem, full, empty, M, N, K, splits, STAGES)),
        ],
        [1],
        [24],
    )  # fmt: skip


_REGISTERS = {16: 96, 32: 80}
"""Registers of a thread, by BLOCK_M, before warps take and give some: two programs share an SM, or three."""


def pull_on_hopper(bits, dy, words, scales, zeros, dx, group, *, config):
    """Write dx [m, k] = dy W; n is a multiple of 8, as TMA wants it."""
    (m, n), k, bf16, rows = dy.shape, dx.shape[1], dy.dtype == torch.bfloat16, config["BLOCK_M"]
    splits = min(config["SPLITS"], triton.cdiv(n, BLOCK_N))
    parts = torch.empty((splits, m, k), dtype=torch.float32, device=dy.device)
    launch(
        matmul_w4a16_pull_kernel, (splits * triton.cdiv(m, rows) * triton.cdiv(k, COLUMNS),),
        described(dy, rows, 16), parts, words, scales.view(torch.int32),
        None if zeros is None else zeros.view(torch.int16), m, n, k, k // group if group else 1, splits,
        BITS=bits, GROUP=group, UNPACK=(unpack_4_asm if bits == 4 else unpack_8_asm)(bf16), TURN=_turn_asm(bf16),
        STAGES=8, num_warps=4, maxnreg=_REGISTERS[rows],
    )  # fmt: skip
    sum_many_parts(parts, dx)
