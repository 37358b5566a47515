"""`tiled`: one program a tile of one product, operands read through pointers, in whatever strides they have."""

import torch
import triton
import triton.language as tl
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from kernels.common.batches import by_columns, rows_of
from kernels.common.products import precision_of_product
from kernels.common.tiles import grouped_tile, multiply_tile, store_tile, turned


@triton.jit
def _tiled_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program p owns one tile of one product; those of the first come first, in the order of ``grouped_tile``."""
    tl.assume(K > 0)  # see ``tiled_kernel`` in kernels/matmul/tiled.py
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile_m, tile_n = grouped_tile(tl.program_id(0) % tiles, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    acc = multiply_tile(
        a_ptr + batch * stride_ab, b_ptr + batch * stride_bb, tile_m, tile_n, M, N, K,
        stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION, "", "",
    )  # fmt: skip
    store_tile(c_ptr + batch * M * N, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


def launch_tiled(a, b, tf32=False, *, config):
    """Launch ``_tiled_kernel``: one program a tile, A and B in whatever strides they have.

    B of fp32 is turned first where it lies by columns: threads would read it along k from one bank of shared memory
    (96 of 1024, 64, 197 NT: 94 us for 235 on an H200).
    """
    c, k = empty_products(a, b), a.shape[2]
    precision = precision_of_product(a, tf32)
    a, b = as_interpreted(a), as_interpreted(b)
    if not k:
        return c.zero_()
    if c.numel():
        if precision == "ieee" and b.dtype == torch.float32 and c.shape[1] >= 64 and by_columns(b) and b.stride(1) == 1:
            memory = rows_of(b)
            b = turned(memory).transpose(1, 2).expand(b.shape)
        launch(
            _tiled_kernel, (tiles_of(c, config),), a, b, c, *c.shape[1:], k, *a.stride(), *b.stride(),
            EVEN_K=k % config["BLOCK_K"] == 0, PRECISION=precision, **config,
        )  # fmt: skip
    return c


def empty_products(a, b):
    """C [b, m, n], not written."""
    return torch.empty((a.shape[0], a.shape[1], b.shape[2]), dtype=a.dtype, device=a.device)


def tiles_of(c, config):
    """How many tiles all products have."""
    batch, m, n = c.shape
    return batch * triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"])
