"""What kernels of products share on the device: the order of tiles, the sum of one, its store; a transposed copy."""

import torch
import triton
import triton.language as tl
from atlas.operators import launch


@triton.jit
def grouped_tile(position, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The tile at ``position`` of an order that goes down GROUP_M rows of tiles before it takes the next column.

    The programs that run at one time then cover a block of tiles that is nearly square: of all shapes of that many
    tiles it reads the fewest rows of A and columns of B, and those stay in L2.
    """
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_of_group = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = (position // tiles_of_group) * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    within = position % tiles_of_group
    return first_m + within % rows, within // rows


@triton.jit
def multiply_tile(
    a_ptr, b_ptr, tile_m, tile_n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr, PRECISION: tl.constexpr,
    A_POLICY: tl.constexpr, B_POLICY: tl.constexpr,
):  # fmt: skip
    """The fp32 accumulator of the tile (tile_m, tile_n) of C: BLOCK_M x BLOCK_N, from all of K.

    A_POLICY and B_POLICY are eviction policies of what is read, for loads into registers: others cannot have one.
    """
    # Rows past M and columns past N wrap around to valid ones: the loop needs no mask for them, and they are not
    # stored.  A remainder of a multiple of 16 keeps 16 neighbours adjacent, which is all that a 16-byte load needs;
    # no hint is given, because for other sizes it would be untrue.
    offs_m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    offs_n = ((tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k.to(tl.int64)[:, None] * stride_bk + offs_n[None, :] * stride_bn
    # A stride of 16 M elements times BLOCK_K = 128 passes 2^31.
    block_k = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a = tl.load(a_ptrs, eviction_policy=A_POLICY)
            b = tl.load(b_ptrs, eviction_policy=B_POLICY)
        else:  # 0 past K: adds nothing to the sum
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0, eviction_policy=A_POLICY)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0, eviction_policy=B_POLICY)
        if PRECISION == "tf32":
            a, b = to_tf32(a), to_tf32(b)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += block_k * stride_ak
        b_ptrs += block_k * stride_bk
    return acc


@triton.jit
def to_tf32(x):
    """fp32 rounded to the nearest number of tf32; tensor cores by themselves ignore the bits that are too many."""
    return tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def store_tile(c_ptr, acc, tile_m, tile_n, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rounds the accumulator to C's dtype and writes the part inside C, which is contiguous."""
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


@triton.jit
def _transpose_kernel(x_ptr, out_ptr, M, N, stride_xb, stride_xm, BLOCK: tl.constexpr):
    """out[b, n, m] = x[b, m, n], both by rows: a program owns a block of BLOCK x BLOCK elements of one matrix."""
    blocks_n = tl.cdiv(N, BLOCK)
    blocks = tl.cdiv(M, BLOCK) * blocks_n
    batch, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    x_ptr += batch * stride_xb
    out_ptr += batch * M * N
    offs_m = block // blocks_n * BLOCK + tl.arange(0, BLOCK)
    offs_n = block % blocks_n * BLOCK + tl.arange(0, BLOCK)
    x_ptrs = x_ptr + offs_m.to(tl.int64)[:, None] * stride_xm + offs_n[None, :]
    x = tl.load(x_ptrs, mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))
    out_ptrs = out_ptr + offs_n.to(tl.int64)[:, None] * M + offs_m[None, :]
    tl.store(out_ptrs, tl.trans(x), mask=(offs_n[:, None] < N) & (offs_m[None, :] < M))


def turned(x):
    """A copy of x [b, m, n], matrices by rows, that lies by columns."""
    batch, m, n = x.shape
    out = torch.empty((batch, n, m), dtype=x.dtype, device=x.device)
    blocks = batch * triton.cdiv(m, 64) * triton.cdiv(n, 64)
    launch(_transpose_kernel, (blocks,), x, out, m, n, x.stride(0), x.stride(1), BLOCK=64, num_warps=8)
    return out.transpose(1, 2)
