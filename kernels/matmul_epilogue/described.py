"""Variants whose blocks the copy engine (TMA) moves: `descriptor`, `persistent`, and the launchers of those in Gluon.

Gluon takes 0.2 s to import, so its kernels are imported when one of them is first launched.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.products import as_interpreted, describable, fp32_precision
from atlas.operators import launch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.padded import padded
from kernels.common.parts import count_of_parts, empty_parts
from kernels.common.tiles import grouped_tile
from kernels.matmul.described import along_k

from .spaces import SPACE
from .split import finish_parts
from .tiled import accurate, activated, launch_tiled, outputs


@triton.jit
def _multiply_blocks(
    x_desc, w_desc, m, n, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The fp32 accumulator of the tile whose first element is (m, n); what lies outside x and W is read as 0."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        acc = tl.dot(x_desc.load([m, k]), w_desc.load([n, k]).T, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _finish(
    acc, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n, N,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The epilogue of a block of the accumulator, COLUMNS wide, whose first element is (m, n) of y."""
    z = acc * scale
    if bias_ptr is not None:
        offs_n = n + tl.arange(0, COLUMNS)
        z += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    if z_desc is not None:
        z_desc.store([m, n], z.to(z_desc.dtype))
    y = activated(z, ACTIVATION, ACCURATE)
    if residual_desc is not None:
        y += residual_desc.load([m, n]).to(tl.float32)
    y_desc.store([m, n], y.to(y_desc.dtype))


@triton.jit
def descriptor_kernel(
    x_desc, w_desc, bias_ptr, residual_desc, y_desc, z_desc, scale, M, N, K,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of y, as in ``_tiled_kernel``; the copy engine moves whole blocks."""
    tl.assume(K > 0)  # see ``tiled_kernel`` in kernels/matmul/tiled.py
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    acc = _multiply_blocks(x_desc, w_desc, m, n, K, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
    _finish(acc, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n, N, ACTIVATION, ACCURATE, BLOCK_N)


@triton.jit
def _halves(block, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The left and the right half of a block."""
    return tl.split(tl.permute(tl.reshape(block, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit
def persistent_kernel(
    x_desc, w_desc, bias_ptr, residual_desc, y_desc, z_desc, scale, M, N, K,
    ACTIVATION: tl.constexpr, ACCURATE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, PARTS: tl.constexpr, PROGRAMS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A program takes every PROGRAMS-th tile; its loops are one, so blocks of the next tile load during an epilogue.

    The epilogue goes through the accumulator in PARTS, so that what it stores takes less of the shared memory.
    """
    finished = (
        tl.program_id(0) - PROGRAMS
    )  # counted apart: the epilogue's tile then hangs on nothing that is prefetched
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for position in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        tile_m, tile_n = grouped_tile(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        acc = _multiply_blocks(
            x_desc, w_desc, tile_m * BLOCK_M, tile_n * BLOCK_N, K, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION
        )
        finished += PROGRAMS
        tile_m, tile_n = grouped_tile(finished, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        if PARTS == 1:
            _finish(acc, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n, N, ACTIVATION, ACCURATE, BLOCK_N)
        else:
            left, right = _halves(acc, BLOCK_M, BLOCK_N)
            half: tl.constexpr = BLOCK_N // 2
            _finish(left, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n, N, ACTIVATION, ACCURATE, half)
            _finish(right, bias_ptr, residual_desc, y_desc, z_desc, scale, m, n + half, N, ACTIVATION, ACCURATE, half)


def launch_blocks(
    kernel, x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """The same by a kernel that takes descriptors; operands that none can describe are read through pointers."""
    (m, k), n = x.shape, weight.shape[0]
    y, z = outputs(x, weight, out_dtype, keep)
    if not _transfers(x, weight, y, y if residual is None else residual):
        return launch_tiled(x, weight, bias, residual, activation, scale, out_dtype, keep, config=config)
    x, weight = as_interpreted(x), as_interpreted(weight)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    tiles = triton.cdiv(m, rows) * triton.cdiv(n, columns)
    programs = min(tiles, gpu_of(x.device).sms) if "PARTS" in config else tiles
    of_y = [rows, columns // config.get("PARTS", 1)]
    launch(
        kernel, (programs,),
        TensorDescriptor.from_tensor(x, [rows, block_k]), TensorDescriptor.from_tensor(weight, [columns, block_k]),
        bias, _described(residual, of_y), _described(y, of_y), _described(z, of_y), scale, m, n, k,
        ACTIVATION=activation, ACCURATE=accurate(y), PRECISION=fp32_precision(), **config,
        **({"PROGRAMS": programs} if "PARTS" in config else {}),
    )  # fmt: skip
    return (y, z) if keep else y


def launch_specialized(
    alternate, x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """The same by warps of two kinds; operands by columns, or off 16 bytes, are copied first.

    What does not fit it goes through pointers: fp32 results, mixed dtypes, a residual off 16 bytes.
    """
    from .hopper import specialized

    y, z = outputs(x, weight, out_dtype, keep)
    same = x.dtype == weight.dtype == y.dtype != torch.float32
    if not same or (residual is not None and not _transfers(y, residual)):
        plain = dict(zip(SPACE, (128, config["BLOCK_N"], 64, config["GROUP_M"], 8, 3), strict=True))
        return launch_tiled(x, weight, bias, residual, activation, scale, out_dtype, keep, config=plain)
    x, weight = (padded(along_k(matrix.t()).t()) for matrix in (x, weight))
    specialized(
        x, weight, bias, residual, y, z, activation, scale,
        config=config, programs=gpu_of(x.device).sms, alternate=alternate,
    )  # fmt: skip
    return (y, z) if keep else y


def launch_swizzled(
    x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """The same of fp32 by FMA in Gluon, K in parts where tiles are few; other dtypes are read through pointers."""
    from kernels.matmul.hopper_fp32 import product

    if x.dtype != torch.float32:
        plain = dict(zip(SPACE, (64, 64, 16, config["GROUP_M"], 4, 2), strict=True))
        return launch_tiled(x, weight, bias, residual, activation, scale, out_dtype, keep, config=plain)
    y, z = outputs(x, weight, out_dtype, keep)
    count = count_of_parts(x.shape[1], config)
    x, w = padded(x), padded(weight.t())
    if count == 1:
        product(x, w, y, bias=bias, residual=residual, z=z, activation=activation, scale=scale, config=config)
    else:
        parts = empty_parts(y, count)
        product(x, w, parts, config=config)
        finish_parts(parts, bias, residual, y, z, activation, scale)
    return (y, z) if keep else y


def launch_bf16x6(
    x, weight, bias=None, residual=None, activation="none", scale=1.0, out_dtype=None, keep=False, *, config
):  # fmt: skip
    """The same of fp32 on tensor cores in Gluon, its epilogue in a second kernel; other dtypes through pointers."""
    from kernels.matmul.hopper_bf16x6 import products

    if x.dtype != torch.float32:
        plain = dict(zip(SPACE, (64, 64, 16, config["GROUP_M"], 4, 2), strict=True))
        return launch_tiled(x, weight, bias, residual, activation, scale, out_dtype, keep, config=plain)
    y, z = outputs(x, weight, out_dtype, keep)
    parts = empty_parts(y, 1)
    products(x[None], weight.t()[None], parts, config=config, programs=gpu_of(x.device).sms)
    finish_parts(parts, bias, residual, y, z, activation, scale)
    return (y, z) if keep else y


def _described(matrix, block):
    return None if matrix is None else TensorDescriptor.from_tensor(matrix, block)


def _transfers(*matrices):
    """Whether the copy engine can move all of them; blocks of one dtype, as room in shared memory is planned for."""
    return all(matrix.dtype == matrices[0].dtype and describable(matrix) for matrix in matrices)
