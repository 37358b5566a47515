"""`split_descriptor`: blocks moved by the copy engine whatever the shape, K in parts where tiles of y are few."""

import triton
import triton.language as tl
from atlas.declaration.products import fp32_precision
from atlas.operators import launch
from triton.language.extra.cuda import gdc_wait

from kernels.common.parts import count_of_parts, empty_parts, launch_after_parts
from kernels.common.products import by_columns
from kernels.common.tiles import grouped_tile
from kernels.matmul.described import described_blocks
from kernels.matmul.few_rows import multiply_few_rows
from kernels.matmul.split_described import blocks_of, multiply_in_parts, prepared
from kernels.matmul.split_spaces import SPLIT_DESCRIPTOR_SPACE
from kernels.matmul.staggered import multiply_staggered, parts_of_positions, reads_staggered
from kernels.matmul.thin import multiply_thin
from kernels.matmul.tiled import tiles_of

from .tiled import accurate, activated, finish_tile, outputs


@triton.jit
def _whole_kernel(
    x_desc, w_desc, bias_ptr, residual_ptr, y_ptr, z_ptr, scale, M, N, K,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, X_BY_COLUMNS: tl.constexpr, W_BY_COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of y and all of K; it writes through pointers, since rows of y may begin anywhere."""
    tl.assume(K > 0)  # see ``tiled_kernel`` in kernels/matmul/tiled.py
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x, w = described_blocks(x_desc, w_desc, m, n, k, X_BY_COLUMNS, W_BY_COLUMNS)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
    finish_tile(
        acc, bias_ptr, residual_ptr, y_ptr, z_ptr, scale, tile_m, tile_n, M, N, ACTIVATION, ACCURATE, BLOCK_M, BLOCK_N
    )  # fmt: skip


@triton.jit
def _finish_kernel(
    parts_ptr, bias_ptr, residual_ptr, y_ptr, z_ptr, scale, size, N,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The epilogue of the sum over parts[PARTS, M, N], in their order: each program BLOCK of ``size`` = M N elements.

    EARLY: it is launched while the kernel that writes the parts still runs, and waits for its end here.
    """
    if EARLY:
        gdc_wait()
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offs < size
    z = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.static_range(PARTS):
        z += tl.load(parts_ptr + offs, mask=inside, other=0.0)
        parts_ptr += size
    z *= scale
    if bias_ptr is not None:
        z += tl.load(bias_ptr + offs % N, mask=inside, other=0.0).to(tl.float32)
    if z_ptr is not None:
        tl.store(z_ptr + offs, z.to(z_ptr.dtype.element_ty), mask=inside)
    y = activated(z, ACTIVATION, ACCURATE)
    if residual_ptr is not None:
        y += tl.load(residual_ptr + offs, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + offs, y.to(y_ptr.dtype.element_ty), mask=inside)


def launch_split_descriptor(
    x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """y [m, n], and with ``keep`` (y, z); operands off 16 bytes are copied first."""
    y, z = outputs(x, weight, out_dtype, keep)
    (m, n), k = y.shape, x.shape[1]
    tf32, count = fp32_precision() == "tf32", count_of_parts(k, config)
    if count > 1:
        parts = empty_parts(y, count)
        multiply_in_parts(x, weight.t(), parts, tf32, config=config)
        finish_parts(parts, bias, residual, y, z, activation, scale)
        return (y, z) if keep else y
    (x, w), precision = prepared(x, weight.t(), tf32)
    launch(
        _whole_kernel, (tiles_of(y, config),), *blocks_of(x, w, precision, config),
        bias, residual, y, z, scale, m, n, k,
        X_BY_COLUMNS=by_columns(x), W_BY_COLUMNS=by_columns(w), PRECISION=precision,
        ACTIVATION=activation, ACCURATE=accurate(y),
        **{name: value for name, value in config.items() if name != "SPLITS"},
    )  # fmt: skip
    return (y, z) if keep else y


def launch_odd_rows(
    x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """y [m, n], and with ``keep`` (y, z); W is read where it lies."""
    y, z = outputs(x, weight, out_dtype, keep)
    parts = empty_parts(y, config["SPLITS"])
    multiply_thin(x, weight.t(), parts, config=config)
    finish_parts(parts, bias, residual, y, z, activation, scale)
    return (y, z) if keep else y


def launch_staggered(
    x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """y [m, n], and with ``keep`` (y, z); W is read where it lies, if at whole 16 bytes."""
    y, z = outputs(x, weight, out_dtype, keep)
    if not (y.numel() and x.shape[1] and reads_staggered(x, weight.t())):
        plain = dict(zip(SPLIT_DESCRIPTOR_SPACE, (16, 128, 128, 8, 1, 4, 5), strict=True))
        return launch_split_descriptor(x, weight, bias, residual, activation, scale, out_dtype, keep, config=plain)
    parts = empty_parts(y, parts_of_positions(x.shape[1], config))
    multiply_staggered(x, weight.t(), parts, config=config)
    finish_parts(parts, bias, residual, y, z, activation, scale)
    return (y, z) if keep else y


def launch_few_rows_by_fma(
    x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """y [m, n], and with ``keep`` (y, z), of fp32."""
    y, z = outputs(x, weight, out_dtype, keep)
    parts = empty_parts(y, count_of_parts(x.shape[1], config))
    multiply_few_rows(x, weight.t(), parts, config=config)
    finish_parts(parts, bias, residual, y, z, activation, scale)
    return (y, z) if keep else y


def finish_parts(parts, bias, residual, y, z, activation, scale):
    """Write y (and z) [m, n] from ``parts`` [count, m, n] of the product."""
    launch_after_parts(
        _finish_kernel, parts, y, bias, residual, y, z, scale, y.numel(), y.shape[1],
        ACTIVATION=activation, ACCURATE=accurate(y),
    )  # fmt: skip
