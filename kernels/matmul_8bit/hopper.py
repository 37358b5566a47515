"""The product of 8-bit matrices for Hopper (sm_90): C = (A B) * scale_a * scale_b + bias.

A program has a multiprocessor for itself and takes one tile of C after the other.  One of its warps loads (the
producer): blocks of A and B go by TMA into a ring of shared memory, on into the next tile while this one is finished.
GROUPS groups of four warps multiply (wgmma), each its ROWS rows of the tile; or two groups have tiles of their own, and
one finishes its tile while the other multiplies.  Barriers in shared memory hand blocks over: a "full" one, on which
TMA counts the bytes, and an "empty" one, on which all groups arrive that read them.

What plain Triton does not do here: it waits for each product of int8 before it starts the next (its accumulator is not
fp32), and one group of warps for loads, products and sums leaves the tensor cores idle while partial sums are added to
fp32 registers.  Here one group adds while another multiplies.
"""

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

from kernels.common.hopper import described, part_of_tile, tile_of, whole_tiles

ROWS = gl.constexpr(64)
"""Rows of a group: those of one wgmma."""

BLOCK_K = gl.constexpr(128)
"""Bytes of a swizzled line of shared memory, and the elements that fp8 is summed over without promotion."""


@gluon.jit
def _load_tile(
    a_desc, b_desc, a_smem, b_smem, full, empty, step, m, n, K, BOXES: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Fetch the blocks of a tile of BOXES blocks of A and one of B; returns how many of k there have been.

    A slot's n-th filling waits for its n-1-th emptying; the first waits for none.
    """
    for k in range(0, K, BLOCK_K):
        slot = step % STAGES
        bar = full.index(slot)
        mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
        mbarrier.expect(bar, BOXES * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        for box in gl.static_range(BOXES):
            row = m + box * a_desc.block_shape[0]
            tma.async_copy_global_to_shared(a_desc, [row, k], bar, a_smem.index(slot * BOXES + box))
        tma.async_copy_global_to_shared(b_desc, [n, k], bar, b_smem.index(slot).slice(0, b_desc.block_shape[0]))
        step += 1
    return step


@gluon.jit
def _produce(
    a_desc, b_desc, cut_desc, a_smem, b_smem, full, empty, M, N, K,
    GROUP_M: gl.constexpr, BOXES: gl.constexpr, STAGES: gl.constexpr, CUT: gl.constexpr,
):  # fmt: skip
    """The producer."""
    BLOCK_M: gl.constexpr = BOXES * a_desc.block_shape[0]
    BLOCK_N: gl.constexpr = b_desc.block_shape[0]
    step = 0
    whole = whole_tiles(M, N, BLOCK_M, BLOCK_N, CUT)
    for position in range(gl.program_id(0), whole, gl.num_programs(0)):
        m, n = tile_of(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        step = _load_tile(a_desc, b_desc, a_smem, b_smem, full, empty, step, m, n, K, BOXES, STAGES)
    if CUT > 1:
        m, n, there = part_of_tile(whole, M, N, BLOCK_M, BLOCK_N, GROUP_M, CUT)
        if there:
            _load_tile(a_desc, cut_desc, a_smem, b_smem, full, empty, step, m, n, K, BOXES, STAGES)


@gluon.jit
def _factors(
    scale_a_ptr, scale_b_ptr, m, n, M, N, HEIGHT: gl.constexpr, COLUMNS: gl.constexpr, SCALES: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """What HEIGHT x COLUMNS elements of C, the first at (m, n), are multiplied by: numbers, or a column and a row."""
    if SCALES == "none":
        return 1, 1
    elif SCALES == "tensor":
        return gl.load(scale_a_ptr), gl.load(scale_b_ptr)
    else:
        offs_m = m + gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, layout))
        offs_n = n + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
        of_rows = gl.load(scale_a_ptr + offs_m, mask=offs_m < M, other=0.0)
        of_columns = gl.load(scale_b_ptr + offs_n, mask=offs_n < N, other=0.0)
        return of_rows[:, None], of_columns[None, :]


@gluon.jit
def _put(c, c_desc, c_smem, bias_ptr, m, n, N, FIRST: gl.constexpr, BUFFERS: gl.constexpr, PART: gl.constexpr):
    """Write a block of C, whose width is the descriptor's, or halves of it until they are; the PART-th is the first.

    A part goes by way of a buffer, once what was there BUFFERS parts before has left it.
    """
    COLUMNS: gl.constexpr = c.shape[1]
    WIDTH: gl.constexpr = c_desc.block_shape[1]
    if COLUMNS > WIDTH:
        HALF: gl.constexpr = COLUMNS // 2
        left, right = c.reshape([c.shape[0], 2, HALF]).permute(0, 2, 1).split()
        _put(left, c_desc, c_smem, bias_ptr, m, n, N, FIRST, BUFFERS, PART)
        _put(right, c_desc, c_smem, bias_ptr, m, n + HALF, N, FIRST, BUFFERS, PART + HALF // WIDTH)
    else:
        if bias_ptr is not None:
            offs_n = n + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, c.type.layout))
            c += gl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(gl.float32)[None, :]
        buffer = c_smem.index(FIRST + PART % BUFFERS)
        tma.store_wait(BUFFERS - 1)
        buffer.store(c.to(c_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_desc, [m, n], buffer)


@gluon.jit
def _consume(
    c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, M, N, K,
    PROMOTE: gl.constexpr, SCALES: gl.constexpr, GROUP_M: gl.constexpr, BUFFERS: gl.constexpr,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: its ROWS rows of each tile.

    With PROMOTE the tensor cores sum BLOCK_K elements of k, and the sums are added in fp32.  Else they sum all of k,
    and the next product is started before this one is waited for.
    """
    BLOCK_M: gl.constexpr = GROUPS * ROWS
    BLOCK_N: gl.constexpr = b_smem.shape[1]
    ACC: gl.constexpr = gl.int32 if a_smem.dtype == gl.int8 else gl.float32
    # Triton 3.6 knows no wgmma of int8 with 256 columns.
    INSTRUCTION: gl.constexpr = min(BLOCK_N, 128) if a_smem.dtype == gl.int8 else BLOCK_N
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, INSTRUCTION, 32])
    # Fetched while products run, the scales cost no time; beside two sets of sums three groups have no registers.
    EARLY: gl.constexpr = not (PROMOTE and GROUPS > 2)
    step = 0
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    for position in range(gl.program_id(0), tiles, gl.num_programs(0)):
        m, n = tile_of(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m += GROUP * ROWS
        if EARLY:
            by_a, by_b = _factors(scale_a_ptr, scale_b_ptr, m, n, M, N, ROWS, BLOCK_N, SCALES, layout)
        acc = gl.zeros([ROWS, BLOCK_N], ACC, layout)
        for k in range(0, K, BLOCK_K):
            slot = step % STAGES
            mbarrier.wait(full.index(slot), step // STAGES & 1)
            a, b = a_smem.index(slot * GROUPS + GROUP), b_smem.index(slot).permute((1, 0))
            if PROMOTE:
                part = warpgroup_mma(a, b, gl.zeros([ROWS, BLOCK_N], ACC, layout), use_acc=False, is_async=True)
                part = warpgroup_mma_wait(0, deps=[part])
                mbarrier.arrive(empty.index(slot), count=1)
                acc += part
            else:
                acc = warpgroup_mma(a, b, acc, is_async=True)
                acc = warpgroup_mma_wait(1, deps=[acc])  # the product before this one has read its blocks
                mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=k > 0)
            step += 1
        if not PROMOTE:
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
        if not EARLY:
            by_a, by_b = _factors(scale_a_ptr, scale_b_ptr, m, n, M, N, ROWS, BLOCK_N, SCALES, layout)
        if SCALES != "none":
            acc = acc.to(gl.float32) * by_a * by_b
        _put(acc, c_desc, c_smem, bias_ptr, m, n, N, GROUP * BUFFERS, BUFFERS, 0)
    tma.store_wait(0)


@gluon.jit
def _take_tile(
    c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, turn, step, odd, m, n, M, N, K,
    COLUMNS: gl.constexpr, SCALES: gl.constexpr, BUFFERS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """The tile at (m, n) by one of two groups in turn; ``odd`` is 1 for the second, fourth, ... that it takes."""
    ACC: gl.constexpr = gl.int32 if a_smem.dtype == gl.int8 else gl.float32
    BLOCK_M: gl.constexpr = a_smem.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 32])
    # A "full" barrier that is still two fillings behind looks like one that is up to date.
    mbarrier.wait(turn.index(GROUP), odd ^ (1 - GROUP))
    acc = gl.zeros([BLOCK_M, COLUMNS], ACC, layout)
    for k in range(0, K, BLOCK_K):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), step // STAGES & 1)
        b = b_smem.index(slot).slice(0, COLUMNS).permute((1, 0))
        acc = warpgroup_mma(a_smem.index(slot), b, acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])  # the product before this one has read its blocks
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=k > 0)
        step += 1
    mbarrier.arrive(turn.index(1 - GROUP), count=1)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
    if SCALES != "none":
        by_a, by_b = _factors(scale_a_ptr, scale_b_ptr, m, n, M, N, BLOCK_M, COLUMNS, SCALES, layout)
        acc = acc.to(gl.float32) * by_a * by_b
    _put(acc, c_desc, c_smem, bias_ptr, m, n, N, GROUP * BUFFERS, BUFFERS, 0)
    return step


@gluon.jit
def _alternate(
    c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, turn, M, N, K,
    SCALES: gl.constexpr, GROUP_M: gl.constexpr, BUFFERS: gl.constexpr, STAGES: gl.constexpr, CUT: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """Group ``GROUP`` of four warps: every other tile, which it finishes while the other group multiplies the next.

    A last round of tiles for no more than half of the programs is cut: CUT programs take a part of the columns each.
    """
    BLOCK_M: gl.constexpr = a_smem.shape[1]
    BLOCK_N: gl.constexpr = b_smem.shape[1]
    blocks = gl.cdiv(K, BLOCK_K)
    step = GROUP * blocks
    stride = 2 * gl.num_programs(0)
    whole = whole_tiles(M, N, BLOCK_M, BLOCK_N, CUT)
    for position in range(gl.program_id(0) + GROUP * gl.num_programs(0), whole, stride):
        m, n = tile_of(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        step = _take_tile(
            c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, turn,
            step, position // stride & 1, m, n, M, N, K, BLOCK_N, SCALES, BUFFERS, STAGES, GROUP,
        )  # fmt: skip
        step += blocks  # the other group's
    if CUT > 1:
        m, n, there = part_of_tile(whole, M, N, BLOCK_M, BLOCK_N, GROUP_M, CUT)
        if there & (whole // gl.num_programs(0) % 2 == GROUP):
            _take_tile(
                c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, turn,
                step, whole // stride & 1, m, n, M, N, K, BLOCK_N // CUT, SCALES, BUFFERS, STAGES, GROUP,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def alternating_8bit_kernel(
    a_desc, b_desc, cut_desc, c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, M, N, K,
    SCALES: gl.constexpr, GROUP_M: gl.constexpr, BUFFERS: gl.constexpr, STAGES: gl.constexpr, CUT: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks: A's and B's of a tile's rows and columns, C's of its rows and a part of its columns.

    ``cut_desc`` is B's for a part of a tile, None where CUT is 1.
    """
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES, a_desc.block_shape[0], BLOCK_K], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, b_desc.block_shape[0], BLOCK_K], b_desc.layout)
    c_smem = gl.allocate_shared_memory(
        c_desc.dtype, [2 * BUFFERS, c_desc.block_shape[0], c_desc.block_shape[1]], c_desc.layout
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
    for group in gl.static_range(2):
        mbarrier.init(turn.index(group), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_alternate, (
                c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, turn, M, N, K,
                SCALES, GROUP_M, BUFFERS, STAGES, CUT, 0,
            )),
            (_alternate, (
                c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, turn, M, N, K,
                SCALES, GROUP_M, BUFFERS, STAGES, CUT, 1,
            )),
            (_produce, (a_desc, b_desc, cut_desc, a_smem, b_smem, full, empty, M, N, K, GROUP_M, 1, STAGES, CUT)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@gluon.jit
def matmul_8bit_kernel(
    a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, M, N, K,
    PROMOTE: gl.constexpr, SCALES: gl.constexpr, GROUP_M: gl.constexpr, BUFFERS: gl.constexpr,
    GROUPS: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Descriptors of blocks: A's of ROWS rows, B's of BLOCK_N, C's of ROWS rows and a part of the columns."""
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES * GROUPS, ROWS, BLOCK_K], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, b_desc.block_shape[0], BLOCK_K], b_desc.layout)
    c_smem = gl.allocate_shared_memory(c_desc.dtype, [GROUPS * BUFFERS, ROWS, c_desc.block_shape[1]], c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=GROUPS)
    fence_async_shared()
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_consume, (
                    c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, M, N, K,
                    PROMOTE, SCALES, GROUP_M, BUFFERS, GROUPS, STAGES, 0,
                )),
                (_consume, (
                    c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, M, N, K,
                    PROMOTE, SCALES, GROUP_M, BUFFERS, GROUPS, STAGES, 1,
                )),
                (_produce, (a_desc, b_desc, None, a_smem, b_smem, full, empty, M, N, K, GROUP_M, GROUPS, STAGES, 1)),
            ],
            [4, 1],
            [REGISTERS, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume, (
                    c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, M, N, K,
                    PROMOTE, SCALES, GROUP_M, BUFFERS, GROUPS, STAGES, 0,
                )),
                (_consume, (
                    c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, M, N, K,
                    PROMOTE, SCALES, GROUP_M, BUFFERS, GROUPS, STAGES, 1,
                )),
                (_consume, (
                    c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, a_smem, b_smem, c_smem, full, empty, M, N, K,
                    PROMOTE, SCALES, GROUP_M, BUFFERS, GROUPS, STAGES, 2,
                )),
                (_produce, (a_desc, b_desc, None, a_smem, b_smem, full, empty, M, N, K, GROUP_M, GROUPS, STAGES, 1)),
            ],
            [4, 4, 1],
            [REGISTERS, REGISTERS, 24],
        )  # fmt: skip


_REGISTERS = {2: 240, 3: 160}
"""Registers of a multiplying thread, by the number of groups; 65536 are there for all of them and the producer."""

_C_BYTES = 32768
"""Shared memory for C on its way out, of all groups."""


def specialized(a, b, c, scale_a, scale_b, bias, *, scales, promote, config, programs):
    """Write c = (a b) * scale_a * scale_b + bias of matrices that TMA can read; ``programs`` is the number of SMs."""
    (m, k), n = a.shape, b.shape[1]
    groups, columns = config["GROUPS"], config["BLOCK_N"]
    tiles = -(-m // (groups * ROWS.value)) * -(-n // columns)
    buffers, width = parts(groups, ROWS.value, columns, c.element_size())
    launch(
        matmul_8bit_kernel, (min(tiles, programs),),
        described(a, ROWS.value, BLOCK_K.value), described(b.t(), columns, BLOCK_K.value),
        described(c, ROWS.value, width), scale_a, scale_b, bias, m, n, k,
        PROMOTE=promote, SCALES=scales, GROUP_M=config["GROUP_M"], BUFFERS=buffers, GROUPS=groups,
        STAGES=config["STAGES"], REGISTERS=_REGISTERS[groups], num_warps=4,
    )  # fmt: skip


def alternating(a, b, c, scale_a, scale_b, bias, *, scales, config, programs):
    """The same by groups that have tiles of their own; fp8 is left to the tensor cores' accumulator."""
    (m, k), n = a.shape, b.shape[1]
    rows = columns = config["BLOCK"]
    buffers, width = parts(2, rows, columns, c.element_size())
    tiles = -(-m // rows) * -(-n // columns)
    rest = tiles % programs if tiles > programs else 0
    cut = 2 if 0 < 2 * rest <= programs else 1
    launch(
        alternating_8bit_kernel, (min(tiles, programs),),
        described(a, rows, BLOCK_K.value), described(b.t(), columns, BLOCK_K.value),
        described(b.t(), columns // cut, BLOCK_K.value) if cut > 1 else None,
        described(c, rows, width), scale_a, scale_b, bias, m, n, k,
        SCALES=scales, GROUP_M=config["GROUP_M"], BUFFERS=buffers, STAGES=config["STAGES"], CUT=cut, num_warps=4,
    )  # fmt: skip


def parts(groups, rows, columns, size):
    """(buffers of a group, columns of each) for C of elements of ``size`` bytes: two buffers where there is room."""
    width = columns
    while 2 * groups * rows * width * size > _C_BYTES and width * size > 128:
        width //= 2
    return (2 if width < columns and 2 * groups * rows * width * size <= _C_BYTES else 1), width
