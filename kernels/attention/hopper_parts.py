"""Blocks of heads' rows in one part or in two, of which the second has fewer columns: operands, products and sums.

A head is computed in 64, 128 or 256 columns.  One that fills up little more than half of them is in two parts: its left
half, and RIGHT columns behind that; with RIGHT 0 it is in one.  Sums are a tuple of one part or two.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait


def right_of(head_dim):
    """Columns of a head's second part, 0 of one in one part; the first one has half of the columns."""
    if 64 < head_dim <= 96:
        return 16 if head_dim <= 80 else 32
    return 0 if head_dim <= 128 else 64 if head_dim <= 192 else 128


@gluon.jit
def columns_of(smem, first: gl.constexpr, columns: gl.constexpr):
    """So many columns of a block of a head's rows in shared memory, [rows, columns].

    ``first`` is a multiple of ``columns``, or, of fewer than the 64 that lie together, of 64.
    """
    rows: gl.constexpr = smem.shape[len(smem.shape) - 2]
    together: gl.constexpr = columns if columns > 64 else 64
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([rows, together], smem.dtype)
    parts = smem._reinterpret(smem.dtype, [smem.shape[len(smem.shape) - 1] // together, rows, together], layout)
    part = parts.index(first // together)
    if columns < together:
        part = part.slice(0, columns, dim=1)
    return part


@gluon.jit
def half_of(smem, half: gl.constexpr, RIGHT: gl.constexpr):
    """One of the two parts of a block of a head's rows in shared memory: its left half, or RIGHT columns behind it."""
    left: gl.constexpr = smem.shape[len(smem.shape) - 1] // 2
    return columns_of(smem, half * left, RIGHT if half == 1 else left)


@gluon.jit
def parts_of(block, RIGHT: gl.constexpr):
    """A block of a head's rows in shared memory as one part, or, if RIGHT is not 0, as the two of :func:`half_of`."""
    if RIGHT == 0:
        parts = (block.reshape([block.shape[len(block.shape) - 2], block.shape[len(block.shape) - 1]]),)
    else:
        parts = (half_of(block, 0, RIGHT), half_of(block, 1, RIGHT))
    return parts


@gluon.jit
def operands_of(block, layout: gl.constexpr, RIGHT: gl.constexpr, REGISTERS: gl.constexpr):
    """:func:`parts_of` as the left operands of products with that layout: where they are, or in registers."""
    parts = parts_of(block, RIGHT)
    if REGISTERS:
        operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
        left = parts[0].load(operand)
        parts = (left,) if RIGHT == 0 else (left, parts[1].load(operand))
    return parts


@gluon.jit
def begin_products(operands, b, zeros, RIGHT: gl.constexpr):
    """Begin A B^T of :func:`operands_of` A with a block of a head's rows in shared memory."""
    if RIGHT == 0:
        right = b.reshape([b.shape[len(b.shape) - 2], b.shape[len(b.shape) - 1]]).permute((1, 0))
        s = warpgroup_mma(operands[0], right, zeros, use_acc=False, is_async=True)
    else:
        s = zeros
        for part in gl.static_range(2):
            right = half_of(b, part, RIGHT).permute((1, 0))
            s = warpgroup_mma(operands[part], right, s, use_acc=part > 0, is_async=True)
    return s


@gluon.jit
def halves_of(x):
    """The left and the right columns of a block of sums; every thread has its own already."""
    rows: gl.constexpr = x.shape[0]
    columns: gl.constexpr = x.shape[1] // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    left, right = x.reshape([rows, 2, columns]).permute((0, 2, 1)).split()
    return gl.convert_layout(left, layout), gl.convert_layout(right, layout)


@gluon.jit
def no_sums(ROWS: gl.constexpr, D: gl.constexpr, RIGHT: gl.constexpr):
    """Sums of so many rows, all 0: of a head's D columns, or of the two parts of them."""
    columns: gl.constexpr = D if RIGHT == 0 else D // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    sums = (gl.zeros([ROWS, columns], gl.float32, layout),)
    if RIGHT > 0:
        right: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, RIGHT, 16])
        sums = (sums[0], gl.zeros([ROWS, RIGHT], gl.float32, right))
    return sums


@gluon.jit
def add_products(sums, operand, block, RIGHT: gl.constexpr):
    """Begin to add the product of an operand in registers with a block of a head's rows to sums."""
    parts = parts_of(block, RIGHT)
    if RIGHT == 0:
        added = (warpgroup_mma(operand, parts[0], sums[0], is_async=True),)
    else:
        left = warpgroup_mma(operand, parts[0], sums[0], is_async=True)
        added = (left, warpgroup_mma(operand, parts[1], sums[1], is_async=True))
    return added


@gluon.jit
def wait_for_sums(pending: gl.constexpr, sums, operand, RIGHT: gl.constexpr):
    """(sums, operand) once no more than ``pending`` products that were begun after theirs are under way."""
    if RIGHT == 0:
        left, operand = warpgroup_mma_wait(pending, deps=[sums[0], operand])
        done = (left,)
    else:
        left, right, operand = warpgroup_mma_wait(pending, deps=[sums[0], sums[1], operand])
        done = (left, right)
    return done, operand


@gluon.jit
def scaled_rows(sums, factor, RIGHT: gl.constexpr):
    """Sums with each row multiplied by its factor."""
    left = sums[0] * gl.convert_layout(factor, gl.SliceLayout(1, sums[0].type.layout))[:, None]
    scaled = (left,)
    if RIGHT > 0:
        scaled = (left, sums[1] * gl.convert_layout(factor, gl.SliceLayout(1, sums[1].type.layout))[:, None])
    return scaled


@gluon.jit
def store_sums(sums, smem, scale, RIGHT: gl.constexpr):
    """Write sums times ``scale`` to shared memory, where a block of a head's rows lies."""
    parts = parts_of(smem, RIGHT)
    for part in gl.static_range(1 if RIGHT == 0 else 2):
        parts[part].store((sums[part] * scale).to(smem.dtype))


@gluon.jit
def send_sums(sums, desc, smem, scale, place, heads, first, RIGHT: gl.constexpr):
    """Write sums times ``scale`` to head ``place`` of a tensor, from row ``first`` on, by way of shared memory.

    Where that is for one part alone, the two leave one after the other.  It is free again behind this.
    """
    APART: gl.constexpr = RIGHT > 0 and smem.shape[3] == sums[0].shape[1]
    for part in gl.static_range(2 if APART else 1):
        if APART:
            columns_of(smem, 0, sums[part].shape[1]).store((sums[part] * scale).to(smem.dtype))
        else:
            store_sums(sums, smem, scale, RIGHT)
        fence_async_shared()
        corner = [place // heads, place % heads, first, part * smem.shape[3]]
        tma.async_copy_shared_to_global(desc, corner, smem)
        tma.store_wait(0)


@gluon.jit
def write_sums(sums, scale, sums_ptr, head, first, len_k, D: gl.constexpr, RIGHT: gl.constexpr):
    """Write sums times ``scale`` to memory, a head's from row ``first`` on, as :func:`.parts.sums_for` lies."""
    _write_part(sums[0] * scale, sums_ptr, head, first, len_k, D, 0)
    if RIGHT > 0:
        _write_part(sums[1] * scale, sums_ptr, head, first, len_k, D, sums[0].shape[1])


@gluon.jit
def _write_part(x, sums_ptr, head, first, len_k, width: gl.constexpr, column: gl.constexpr):
    """Write a block of one head's dK, or dV, from key ``first`` and ``column`` on."""
    rows = first + gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, x.type.layout))
    columns = column + gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, x.type.layout))
    sums_ptr += head.to(gl.int64) * len_k * width
    gl.store(sums_ptr + rows.to(gl.int64)[:, None] * width + columns[None, :], x, mask=(rows < len_k)[:, None])
