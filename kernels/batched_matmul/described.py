"""The copy engine (TMA) moves blocks, of padded copies where rows are off 16 bytes: all variants but `tiled`."""

import functools

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.products import as_interpreted
from atlas.operators import launch
from atlas.operators.rounding import rounding_to_tf32
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.batches import along_k, by_columns, copyable, is_shared, padded_batches, rows_of
from kernels.common.products import LARGEST, precision_of_product
from kernels.common.tiles import grouped_tile, store_tile

from .spaces import SPACE
from .tiled import empty_products, launch_tiled, tiles_of


@triton.jit
def _load_block(desc, batch, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_COLUMNS: tl.constexpr):
    """ROWS x COLUMNS of matrix ``batch`` from (row, column) on; ``desc`` is of the transposes if ``BY_COLUMNS``."""
    if BY_COLUMNS:
        return desc.load([batch, column, row]).reshape(COLUMNS, ROWS).T
    return desc.load([batch, row, column]).reshape(ROWS, COLUMNS)


@triton.jit
def _write_tile(
    a_desc, b_desc, c_desc, c_ptr, position, tiles, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PARTS: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, A_SHARED: tl.constexpr, B_SHARED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Make the tile at ``position`` in the list of all products' tiles, of which each has ``tiles``.

    The descriptors have three dimensions, so that a tile at a product's edge is filled with zeros and not with the next
    product's elements.  That of a shared matrix has one matrix (A_SHARED, B_SHARED).  Where C has no descriptor, since
    its rows are off 16 bytes, tiles are written through ``c_ptr``.
    """
    batch = position // tiles
    tile_m, tile_n = grouped_tile(position % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    of_a = 0 if A_SHARED else batch
    of_b = 0 if B_SHARED else batch
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a = _load_block(a_desc, of_a, m, k, BLOCK_M, BLOCK_K, A_BY_COLUMNS)
        b = _load_block(b_desc, of_b, k, n, BLOCK_K, BLOCK_N, B_BY_COLUMNS)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    if c_desc is None:
        store_tile(c_ptr + batch.to(tl.int64) * M * N, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)
    elif PARTS == 1:
        c_desc.store([batch, m, n], acc.to(c_desc.dtype).reshape(1, BLOCK_M, BLOCK_N))
    else:  # halves of its columns: they leave room in shared memory for one more stage of A and B
        left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
        c_desc.store([batch, m, n], left.to(c_desc.dtype).reshape(1, BLOCK_M, BLOCK_N // 2))
        c_desc.store([batch, m, n + BLOCK_N // 2], right.to(c_desc.dtype).reshape(1, BLOCK_M, BLOCK_N // 2))


@triton.jit
def _persistent_kernel(
    a_desc, b_desc, c_desc, c_ptr, BATCH, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PARTS: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, A_SHARED: tl.constexpr, B_SHARED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program an SM takes every num_programs-th tile of all products; the copy engine moves blocks."""
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for position in tl.range(tl.program_id(0), tiles * BATCH, tl.num_programs(0), flatten=True):
        _write_tile(
            a_desc, b_desc, c_desc, c_ptr, position, tiles, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, PARTS,
            A_BY_COLUMNS, B_BY_COLUMNS, A_SHARED, B_SHARED, PRECISION,
        )  # fmt: skip


@triton.jit
def _direct_kernel(
    a_desc, b_desc, c_desc, c_ptr, BATCH, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PARTS: tl.constexpr,
    A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr, A_SHARED: tl.constexpr, B_SHARED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A program a tile, several on an SM: one writes while others load and multiply."""
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    _write_tile(
        a_desc, b_desc, c_desc, c_ptr, tl.program_id(0), tiles, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, PARTS,
        A_BY_COLUMNS, B_BY_COLUMNS, A_SHARED, B_SHARED, PRECISION,
    )  # fmt: skip


def launch_persistent(a, b, tf32=False, *, config):
    """Launch ``_persistent_kernel``; operands that no descriptor can describe are copied first."""
    return _launch(_persistent_kernel, gpu_of(a.device).sms, a, b, tf32, config)


def launch_direct(a, b, tf32=False, *, config):
    """Launch ``_direct_kernel``, of the same copies."""
    return _launch(_direct_kernel, LARGEST, a, b, tf32, {**config, "PARTS": 1})


def _launch(kernel, most, a, b, tf32, config):
    """C by ``kernel``: as many programs as all products have tiles, and no more than ``most``."""
    c, k = empty_products(a, b), a.shape[2]
    if not k:
        return c.zero_()
    if not c.numel():
        return c
    precision = precision_of_product(a, tf32)
    a, b = as_interpreted(a), as_interpreted(b)
    if precision == "tf32":
        a, b = along_k(a.transpose(1, 2)).transpose(1, 2), along_k(b)
    a, b = padded_batches(a, b)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    launch(
        kernel, (min(most, tiles_of(c, config)),),
        _describe(a, rows, block_k, precision), _describe(b, block_k, columns, precision),
        _describe(c, rows, columns // config["PARTS"]) if copyable(c) else None, c, *c.shape, k,
        A_BY_COLUMNS=by_columns(a), B_BY_COLUMNS=by_columns(b), A_SHARED=is_shared(a), B_SHARED=is_shared(b),
        PRECISION=precision, **config,
    )  # fmt: skip
    return c


def _describe(matrices, rows, columns, precision="ieee"):
    """The descriptor of blocks of ``rows`` x ``columns``, transposed where matrices are stored by columns."""
    block = [1, columns, rows] if by_columns(matrices) else [1, rows, columns]
    memory = rows_of(matrices)
    # The stride of a single matrix is never used, but it must be a possible one.
    apart = memory.stride(0) if memory.shape[0] > 1 else memory.shape[1] * memory.stride(1)
    descriptor = TensorDescriptor(memory, list(memory.shape), [apart, memory.stride(1), 1], block)
    return rounding_to_tf32(descriptor) if precision == "tf32" else descriptor


def launch_swizzled(a, b, tf32=False, *, config):
    """Launch the kernel in Gluon for fp32."""
    from kernels.matmul.hopper_fp32 import in_a_row, products

    def multiply(c):
        products(in_a_row(a), in_a_row(b.transpose(1, 2)).transpose(1, 2), c, config=config)

    return _by_gluon(multiply, a.dtype == torch.float32, a, b, tf32)


def launch_registers(a, b, tf32=False, *, config):
    """Launch the kernel in Gluon for tf32."""
    from kernels.matmul.hopper_tf32 import products

    multiply = functools.partial(products, a, b, config=config, programs=gpu_of(a.device).sms)
    return _by_gluon(multiply, precision_of_product(a, tf32) == "tf32", a, b, tf32)


def launch_bf16x6(a, b, tf32=False, *, config):
    """Launch the kernel in Gluon for fp32 on tensor cores."""
    from kernels.matmul.hopper_bf16x6 import products

    multiply = functools.partial(products, a, b, config=config, programs=gpu_of(a.device).sms)
    return _by_gluon(multiply, a.dtype == torch.float32, a, b, tf32)


def _by_gluon(multiply, takes, a, b, tf32):
    """C by ``multiply(c)`` where it ``takes`` the operands and there is something to add up; else by `tiled`."""
    c = empty_products(a, b)
    if not takes or not (c.numel() and a.shape[2]):
        return launch_tiled(a, b, tf32, config=dict(zip(SPACE, (64, 64, 16, 8, 4, 2), strict=True)))
    multiply(c)
    return c
