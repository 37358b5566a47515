"""`naive` and `tiled`: one program a tile, operands read through pointers, in whatever strides they have."""

import torch
import triton
import triton.language as tl
from atlas.declaration.products import as_interpreted
from atlas.operators import launch

from kernels.common.products import precision_of_product
from kernels.common.tiles import grouped_tile, multiply_tile, store_tile


@triton.jit
def naive_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of C; programs follow one another along the rows of tiles."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile_m = tl.program_id(0) // tiles_n
    tile_n = tl.program_id(0) % tiles_n
    acc = multiply_tile(
        a_ptr, b_ptr, tile_m, tile_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION, "", "",
    )  # fmt: skip
    store_tile(c_ptr, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


@triton.jit
def tiled_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program owns one tile of C; programs that run together own neighbouring tiles (see ``grouped_tile``)."""
    # A loop that may not run gives the accumulator two origins, and ptxas (of Triton 3.6; operands along K) then has
    # every wgmma wait for the one before: 0.72 of cuBLAS (4096 each way, H200).
    tl.assume(K > 0)
    tile_m, tile_n = grouped_tile(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    acc = multiply_tile(
        a_ptr, b_ptr, tile_m, tile_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K, PRECISION, "", "",
    )  # fmt: skip
    store_tile(c_ptr, acc, tile_m, tile_n, M, N, BLOCK_M, BLOCK_N)


def launch_pointers(kernel, a, b, tf32=False, *, config):
    """Launch a kernel that reads through pointers: one program a tile, A and B in whatever strides they have."""
    (m, k), n = a.shape, b.shape[1]
    c = empty_product(a, b)
    a, b = as_interpreted(a), as_interpreted(b)
    if not k:
        return c.zero_()
    if c.numel():
        even_k = k % config["BLOCK_K"] == 0  # no mask in the loop, whatever the architecture's copies make of it
        launch(
            kernel, (tiles_of(c, config),), a, b, c, m, n, k, *a.stride(), *b.stride(),
            EVEN_K=even_k, PRECISION=precision_of_product(a, tf32), **config,
        )  # fmt: skip
    return c


def empty_product(a, b):
    return torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)


def tiles_of(c, config):
    return triton.cdiv(c.shape[0], config["BLOCK_M"]) * triton.cdiv(c.shape[1], config["BLOCK_N"])
