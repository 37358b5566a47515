"""`split_descriptor`: K in parts where C has few tiles, and a second kernel that adds them up and scales the sums."""

import torch
import triton
import triton.language as tl
from atlas.declaration import gpu_of
from atlas.declaration.products import describable
from atlas.operators import launch
from triton.language.extra.cuda import gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.common.parts import count_of_parts, part_of_k
from kernels.common.tiles import grouped_tile, store_tile

from .spaces import SPACE
from .tiled import accumulate, as_interpreted, constants_of, empty_product, launch_tiled, numbers, scaled


@triton.jit
def _parts_kernel(
    a_desc, b_desc, parts_ptr, M, N, K, K_PART,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ACC: tl.constexpr, PROMOTE: tl.constexpr,
):  # fmt: skip
    """Program (tile, part) sums one tile over K_PART elements of K and writes it to parts[part, M, N]."""
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    m, n = tile_m * BLOCK_M, tile_n * BLOCK_N
    start = tl.program_id(1) * K_PART
    acc = tl.zeros((BLOCK_M, BLOCK_N), ACC)
    for k in range(start, tl.minimum(start + K_PART, K), BLOCK_K):
        acc = accumulate(a_desc.load([m, k]), b_desc.load([n, k]).T, acc, PROMOTE)
    store_tile(parts_ptr + tl.program_id(1).to(tl.int64) * M * N, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


@triton.jit
def _finish_kernel(
    parts_ptr, c_ptr, scale_a_ptr, scale_b_ptr, bias_ptr, M, N,
    SCALES: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """c = scaled sums over parts[PARTS, M, N], in their order: each program BLOCK columns of a row.

    EARLY: it is launched while the kernel that writes the parts still runs, and waits for its end here.
    """
    number_a, number_b = numbers(scale_a_ptr, scale_b_ptr, SCALES)
    columns = tl.cdiv(N, BLOCK)
    row = tl.program_id(0) // columns
    offs_m, offs_n = row + tl.arange(0, 1), tl.program_id(0) % columns * BLOCK + tl.arange(0, BLOCK)
    mask = offs_n[None, :] < N
    at = offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    if EARLY:
        gdc_wait()
    acc = tl.zeros((1, BLOCK), parts_ptr.dtype.element_ty)
    for _ in tl.static_range(PARTS):
        acc += tl.load(parts_ptr + at, mask=mask, other=0)
        parts_ptr += M.to(tl.int64) * N
    c = scaled(acc, number_a, number_b, scale_a_ptr, scale_b_ptr, bias_ptr, offs_m, offs_n, M, N, SCALES)
    tl.store(c_ptr + at, c.to(c_ptr.dtype.element_ty), mask=mask)


def launch_split_descriptor(a, b, scale_a, scale_b, bias, fast, out_dtype=torch.bfloat16, *, config):
    """Launch both kernels; operands that no descriptor can describe are read through pointers instead."""
    (m, k), n = a.shape, b.shape[1]
    c = empty_product(a, b, scale_a, out_dtype)
    if not (c.numel() and k and describable(a) and describable(b.t())):
        return launch_tiled(a, b, scale_a, scale_b, bias, fast, out_dtype, config=_pointers(config))
    meta = constants_of(a, scale_a, fast, {name: value for name, value in config.items() if name != "SPLITS"})
    scales, integers = meta.pop("SCALES"), a.dtype == torch.int8
    a, b = as_interpreted(a), as_interpreted(b)
    rows, columns, block_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    count = count_of_parts(k, config)
    parts = torch.empty((count, m, n), dtype=torch.int32 if integers else torch.float32, device=c.device)
    launch(
        _parts_kernel, (triton.cdiv(m, rows) * triton.cdiv(n, columns), count),
        TensorDescriptor.from_tensor(a, [rows, block_k]), TensorDescriptor.from_tensor(b.t(), [columns, block_k]),
        parts, m, n, k, part_of_k(k, config["SPLITS"], block_k), **meta,
    )  # fmt: skip
    gpu = gpu_of(c.device)
    early = gpu.backend == "cuda" and int(gpu.arch) >= 90
    launch(
        _finish_kernel, (m * triton.cdiv(n, 512),), parts, c, scale_a, scale_b, bias, m, n,
        SCALES=scales, PARTS=count, BLOCK=512, EARLY=early, num_warps=4, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return c


def _pointers(config):
    """The part of a config that ``tiled`` has."""
    return {name: config[name] for name in SPACE}
