"""`shared`: few rows of x times packed weights; the warps of a program share x, and programs share k.

In `fragments` the warps of a program share k, each has x of its own, and every program reads all of x.  Here each warp
has row tiles of its own, so one reading of x serves 16 ROW_TILES columns of y for each warp, and programs share k: of
SPLITS parts each leaves its sums in scratch memory, and the program that is last there adds them, in the order of the
parts.  So two runs agree bit by bit, and there is no second launch.  Counters are made in the call's own memory, as
`reduction`'s are.

To 32 rows of x a group's sum is scaled, in fp32.  With more, a second set of sums does not fit beside the first, and
weights are multiplied by their scales in 16 bits before, which takes as many instructions.
"""

import torch
import triton
import triton.language as tl
from atlas.operators import launch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.common.packed import ROWS, sixteen

from .ring import (
    COMMIT,
    COPY_4,
    COPY_16,
    COPY_X,
    ORDER,
    OWN,
    READ_X,
    READ_X_OPERANDS,
    UNPACK_8_OPERANDS,
    WAIT_FOR_ALL,
    ZEROS_OPERANDS,
    after,
    copy,
    load_minus_zeros,
    load_scales,
    m_tiles_of,
    mma_asm,
    multiply,
    operands,
    places,
    ring_asm,
    scales_asm,
    unpack_4_asm,
    unpack_8_asm,
    unpacked_4,
    zeros_asm,
)

TAG = 0x7FF8A71A5C3D
"""The upper 48 bits of a counter in use, a NaN that no arithmetic makes; `reduction`'s, where it is told."""

OPEN = gl.constexpr(f"""{{ .reg .pred done; .reg .b32 t; .reg .b64 held, seen, tag;
mov.u32 t, %tid.x; setp.ne.u32 done, t, 0; @done bra OPENED;
atom.global.gpu.relaxed.cas.b64 held, [$1], 0, {TAG << 16};
AGAIN: setp.eq.s64 done, held, 0; @done bra OPENED;
shr.s64 tag, held, 16; setp.eq.s64 done, tag, {TAG}; @done bra OPENED;
atom.global.gpu.relaxed.cas.b64 seen, [$1], held, {TAG << 16};
setp.eq.s64 done, seen, held; mov.b64 held, seen; @!done bra AGAIN;
OPENED: mov.b32 $0, 0; }}""")
"""PTX: thread 0 makes the word at 1 a counter at 0, unless another program did.  No other thread waits for it, as all
would for a scalar of Triton's."""

_SCALE_OPERANDS = operands("r", 4, 8)
_SAME = gl.constexpr("mov.b32 $0, $1;")


def pairs_asm():
    """PTX: the scales of rows g and g + 8 at an address (4), each twice in 32 bits (0..3)."""
    return (
        "{ .reg .b32 t; ld.shared.b32 t, [$4];\n"
        "prmt.b32 $0, t, t, 0x1010; mov.b32 $2, $0; prmt.b32 $1, t, t, 0x3232; mov.b32 $3, $1; }"
    )


def _scale_asm(bf16):
    """PTX: an operand of weights (4..7) times the scales of its rows, each twice in 32 bits (8..11).

    With -0 added: sm_80 multiplies no two bf16 but in an fma.
    """
    kind, _, _ = sixteen(bf16)
    products = [f"fma.rn.{kind}x2 ${i}, ${4 + i}, ${8 + i}, minus;" for i in range(4)]
    return "\n".join(["{ .reg .b32 minus; mov.b32 minus, 0x80008000;", *products, "}"])


@gluon.constexpr_function
def _groups_a_copy(bits, group):
    """Groups of a row tile whose scales the lanes of a warp copy at once, each two rows' of one.

    Of larger groups a step has few, and every lane copies what it will read itself.
    """
    return 4 if bits == 4 and group == 32 else 1


@gluon.jit
def _fill(
    at, step, sources, offsets, own, ends, GROUP: gl.constexpr, BITS: gl.constexpr, HAS_ZEROS: gl.constexpr,
    M_TILES: gl.constexpr, ROW_TILES: gl.constexpr, DEPTH: gl.constexpr, WARPS: gl.constexpr, EVEN: gl.constexpr,
):  # fmt: skip
    """Begin to copy a step to ``at``: this thread's own words and scales, and its share of x, which is for all warps.

    ``sources`` are words, scales, zero points and x, ``offsets`` this thread's in the first three; ``own`` is its first
    row tile, warp, lane, and what is from its first word of a step to its scale and to x; ``ends`` are that of steps,
    of tiles along n and k, of groups, M and K.

    A thread copies 16 bytes of x, eight of them a row of 64 columns; they lie as lanes will read them, 512 bytes for
    each half of 32 columns and eight rows, in the second half every row and the next exchanged: so the eight threads of
    a row write to all banks.  Nothing is read for steps from the end on.
    """
    SPAN: gl.constexpr = DEPTH * 256 // BITS
    GROUPS: gl.constexpr = SPAN // GROUP if GROUP > 0 else 0
    PER_COPY: gl.constexpr = _groups_a_copy(BITS, GROUP)
    PIECES: gl.constexpr = SPAN // 64 * M_TILES * 2
    KINDS: gl.constexpr = 2 if HAS_ZEROS else 1
    words_ptr, scales_ptr, zeros_ptr, x_ptr = sources
    word_offs, scale_offs, zero_offs = offsets
    # Told anew in each step, or those of four row tiles are kept for each: they would spill.
    word_offs, scale_offs, zero_offs = after(word_offs, _SAME), after(scale_offs, _SAME), after(zero_offs, _SAME)
    row_tile, warp, lane, to_scales, to_x = own
    end, tiles_n, tiles_k, groups, M, K = ends
    due = step < end
    for r in gl.static_range(ROW_TILES):
        inside = due if EVEN else (row_tile + r < tiles_n) & due
        ptrs = words_ptr + (word_offs + (step * DEPTH + r * tiles_k) * 32).to(gl.int64) * 4
        for d in gl.static_range(DEPTH):
            there = inside if EVEN else inside & (step * DEPTH + d < tiles_k)
            copy(at + (r * DEPTH + d) * (WARPS * 512), ptrs + d * 128, there, 16, COPY_16)
        for s in gl.static_range(GROUPS // PER_COPY):
            group = step * GROUPS + s * PER_COPY
            offs = (group + r * groups) * 16
            place = at + to_scales + (r * (GROUPS // PER_COPY) + s) * (KINDS * WARPS * 128)
            there = inside if EVEN else inside & (group + lane // (32 // PER_COPY) < groups)
            copy(place, scales_ptr + (scale_offs + offs), there, 4, COPY_4)
            if HAS_ZEROS:
                if PER_COPY > 1:
                    there = inside & (lane < 4 * PER_COPY)
                    if not EVEN:
                        there = there & (group + lane // 4 < groups)
                copy(place + WARPS * 128, zeros_ptr + (zero_offs + offs), there, 4, COPY_4)
    for i in gl.static_range((PIECES + WARPS - 1) // WARPS):
        piece = (warp + WARPS * i) % PIECES  # warps without a piece copy one again
        unit, m_tile = piece // (2 * M_TILES), piece // 2 % M_TILES
        row, chunk = piece % 2 * 4 + lane // 8, lane % 8
        there = due if EVEN else (step * SPAN + unit * 64 + chunk * 8 < K) & due
        offs = gl.minimum(m_tile * 8 + row, M - 1) * (K // 2) + chunk * 4
        place = at + to_x + ((2 * unit + chunk // 4) * M_TILES + m_tile) * 512
        slot = row * 4 + chunk % 4 ^ chunk // 4 * 4
        copy(place + (slot - lane) * 16, x_ptr + (offs + step * (SPAN // 2)) + unit * 32, there, 16, COPY_X)


@gluon.jit
def _read_x(addresses):
    return gl.inline_asm_elementwise(READ_X, READ_X_OPERANDS, [addresses], dtype=gl.int32, is_pure=True, pack=4)


@gluon.jit
def times(numbers, scales, SCALE: gl.constexpr):
    """An operand of one mma instruction times the scales of its rows, rounded to 16 bits."""
    return gl.inline_asm_elementwise(SCALE, _SCALE_OPERANDS, [numbers, scales], dtype=gl.int32, is_pure=True, pack=4)


@gluon.jit
def _multiply_step(
    words_at, scales_at, zeros_at, x_at, to_odd, acc, zero, GROUP: gl.constexpr, BITS: gl.constexpr,
    BF16: gl.constexpr, HAS_ZEROS: gl.constexpr, UNPACK: gl.constexpr, SCALES: gl.constexpr, ZEROS: gl.constexpr,
    SCALE: gl.constexpr, LOW: gl.constexpr, HIGH: gl.constexpr, M_TILES: gl.constexpr, DEPTH: gl.constexpr,
    WARPS: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """acc plus the products of a step.

    The sum of a group is scaled once; with SCALE, which is PTX, weights are before they are multiplied.  A 4-bit tile
    has two groups of 32: each unpacks it with its own zero points and takes its half.
    """
    SPAN: gl.constexpr = DEPTH * 256 // BITS
    GROUPS: gl.constexpr = SPAN // GROUP if GROUP > 0 else 1
    PER_COPY: gl.constexpr = _groups_a_copy(BITS, GROUP)
    HALVES: gl.constexpr = GROUPS > DEPTH
    HALF: gl.constexpr = M_TILES * 512
    SUMS: gl.constexpr = GROUP > 0 and SCALE is None
    for s in gl.static_range(GROUPS):
        to_group = s // PER_COPY * (2 if HAS_ZEROS else 1) * (WARPS * 128)
        to_scales = to_group + s % PER_COPY * 32
        total = zero if SUMS else acc
        if SCALE is not None:
            scales = gl.inline_asm_elementwise(SCALES, ZEROS_OPERANDS, [scales_at + to_scales],
                                               dtype=gl.int32, is_pure=True, pack=4)  # fmt: skip
        if BITS == 4:
            minus = load_minus_zeros(zeros_at + (to_group + s % PER_COPY * 16), HAS_ZEROS, BF16, ZEROS, layout)
        for i in gl.static_range(1 if HALVES else DEPTH // GROUPS):
            tile = s * DEPTH // GROUPS + i
            words = words_at + tile * (WARPS * 512)
            if BITS == 4:
                a, b, c, d = unpacked_4(words, minus, UNPACK)
                if not HALVES or s % 2 == 0:
                    low = _read_x(x_at + 2 * tile * HALF)
                    if SCALE is not None:
                        a, b = times(a, scales, SCALE), times(b, scales, SCALE)
                    total = multiply(b, low, multiply(a, low, total, LOW), HIGH)
                if not HALVES or s % 2 == 1:
                    high = _read_x(x_at + to_odd + (2 * tile + 1) * HALF)
                    if SCALE is not None:
                        c, d = times(c, scales, SCALE), times(d, scales, SCALE)
                    total = multiply(d, high, multiply(c, high, total, LOW), HIGH)
            else:
                x = _read_x(x_at + tile % 2 * to_odd + tile * HALF)
                a, b = gl.inline_asm_elementwise(UNPACK, UNPACK_8_OPERANDS, [words],
                                                 dtype=(gl.int32, gl.int32), is_pure=True, pack=4)  # fmt: skip
                if SCALE is not None:
                    a, b = times(a, scales, SCALE), times(b, scales, SCALE)
                total = multiply(b, x, multiply(a, x, total, LOW), HIGH)
        acc = gl.fma(load_scales(scales_at + to_scales, SCALES), total, acc) if SUMS else total
    return acc


@gluon.jit
def _own_share(first_tile, tiles_k, groups, to_scales, X_AT: gl.constexpr, PER_COPY: gl.constexpr,
               ROW_TILES: gl.constexpr, WARPS: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """What ``_fill`` calls ``offsets`` and ``own``, in a program whose columns begin with a row tile of weights.

    Offsets have 32 bits, those of words count 16 bytes: addresses would spill.
    """
    _, _, warp, lane = places(1, 1, WARPS, layout)
    row_tile = first_tile + warp * ROW_TILES
    if PER_COPY > 1:
        scale_offs = row_tile * groups * 16 + lane * 2
        zero_offs = row_tile * groups * 16 + lane * 4
    else:
        scale_offs = row_tile * groups * 16 + lane // 4 * 2
        zero_offs = row_tile * groups * 16 + lane // 8 * 4  # those of four rows, of which two are the lane's
    offsets = row_tile * tiles_k * 32 + lane, scale_offs, zero_offs
    return offsets, (row_tile, warp, lane, to_scales, X_AT - warp * 512)


@gluon.jit
def _where_read(own_at, lane, PER_COPY: gl.constexpr, WARPS: gl.constexpr):
    """(address of a lane's scales, of its zero points), from that of the scales it copied; of several groups a copy
    other lanes copied them.
    """
    if PER_COPY > 1:
        scales_at = own_at + (lane // 4 - lane) * 4
        zeros_at = scales_at + WARPS * 128 - lane // 4 * 2
    else:
        scales_at = own_at
        zeros_at = own_at + WARPS * 128 + lane // 4 % 2 * 2
    return scales_at, zeros_at


@gluon.jit
def shared_kernel(
    x_ptr, words_ptr, scales_ptr, zeros_ptr, y_ptr, scratch_ptr, M, N, K, groups, blocks,
    GROUP: gl.constexpr, BITS: gl.constexpr, BF16: gl.constexpr, RING: gl.constexpr, WAIT: gl.constexpr,
    UNPACK: gl.constexpr, SCALES: gl.constexpr, ZEROS: gl.constexpr, SCALE: gl.constexpr, LOW: gl.constexpr,
    HIGH: gl.constexpr, M_TILES: gl.constexpr, ROW_TILES: gl.constexpr, DEPTH: gl.constexpr, WARPS: gl.constexpr,
    STAGES: gl.constexpr, STAGE: gl.constexpr, X_AT: gl.constexpr, SPLITS: gl.constexpr, OWN_RING: gl.constexpr,
    EVEN: gl.constexpr,
):  # fmt: skip
    """One program owns 16 ROW_TILES WARPS columns of y and one of SPLITS parts of k, in steps of DEPTH packed tiles.

    Dimensions of every tensor: eight rows of x, packed tiles along n of a warp, 1, warps, lanes, registers of a lane.
    A step of the ring has words and scales, each where the thread that copied it reads it, and from X_AT on x.  All
    threads await a step together; so nobody reads the step before it any more, whose place is filled next.  EVEN:
    blocks and steps are whole.  x_ptr counts in words, two elements of x; scratch_ptr has a counter of 64 bits for each
    block, then the parts.
    """
    HAS_ZEROS: gl.constexpr = zeros_ptr is not None
    KINDS: gl.constexpr = 2 if HAS_ZEROS else 1
    GROUPS: gl.constexpr = DEPTH * 256 // BITS // GROUP if GROUP > 0 else 0
    PER_COPY: gl.constexpr = _groups_a_copy(BITS, GROUP)
    lanes: gl.constexpr = [1, 1, 1, 1, 32, 1]
    warps: gl.constexpr = [1, 1, 1, WARPS, 1, 1]
    layout: gl.constexpr = gl.BlockedLayout([M_TILES, ROW_TILES, 1, 1, 1, 4], lanes, warps, ORDER)
    own_layout: gl.constexpr = gl.BlockedLayout([1, 1, 1, 1, 1, 1], lanes, warps, ORDER)
    if not OWN_RING:
        ring = gl.allocate_shared_memory(
            gl.int32, [(STAGE * STAGES + 1023) // 1024, 1, 256], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        )
    block = gl.program_id(0) // SPLITS
    split = gl.program_id(0) % SPLITS
    tiles_n, tiles_k = gl.cdiv(N, 16), gl.cdiv(K, 256 // BITS)
    steps = gl.cdiv(tiles_k, DEPTH)
    begin = split * steps // SPLITS
    end = (split + 1) * steps // SPLITS
    first_at, to_scales = gl.inline_asm_elementwise(
        RING, "=&r,=&r,r", [gl.full([1, 1, 1, 1, 1, 1], 0, gl.int32, own_layout)],
        dtype=(gl.int32, gl.int32), is_pure=False, pack=1,
    )  # fmt: skip
    last_at = first_at + (STAGES - 1) * STAGE
    sources = words_ptr, scales_ptr, zeros_ptr if HAS_ZEROS else scales_ptr, x_ptr
    offsets, own = _own_share(block * (WARPS * ROW_TILES), tiles_k, groups, to_scales, X_AT, PER_COPY, ROW_TILES,
                              WARPS, own_layout)  # fmt: skip
    ends = end, tiles_n, tiles_k, groups, M, K
    for stage in gl.static_range(STAGES - 1):
        _fill(first_at + stage * STAGE, begin + stage, sources, offsets, own, ends, GROUP, BITS, HAS_ZEROS, M_TILES,
              ROW_TILES, DEPTH, WARPS, EVEN)  # fmt: skip
        after(first_at, COMMIT)
    counter_ptr = scratch_ptr.to(gl.pointer_type(gl.int64)) + block
    if SPLITS > 1:  # while the first steps are on their way
        gl.inline_asm_elementwise(OPEN, "=r,l", [counter_ptr + gl.full([1, 1, 1, 1, 1, 1], 0, gl.int64, own_layout)],
                                  dtype=gl.int32, is_pure=False, pack=1)  # fmt: skip

    own_tile, _, warp, lane = places(ROW_TILES, 1, WARPS, layout)
    m_tile = gl.set_auto_layout(gl.arange(0, M_TILES)[:, None, None, None, None, None], layout)
    spread = gl.zeros([1, 1, 1, 1, 1, 4], gl.int32, layout)  # what a lane's four registers have the same
    words_at = own_tile * (DEPTH * WARPS * 512) + spread
    scales_at = gl.convert_layout(to_scales, layout) + own_tile * (GROUPS // PER_COPY * KINDS * WARPS * 128) + spread
    scales_at, zeros_at = _where_read(scales_at, lane, PER_COPY, WARPS)
    x_at = X_AT - warp * 512 + m_tile * 512 + spread
    to_odd = ((lane ^ 4) - lane) * 16
    acc = gl.zeros([M_TILES, ROW_TILES, 1, WARPS, 32, 4], gl.float32, layout)
    zero = gl.zeros([M_TILES, ROW_TILES, 1, WARPS, 32, 4], gl.float32, layout)
    at, fill = first_at, last_at
    for step in range(begin, end):
        now = gl.convert_layout(after(at, WAIT), layout)
        _fill(fill, step + (STAGES - 1), sources, offsets, own, ends, GROUP, BITS, HAS_ZEROS, M_TILES, ROW_TILES, DEPTH,
              WARPS, EVEN)  # fmt: skip
        after(fill, COMMIT)
        acc = _multiply_step(now + words_at, now + scales_at, now + zeros_at, now + x_at, to_odd, acc, zero, GROUP,
                             BITS, BF16, HAS_ZEROS, UNPACK, SCALES, ZEROS, SCALE, LOW, HIGH, M_TILES, DEPTH, WARPS,
                             layout)  # fmt: skip
        fill = at
        at = gl.where(at == last_at, first_at, at + STAGE)
    if not OWN_RING:
        after(at, WAIT_FOR_ALL)
        if SPLITS > 1:
            ring._keep_alive()
        else:  # Triton gives no memory where nothing of its own touches it
            flat: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, WARPS], [1, 0])
            ring.index(0).store(gl.zeros([1, 256], gl.int32, flat))
    tile = (block * WARPS + warp) * ROW_TILES + own_tile
    if SPLITS > 1:
        parts_ptr = scratch_ptr + (2 * blocks + 3) // 4 * 4
        part = blocks * (WARPS * ROW_TILES * M_TILES * 128)
        gl.store(parts_ptr + split.to(gl.int64) * part + _part_offsets(tile, M_TILES, WARPS, layout), acc)
        # The one thread that counts releases what every thread of the program stored.  Triton's name for the barrier:
        # Gluon's own is another in 3.7 than in 3.6.
        tl.debug_barrier()
        ticket = gl.atomic_add(counter_ptr, gl.to_tensor(1).to(gl.int64), sem="acq_rel")
        if (ticket & 0xFFFF) == SPLITS - 1:
            FIT: gl.constexpr = 64 // (M_TILES * SPLITS)  # row tiles of which registers hold what is loaded at once
            AT_ONCE: gl.constexpr = ROW_TILES if FIT >= ROW_TILES else max(1, FIT)
            for first in range(0, ROW_TILES, AT_ONCE):
                _add_parts(parts_ptr, part, scales_ptr, y_ptr, block * (WARPS * ROW_TILES) + first, M, N, tiles_n,
                           GROUP, M_TILES, ROW_TILES, AT_ONCE, WARPS, SPLITS)  # fmt: skip
            # The tag goes, so that nobody who is given this memory next finds a counter in use.
            gl.store(counter_ptr, gl.to_tensor(0).to(gl.int64))
    else:
        _write(acc, scales_ptr, y_ptr, tile, M, N, tiles_n, GROUP, M_TILES, WARPS, layout)


@gluon.jit
def _part_offsets(tile, M_TILES: gl.constexpr, WARPS: gl.constexpr, layout: gl.constexpr):
    """Where sums of row tiles lie in a part: a lane's four side by side."""
    _, _, _, lane = places(1, 1, WARPS, layout)
    m_tile = gl.set_auto_layout(gl.arange(0, M_TILES)[:, None, None, None, None, None], layout)
    register = gl.set_auto_layout(gl.arange(0, 4)[None, None, None, None, None, :], layout)
    return (tile * M_TILES + m_tile) * 128 + lane * 4 + register


@gluon.jit
def _add_parts(
    parts_ptr, part, scales_ptr, y_ptr, first_tile, M, N, tiles_n, GROUP: gl.constexpr, M_TILES: gl.constexpr,
    ROW_TILES: gl.constexpr, AT_ONCE: gl.constexpr, WARPS: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """Store as y what SPLITS programs left of AT_ONCE row tiles of each warp, those from ``first_tile`` on."""
    layout: gl.constexpr = gl.BlockedLayout([M_TILES, AT_ONCE, 1, 1, 1, 4], [1, 1, 1, 1, 32, 1],
                                            [1, 1, 1, WARPS, 1, 1], ORDER)  # fmt: skip
    own_tile, _, warp, _ = places(AT_ONCE, 1, WARPS, layout)
    tile = first_tile + warp * ROW_TILES + own_tile
    offs = _part_offsets(tile, M_TILES, WARPS, layout)
    total = gl.zeros([M_TILES, AT_ONCE, 1, WARPS, 32, 4], gl.float32, layout)
    for s in gl.static_range(SPLITS):  # from L2, where other programs wrote them
        total += gl.load(parts_ptr + s * part.to(gl.int64) + offs, cache_modifier=".cg")
    _write(total, scales_ptr, y_ptr, tile, M, N, tiles_n, GROUP, M_TILES, WARPS, layout)


@gluon.jit
def _write(
    total, scales_ptr, y_ptr, tile, M, N, tiles_n, GROUP: gl.constexpr, M_TILES: gl.constexpr, WARPS: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Store sums of row tiles as y; without groups each row has a scale, multiplied last."""
    _, _, _, lane = places(1, 1, WARPS, layout)
    m_tile = gl.set_auto_layout(gl.arange(0, M_TILES)[:, None, None, None, None, None], layout)
    register = gl.set_auto_layout(gl.arange(0, 4)[None, None, None, None, None, :], layout)
    if GROUP == 0:
        place = tile * 16 + lane // 4 * 2 + register // 2
        scales = gl.load(scales_ptr + place, mask=tile < tiles_n, other=0.0).to(gl.float32)
        total = total * gl.fma(scales, gl.zeros_like(scales), scales)
    n = tile * 16 + lane // 4 + register // 2 * 8
    m = m_tile * 8 + lane % 4 * 2 + register % 2
    gl.store(y_ptr + m * N + n, total.to(y_ptr.dtype.element_ty), mask=(m < M) & (n < N))


def stage_bytes(bits, m, group, zeros, config):
    """(bytes of words, scales and zero points, bytes of x) of a step of the ring."""
    span = config["DEPTH"] * 256 // bits
    scales = span // group // _groups_a_copy(bits, group) * (2 if zeros else 1) * 128 if group else 0
    packed = config["ROW_TILES"] * config["num_warps"] * (config["DEPTH"] * 512 + scales)
    return packed, m_tiles_of(m) * span * 16


def shared_bytes(bits, m, group, zeros, config):
    """(whether the ring is declared by inline assembly, bytes of shared memory)."""
    ring = config["STAGES"] * sum(stage_bytes(bits, m, group, zeros, config))
    return ring + 16 <= OWN, ring  # 8 bytes are Triton's, for the count


_MOST_SUMS = 32
"""The most rows of x for which a group's sums have registers beside those of all groups; of more, weights are scaled
in 16 bits."""


def launch_shared(bits, x, words, scales, zeros, n, group, *, config):
    """Launch ``shared_kernel`` for weights of so many bits; ``group`` 0: a scale for each row."""
    (m, k), warps, bf16, m_tiles = x.shape, config["num_warps"], x.dtype == torch.bfloat16, m_tiles_of(x.shape[0])
    rows, depth, stages, splits = (config[name] for name in ("ROW_TILES", "DEPTH", "STAGES", "SPLITS"))
    packed_bytes, x_bytes = stage_bytes(bits, m, group, zeros is not None, config)
    own, ring = shared_bytes(bits, m, group, zeros is not None, config)
    blocks = triton.cdiv(n, ROWS * rows * warps)
    scaled = group > 0 and m > _MOST_SUMS
    y = torch.empty((m, n), dtype=x.dtype, device=x.device)
    scratch = y
    if splits > 1:
        counters, parts = (2 * blocks + 3) // 4 * 4, splits * blocks * rows * warps * m_tiles * 128
        scratch = torch.empty(counters + parts, dtype=torch.float32, device=x.device)
    launch(
        shared_kernel, (blocks * splits,),
        x.view(torch.int32), words, scales, zeros, y, scratch, m, n, k, k // group if group else 1, blocks,
        GROUP=group, BITS=bits, BF16=bf16, RING=ring_asm(ring if own else 0, rows * depth * warps * 512),
        WAIT=f"cp.async.wait_group {stages - 2}; bar.sync 0; mov.b32 $0, $1;",
        UNPACK=(unpack_4_asm if bits == 4 else unpack_8_asm)(bf16),
        SCALES=pairs_asm() if scaled else scales_asm(bf16), ZEROS=zeros_asm(bf16),
        SCALE=_scale_asm(bf16) if scaled else None, LOW=mma_asm(bf16, 0), HIGH=mma_asm(bf16, 1), M_TILES=m_tiles,
        ROW_TILES=rows, DEPTH=depth, WARPS=warps, STAGES=stages, STAGE=packed_bytes + x_bytes, X_AT=packed_bytes,
        SPLITS=splits, OWN_RING=own,
        EVEN=k % (depth * 256 // bits) == 0 and n % (ROWS * rows * warps) == 0, num_warps=warps,
    )  # fmt: skip
    return y
