"""`split_descriptor`, and the launcher of `swizzled`: blocks by the copy engine for any shape, K in parts.

A second kernel adds the parts up.  Operands whose rows are off 16 bytes are copied first.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration.products import as_interpreted, describable
from atlas.operators import launch
from triton.language.extra.cuda import gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.early import launch_early
from kernels.common.padded import padded
from kernels.common.parts import count_of_parts, empty_parts, part_of_k, sum_parts
from kernels.common.products import all_describable, by_columns, precision_of_product
from kernels.common.tiles import grouped_tile, store_tile

from .described import along_k, described_blocks, descriptor_of
from .spaces import SPACE
from .tiled import empty_product, launch_pointers, tiled_kernel, tiles_of


@triton.jit
def _split_descriptor_kernel(
    a_desc, b_desc, c_desc, parts_ptr, M, N, K, K_PART,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (tile, part) sums one tile over K_PART elements of K, at least one, and writes it to parts[part, M, N].

    Blocks come as in ``_descriptor_kernel``.  ``c_desc`` is of C, where there is one part and its rows are at whole
    16 bytes; else the tile is written through pointers.  EARLY: it waits here for copies of A and B.
    """
    if EARLY:
        gdc_wait()
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    start = tl.program_id(1) * K_PART
    end = tl.minimum(start + K_PART, K)
    tl.assume(start < end)  # see ``tiled_kernel``
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(start, end, BLOCK_K):
        a, b = described_blocks(a_desc, b_desc, m, n, k, A_BY_COLUMNS, B_BY_COLUMNS)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if c_desc is not None:
        c_desc.store([m, n], acc.to(c_desc.dtype))
    else:
        store_tile(parts_ptr + tl.program_id(1).to(tl.int64) * M * N, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


def launch_split_descriptor(a, b, tf32=False, *, config):
    """Launch the kernel, and the sum where there are several parts; operands off 16 bytes are copied first."""
    c = empty_product(a, b)
    if not a.shape[1]:
        return c.zero_()
    if c.numel():
        count = count_of_parts(a.shape[1], config)
        parts = c if count == 1 else empty_parts(c, count)
        multiply_in_parts(a, b, parts.view(count, *c.shape), tf32, config=config)
        if count > 1:
            sum_parts(parts, c)
    return c


def multiply_in_parts(a, b, parts, tf32, *, config):
    """Write products of parts of K into ``parts`` [count, m, n], which add up to A B; none of the sizes is 0."""
    (count, *shape), k = parts.shape, a.shape[1]
    copied = not all_describable(a, b)
    (a, b), precision = prepared(a, b, tf32)
    c_desc = None
    if count == 1 and describable(parts[0]):
        c_desc = TensorDescriptor.from_tensor(parts[0], [config["BLOCK_M"], config["BLOCK_N"]])
    _launch(
        copied, (tiles_of(parts[0], config), count), a.device, *blocks_of(a, b, precision, config),
        c_desc, parts, *shape, k, part_of_k(k, config["SPLITS"], config["BLOCK_K"]),
        A_BY_COLUMNS=by_columns(a), B_BY_COLUMNS=by_columns(b), PRECISION=precision,
        **{name: value for name, value in config.items() if name != "SPLITS"},
    )  # fmt: skip


def _launch(copied, grid, device, *args, **meta):
    """Launch ``_split_descriptor_kernel``, where operands were ``copied`` beside the copies."""
    if copied:
        launch_early(_split_descriptor_kernel, grid, device, *args, **meta)
    else:
        launch(_split_descriptor_kernel, grid, *args, **meta, EARLY=False)


def prepared(a, b, tf32):
    """A and B as descriptors can read them, copied where they must be, and the precision of their product."""
    precision = precision_of_product(a, tf32)
    if precision == "tf32":
        a, b = along_k(a.t()).t(), along_k(b)
    return (padded(as_interpreted(a)), padded(as_interpreted(b))), precision


def blocks_of(a, b, precision, config):
    """The descriptors of A's and of B's blocks."""
    return (
        descriptor_of(a, [config["BLOCK_M"], config["BLOCK_K"]], precision),
        descriptor_of(b, [config["BLOCK_K"], config["BLOCK_N"]], precision),
    )


def launch_swizzled(a, b, tf32=False, *, config):
    """Launch the kernel in Gluon for fp32, and the sum where there are several parts; else `tiled`."""
    from .hopper_fp32 import product

    c, k = empty_product(a, b), a.shape[1]
    if a.dtype != torch.float32 or not (c.numel() and k):
        return launch_pointers(tiled_kernel, a, b, tf32, config=dict(zip(SPACE, (64, 64, 32, 8, 4, 3), strict=True)))
    count = count_of_parts(k, config)
    parts = c if count == 1 else empty_parts(c, count)
    product(padded(a), padded(b), parts, config=config)
    return c if count == 1 else sum_parts(parts, c)
