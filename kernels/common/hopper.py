"""What kernels of products in Gluon share, for Hopper (sm_90): the order of tiles, and descriptors of blocks for wgmma.

Importing Gluon takes 0.2 s, so this is imported by files that are imported when a kernel of theirs is first launched.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_DTYPES = {
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.float8_e5m2: gl.float8e5,
    torch.int8: gl.int8,
    torch.int32: gl.int32,
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float32: gl.float32,
}


@gluon.jit
def tile_of(position, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr):
    """(first row, first column) of the tile at ``position``; the order goes down GROUP_M rows of tiles first."""
    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_of_band = GROUP_M * gl.cdiv(N, BLOCK_N)
    first_m = (position // tiles_of_band) * GROUP_M
    rows = gl.minimum(tiles_m - first_m, GROUP_M)
    within = position % tiles_of_band
    return (first_m + within % rows) * BLOCK_M, within // rows * BLOCK_N


@gluon.jit
def whole_tiles(M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CUT: gl.constexpr):
    """Tiles that are not cut: all, or as many as there are full rounds of programs."""
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    if CUT > 1:
        tiles = tiles // gl.num_programs(0) * gl.num_programs(0)
    return tiles


@gluon.jit
def part_of_tile(
    whole, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, CUT: gl.constexpr
):  # fmt: skip
    """(first row, first column, whether there is one) of this program's part of a tile that is cut."""
    position = whole + gl.program_id(0) // CUT
    m, n = tile_of(position, M, N, BLOCK_M, BLOCK_N, GROUP_M)
    n += gl.program_id(0) % CUT * (BLOCK_N // CUT)
    return m, n, (position < gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N)) & (n < N)


def described(matrix, rows, columns):
    """The descriptor of blocks of a matrix, in shared memory as wgmma wants them; None of None."""
    if matrix is None:
        return None
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], _DTYPES[matrix.dtype])
    return TensorDescriptor.from_tensor(matrix, [rows, columns], layout)


def described_batch(matrices, rows, columns):
    """The descriptor of blocks of one of ``matrices`` [batch, m, n], which lie by rows.

    A single matrix has a stride that is possible, though it is never used.
    """
    block = [1, rows, columns]
    layout = gl.NVMMASharedLayout.get_default_for(block, _DTYPES[matrices.dtype])
    return TensorDescriptor.from_tensor(matrices if matrices.shape[0] > 1 else matrices[0][None], block, layout)
