"""Many rows times packed weights for Hopper (sm_90): y^T = W x^T, W of 4 or 8 bits.

A program has a multiprocessor for itself and takes one tile of y after the other.  One of its warps loads x (the
producer): blocks go by TMA into a ring of shared memory, on into the next tile while this one is finished.  One or two
groups of four warps multiply (wgmma), each 64 rows of W.  These are wgmma's first operand and come from registers:
packed tiles are loaded two steps ahead, brought to 16 bits while the step before is multiplied, and multiplied by their
scales between the two.  Barriers in shared memory hand blocks of x over: a "full" one, on which TMA counts the bytes,
and an "empty" one, on which every group arrives.

A packed tile has the lanes' weights in the order of fragments, which is not the natural one along k.  So x is brought
into that order before, by a kernel of its own.
"""

import torch
import triton
import triton.language as tl
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

from kernels.common.hopper import described, tile_of
from kernels.common.packed import sixteen, unpack_4, unpack_8

ROWS = gl.constexpr(64)
"""Rows of W of a group: those of one wgmma."""

BLOCK_K = gl.constexpr(64)
"""Columns of a step: a swizzled line of shared memory."""


def _unpack_4_asm(bf16):
    """PTX: four words (16..19), minus the zero points (20) of rows g and g + 8, to the operands of four products."""
    minus = sixteen(bf16)[1] | 0x80008000
    spread = f"prmt.b32 z0, $20, {minus}, 0x5050; prmt.b32 z1, $20, {minus}, 0x5151;"
    return f"{{ .reg .b32 z0, z1; {spread}\n{unpack_4(bf16, ('$16', '$17', '$18', '$19'), ('z0', 'z1'))}}}"


def _unpack_8_asm(bf16):
    """PTX: four words (8..11) of signs and magnitudes to the operands of two products."""
    return unpack_8(bf16, ("$8", "$9", "$10", "$11"))


def _scale_asm(bf16):
    """PTX: a product's operand (4..7) times the scales (8) of rows g and g + 8."""
    kind, _, _ = sixteen(bf16)
    lines = ["{ .reg .b32 s0, s1; prmt.b32 s0, $8, $8, 0x1010; prmt.b32 s1, $8, $8, 0x3232;"]
    lines += [f"mul.rn.{kind}x2 ${i}, ${4 + i}, s{i % 2};" for i in range(4)]
    return "\n".join([*lines, "}"])


def _prefetch_asm(size):
    """PTX: have so many bytes from 1 on brought to L2; lane 0 of a warp (2) asks for all."""
    return (
        "{ .reg .pred first; setp.eq.s32 first, $2, 0;\n"
        f"@first cp.async.bulk.prefetch.L2.global [$1], {size}; mov.b32 $0, 0; }}"
    )


_UNPACK_4_OPERANDS = gl.constexpr(",".join(["=&r"] * 16 + ["r"] * 8))
_UNPACK_8_OPERANDS = gl.constexpr(",".join(["=&r"] * 8 + ["r"] * 4))
_SCALE_OPERANDS = gl.constexpr(",".join(["=&r"] * 4 + ["r"] * 8))


@triton.jit
def _reorder_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """x with each 32 neighbours along k, (t, w, q, p), in the order (w, q, t, p) of the weights' fragments."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < size)
    x = x.reshape(BLOCK // 32, 4, 4, 2).permute(0, 2, 1, 3).reshape(BLOCK)
    tl.store(out_ptr + offs, x, mask=offs < size)


@gluon.jit
def _produce(
    x_desc, x_smem, full, empty, M, N, K, GROUP_M: gl.constexpr, STAGES: gl.constexpr, WARP_GROUPS: gl.constexpr
):
    """The producer.  A slot's n-th filling waits for its n-1-th emptying; the first waits for none."""
    BLOCK_M: gl.constexpr = x_desc.block_shape[0]
    step = 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, WARP_GROUPS * ROWS)
    for position in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, _ = tile_of(position, M, N, BLOCK_M, WARP_GROUPS * ROWS, GROUP_M)
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            bar = full.index(slot)
            mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
            mbarrier.expect(bar, x_desc.block_type.nbytes)
            tma.async_copy_global_to_shared(x_desc, [m, k], bar, x_smem.index(slot))
            step += 1


@gluon.jit
def _load_step(word_ptrs, scale_ptrs, zero_ptrs, k, last_tile, last_group, GROUP: gl.constexpr, BITS: gl.constexpr):
    """(words, more words, scales, scales of the upper half, zeros, zeros of the upper half) of BLOCK_K columns.

    Past the end they are those of the last tile again, which meet zeros of x.  What there is none of is another one
    again: a tuple holds no None.
    """
    TILE_K: gl.constexpr = 256 // BITS
    tile = k // TILE_K
    words = gl.load(word_ptrs + gl.minimum(tile, last_tile).to(gl.int64) * 128)
    more = words
    if BITS == 8:
        more = gl.load(word_ptrs + gl.minimum(tile + 1, last_tile).to(gl.int64) * 128)
    group = gl.minimum(k // GROUP if GROUP > 0 else 0, last_group) * 8
    scales = gl.load(scale_ptrs + group)
    scales_high, zeros, zeros_high = scales, scales, scales
    if zero_ptrs is not None:
        zeros = gl.load(zero_ptrs + group).to(gl.int32)
        zeros_high = zeros
    if GROUP == 32:
        group = gl.minimum(k // GROUP + 1, last_group) * 8
        scales_high = gl.load(scale_ptrs + group)
        if zero_ptrs is not None:
            zeros_high = gl.load(zero_ptrs + group).to(gl.int32)
    return words, more, scales, scales_high, zeros, zeros_high


@gluon.jit
def _numbers(loaded, eights, BITS: gl.constexpr, GROUP: gl.constexpr, HAS_ZEROS: gl.constexpr, UNPACK: gl.constexpr):
    """q - z of ROWS x BLOCK_K weights in 16 bits: the operands of four products, in four registers of each lane."""
    words, more, _, _, zeros, zeros_high = loaded
    spread = gl.zeros_like(words)
    if not HAS_ZEROS:
        zeros, zeros_high = eights, eights
    if BITS == 4:
        a, b, c, d = gl.inline_asm_elementwise(UNPACK, _UNPACK_4_OPERANDS, [words, zeros + spread],
                                     dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
        if GROUP == 32:
            _, _, c, d = gl.inline_asm_elementwise(UNPACK, _UNPACK_4_OPERANDS, [words, zeros_high + spread],
                                     dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
    else:
        a, b = gl.inline_asm_elementwise(UNPACK, _UNPACK_8_OPERANDS, [words],
                                         dtype=(gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
        c, d = gl.inline_asm_elementwise(UNPACK, _UNPACK_8_OPERANDS, [more],
                                         dtype=(gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
    return a, b, c, d


@gluon.jit
def _times(numbers, scales, SCALE: gl.constexpr):
    scales = scales + gl.zeros_like(numbers)
    return gl.inline_asm_elementwise(SCALE, _SCALE_OPERANDS, [numbers, scales], dtype=gl.int32, is_pure=True, pack=4)


@gluon.jit
def _operand(a, b, c, d, loaded, SCALE: gl.constexpr, DTYPE: gl.constexpr, layout: gl.constexpr):
    """``_numbers`` times their scales, rounded to 16 bits, as wgmma's first operand [ROWS, BLOCK_K]: in place."""
    _, _, scales, scales_high, _, _ = loaded
    a, b, c, d = (
        _times(a, scales, SCALE),
        _times(b, scales, SCALE),
        _times(c, scales_high, SCALE),
        _times(d, scales_high, SCALE),
    )
    pairs = gl.join(gl.join(a, c), gl.join(b, d))  # warp, g, t, (q, h), half of the columns, word of a half
    low = (pairs & 0xFFFF).to(gl.int16).to(DTYPE, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(DTYPE, bitcast=True)
    every = gl.join(low, high).reshape([4, 8, 4, 2, 2, 4, 2])  # warp, g, t, q, h, (half, word), p
    ordered = every.permute(0, 4, 1, 5, 3, 2, 6).reshape([ROWS, BLOCK_K])
    return gl.convert_layout(ordered, layout, assert_trivial=True)


@gluon.jit
def _consume(
    y_desc, words_ptr, scales_ptr, zeros_ptr, x_smem, y_smem, full, empty, M, N, K, groups,
    BITS: gl.constexpr, GROUP: gl.constexpr, UNPACK: gl.constexpr, SCALE: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, AHEAD: gl.constexpr, PREFETCH: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Group ``PART`` of four warps: its ROWS rows of W of each tile.

    Numbers leave the step's wait as they came, but only after it: an operand that is made while wgmma runs has ptxas
    wait for every one of them (12.8, C7513).  Rows past N are those of the last packed tile again, and are not stored.
    """
    TILE_K: gl.constexpr = 256 // BITS
    BLOCK_M: gl.constexpr = x_smem.shape[1]
    WARP_GROUPS: gl.constexpr = y_smem.shape[0]
    HAS_ZEROS: gl.constexpr = zeros_ptr is not None
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    words_layout: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0])
    warp = gl.set_auto_layout(gl.arange(0, 4)[:, None, None, None], words_layout)
    g = gl.set_auto_layout(gl.arange(0, 8)[None, :, None, None], words_layout)
    t = gl.set_auto_layout(gl.arange(0, 4)[None, None, :, None], words_layout)
    word = gl.set_auto_layout(gl.arange(0, 4)[None, None, None, :], words_layout)
    lane_layout: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0])
    lane = gl.convert_layout(g * 4 + t, lane_layout)
    eights = gl.full([4, 8, 4, 1], 0x0808, gl.int32, words_layout)
    tiles_k, tiles_n = gl.cdiv(K, TILE_K), gl.cdiv(N, 16)
    step = 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, WARP_GROUPS * ROWS)
    for position in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = tile_of(position, M, N, BLOCK_M, WARP_GROUPS * ROWS, GROUP_M)
        n += PART * ROWS
        row_tile = gl.minimum(n // 16 + warp, tiles_n - 1).to(gl.int64)
        word_ptrs = words_ptr + row_tile * tiles_k * 128 + (g * 4 + t) * 4 + word
        tile_ptrs = words_ptr + gl.convert_layout(row_tile, lane_layout) * tiles_k * 128 + lane * 0
        scale_ptrs = scales_ptr + row_tile * groups * 8 + g + t * 0
        zero_ptrs = None
        if HAS_ZEROS:
            zero_ptrs = zeros_ptr + row_tile * groups * 8 + g + t * 0
        now = _load_step(word_ptrs, scale_ptrs, zero_ptrs, gl.to_tensor(0), tiles_k - 1, groups - 1, GROUP, BITS)
        ahead = _load_step(word_ptrs, scale_ptrs, zero_ptrs, gl.to_tensor(64), tiles_k - 1, groups - 1, GROUP, BITS)
        a, b, c, d = _numbers(now, eights, BITS, GROUP, HAS_ZEROS, UNPACK)
        weights = _operand(a, b, c, d, now, SCALE, x_smem.dtype, layout)
        acc = gl.zeros([ROWS, BLOCK_M], gl.float32, acc_layout)
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), step // STAGES & 1)
            acc = warpgroup_mma(weights, x_smem.index(slot).permute((1, 0)), acc, is_async=True)
            if AHEAD > 0:
                tile = gl.minimum(k // TILE_K + AHEAD, tiles_k - 64 // TILE_K).to(gl.int64)
                gl.inline_asm_elementwise(PREFETCH, "=r,l,r", [tile_ptrs + tile * 128, lane],
                                          dtype=gl.int32, is_pure=False, pack=1)  # fmt: skip
            further = _load_step(word_ptrs, scale_ptrs, zero_ptrs, k + 128, tiles_k - 1, groups - 1, GROUP, BITS)
            a, b, c, d = _numbers(ahead, eights, BITS, GROUP, HAS_ZEROS, UNPACK)
            acc, a, b, c, d = warpgroup_mma_wait(0, deps=[acc, a, b, c, d])
            weights = _operand(a, b, c, d, ahead, SCALE, x_smem.dtype, layout)
            ahead = further
            mbarrier.arrive(empty.index(slot), count=1)
            step += 1
        buffer = y_smem.index(PART)
        tma.store_wait(0)
        buffer.permute((1, 0)).store(acc.to(y_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(y_desc, [m, n], buffer)
    tma.store_wait(0)


@gluon.jit
def matmul_w4a16_kernel(
    x_desc, y_desc, words_ptr, scales_ptr, zeros_ptr, M, N, K, groups,
    BITS: gl.constexpr, GROUP: gl.constexpr, UNPACK: gl.constexpr, SCALE: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, AHEAD: gl.constexpr, PREFETCH: gl.constexpr, WARP_GROUPS: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks: x's of BLOCK_M rows and BLOCK_K columns, y's of BLOCK_M rows and ROWS columns.

    Scales and zero points are those of rows g and g + 8 in one word (zero points: half a word).
    """
    BLOCK_M: gl.constexpr = x_desc.block_shape[0]
    x_smem = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    y_smem = gl.allocate_shared_memory(y_desc.dtype, [WARP_GROUPS, BLOCK_M, ROWS], y_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=WARP_GROUPS)
    fence_async_shared()
    if WARP_GROUPS == 1:
        gl.warp_specialize(
            [
                (_consume, (
                    y_desc, words_ptr, scales_ptr, zeros_ptr, x_smem, y_smem, full, empty, M, N, K, groups,
                    BITS, GROUP, UNPACK, SCALE, GROUP_M, STAGES, AHEAD, PREFETCH, 0,
                )),
                (_produce, (x_desc, x_smem, full, empty, M, N, K, GROUP_M, STAGES, WARP_GROUPS)),
            ],
            [1],
            [24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume, (
                    y_desc, words_ptr, scales_ptr, zeros_ptr, x_smem, y_smem, full, empty, M, N, K, groups,
                    BITS, GROUP, UNPACK, SCALE, GROUP_M, STAGES, AHEAD, PREFETCH, 0,
                )),
                (_consume, (
                    y_desc, words_ptr, scales_ptr, zeros_ptr, x_smem, y_smem, full, empty, M, N, K, groups,
                    BITS, GROUP, UNPACK, SCALE, GROUP_M, STAGES, AHEAD, PREFETCH, 1,
                )),
                (_produce, (x_desc, x_smem, full, empty, M, N, K, GROUP_M, STAGES, WARP_GROUPS)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip


def specialized(bits, x, words, scales, zeros, y, group, *, config, programs):
    """Write y [m, n] = x W^T; n is a multiple of 8, as TMA wants it.  ``programs`` is the number of SMs."""
    (m, k), n = x.shape, y.shape[1]
    ordered, rows, bf16 = torch.empty_like(x), config["BLOCK_M"], x.dtype == torch.bfloat16
    launch(_reorder_kernel, (triton.cdiv(x.numel(), 2048),), x, ordered, x.numel(), BLOCK=2048)
    tiles = triton.cdiv(m, rows) * triton.cdiv(n, config["WARP_GROUPS"] * ROWS.value)
    launch(
        matmul_w4a16_kernel, (min(tiles, programs),),
        described(ordered, rows, BLOCK_K.value), described(y, rows, ROWS.value), words, scales.view(torch.int32),
        None if zeros is None else zeros.view(torch.int16), m, n, k, k // group if group else 1,
        BITS=bits, GROUP=group, UNPACK=(_unpack_4_asm if bits == 4 else _unpack_8_asm)(bf16), SCALE=_scale_asm(bf16),
        GROUP_M=config["GROUP_M"], STAGES=_STAGES[rows], AHEAD=0 if k % BLOCK_K.value else config["AHEAD"],
        PREFETCH=_prefetch_asm(128 * bits), WARP_GROUPS=config["WARP_GROUPS"], num_warps=4,
    )  # fmt: skip


_STAGES = {64: 8, 128: 6, 256: 4}
"""Slots of the ring, by BLOCK_M: what shared memory holds beside y on its way out."""
