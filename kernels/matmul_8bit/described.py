"""Variants whose blocks the copy engine (TMA) moves: `descriptor`, `persistent`, and the launcher of those in Gluon.

Gluon takes 0.2 s to import, so its kernels are imported when one of them is first launched.
"""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.products import describable
from atlas.operators import launch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.tiles import grouped_tile

from .spaces import SPACE, parts_of_tile
from .tiled import (
    accumulate,
    as_interpreted,
    constants_of,
    empty_product,
    kind_of_scales,
    launch_tiled,
    numbers,
    scaled,
)


@triton.jit
def _store_parts(
    c_desc, acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n, M, N,
    BLOCK_N: tl.constexpr, PARTS: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """Scales and writes the tile at row m and column n in PARTS of its columns, one after the other.

    C waits in shared memory for the copy engine, beside the stages of A and B: parts leave these more room.
    """
    if PARTS > 1:
        HALF: tl.constexpr = BLOCK_N // 2
        left, right = acc.reshape(acc.shape[0], 2, HALF).permute(0, 2, 1).split()
        _store_parts(
            c_desc, left, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n, M, N,
            HALF, PARTS // 2, SCALES,
        )  # fmt: skip
        _store_parts(
            c_desc, right, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n + HALF, M, N,
            HALF, PARTS // 2, SCALES,
        )  # fmt: skip
    else:
        offs_m = m + tl.arange(0, acc.shape[0])
        offs_n = n + tl.arange(0, BLOCK_N)
        c = scaled(acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, offs_m, offs_n, M, N, SCALES)
        c_desc.store([m, n], c.to(c_desc.dtype))


@triton.jit
def descriptor_kernel(
    a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PARTS: tl.constexpr, ACC: tl.constexpr, PROMOTE: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of C, as in ``_tiled_kernel``; the copy engine moves whole blocks by their descriptors.

    No thread computes an address, and what lies outside a matrix is read as 0 and not written.
    """
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    number_a, number_b = numbers(scale_a_ptr, scale_b_ptr, SCALES)
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for k in range(0, K, BLOCK_K):
        acc = accumulate(a_desc.load([m, k]), b_desc.load([n, k]).T, acc, PROMOTE)
    _store_parts(
        c_desc, acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n, M, N, BLOCK_N, PARTS, SCALES
    )  # fmt: skip


@triton.jit
def persistent_kernel(
    a_desc, b_desc, c_desc, scale_a_ptr, scale_b_ptr, bias_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PARTS: tl.constexpr, ACC: tl.constexpr, PROMOTE: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """One program for each place on the GPU owns every so-many-th tile: it reads for the next while it writes one."""
    number_a, number_b = numbers(scale_a_ptr, scale_b_ptr, SCALES)
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for position in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = grouped_tile(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
        for k in range(0, K, BLOCK_K):
            acc = accumulate(a_desc.load([m, k]), b_desc.load([n, k]).T, acc, PROMOTE)
        _store_parts(
            c_desc, acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, m, n, M, N, BLOCK_N, PARTS, SCALES
        )  # fmt: skip


def launch_described(kernel, programs, a, b, scale_a, scale_b, bias, fast, out_dtype=torch.bfloat16, *, config):
    """Launch a kernel that reads through descriptors, on ``programs(gpu, config, tiles)`` programs.

    Operands that no descriptor can describe are read through pointers instead.
    """
    (m, k), n = a.shape, b.shape[1]
    c = empty_product(a, b, scale_a, out_dtype)
    if not (describable(a) and describable(b.t()) and describable(c)):
        return launch_tiled(a, b, scale_a, scale_b, bias, fast, out_dtype, config=config)
    meta = constants_of(a, scale_a, fast, config)
    a, b = as_interpreted(a), as_interpreted(b)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    tiles = triton.cdiv(m, rows) * triton.cdiv(n, columns)
    parts = parts_of_tile(rows * columns * c.element_size())
    launch(
        kernel, (programs(gpu_of(a.device), config, tiles),),
        TensorDescriptor.from_tensor(a, [rows, block_k]),
        TensorDescriptor.from_tensor(b.t(), [columns, block_k]),
        TensorDescriptor.from_tensor(c, [rows, columns // parts]),
        scale_a, scale_b, bias, m, n, k, PARTS=parts, **meta,
    )  # fmt: skip
    return c


def launch_specialized(a, b, scale_a, scale_b, bias, fast, out_dtype=torch.bfloat16, *, config):
    """The same by warps of two kinds; what the copy engine cannot read goes through pointers."""
    from .hopper import alternating, specialized

    c = empty_product(a, b, scale_a, out_dtype)
    if not (describable(a) and describable(b.t()) and describable(c)):
        plain = dict(zip(SPACE, (64, 128, 128, config["GROUP_M"], 4, 3), strict=True))
        return launch_tiled(a, b, scale_a, scale_b, bias, fast, out_dtype, config=plain)
    given = {"scales": kind_of_scales(scale_a), "config": config, "programs": gpu_of(a.device).sms}
    if "GROUPS" in config:
        specialized(
            a, b, c, scale_a, scale_b, bias, promote=a.dtype != torch.int8 and not fast, **given
        )  # fmt: skip
    else:
        alternating(a, b, c, scale_a, scale_b, bias, **given)
    return c


def resident_programs(gpu, config, tiles):
    """As many programs as run at one time: what shared memory leaves room for."""
    used = config["num_stages"] * (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"]
    return min(tiles, gpu.sms * max(1, min(2, gpu.shared_bytes // (used + 32768))))
